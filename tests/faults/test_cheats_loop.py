"""Every cheat that the process sandbox holds, as proposals of one session: each ends as a row that is no keep, with its
reason, and the loop goes on. Where a session says less than an attempt of its own, test_cheats_process.py has that too,
and what is not held; in a container none is left over.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.train.arena import with_knobs
from real_session import REAL, real_project
from tests.faults.catalogue import ALONE, CHEATS, HELD, PLANTED, ends_of, none_sleeps, source_of
from tests.support.toy_training import KNOBS
from toy_session import Scripted, rows, session

SAYS = {name: CHEATS[name].says for name in HELD if name not in ALONE} | {"memory_bomb": "over 2,048 MiB"}
"""What the reason of each must contain that is run nowhere else in a process; the limit is the session's."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_session_of_cheats_gives_each_a_row_with_its_reason_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PLANTED)
    project = real_project(tmp_path / "project")
    arena = (project / "arena/train.py").read_text(encoding="utf-8")
    script = [(name, with_knobs(source_of(name, arena), KNOBS, name)) for name in HELD]
    remark = ("an honest remark", lambda question: question.source + "\n# a remark\n")
    session(project, Scripted([*script, remark]), laboratory=None, experiments=len(HELD) + 1, parallel=3, **REAL)
    table = rows(project / "out")
    assert [row["description"] for row in table] == ["baseline", *HELD, "an honest remark"]
    assert [row["status"] for row in table].count("keep") == 1
    told = {row["description"]: f"{row['status']}: {row['reason']}" for row in table}
    assert all(row["reason"] for row in table)
    for name in HELD:
        assert told[name].startswith(("crash: ", "discard: ")), told[name]
    assert told["patch_judge"].startswith("crash: refused: line")
    assert "look-ahead" in told["peek_ahead"]
    assert "changing answers" in told["depend_on_batch"]
    reasons = {row["description"]: row["reason"] for row in table if row["status"] == "crash"}
    ends = {name: (ends_of(reasons[name]), bool(re.search(says, reasons[name]))) for name, says in SAYS.items()}
    assert ends == {name: (CHEATS[name].process, True) for name in SAYS}, told
    assert not list(project.rglob("stolen"))
    assert none_sleeps(), "what would outlive its run does not"
    assert told["an honest remark"].startswith("discard: nothing but comments")
