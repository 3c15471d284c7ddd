"""`ratchet sample`: text from a trained model. Its source may be an agent's, so it answers from a sandbox, as it does
to the judge; here is only the choice of the next token.

Refuses to know how a model is built.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratchet.commands.project import enter_project, print_json
from ratchet.core.errors import InputError
from ratchet.data.tokenizer import SPECIALS, Tokenizer
from ratchet.loops.team.sampling import Sampling, choose, uniforms
from ratchet.sandbox import choose as sandboxes
from ratchet.settings import settings
from ratchet.train.candidate import Candidate, Deadline, Question
from ratchet.train.claims import MODEL_FILES
from ratchet.train.device import resolve_device

MODEL, TOKENIZER = Path("data/train/model"), Path("data/tokenizer")
START_S, TOKEN_S = 120.0, 10.0
"""What loading, and each token, may take before the model is given up."""


def sample(prompt: str, *, model: Path | None, count: int, temperature: float, seed: int, as_json: bool) -> None:
    """Print `prompt` and up to `count` tokens after it, the same for the same arguments. Raises RatchetError."""
    model = None if model is None else model.absolute()
    project = enter_project()
    folder = model or project / MODEL
    tokenizer, context = _opened(folder, project)
    start = [tokenizer.bos, *tokenizer.encode(prompt)]
    ids: list[int] = []
    with _answering(folder, tokenizer.vocab_size, context, START_S + TOKEN_S * count) as candidate:
        for uniform in uniforms(seed, "sample", count=count):
            logits = _next_logits(candidate, [*start, *ids], tokenizer)
            token = int(choose(logits[None], torch.tensor([uniform]), Sampling(temperature))[0])
            if token == tokenizer.bos:  # the next document would begin
                break
            ids.append(token)
    text = tokenizer.decode(ids)
    if as_json:
        print_json({"prompt": prompt, "text": text, "ids": ids, "ended": len(ids) < count})
    else:
        print(harmless(prompt + text))


def harmless(text: str) -> str:
    """`text` with what could steer a terminal spelt out; line ends and tabs stay."""
    steering = {one for one in text if unicodedata.category(one)[0] == "C"} - {"\n", "\t"}
    return text.translate({ord(one): f"\\x{ord(one):02x}" for one in steering})


def _opened(folder: Path, project: Path) -> tuple[Tokenizer, int]:
    """The model's tokenizer, beside it or the project's, and its context in tokens. Raises InputError."""
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        do = "train one: `ratchet run --until train`, or fetch one: `ratchet get model`"
        raise InputError("sample", f"{folder} holds no {missing[0]}", do)
    try:
        spec: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        vocabulary, context = int(spec["vocab_size"]), int(spec["sequence_len"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(folder / "spec.json", f"describes no model ({error!r})", "fetch or train it anew") from None
    place = folder if (folder / "tokenizer.json").is_file() else project / TOKENIZER
    tokenizer = Tokenizer.load(place)
    if tokenizer.vocab_size != vocabulary:
        what = f"{folder} has {vocabulary} ids, the tokenizer in {place} {tokenizer.vocab_size}"
        raise InputError("sample", what, "use the tokenizer it was trained with: `ratchet get model` puts it beside")
    return tokenizer, context


@contextmanager
def _answering(folder: Path, vocabulary: int, context: int, limit_s: float) -> Iterator[Candidate]:
    """The model in its sandbox, loaded."""
    device = resolve_device(settings().device, settings().threads)
    candidate = Candidate(
        folder,
        Question(1, context, vocabulary),
        device=device.torch_name,
        threads=device.threads,
        deadline=Deadline(limit_s),
        sandbox=sandboxes.choose(settings(), device=device.torch_name),
    )
    with candidate:
        candidate.connect()
        candidate.wait_ready()
        yield candidate


def _next_logits(candidate: Candidate, ids: list[int], tokenizer: Tokenizer) -> torch.Tensor:
    """Float32 logits [V] after `ids`, of which the model sees the last that fit. Raises InputError: not finite.

    The row is always a whole context, as it is judged: what stands to the right of a token cannot matter.
    """
    context = candidate.question.length
    seen = ids[-context:]
    candidate.ask(np.array([seen + [tokenizer.pad] * (context - len(seen))]))
    place = len(seen) - 1
    found: torch.Tensor | None = None
    while candidate.open:
        for piece in candidate.pieces():
            if piece.first <= place < piece.first + piece.logits.size(0):
                found = piece.logits[place - piece.first].clone()
            candidate.free(piece)
    assert found is not None
    if not torch.isfinite(found).all():
        raise InputError("sample", "the model answers with numbers that are not finite", "train it anew")
    found[tokenizer.bos + 1 : tokenizer.bos + len(SPECIALS)] = -torch.inf  # never in a text
    return found
