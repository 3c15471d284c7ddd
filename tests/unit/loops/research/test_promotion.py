"""`ratchet promote`: the best arena comes into a real checkout as one commit of one file, or not at all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import made_session
from ratchet.commands import research
from ratchet.core.errors import InputError
from ratchet.loops.research import bundle, promotion
from ratchet.loops.research.promotion import Promoted
from ratchet.loops.research.worktree import Repository
from ratchet.tables import results

ARENA = "arena/train.py"
START = "".join(f"A{line} = {line}\n" for line in range(30))
BEST = START.replace("A20 = 20", "A20 = 21")


def git(where: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True)
    return ran.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a finished session `made` whose best arena has one line changed."""
    root = tmp_path / "с пробелом ü"
    (root / "arena").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@localhost")
    (root / ARENA).write_text(START)
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "notes.txt").write_text("one\n")
    (root / ".gitignore").write_text("data/\nmetrics/\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    repository = Repository.of(root)
    base = repository.head()
    head = repository.commit(base, ARENA, BEST, "A20 = 21\n")
    made_session.make_session(root)
    told = {"tag": "made", "base": base, "head": head, "arena": ARENA, "scores": [], "commits": {}}
    (root / "data/iterate/session.json").write_text(json.dumps(told))
    bundle.write(repository, root / "data/iterate/session.bundle", base, {"refs/heads/ratchet/made": head})
    return root


def promoted(project: Path, tag: str | None = "made", *, force: bool = False) -> Promoted:
    return promotion.promote(project, promotion.find([project], tag), force=force)


def test_promote_commits_the_arena_alone_with_its_evidence(project: Path) -> None:
    (project / "notes.txt").write_text("two\n")
    (project / "staged.txt").write_text("staged\n")
    git(project, "add", "staged.txt")
    done = promoted(project)
    assert (project / ARENA).read_text() == BEST
    assert git(project, "show", "--name-only", "--format=", "HEAD").split() == [ARENA]
    assert git(project, "status", "--porcelain").splitlines() == [" M notes.txt", "A  staged.txt"]
    assert done.commit == git(project, "rev-parse", "HEAD").strip()
    assert git(project, "log", "-1", "--format=%an") == "Ada\n"
    message = git(project, "log", "-1", "--format=%B")
    for said in ("Promote ratchet/made: val_bpb 1.5917 ->", "Test split: gain", "carries over", "Isolation: weak"):
        assert said in message
    assert "SwiGLU in place of ReLU²" in message
    assert "sd 0.002100 over 5 seeds" in message
    assert "Ratchet-Session: made" in message


def test_promote_without_refs_brings_the_commits_out_of_the_bundle(project: Path) -> None:
    clone = project.parent / "clone"
    git(project.parent, "clone", "-q", str(project), str(clone))
    git(clone, "config", "user.name", "Ada")
    git(clone, "config", "user.email", "ada@localhost")
    (project / "data").rename(clone / "data")
    (project / "metrics").rename(clone / "metrics")
    assert promoted(clone).commit
    assert (clone / ARENA).read_text() == BEST


def test_promote_uncommitted_arena_is_refused_and_left_alone(project: Path) -> None:
    for stage in (False, True):
        (project / ARENA).write_text(START + "mine = 1\n")
        if stage:
            git(project, "add", ARENA)
        with pytest.raises(InputError, match="has changes that no commit holds; commit them"):
            promoted(project)
        assert (project / ARENA).read_text() == START + "mine = 1\n"


def test_promote_arena_changed_since_is_merged_and_the_message_says_so(project: Path) -> None:
    (project / ARENA).write_text(START.replace("A2 = 2", "A2 = 3"))
    git(project, "commit", "-q", "-a", "-m", "mine")
    done = promoted(project)
    assert done.merged
    assert (project / ARENA).read_text() == BEST.replace("A2 = 2", "A2 = 3")
    assert "Merged into an arena that had changed since" in git(project, "log", "-1", "--format=%B")


def test_promote_arena_changed_in_the_same_lines_is_refused(project: Path) -> None:
    mine = START.replace("A20 = 20", "A20 = 99")
    (project / ARENA).write_text(mine)
    git(project, "commit", "-q", "-a", "-m", "mine")
    before = git(project, "rev-parse", "HEAD")
    with pytest.raises(InputError, match="in lines that the session changed too"):
        promoted(project)
    assert (project / ARENA).read_text() == mine
    assert git(project, "rev-parse", "HEAD") == before


def test_promote_without_progress_is_refused_but_with_force(project: Path) -> None:
    path = project / "metrics/iterate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"progress": 0}))
    with pytest.raises(InputError, match="has no progress"):
        promoted(project)
    assert promoted(project, force=True).commit


def test_promote_twice_does_nothing_the_second_time(project: Path) -> None:
    assert promoted(project).commit
    assert promoted(project).commit is None


def test_promote_that_git_refuses_leaves_the_arena_as_it_was(project: Path) -> None:
    git(project, "config", "--unset", "user.name")
    git(project, "config", "--unset", "user.email")
    (project / ".git/index.lock").write_text("")
    with pytest.raises(Exception, match=r"git (commit|status)"):
        promoted(project)
    assert (project / ARENA).read_text() == START


def test_promote_unknown_tag_names_those_there_are(project: Path) -> None:
    with pytest.raises(InputError, match="no finished session other; finished here: made"):
        promoted(project, "other")
    with pytest.raises(InputError, match="none has finished here"):
        promotion.find([project.parent], None)


def test_promote_command_says_commit_and_warns_when_the_test_split_disagrees(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_session.rows()
    (project / "metrics/iterate.json").write_text(json.dumps(made_session.metrics(made, carries_over=False)))
    monkeypatch.chdir(project)
    research.promote(None, force=False)
    told = capsys.readouterr()
    assert "arena/train.py, nothing else" in told.out
    assert "DOES NOT carry over" in told.out
    assert "does not carry over to the test split" in told.err
    research.promote("made", force=False)
    assert "already what session made ended with" in capsys.readouterr().out


def test_results_of_a_promoted_session_are_what_its_message_counts(project: Path) -> None:
    rows = results.read(project / "data/iterate/results.tsv")
    message = promoted(project).message
    assert f"{len(rows) - 1} experiments by search" in message
