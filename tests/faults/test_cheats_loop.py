"""Every cheat that the process sandbox holds, as proposals of one session: each ends as a row that is no keep, with its
reason, and the loop goes on. The others, test_cheats_process.py shows one by one; in a container none is left over.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.train.arena import with_knobs
from real_session import REAL, real_project
from tests.faults.catalogue import CHEATS, Ends, source_of
from tests.support.toy_training import KNOBS
from toy_session import Scripted, rows, session

NOT_HELD = (Ends.SUCCEEDS, Ends.STOPS, Ends.ALLOWED)
PROPOSED = tuple(name for name, cheat in CHEATS.items() if cheat.process not in NOT_HELD)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_session_of_cheats_gives_each_a_row_with_its_reason_and_goes_on(tmp_path: Path) -> None:
    project = real_project(tmp_path / "project")
    arena = (project / "arena/train.py").read_text(encoding="utf-8")
    script = [(name, with_knobs(source_of(name, arena), KNOBS, name)) for name in PROPOSED]
    remark = ("an honest remark", lambda question: question.source + "\n# a remark\n")
    session(project, Scripted([*script, remark]), laboratory=None, experiments=len(PROPOSED) + 1, parallel=3, **REAL)
    table = rows(project / "out")
    assert [row["description"] for row in table] == ["baseline", *PROPOSED, "an honest remark"]
    assert [row["status"] for row in table].count("keep") == 1
    told = {row["description"]: f"{row['status']}: {row['reason']}" for row in table}
    assert all(row["reason"] for row in table)
    for name in PROPOSED:
        assert told[name].startswith(("crash: ", "discard: ")), told[name]
    assert told["patch_judge"].startswith("crash: refused: line")
    assert "look-ahead" in told["peek_ahead"]
    assert "non-finite" in told["nan_weights"]
    assert "timed out" in told["endless_loop"]
    assert "out of memory" in told["memory_bomb"]
    assert "too much output" in told["endless_output"]
    assert "changing answers" in told["depend_on_batch"]
    assert told["an honest remark"].startswith("discard: nothing but comments")
