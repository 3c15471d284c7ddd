"""`dvc plots` finds every definition of dvc.yaml, for one state and between two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.params import read_document
from ratchet.report.plots import FILES
from toy_project import Toy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PLOTS = read_document(ROOT / "dvc.yaml")["plots"]
NAMES = {item if isinstance(item, str) else next(iter(item)) for item in PLOTS}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
    "0000000049454e44ae426082"
)


def make(toy: Toy, loss: float) -> None:
    """What the real stages leave, two steps of it."""
    toy.write("data/train/history.tsv", f"step\ttokens\tloss\tlr_scale\n1\t8\t{loss}\t1.0\n2\t16\t1.0\t0.5\n")
    toy.write("data/train/timing/steps.tsv", "step\tseconds\ttokens_per_s\n1\t1.0\t8.0\n2\t2.0\t8.0\n")
    (toy.root / "data/plot").mkdir(exist_ok=True)
    (toy.root / "data/plot/val_bpb.png").write_bytes(PIXEL + str(loss).encode())


def plots(toy: Toy, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "dvc", "plots", *arguments, "--json"]
    ran = subprocess.run(command, cwd=toy.root, env=toy.environment(), capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert not told.get("errors"), told
    assert "ERROR" not in ran.stderr
    assert "could not" not in ran.stderr
    return told["data"]


def test_dvc_plots_show_and_diff_have_every_definition(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "с пробелом ü", tmp_path / "home")
    with (toy.root / "dvc.yaml").open("a", encoding="utf-8") as file:
        file.write(yaml.safe_dump({"plots": PLOTS}))
    make(toy, 3.0)
    toy.commit()
    shown = plots(toy, "show")
    assert {name.removeprefix("dvc.yaml::") for name in shown} == NAMES
    assert all(shown.values()), shown
    make(toy, 2.0)
    compared = plots(toy, "diff", "HEAD")
    assert {name.removeprefix("dvc.yaml::") for name in compared} == NAMES
    assert all(compared.values()), compared


def test_pictures_among_the_plots_are_ones_that_the_stage_draws() -> None:
    pictures = {Path(name).name for name in NAMES if name.startswith("data/plot/")}
    assert pictures == {"val_bpb.png"}
    assert pictures <= set(FILES)
