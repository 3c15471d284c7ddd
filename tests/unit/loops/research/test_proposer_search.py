"""The search proposer: seeded, told afresh from the table, and never the same candidate twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import optuna
import pytest

from made_question import ARENA, Past
from ratchet.core.errors import InputError
from ratchet.loops.research.program import Objective, Program
from ratchet.loops.research.proposers import Kind, make
from ratchet.loops.research.proposers.search import MIRROR, Search, SearchParams
from ratchet.loops.research.records import Exhausted, Failure, Proposal, Status
from ratchet.train.arena import knobs

ROOT = Path(__file__).resolve().parents[4]


def search(random_trials: int = 2, **tried: Any) -> Search:
    return Search(SearchParams(knobs=tried or {"WIDTH": None, "RATE": None}, random_trials=random_trials))


def values(proposal: Proposal) -> dict[str, Any]:
    return {name: knob.value for name, knob in knobs(proposal.source).items()}


def study_in(folder: Path) -> optuna.Study:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / MIRROR)))
    return optuna.load_study(study_name="ratchet", storage=storage)


def states(folder: Path) -> list[str]:
    """How the study, as Optuna's own tools see it, knows each experiment."""
    return [trial.state.name for trial in study_in(folder).trials]


def some_past() -> Past:
    past = Past().with_baseline()
    past.knobs(1.8, Status.KEEP, WIDTH=20, RATE=0.2)
    past.knobs(None, Status.CRASH, WIDTH=64, RATE=1.0)
    past.knobs(2.4, WIDTH=2, RATE=0.01)
    return past


def test_search_without_trials_proposes_the_baseline_first(tmp_path: Path) -> None:
    assert search().propose(Past().question(tmp_path)).source == ARENA


def test_search_asked_again_from_nothing_gives_the_same_candidate(tmp_path: Path) -> None:
    first = search().propose(some_past().question(tmp_path / "one"))
    assert search().propose(some_past().question(tmp_path / "two")) == first
    assert first.source != ARENA
    assert "WIDTH 8 → " in first.description


def test_search_with_another_seed_proposes_something_else(tmp_path: Path) -> None:
    proposals = {search().propose(some_past().question(tmp_path, seed=seed)).source for seed in range(5)}
    assert len(proposals) == 5


def test_search_candidates_pending_in_the_round_are_not_proposed_again(tmp_path: Path) -> None:
    asked = some_past().question(tmp_path)
    for _ in range(4):
        proposal = search().propose(asked)
        assert proposal.source not in [other.source for other in asked.pending]
        asked = dataclasses.replace(asked, pending=(*asked.pending, proposal))


def test_search_mirror_shows_every_experiment_to_optuna(tmp_path: Path) -> None:
    past = some_past()
    search().propose(past.question(tmp_path, pending=(Proposal(past.sources[past.trials[-1].commit], "", "search"),)))
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE", "RUNNING"]
    assert study_in(tmp_path).best_params == {"WIDTH": 20, "RATE": 0.2}


def test_search_of_a_used_up_space_says_so(tmp_path: Path) -> None:
    past = Past().with_baseline()
    proposer = search(WIDTH=[7, 9], SHAPE=None)
    for _ in range(5):
        proposal = proposer.propose(past.question(tmp_path, seed=len(past.trials)))
        past.add(proposal.source, 2.0 + len(past.trials))
    assert len({trial.commit for trial in past.trials}) == 6
    with pytest.raises(Exhausted, match="every value of WIDTH, SHAPE was tried"):
        proposer.propose(past.question(tmp_path))


def test_search_learns_from_scores_where_to_look(tmp_path: Path) -> None:
    past = Past().with_baseline(val_bpb=1.4)
    for number in range(20):
        proposal = search(2, RATE=None).propose(past.question(tmp_path, seed=number))
        past.add(proposal.source, 1 + abs(float(values(proposal)["RATE"]) - 0.5))
    late = [float(knobs(past.sources[trial.commit])["RATE"].value) for trial in past.trials[-10:]]
    assert sum(0.25 < rate < 0.9 for rate in late) >= 6  # a draw from the whole log scale: 2 of 10
    assert min(float(trial.val_bpb or 9) for trial in past.trials) < 1.1


def test_search_numbers_stay_in_range_at_three_digits(tmp_path: Path) -> None:
    for seed in range(20):
        rate = values(search(RATE=[0.0123, 0.0456]).propose(some_past().question(tmp_path, seed=seed)))["RATE"]
        assert 0.0123 <= rate <= 0.0456
        assert float(f"{rate:.3g}") == rate


def test_search_section_of_the_program_replaces_the_knobs_of_the_parameters(tmp_path: Path) -> None:
    program = Program("", Objective(), {"WIDTH": [2, 4]})
    for seed in range(5):
        found = values(search().propose(some_past().question(tmp_path, seed=seed, program=program)))
        assert (found["WIDTH"] in (2, 3, 4), found["RATE"]) == (True, 0.1)


def test_search_continues_from_the_incumbents_other_edits(tmp_path: Path) -> None:
    edited = ARENA.replace("# the model", "# another model").replace('"round"\n', '"square"\n')
    proposal = search(WIDTH=None).propose(some_past().question(tmp_path, source=edited))
    assert "# another model" in proposal.source
    assert values(proposal)["SHAPE"] == "square"


def test_search_after_a_failure_goes_on_with_another_candidate(tmp_path: Path) -> None:
    past = some_past()
    failed = search().propose(past.question(tmp_path))
    past.add(failed.source, None, Status.CRASH)
    again = search().propose(past.question(tmp_path, failure=Failure(failed.source, "a crash")))
    assert again.source != failed.source
    assert states(tmp_path).count("PRUNED") == 2  # that of some_past, and this one, once


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ({"WIDHT": None}, "the arena has no knob 'WIDHT'"),
        ({"WIDTH": [1, 100]}, "WIDTH = 100 is outside 1 to 64"),
        ({"WIDTH": [9, 2]}, "WIDTH = [9, 2] is no range"),
        ({"SHAPE": ["oval"]}, "is none of 'round', 'square'"),
    ],
)
def test_search_knob_that_the_arena_does_not_allow_is_refused(tmp_path: Path, tried: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        search(**tried).propose(some_past().question(tmp_path))
    assert said in str(caught.value)


def test_search_experiment_whose_arena_is_none_is_passed_over(tmp_path: Path) -> None:
    past = some_past()
    past.trials.append(dataclasses.replace(past.trials[-1], commit="", val_bpb=None, status=Status.CRASH))
    past.add("no python (", None, Status.CRASH)
    past.add("WIDTH: " + "a." * 600 + "Annotated[int, 1, 64] = 8", None, Status.CRASH)
    assert search().propose(past.question(tmp_path)).source


def test_search_defaults_fit_the_committed_arena(tmp_path: Path) -> None:
    class Sections:
        search = SearchParams()

    arena = (ROOT / "arena/train.py").read_text(encoding="utf-8")
    proposal = make(Kind.SEARCH, Sections()).propose(Past().with_baseline(arena).question(tmp_path, source=arena))
    changed = {n for n, knob in knobs(proposal.source).items() if knob.value != knobs(arena)[n].value}
    assert changed <= set(SearchParams().knobs)
    assert changed
