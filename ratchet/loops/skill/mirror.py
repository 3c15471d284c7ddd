"""A skill training in Weights & Biases: one point a step, in one run however often it resumes.

The ledger is the truth and this repeats it (train/mirror.py says how failures are met). Refuses to know how a step is
made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ratchet.core.fingerprint import flatten
from ratchet.core.rundir import RunDirectory, read_identity
from ratchet.settings import Settings
from ratchet.tables.findings import Found
from ratchet.train.mirror import Mirror, Sent, kept_identity

COLUMNS = (
    "epoch", "rollout_hard", "rollout_soft", "candidate_gate_score", "current_score", "best_score", "edit_budget",
    "n_edits_ranked", "edit_apply_summary.applied", "skill_len", "tokens", "cumulative.cost", "wall_time_s", "accepted",
)  # fmt: skip


class SkillMirror:
    """Sends each committed step once. `skill/step` is what all else is drawn over."""

    def __init__(self, settings: Settings, run: RunDirectory) -> None:
        identity = read_identity(run.path)["identity"]
        self._identity, self._run = kept_identity(run.path, settings), run
        self._mirror = Mirror(settings.wandb, run.path, identity, Sent("skill", COLUMNS, "training"))

    def send(self) -> None:
        """Send the committed steps that were not sent."""
        head = self._run.store.head()
        rows = self._run.ledger.rows()[: head[0] if head else 0]
        self._mirror.send(self._identity, points(row["record"] for row in rows))

    def close(self, found: Iterable[Found] = (), exit_code: int = 0) -> None:
        """Send what is left; at a training's end (`exit_code` 0) also what a person should see in it."""
        self.send()
        if not exit_code:
            self._mirror.tell(lambda: found)
        self._mirror.close(exit_code)


def points(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One mapping a step, the seed document's evaluation being step 0; None where a step has no such number."""
    told: list[dict[str, Any]] = []
    for record in records:
        flat = flatten(record)
        used = [value for name, value in flat.items() if name.startswith("tokens.") and name.endswith("_tokens")]
        more = {"tokens": sum(used), "accepted": int("accept" in str(flat.get("action")))}
        told.append({**{name: flat.get(name) for name in COLUMNS}, **more, "step": record["step"]})
    return told
