"""A whole session: what it keeps, what it says of each experiment, what it leaves in git and on disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.rundir import request_stop
from ratchet.loops.research import bundle
from ratchet.loops.research.executor import Experiment, Result, Worker
from ratchet.loops.research.experiment import patient
from ratchet.loops.research.program import Program
from ratchet.loops.research.proposers.replay import Replay, ReplayParams
from ratchet.loops.research.records import Proposal, Question
from toy_session import (
    ARENA,
    Scripted,
    edit,
    fake_laboratory,
    git,
    read_metrics,
    rows,
    session,
    settings,
    toy_repository,
)

WIDER = ("wider", edit("WIDTH = 4", "WIDTH = 6"))
SLOWER = ("slower", edit("RATE = 0.1", "RATE = 0.2"))
CRASHES = ("crashes", edit('FAIL = ""', 'FAIL = "boom"'))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_repository(tmp_path_factory.mktemp("toy") / "projekt mit Ä")


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "projekt mit Ä")


def statuses(project: Path) -> list[str]:
    return [row["status"] for row in rows(project / "out")]


def test_session_keeps_what_is_better_and_says_why_of_each(project: Path) -> None:
    narrower = ("narrower", edit("WIDTH = 6", "WIDTH = 5"))
    told = session(project, Scripted([WIDER, SLOWER, narrower]))
    table = rows(project / "out")
    assert [row["status"] for row in table] == ["keep", "keep", "discard", "discard"]
    assert "above the threshold" in table[1]["reason"]
    assert (table[1]["parent"], table[2]["parent"]) == (table[0]["commit"], table[1]["commit"])
    assert told["kept"] == told["progress"] == 1
    assert told == read_metrics(project / "out")
    assert told["test"]["gain"] == pytest.approx(told["gain"], abs=0.01)
    assert "carries over" in (project / "out/iterate/learned.md").read_text()


def test_session_leaves_git_as_designed_and_the_checkout_alone(project: Path) -> None:
    (project / "arena/train.py").write_text(ARENA + "\n# not committed\n")
    (project / "note").write_text("staged")
    git(project, "add", "note")
    before = (
        git(project, "status", "--porcelain"),
        (project / ".git/index").read_bytes(),
        git(project, "rev-parse", "HEAD"),
    )
    session(project, Scripted([SLOWER, WIDER]), experiments=2)
    assert (git(project, "status", "--porcelain"), (project / ".git/index").read_bytes(),
            git(project, "rev-parse", "HEAD")) == before  # fmt: skip
    best = (project / "out/iterate/train.py").read_text()
    assert "WIDTH = 6" in best
    assert "# not committed" in best
    assert git(project, "show", "ratchet/toy:arena/train.py") == best
    assert "RATE = 0.2" in git(project, "show", "refs/ratchet/toy/1:arena/train.py")
    log = git(project, "log", "--format=%an %ae %ct %s", "main..ratchet/toy").splitlines()
    assert log == [
        "Ratchet ratchet@localhost 1700000002 wider", "Ratchet ratchet@localhost 1700000001 baseline"
    ]  # fmt: skip
    worktree = next((project / "runs/iterate").glob("*/worktree"))
    assert (worktree / "arena/train.py").read_text() == best


def test_patches_apply_one_after_another_and_give_the_best_arena(project: Path) -> None:
    session(project, Scripted([WIDER, SLOWER, ("wider still", edit("WIDTH = 6", "WIDTH = 9"))]))
    patches = project / "out/iterate/patches"
    assert [path.name for path in sorted(patches.glob("*.patch"))] == ["0001-wider.patch", "0003-wider-still.patch"]
    assert [path.name for path in (patches / "discarded").iterdir()] == ["0002-slower.patch"]
    git(project, "-c", "user.name=t", "-c", "user.email=t@t", "am", "-q", *map(str, sorted(patches.glob("*.patch"))))
    assert (project / "arena/train.py").read_text() == (project / "out/iterate/train.py").read_text()


def test_crash_is_shown_once_and_its_fix_is_an_experiment(project: Path) -> None:
    proposer = Scripted([CRASHES, ("again", edit('FAIL = ""', 'FAIL = "bang"')), WIDER])
    session(project, proposer)
    assert statuses(project) == ["keep", "crash", "crash", "keep"]
    assert rows(project / "out")[1]["val_bpb"] == ""
    failures = [question.failure for question in proposer.questions]
    assert (failures[0], failures[2]) == (None, None)
    assert failures[1] is not None
    assert (failures[1].reason, failures[1].said) == ("RuntimeError: boom", ("it said so",))
    assert 'FAIL = "boom"' in failures[1].source


def test_what_changes_nothing_or_was_tried_is_not_trained(project: Path) -> None:
    trained: list[str] = []

    def laboratory(job: Experiment, worker: Worker) -> Result:
        trained.append(job.source)
        return fake_laboratory(job, worker)

    comment = ("a remark", edit("RATE = 0.1", "RATE = 0.1  # one tenth"))
    script = [comment, SLOWER, ("slower again", edit("RATE = 0.1", "RATE =   0.2")), CRASHES, CRASHES,
              ("sealed", "import ratchet.train.judge\n"), ("no idea", "none")]  # fmt: skip
    session(project, Scripted(script), experiments=7, laboratory=laboratory)
    table = rows(project / "out")
    assert [row["status"] for row in table[1:]] == ["discard", "discard", "discard", "crash", "crash", "crash", "crash"]
    assert "comments" in table[1]["reason"]
    assert "repeats experiment 2" in table[3]["reason"]
    assert table[3]["val_bpb"] == table[2]["val_bpb"]
    assert "repeats experiment 4, which crashed" in table[5]["reason"]
    assert "imports ratchet.train.judge, which is sealed" in table[6]["reason"]
    assert (table[7]["commit"], table[7]["reason"]) == ("", "no idea")
    assert len(trained) == 3 + 2  # the baseline's seeds, slower, crashes


def test_candidate_nested_too_deep_is_a_crash_row_and_the_session_ends(project: Path) -> None:
    deep = ("deep", ARENA + "X = " + "+".join(["1"] * 600) + "\n")
    session(project, Scripted([deep, WIDER]), experiments=2)
    assert statuses(project) == ["keep", "crash", "keep"]
    assert rows(project / "out")[1]["reason"] == "refused: nested deeper than 150"


def test_diff_outside_the_arena_is_refused_and_undone(project: Path) -> None:
    class Meddler(Scripted):
        def propose(self, question: Question) -> Proposal:
            worktree = next((project / "runs/iterate").glob("*/worktree"))
            (worktree / "arena/program.md").write_text("Everything counts as better.\n")
            (worktree / "sitecustomize.py").write_text("print(1)\n")
            return super().propose(question)

    session(project, Meddler([WIDER]), experiments=1)
    assert statuses(project) == ["keep", "crash"]
    reason = rows(project / "out")[1]["reason"]
    assert "refused: changes arena/program.md, sitecustomize.py, outside arena/train.py" in reason
    assert not (next((project / "runs/iterate").glob("*/worktree")) / "sitecustomize.py").exists()


def test_objective_binds_the_gate(project: Path) -> None:
    (project / "arena/program.md").write_text("---\nobjective: {max: {params_m: 0.5}}\n---\nCompact, please.\n")
    session(project, Scripted([WIDER]), experiments=1)
    assert statuses(project) == ["keep", "discard"]
    assert "params_m is above the objective's 0.5" in rows(project / "out")[1]["reason"]


class Racing:
    """Runs experiments so that within a round the last one submitted ends first."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.gate = threading.Barrier(2, timeout=60)
        self.second = threading.Event()

    def __call__(self, job: Experiment, worker: Worker) -> Result:
        races = job.number > 0 and "once more" not in job.what and job.split.name == "val"
        if races:
            self.gate.wait()
            if job.number % 2:
                self.second.wait(60)
        result = fake_laboratory(job, worker)
        if races:
            self.order.append(job.number)
            if not job.number % 2:
                self.second.set()
            else:
                self.second.clear()
        return result


def test_round_of_two_does_not_depend_on_who_ends_first(made: Path, tmp_path: Path) -> None:
    script = [
        WIDER,
        ("widest", edit("WIDTH = 4", "WIDTH = 8")),
        SLOWER,
        ("wider still", edit("WIDTH = 8", "WIDTH = 12")),
    ]
    racing, tables = Racing(), []
    for name, laboratory in (("plain", fake_laboratory), ("racing", racing)):
        project = shutil.copytree(made, tmp_path / name)
        session(project, Scripted(script), experiments=4, parallel=2, laboratory=laboratory)
        tables.append(
            (rows(project / "out"), git(project, "for-each-ref"), (project / "out/iterate/session.bundle").read_bytes())
        )
    assert racing.order == [2, 1, 4, 3]
    assert tables[0] == tables[1]
    assert [row["status"] for row in tables[0][0]] == ["keep", "discard", "keep", "discard", "keep"]
    assert "experiment 2 of the same round is kept" in tables[0][0][1]["reason"]


def test_replay_of_a_finished_session_gives_the_same_rows_commits_and_bundle(project: Path) -> None:
    session(project, Scripted([WIDER, CRASHES, ("no idea", "none"), SLOWER]), experiments=4)
    record = shutil.copytree(project / "out/iterate", project / "record")
    (project / "other").write_text("the user goes on")
    git(project, "add", "other")
    git(project, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "meanwhile")
    again = project / "again"
    replay = {"session": "record"}
    session(project, Replay(ReplayParams(session=str(record))), where=again, experiments=4, tag="replayed",
            proposer="replay", replay=replay)  # fmt: skip
    assert rows(again) == rows(project / "out")
    assert git(project, "rev-parse", "ratchet/replayed") == git(project, "rev-parse", "ratchet/toy")


def test_stop_file_and_signals_end_cleanly_and_the_session_goes_on(project: Path) -> None:
    def stopping(job: Experiment, worker: Worker) -> Result:
        if job.what == "slower":
            request_stop(job.folder.parent.parent)
        if job.what == "third":
            os.kill(os.getpid(), signal.SIGINT)
            assert worker.stopping.wait(30)
        return fake_laboratory(job, worker)

    script = Scripted([WIDER, SLOWER, ("third", edit("RATE = 0.1", "RATE = 0.3"))])
    for code in (143, 130):
        with pytest.raises(SystemExit) as ended:
            session(project, script, laboratory=stopping)
        assert ended.value.code == code
        assert not (project / "out/iterate").exists()
    session(project, script)
    assert statuses(project) == ["keep", "keep", "discard", "discard"]
    asked = [len(question.trials) for question in script.questions]
    assert asked == [1, 2, 3]  # the third was kept, and not asked for again


def test_infrastructure_failure_is_retried_and_then_stops_without_a_row(project: Path) -> None:
    failures: list[int] = []

    def failing(job: Experiment, worker: Worker) -> Result:
        if job.what == "slower" and len(failures) < 4:
            failures.append(job.number)
            raise InfrastructureError("engine", "died", "start it")
        return fake_laboratory(job, worker)

    laboratory, script = patient(failing, wait_s=0.01), Scripted([WIDER, SLOWER])
    with pytest.raises(InfrastructureError, match="died") as failed:
        session(project, script, laboratory=laboratory, experiments=2)
    assert failed.value.exit_code == 3
    assert len(failures) == 3
    session(project, script, laboratory=laboratory, experiments=2)
    assert len(failures) == 4
    assert statuses(project) == ["keep", "keep", "discard"]


def test_more_experiments_go_on_where_it_ended_and_fewer_are_refused(project: Path) -> None:
    script = Scripted([WIDER, SLOWER, ("third", edit("RATE = 0.1", "RATE = 0.3"))])
    session(project, script, experiments=1)
    session(project, script, experiments=3)
    assert len(script.questions) == 3
    whole = rows(project / "out")
    with pytest.raises(InputError, match=r"has 3 experiments, iterate.experiments = 2"):
        session(project, script, experiments=2)
    assert rows(project / "out") == whole


def test_money_ends_a_session_before_it_is_passed_again(project: Path) -> None:
    told = session(project, Scripted([WIDER, SLOWER, SLOWER], money=0.6), money=1.0)
    assert told["experiments"] == 2
    assert told["ended"] == "the budget of 1 money is used up"


def test_same_tag_with_other_parameters_is_refused_with_the_difference(project: Path) -> None:
    session(project, Scripted([WIDER]), experiments=1)
    with pytest.raises(InputError, match=r"changed: params.seed 1 → 2"):
        session(project, Scripted([WIDER]), experiments=1, seed=2)


def test_baseline_that_crashes_is_the_users_error(project: Path) -> None:
    (project / "arena/train.py").write_text(ARENA.replace('FAIL = ""', 'FAIL = "boom"'))
    with pytest.raises(InputError, match="the baseline fails with seed 1: RuntimeError: boom"):
        session(project, Scripted([WIDER]))


def test_exhausted_proposer_ends_the_session(project: Path) -> None:
    told = session(project, Scripted([WIDER]), experiments=9)
    assert (told["experiments"], told["ended"]) == (1, "the script is at its end")


def test_gain_that_does_not_carry_over_is_said(project: Path) -> None:
    def fooled(job: Experiment, worker: Worker) -> Result:
        source = job.source.replace("WIDTH = 6", "WIDTH = 4") if job.split.name == "test" else job.source
        return fake_laboratory(Experiment(**{**vars(job), "source": source}), worker)

    told = session(project, Scripted([WIDER]), experiments=1, laboratory=fooled)
    assert told["test"]["lower"] <= 0
    assert "The gain does not carry over" in (project / "out/iterate/learned.md").read_text()


def test_bundle_rebuilds_branch_and_refs_in_a_clone(project: Path, tmp_path: Path) -> None:
    session(project, Scripted([WIDER, SLOWER]), experiments=2)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "main", "--single-branch", str(project), str(clone))
    refs = bundle.restore(clone, project / "out/iterate/session.bundle")
    assert sorted(refs) == ["refs/heads/ratchet/toy", "refs/ratchet/toy/2"]
    for name in refs:
        assert git(clone, "rev-parse", name) == git(project, "rev-parse", name)
    git(clone, "fsck", "--full")
    assert git(clone, "status", "--porcelain") == ""


def test_session_tells_who_watches_in_order(project: Path) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.said: list[Any] = []

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: self.said.append((name, *arguments[:1]))

    watcher = Watcher()
    session(project, Scripted([WIDER]), experiments=1, listeners=[watcher])
    names = [said[0] for said in watcher.said]
    assert (names[0], names[-2:]) == ("began", ["found", "ended"])
    assert watcher.said[-2][1] == [], "a session that gains more than the noise, and one experiment, is no finding"
    assert [said for said in watcher.said if said[0] == "decided"] == [("decided", 0), ("decided", 1)]
    assert names.index("proposing") < len(names) - 1 - names[::-1].index("decided")


def test_detached_head_and_a_nested_project_work(made: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    inner = shutil.copytree(made, outer / "sub dir" / "inner", ignore=shutil.ignore_patterns(".git"))
    git(outer, "init", "-q")
    git(outer, "add", "-A")
    git(outer, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "nested")
    git(outer, "checkout", "-q", "--detach")
    session(inner, Scripted([WIDER]), experiments=1)
    assert "WIDTH = 6" in git(outer, "show", "ratchet/toy:sub dir/inner/arena/train.py")
    assert git(outer, "status", "--porcelain") == ""


@pytest.mark.parametrize("commits", [0, None])
def test_repository_without_a_commit_or_none_at_all_is_one_clear_error(
    made: Path, tmp_path: Path, commits: int | None
) -> None:
    bare = shutil.copytree(made, tmp_path / "bare", ignore=shutil.ignore_patterns(".git"))
    if commits == 0:
        git(bare, "init", "-q")
    said = "has no commit to start from" if commits == 0 else "is in no git repository"
    with pytest.raises(InputError, match=said):
        session(bare, Scripted([WIDER]))


def test_branch_checked_out_by_the_user_is_refused(project: Path) -> None:
    git(project, "checkout", "-q", "-b", "ratchet/toy")
    with pytest.raises(InputError, match="is checked out in"):
        session(project, Scripted([WIDER]))


def test_lost_commits_are_made_again_from_the_run_directory(project: Path, tmp_path: Path) -> None:
    script = Scripted([WIDER, SLOWER, ("third", edit("RATE = 0.1", "RATE = 0.3"))])
    session(project, script, experiments=2)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "main", "--single-branch", str(project), str(clone))
    shutil.copytree(project / "data", clone / "data")
    shutil.copytree(project / "runs", clone / "runs", ignore=shutil.ignore_patterns("worktree"))
    session(clone, script, experiments=3)
    session(project, script, experiments=3)
    assert git(clone, "for-each-ref", "refs/ratchet", "refs/heads/ratchet") == git(
        project, "for-each-ref", "refs/ratchet", "refs/heads/ratchet"
    )


def test_program_reaches_the_proposer(project: Path) -> None:
    (project / "arena/program.md").write_text("Ищи компактные модели.\n")
    proposer = Scripted([WIDER])
    session(project, proposer, experiments=1)
    assert isinstance(proposer.questions[0].program, Program)
    assert "компактные" in proposer.questions[0].program.brief
    assert proposer.questions[0].source_of(rows(project / "out")[0]["commit"]) == ARENA
    assert json.loads((project / "out/iterate/session.json").read_text())["tag"] == "toy"
    assert settings(project).runs == project / "runs"


def test_knobs_that_the_arena_does_not_allow_are_refused_before_anything_is_trained(project: Path) -> None:
    def never(job: Experiment, worker: Worker) -> Result:
        raise AssertionError(job)

    with pytest.raises(InputError, match=r"iterate\.search\.knobs: the arena has no knob 'WIDTH'; name some of"):
        session(project, None, laboratory=never, search={"knobs": {"WIDTH": [9, 2]}})
    assert not (project / "runs").exists()
