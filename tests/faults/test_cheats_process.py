"""Cheats in the process sandbox, each alone, whose end no session's table shows: they gain nothing, are judged with
honest weights, would be refused before they run, or are seen to succeed, as docs/cheats.md says. The others end in
test_cheats_loop.py with their exact reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.loops.research.executor import Result
from ratchet.sandbox.process import ProcessSandbox
from tests.faults.attempts import attempts_at_once
from tests.faults.catalogue import (
    ALONE,
    CHEATS,
    FOLDER,
    PLANTED,
    Attempt,
    Ends,
    Ground,
    expected,
    how,
    lay_ground,
    table,
)
from tests.support.toy_training import ROOT, make_project


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return lay_ground(make_project(tmp_path_factory.mktemp("project")), ProcessSandbox())


@pytest.fixture(scope="module")
def attempt_of(request: pytest.FixtureRequest, ground: Ground, tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", PLANTED)
        with attempts_at_once(request, ground, tmp_path_factory.mktemp("attempts"), ProcessSandbox()) as started:
            yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_cheat_in_a_process_ends_as_the_table_says(
    name: str, attempt_of: Callable[[str], Attempt], ground: Ground
) -> None:
    attempt = attempt_of(name)
    assert how(attempt, ground) is expected(name, "process"), (attempt.result, attempt.trouble)
    if expected(name, "process") is not Ends.SUCCEEDS:
        assert re.search(CHEATS[name].says, attempt.said), attempt.said
    assert attempt.result.isolation == "weak"


@pytest.mark.slow
def test_cheat_that_moves_the_clock_took_the_time_that_it_took(attempt_of: Callable[[str], Attempt]) -> None:
    assert (attempt_of("move_the_clock").result.seconds or 0) > 0.5


def test_catalogue_and_its_folder_hold_the_same_cheats_each_with_its_say() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CHEATS)
    for path in FOLDER.glob("*.py"):
        assert re.match(r'""".+\.\n\n.+', path.read_text()), f"{path.name} does not say what it tries and what stops it"


def test_refusal_that_the_table_has_no_word_for_is_an_error(tmp_path: Path) -> None:
    result = Result(val_bpb=None, reason="refused, wrong shape: [3]", isolation="weak")
    with pytest.raises(ValueError, match="refused: wrong shape"):
        how(Attempt("peek_ahead", tmp_path, result), Ground(tmp_path))


def test_table_of_cheats_in_the_documentation_is_that_of_the_tests() -> None:
    assert table() in (ROOT / "docs/cheats.md").read_text()
