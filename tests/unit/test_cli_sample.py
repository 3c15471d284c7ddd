"""`ratchet sample`: the same text for a seed, the tokenizer beside the model, the sandbox, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import toy_training
from ratchet.cli import app
from ratchet.commands import sample
from ratchet.core.errors import InputError
from ratchet.data.tokenizer import Tokenizer
from ratchet.settings import settings
from ratchet.train.logits_server import load_experiment


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample") / "с пробелом ü"
    toy_training.make_project(root)
    toy_training.launch(root, root / "data/train")
    (root / "dvc.yaml").write_text("stages: {}\n")
    return root


@pytest.fixture
def project(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    settings.cache_clear()
    return made


def written(*arguments: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, ["sample", "the cat", "--tokens", "24", "--json", *arguments])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def seed_0(made: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        return written()


def greedy(project: Path, ids: list[int], count: int, context: int) -> list[int]:
    """What the arena itself says is most probable, one token after another."""
    experiment = load_experiment(project / "data/train/model", "cpu")
    for _ in range(count):
        ids = [*ids, int(experiment.logits(torch.tensor([ids[-context:]]))[0, -1].argmax())]
    return ids


def test_sample_is_the_same_for_a_seed_and_another_for_another(project: Path, seed_0: dict[str, Any]) -> None:
    first, other = (written("--seed", seed) for seed in ("0", "2"))
    assert first == seed_0
    assert first["ids"] != other["ids"]
    assert first["text"] == Tokenizer.load(project / "data/tokenizer").decode(first["ids"])


def test_sample_at_temperature_0_is_what_the_model_finds_most_probable_also_beyond_its_context(project: Path) -> None:
    tokenizer = Tokenizer.load(project / "data/tokenizer")
    start = [tokenizer.bos, *tokenizer.encode("the cat")]
    told = written("--temperature", "0")
    assert len(start) + len(told["ids"]) > toy_training.SEQUENCE_LEN, "too short to pass the context"
    assert told["ids"] == greedy(project, start, len(told["ids"]), toy_training.SEQUENCE_LEN)[len(start) :]


def test_sample_prints_prompt_and_text_and_says_which_sandbox_it_ran_in(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sample.sample("the cat", model=None, count=3, temperature=0.0, seed=0, as_json=False)
    said = capfd.readouterr()
    assert said.out.startswith("the cat")
    assert "sandbox: process, isolation weak" in said.err


def test_sample_of_a_fetched_model_takes_the_tokenizer_beside_it(
    project: Path, tmp_path: Path, seed_0: dict[str, Any]
) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(project / "data/train/model", folder)
    for name in ("tokenizer.json", "token_bytes.npy"):
        shutil.copy(project / "data/tokenizer" / name, folder / name)
    hidden = project / "data/tokenizer-hidden"
    (project / "data/tokenizer").rename(hidden)
    try:
        told = written("--model", str(folder))
    finally:
        hidden.rename(project / "data/tokenizer")
    assert told == seed_0


def test_sample_ends_before_the_next_document_and_never_chooses_padding_or_a_reserved_token(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bos = Tokenizer.load(project / "data/tokenizer").bos
    seen: list[torch.Tensor] = []

    def chosen(logits: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append(logits[0])
        return torch.tensor([[5, 6, bos, 7][len(seen) - 1]])

    monkeypatch.setattr(sample, "choose", chosen)
    told = written()
    assert (told["ids"], told["ended"]) == ([5, 6], True)
    assert all(torch.isinf(one[bos + 1 :]).tolist() == [True] * 3 for one in seen)
    assert all(torch.isfinite(one[: bos + 1]).all() for one in seen)


def test_sample_without_a_model_says_how_to_get_one(project: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^sample: .*nothing holds no arena.py; train one: .*`ratchet get model`$"):
        sample.sample("", model=tmp_path / "nothing", count=1, temperature=1.0, seed=0, as_json=False)


def test_sample_with_another_tokenizer_is_refused(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(project / "data/train/model", folder)
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps(spec | {"vocab_size": 999}))
    with pytest.raises(
        InputError, match=r"has 999 ids, the tokenizer in .* 300; use the tokenizer it was trained with"
    ):
        sample.sample("", model=folder, count=1, temperature=1.0, seed=0, as_json=False)


@pytest.mark.parametrize("text", ["{", "[]", '{"vocab_size": 300}'])
def test_sample_of_a_damaged_spec_is_one_line(project: Path, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(project / "data/train/model", folder)
    (folder / "spec.json").write_text(text)
    with pytest.raises(InputError, match=r"spec.json: describes no model .*; fetch or train it anew"):
        sample.sample("", model=folder, count=1, temperature=1.0, seed=0, as_json=False)


def test_harmless_text_cannot_steer_a_terminal() -> None:
    assert sample.harmless("naïve 🙂\n\ta\x1b[2J\x07\x9b") == "naïve 🙂\n\ta\\x1b[2J\\x07\\x9b"
