"""What a session of the search gained, in units of the noise: from the figures that it left.

`ratchet run --profile full --until iterate`, then `python bench/session.py .ratchet/copies/full/metrics/iterate.json`.
Without a path: the session of the project itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from results import keep


def main() -> None:
    """Keep the figures of the session whose metrics are named."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "metrics/iterate.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    names = ("experiments", "kept", "baseline_val_bpb", "val_bpb", "gain", "noise", "proposer", "isolation", "test")
    keep("session", {name: told[name] for name in names} | {"gain_over_noise": told["gain"] / told["noise"]["sd"]})


if __name__ == "__main__":
    main()
