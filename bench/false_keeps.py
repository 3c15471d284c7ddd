"""How often the gate keeps a change that changes nothing: real trainings of the arena.

`python bench/false_keeps.py [TRIALS]` runs in a project whose data is packed (`ratchet run --until pack`). Each trial
is an experiment of one session whose proposal draws other initial weights: as good as the baseline, but not the same.
The arena is a small one, so that twenty of them take minutes.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ratchet.loops.research.executor import Laboratory
    from ratchet.loops.research.records import Proposal, Question
    from ratchet.loops.research.session import Request
    from ratchet.settings import Settings

KNOBS = {"DEPTH": 2, "HEADS": 2, "HEAD_DIM": 64, "BATCH_ROWS": 8}
DRAWS = re.compile(r"self\.initialise\(spec\.seed( \+ \d+)?\)")
"""Where the arena draws its weights, also after a change of ours was kept."""


class Nothing:
    """A proposer of changes that change nothing."""

    name = "nothing"

    def propose(self, question: Question) -> Proposal:
        """The incumbent with other initial weights, which may itself be one that was kept."""
        from ratchet.loops.research.records import Proposal

        number = len(question.trials)
        source, count = DRAWS.subn(f"self.initialise(spec.seed + {1000 + number})", question.source)
        assert count == 1, f"the arena draws its weights in {count} places"
        return Proposal(source, f"another seed, {number}", self.name)


def counted(request: Request, here: Settings, laboratory: Laboratory | None = None) -> dict[str, int]:
    """Run the session of `request`: how many were kept, and how many "lower wins" would have kept."""
    from ratchet.loops.research.session import Parts, Published, iterate_and_publish
    from ratchet.tables import results

    with tempfile.TemporaryDirectory() as folder:
        out = Published(Path(folder) / "session", Path(folder) / "metrics.json")
        found = iterate_and_publish(request, out, here, Parts(Nothing(), laboratory))
        rows = results.read(out.folder / "results.tsv")
    lower = int((rows["delta"].iloc[1:] > 0).sum())
    return {"trials": found["experiments"], "kept": found["kept"], "lower_wins_would_keep": lower}


def main() -> None:
    """Count in the current folder's data."""
    from ratchet.loops.research.parameters import IterateParams
    from ratchet.loops.research.session import Request
    from ratchet.params import load, merge, validate
    from ratchet.settings import settings
    from results import keep

    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    told = load("iterate", IterateParams).model_dump(mode="json")
    mine = {"experiments": trials, "tag": "false-keeps", "train": {"knobs": KNOBS}}
    params = validate(merge(told, mine), "iterate", IterateParams)
    pack = Path("data/pack")
    request = Request(params, pack / "train", pack / "val", pack / "test", Path("data/tokenizer"),
                      Path("arena/train.py"), Path("arena/program.md"), Path.cwd())  # fmt: skip
    keep("false_keeps", counted(request, settings()) | {"knobs": KNOBS})


if __name__ == "__main__":
    main()
