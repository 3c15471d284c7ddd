"""Results on a branch beside the checkout: real repositories, nothing of the user's is touched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ratchet.commands.results_branch import check_branch, commit_results, fast_forward, refuse_dirty
from ratchet.core.errors import InfrastructureError, InputError

BRANCH = "ratchet/nightly"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a project ü"
    (root / "metrics").mkdir(parents=True)
    (root / ".gitignore").write_text("/data/\n/.ratchet/\n")
    for name, text in (("code.py", "1"), ("params.yaml", "a: 1\n"), ("dvc.lock", "old\n"), ("metrics/a.json", "{}")):
        (root / name).write_text(text)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    return root


def test_results_go_on_top_of_the_branch_and_the_checkout_is_as_it_was(project: Path) -> None:
    copy = project / ".ratchet/copies/night"
    (copy / "metrics").mkdir(parents=True)
    (copy / "data/iterate").mkdir(parents=True)
    (copy / "dvc.lock").write_text("new\n")
    (copy / "metrics/a.json").write_text('{"a": 1}')
    (copy / "data/iterate/results.tsv").write_text("commit\n")
    (project / "code.py").write_text("2")
    assert check_branch(project, BRANCH) == 0
    for count in (1, 2):
        assert commit_results(project, Path(".ratchet/copies/night"), BRANCH).startswith(f"{BRANCH}: ")
        assert check_branch(project, BRANCH) == count
    assert git(project, "show", f"{BRANCH}:dvc.lock") == "new\n"
    assert git(project, "show", f"{BRANCH}:metrics/results.tsv") == "commit\n"
    assert git(project, "show", f"{BRANCH}:code.py") == "1", "an edit that no commit holds is not a result"
    assert git(project, "show", f"{BRANCH}:params.yaml") == "a: 1\n"
    assert git(project, "rev-parse", f"{BRANCH}~2") == git(project, "rev-parse", "main")
    assert git(project, "status", "--porcelain") == " M code.py\n"
    assert git(project, "branch", "--show-current") == "main\n"


def test_branch_that_is_the_users_is_refused(project: Path) -> None:
    for name in ("main", "ratchet/", "nightly"):
        with pytest.raises(InputError, match="is not below ratchet/; name it"):
            commit_results(project, Path(), name)
    git(project, "switch", "-q", "-c", BRANCH)
    with pytest.raises(InputError, match="is checked out; name another"):
        check_branch(project, BRANCH)


def test_dirty_tree_is_refused_by_its_first_file_and_results_do_not_count(project: Path) -> None:
    (project / "dvc.lock").write_text("new")
    (project / "metrics/b.json").write_text("{}")
    refuse_dirty(project)
    (project / "code.py").write_text("2")
    (project / "more.py").write_text("3")
    with pytest.raises(InputError, match=r"uncommitted changes: M code\.py and 1 more; commit them"):
        refuse_dirty(project)


def test_fast_forward_takes_the_upstreams_commits_and_nothing_else(project: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    (project / "code.py").write_text("2")
    git(project, "commit", "-q", "-am", "more")
    head = git(project, "rev-parse", "HEAD").strip()
    assert fast_forward(clone) == f"code: {head}"
    assert (clone / "code.py").read_text() == "2"
    with pytest.raises(InfrastructureError, match=r"git pull: .*; mend the branch's upstream"):
        fast_forward(project)
