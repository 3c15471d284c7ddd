"""What a session of the search gained, in units of the noise: from the figures that it left.

`ratchet run --profile full --until iterate`, then `python bench/session.py .ratchet/copies/full/metrics/iterate.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from results import keep


def main() -> None:
    """Keep the figures of the session whose metrics are named."""
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    names = ("experiments", "kept", "baseline_val_bpb", "val_bpb", "gain", "noise", "proposer", "isolation", "test")
    keep("session", {name: told[name] for name in names} | {"gain_over_noise": told["gain"] / told["noise"]["sd"]})


if __name__ == "__main__":
    main()
