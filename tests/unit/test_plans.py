"""What `ratchet run --dry-run` says each stage would do: from params.yaml alone, without training."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.commands import params_of, pipeline, plans
from ratchet.core.errors import InputError
from toy_project import PROJECT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """params.yaml, the arena, skills and team of the shipped project, as the working directory."""
    shutil.copy(PROJECT / "params.yaml", tmp_path / "params.yaml")
    for name in ("arena", "skills", "team"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(stage: str, *overrides: str) -> str:
    return plans.plan(stage, params_of.read(overrides)) or ""


@pytest.mark.parametrize(
    ("stage", "overrides", "said"),
    [
        ("prepare", (), "source package: the corpus wiki-leads-en"),
        ("prepare", ("prepare.val_share=0.1",), "10 % of the documents for validation"),
        ("prepare", ("prepare.source=huggingface",), "8 shards of karpathy/climbmix-400b-shuffle at main, shard 6542"),
        ("prepare", ("prepare.source=text", "prepare.text.folder=mine"), "source text: **/*.txt below mine"),
        ("prepare", ("prepare.source=parquet",), "column text of **/*.parquet below corpus"),
        ("tokenizer", ("tokenizer.vocab_size=4096",), "a vocabulary of 4,096 ids"),
        ("pack", (), "rows of 256 targets"),
        ("train", (), "horizon of 180 steps; 4,096 tokens a step, 737,280 in all"),
        ("train", ("train.knobs.ACCUMULATION=2", "pack.sequence_len=512"), "16,384 tokens a step"),
        ("train", ("train.horizon={unit: seconds, value: 300}",), "horizon of 300 seconds; 4,096 tokens a step; seed"),
        ("train", ("train.stop_at=90",), "paused at step 90"),
        ("evaluate", (), "the validation split, 4 rows at once"),
        ("iterate", (), "6 experiments, proposed by search, 1 at once; the baseline on 5 noise seeds"),
        ("iterate", ("iterate.hours=8", "iterate.money=2"), "6 experiments, or 8 hours, or 2 money, proposed"),
        ("iterate", ("iterate.proposer=llm", "iterate.llm.model=m"), "proposed by llm m"),
        ("skill", (), "2 steps an epoch × 2 epochs = 4 steps"),
        ("skill", ("skill.train_size=0",), "nobody is asked"),
        ("skill", ("skill.optimizer.model=m",), "optimizer: 16 calls at most"),
        ("team", (), "4 epochs of 95 items, 3,040 env steps; 2 agents of smollm2"),
        ("team", ("team.train_items=10", "team.num_generations=4"), "4 epochs of 10 items, 160 env steps"),
        ("plot", (), "PNGs of 1152 x 648 and report.html with the 1,000 hardest documents"),
        ("plot", ("plot.documents=0",), "every document"),
    ],
)
def test_plan_says_what_the_stage_would_do(project: Path, stage: str, overrides: tuple[str, ...], said: str) -> None:
    assert said in plan(stage, *overrides)


def test_every_stage_of_the_pipeline_has_a_plan_and_a_stranger_has_none(project: Path) -> None:
    import yaml

    stages = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
    assert set(plans.PLANS) == set(stages) == set(params_of.MODELS)
    assert plans.plan("mine", {}) is None
    for name, place in params_of.MODELS.items():
        assert importlib.import_module(f"steps.{name}").STAGE.params.__name__ == place.partition(":")[2]


@pytest.mark.parametrize(("mode", "turns", "actions"), [("aligned", 1, 4), ("cross", 1, 16), ("aligned", 3, 84)])
def test_joint_actions_branch_at_each_turn(mode: str, turns: int, actions: int) -> None:
    from ratchet.loops.team.parameters import TeamParams

    params = TeamParams.model_validate({"joint_mode": mode, "num_turns": turns, "num_generations": 4})
    assert plans.joint_actions(params) == actions


def test_arena_without_the_knobs_of_a_batch_is_left_to_say_so_itself(project: Path) -> None:
    Path("arena/train.py").write_text("DEPTH = 3\n")
    assert plan("train").startswith("horizon of 180 steps; the arena says how many tokens a step has")
    Path("arena/train.py").unlink()
    with pytest.raises(InputError, match="no such arena"):
        plan("train")


def test_dry_run_tells_every_plan_and_then_refuses_the_first_wrong_section(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("sequence_len: 256", "sequence_len: 1"))
    wrong = pipeline._print_sentences(["mine", "tokenizer", "pack", "plot"])
    assert isinstance(wrong, InputError)
    assert "pack.sequence_len = 1" in str(wrong)
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines() if line.startswith(("tok", "pack", "plot"))] == [
        "tokenizer",
        "pack",
        "plot",
    ]
    assert "cannot be planned" in told
    assert pipeline._print_sentences(["mine"]) is None
    assert capsys.readouterr().out == ""


def test_plans_of_stages_that_train_nothing_load_no_torch(project: Path) -> None:
    stages = ("prepare", "tokenizer", "pack", "evaluate", "skill", "team", "plot")
    probe = (
        "import sys; from ratchet.commands import params_of, plans; document = params_of.read()\n"
        f"for stage in {stages}: plans.plan(stage, document)\n"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"
