"""params.yaml: what is refused, with which words; merging; overrides; numbers as DVC reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from dvc.utils.serialize import load_yaml
from pydantic import Field

from ratchet import params
from ratchet.core.errors import InputError


class Horizon(params.Params):
    unit: Literal["steps", "tokens"] = "steps"
    value: float = Field(20, gt=0)


class Train(params.Params):
    seed: int = 1
    rate: float = 0.02
    compile: bool = False
    horizon: Horizon = Horizon()


class Needy(params.Params):
    corpus: str


def load(tmp_path: Path, text: str, model: type[params.Params] = Train) -> params.Params:
    path = tmp_path / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return params.load("train", model, path)


def test_load_fills_defaults_and_is_frozen(tmp_path: Path) -> None:
    for empty in ("train: {}", "train:"):
        assert load(tmp_path, empty) == Train()
    with pytest.raises(ValueError, match="frozen"):
        Train().seed = 2  # pyright: ignore[reportAttributeAccessIssue]


REFUSED = {
    "train: {sead: 2}": "unknown key 'train.sead'; did you mean 'seed'?",
    "train: {horizon: {vlaue: 2}}": "unknown key 'train.horizon.vlaue'; did you mean 'value'?",
    "train: {qqq: 2}": "unknown key 'train.qqq'; the keys here are compile, horizon, rate, seed",
    "train: {sead: 2, seed: x}": "(and 1 more)",
    "train: {seed: 1.5}": "train.seed = 1.5: input should be a valid integer",
    "train: {seed: '1'}": "train.seed = '1': input should be a valid integer",
    "train: {compile: 1}": "train.compile = 1: input should be a valid boolean",
    "train: {horizon: {value: 0}}": "train.horizon.value = 0: input should be greater than 0",
    "train: {horizon: {unit: stepz}}": "train.horizon.unit = 'stepz': input should be 'steps' or 'tokens'",
    "trian: {}": "has no section 'train'; did you mean 'trian'?",
    "other: {}": "has no section 'train'; add `train: {}`",
    "train: 3": "train = 3 is not a mapping",
    "train: [seed]": "train = ['seed'] is not a mapping",
    "- train": "holds a list, not a mapping",
    "train: {": "not YAML",
    "train: {seed: [" + "1, " * 99 + "]}": "...: input should be a valid integer",
}


def test_load_misspelt_key_that_is_required_is_told_as_the_typo_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown key 'train\.copus' \(and 1 more\); did you mean 'corpus'\?"):
        load(tmp_path, "train: {copus: x}", Needy)
    with pytest.raises(InputError, match=r"key 'train\.corpus' is missing; add it"):
        load(tmp_path, "train: {}", Needy)


@pytest.mark.parametrize("text", REFUSED)
def test_load_wrong_file_is_one_line_naming_file_key_value_and_remedy(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'params.yaml'}: ")
    assert REFUSED[text] in message
    assert "\n" not in message
    assert len(message) < 400


def test_load_missing_required_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"key 'train\.corpus' is missing; add it"):
        load(tmp_path, "train: {}", Needy)


def test_load_missing_file_and_file_that_is_not_utf8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        params.load("train", Train, tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes("train: {} # é".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8 at byte 12"):
        params.load("train", Train, tmp_path / "latin.yaml")


@pytest.mark.parametrize("number", ["1e-3", "1E5", "-2e+3", "1.5e3", ".5", "3", "0.02", "-7"])
def test_load_numbers_are_what_dvc_reads_in_the_same_file(number: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"train: {{rate: {number}}}")
    ours, theirs = params.read_document(path)["train"]["rate"], load_yaml(path)["train"]["rate"]
    assert (type(ours), ours) == (type(theirs), theirs)


@pytest.mark.parametrize("text", ["e5", "1e", "1e5x", "2026-01-01e3", "v1e5"])
def test_load_words_with_an_e_stay_words(text: str) -> None:
    assert params.parse_yaml(f"x: {text}") == {"x": text}


def test_merge_lays_mappings_key_by_key_and_replaces_the_rest_without_changing_either() -> None:
    base, over = {"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3]}, "d": {"e": 2}}
    assert params.merge(base, over) == {"a": {"b": 1, "c": [3]}, "d": {"e": 2}}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


OVERRIDES = {
    "train.seed=2": {"train": {"seed": 2}},
    "train.rate=1e-3": {"train": {"rate": 0.001}},
    "train.horizon.unit=tokens": {"train": {"horizon": {"unit": "tokens"}}},
    "train.compile=true": {"train": {"compile": True}},
    "train.name=": {"train": {"name": None}},
    "train.name='a=b'": {"train": {"name": "a=b"}},
    "prepare.texts=[a, b]": {"prepare": {"texts": ["a", "b"]}},
}


@pytest.mark.parametrize("text", OVERRIDES)
def test_parse_override_reads_the_value_as_yaml(text: str) -> None:
    assert params.parse_override(text) == OVERRIDES[text]


@pytest.mark.parametrize("text", ["train.seed", "=3", "train..seed=1", ".seed=1", "train.seed=[1", ""])
def test_parse_override_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="-S: "):
        params.parse_override(text)
