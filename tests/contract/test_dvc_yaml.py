"""dvc.yaml tells the truth about the code, and params.yaml and the profiles fit the stages."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest

from ratchet import contract
from ratchet.params import load, read_document
from ratchet.tables import metrics

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = read_document(ROOT / "dvc.yaml")
STAGES = list(PIPELINE["stages"])


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Params are read relative to the project."""
    monkeypatch.chdir(ROOT)


def test_dvc_yaml_tells_the_truth() -> None:
    found = contract.lies(PIPELINE, ROOT)
    assert not found, "\n\n" + "\n\n".join(found) + "\n\nor type: make deps"


def test_every_step_is_a_stage_and_every_stage_a_step() -> None:
    assert set(STAGES) == {path.stem for path in (ROOT / "steps").glob("[!_]*.py")}


@pytest.mark.parametrize("profile", [None, *sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))])
def test_params_under_every_profile_fit_the_stages(profile: str | None) -> None:
    over = read_document(ROOT / f"profiles/{profile}.yaml") if profile else {}
    assert set(over) <= set(STAGES)
    assert not contract.wrong_params(ROOT / "params.yaml", STAGES, over)


def test_params_has_exactly_the_stages_sections() -> None:
    assert list(read_document(ROOT / "params.yaml")) == STAGES


def test_every_metrics_file_has_a_schema() -> None:
    written = [path for stage in STAGES for path in contract.truth(stage, ROOT).metrics]
    assert {Path(path).stem for path in written} == set(metrics.SCHEMAS)


def broken(stage: str, key: str, value: Any) -> dict[str, Any]:
    pipeline = copy.deepcopy(PIPELINE)
    pipeline["stages"][stage][key] = value
    return pipeline


@pytest.mark.parametrize(
    ("stage", "key", "change", "said"),
    [
        ("prepare", "deps", lambda deps: deps[1:], "prepare.deps lacks constraints.txt"),
        ("train", "deps", lambda deps: [d for d in deps if d != "ratchet/train/trainer.py"], "lacks ratchet/train/tra"),
        ("train", "deps", lambda deps: [*deps, "ratchet/cli.py"], "names ratchet/cli.py, which is none"),
        ("pack", "outs", lambda outs: outs[:-1], "pack.outs lacks "),
        ("pack", "metrics", lambda _: [], "pack.metrics lacks metrics/pack.json"),
        ("pack", "metrics", lambda _: ["metrics/pack.json"], "give it `cache: false`"),
        ("plot", "params", lambda _: ["train"], "plot.params is ['train']"),
        ("plot", "cmd", lambda _: "python plot.py", "plot.cmd is 'python plot.py'"),
    ],
)
def test_contract_a_lie_is_named_with_the_lines_to_paste(stage: str, key: str, change: Any, said: str) -> None:
    found = contract.lies(broken(stage, key, change(PIPELINE["stages"][stage].get(key))), ROOT)
    assert len(found) == 1
    assert said in found[0]
    assert f"{key}" in found[0]


def test_contract_counts_modules_that_are_started_by_name(tmp_path: Path) -> None:
    for name, text in {
        "steps/s.py": "import ratchet.a\n",
        "ratchet/a.py": 'COMMAND = ["python", "-m", "ratchet.child"]\n',
        "ratchet/child.py": "from ratchet import grandchild\n",
        "ratchet/grandchild.py": "",
        "ratchet/stranger.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = [path.relative_to(tmp_path).as_posix() for path in contract.code_of(tmp_path / "steps/s.py", tmp_path)]
    assert found == ["ratchet/a.py", "ratchet/child.py", "ratchet/grandchild.py", "steps/s.py"]


def test_write_mends_stale_deps_and_keeps_all_else() -> None:
    text = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    stale = text.replace("      - ratchet/params.py\n", "      - ratchet/gone.py\n")
    assert stale != text
    assert contract.with_true_deps(stale, ROOT) == text


def test_wrong_params_names_the_key_and_the_nearest(tmp_path: Path) -> None:
    found = contract.wrong_params(ROOT / "params.yaml", ["train"], {"train": {"sed": 2}})
    assert len(found) == 1
    assert "train.sed" in found[0]
    assert "'seed'" in found[0]


def test_stages_that_drive_sandboxes_or_ask_models_stay_out_of_containers() -> None:
    stages = [importlib.import_module(f"steps.{name}").STAGE for name in STAGES]
    outside = {stage.name for stage in stages if stage.needs(load(stage.name, stage.params)).outside}
    assert outside == {"evaluate", "iterate", "skill", "team"}
