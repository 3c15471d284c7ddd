"""Three loops of the real core at toy size, one of each kind: weights in blobs, code behind a gate, a document.

Every random number comes from names; every step reads only its state, the blobs of its checkpoint, and kept replies.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kill_points import write_in_two

from ratchet.core import atomic
from ratchet.core.budget import Budget
from ratchet.core.gate import Measured, Rule, decide
from ratchet.core.loop import Outcome
from ratchet.core.rundir import RunDirectory
from ratchet.core.seeds import Permutation, derive

State = dict[str, Any]
Step = Callable[[int, State], Outcome]


@dataclass(frozen=True)
class Toy:
    """A loop: its name, first state, how its steps are made for an open run, and its budget."""

    name: str
    initial: State
    step_for: Callable[[RunDirectory], Step]
    budget: Budget
    keep_best: int = 0


def weights(run: RunDirectory) -> Step:
    """Noisy descent of four weights that live in a blob; the row order is a keyed permutation; one blob is linked."""

    def step(seq: int, state: State) -> Outcome:
        values = array.array(
            "d", run.store.blob("weights").read_bytes() if seq else array.array("d", [1.0] * 4).tobytes()
        )
        row = Permutation(7, derive(3, "epoch", state["position"] // 7))[state["position"] % 7]
        noise = random.Random(derive(3, "step", seq))
        values = array.array("d", [value * 0.7 + 0.01 * row + noise.gauss(0, 0.1) for value in values])
        loss = sum(value * value for value in values)
        blobs = {"weights": partial(write_in_two, data=values.tobytes()), "frozen": partial(_frozen, run, seq)}
        return Outcome({"position": state["position"] + 1}, {"loss": loss, "row": row}, blobs, score=loss)

    return step


def _frozen(run: RunDirectory, seq: int, path: Path) -> None:
    if seq:
        path.hardlink_to(run.store.blob("frozen"))
    else:
        write_in_two(path, b"never changes" * 20)


def climb(run: RunDirectory) -> Step:
    """A hill climb to a score of exactly 0.0, decided by the real gate; one candidate crashes (NaN)."""
    rule = Rule(sd=0.01, seeds=5, paired=False)

    def step(seq: int, state: State) -> Outcome:
        generator = random.Random(derive(5, "candidate", seq))
        guess = state["x"] + generator.choice([-1, 1, 1])
        score = float("nan") if seq == 3 else float(abs(guess - 2))
        incumbent = None if state["best"] is None else Measured(score=state["best"])
        verdict = decide(rule, incumbent, Measured(score=score, confirmed=True))
        row = {"guess": guess, "score": None if verdict.decision == "crash" else score, "decision": verdict.decision}
        kept = {"x": guess, "best": score} if verdict.progress else {"x": state["x"], "best": state["best"]}
        return Outcome(kept | {"tried": [*state["tried"], guess]}, row)

    return step


def document(run: RunDirectory) -> Step:
    """Edits of a text; the replies of a step are kept as files before they are used; ends by its budget in tokens."""

    def step(seq: int, state: State) -> Outcome:
        replies = [_reply(run.path / f"reply-{seq}-{item}.json", seq, item) for item in range(2)]
        text = state["text"] + "é" + "".join(reply["text"] for reply in replies)
        row = {"tokens": sum(reply["tokens"] for reply in replies), "length": len(text)}
        blob = partial(write_in_two, data=text.encode())
        return Outcome({"text": text, "score": state["score"] * 1.0}, row, {"skill.md": blob})

    return step


def _reply(path: Path, seq: int, item: int) -> dict[str, Any]:
    if not path.exists():
        number = derive(9, "reply", seq, item)
        atomic.write_json(path, {"text": f"{number % 1000} ", "tokens": number % 10 + 5})
    return atomic.json.loads(path.read_text(encoding="utf-8"))


TOYS = {
    "weights": Toy("weights", {"position": 0}, weights, Budget(steps=4), keep_best=1),
    "climb": Toy("climb", {"x": 0, "best": None, "tried": []}, climb, Budget(steps=5)),
    "document": Toy("document", {"text": "", "score": 0.0}, document, Budget(tokens=60)),
}
