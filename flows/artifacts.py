"""What a pipeline run shows in the Prefect UI: a table of metrics, the pictures, and how far it is.

Knows the shapes of artifacts; refuses to know what a metric means.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from prefect.exceptions import PrefectException

from ratchet.commands import alerts
from ratchet.core.errors import InputError, first_line
from ratchet.core.fingerprint import flatten
from ratchet.dag import Dag
from ratchet.loops.research import report_text
from ratchet.report import progress_plot
from ratchet.tables import improvement, ledgers

MAX_MARKDOWN = 190_000
"""Bytes; above about 200 kB the UI gets slow."""

UPDATE_EVERY_S = 2.0

CLOSE_S = 10.0
"""What the last update of a progress may take; a server that hangs does not hold the pipeline up."""

PICTURE_DPI = 80
HITS = 10

_STEP = re.compile(r"\b(?:step|experiment)\s+(\d+)\s*/\s*(\d+)")


@cache
def say_once(reason: str) -> None:
    """Tell that the UI will lack something; a pipeline whose stages succeed does not fail over it."""
    print(f"prefect: the UI lacks progress or results: {reason}", file=sys.stderr)


async def shown(request: Coroutine[Any, Any, UUID]) -> UUID | None:
    """The artifact that `request` to Prefect's API made or changed; None, and one warning, when the API refuses."""
    try:
        return await request
    except (PrefectException, httpx.HTTPError) as error:
        say_once(first_line(error))
        return None


@dataclass
class Progress:
    """How many of `total` have ended, as a progress artifact. At most one update is under way, so none is overtaken."""

    artifact: UUID | None
    total: int
    ended: int = 0
    updated: float = 0.0
    pending: asyncio.Task[UUID | None] | None = None

    @classmethod
    async def start(cls, key: str, total: int, description: str) -> Progress:
        """A new artifact at 0 %. `key` has lowercase letters, digits and dashes only."""
        return cls(await shown(acreate_progress_artifact(0.0, key=key, description=description)), total)

    async def advance(self) -> None:
        """One more has ended."""
        self.ended += 1
        await self.close()
        await self._show(100.0 * self.ended / max(self.total, 1))

    def read(self, line: str) -> None:
        """Take `step N/M` or `experiment N/M` from a line; the artifact follows at most every `UPDATE_EVERY_S` s."""
        found = _STEP.search(line)
        if found is None or (self.pending and not self.pending.done()):
            return
        if time.monotonic() - self.updated < UPDATE_EVERY_S:
            return
        step, of = int(found.group(1)), max(int(found.group(2)), 1)
        self.updated = time.monotonic()
        self.pending = asyncio.create_task(self._show(min(100.0, 100.0 * step / of)))

    async def close(self) -> None:
        """Wait for an update that is under way."""
        if self.pending:
            await asyncio.wait([self.pending], timeout=CLOSE_S)

    async def _show(self, percent: float) -> UUID | None:
        return await shown(aupdate_progress_artifact(self.artifact, percent)) if self.artifact else None


async def show_results(root: Path, dag: Dag) -> None:
    """Publish the metrics and the pictures that the stages of `dag` have left under `root`."""
    outs = [(node.name, root / out) for node in dag.nodes for out in node.outs]
    if table := metrics_table(outs):
        await shown(acreate_table_artifact(table, key="metrics", description="Every stage's metrics"))
    if page := pictures(outs):
        await shown(acreate_markdown_artifact(page, key="plots", description="Curves of the newest run"))
    await show_alerts(root)


async def show_alerts(root: Path) -> None:
    """Publish what a person should see in the results under `root`, none included; nothing while there are none."""
    try:
        looked, found = alerts.looked_at(root), await asyncio.to_thread(alerts.found_in, root)
    except InputError as error:
        say_once(f"no alerts: {error}")
        return
    if looked:
        table = [alert.plain() for alert in found]
        said = f"{len(found)} alerts on {', '.join(looked)}"
        await shown(acreate_table_artifact(table, key="alerts", description=said))


async def show_session(folder: Path) -> None:
    """Publish how far the research session in `folder` is: its picture, largest improvements, cost."""
    if page := await asyncio.to_thread(session_page, folder):
        await shown(acreate_markdown_artifact(page, key="research-progress", description="The research session so far"))


def session_page(folder: Path) -> str:
    """The session whose results.tsv lies in `folder` as markdown; nothing while it has no readable row."""
    try:
        course = improvement.course(ledgers.read(folder / "results.tsv", lenient=True))
    except InputError:
        return ""
    cost = "" if course.cost is None else f" Cost so far: {course.cost[-1]:.4g}."
    picture = base64.b64encode(progress_plot.draw(course, dpi=PICTURE_DPI)).decode()
    hits = [
        f"| {hit.number} | {hit.gain:.6f} | {hit.val_bpb:.6f} | {report_text.plain(hit.description[:100])} |"
        for hit in course.hits(HITS)
    ]
    table = "\n".join(["| no. | gain | val_bpb | what |", "|---|---|---|---|", *hits]) if hits else ""
    drawn = f"![progress](data:image/png;base64,{picture})"
    parts = [f"{progress_plot.sentence(course)}.{cost}", drawn if len(drawn) <= MAX_MARKDOWN else "", table]
    return "\n\n".join(part for part in parts if part) + "\n"


def metrics_table(outs: list[tuple[str, Path]]) -> list[dict[str, str | float]]:
    """One row per number or text in the stages' metric files, nested keys joined by dots."""
    rows: list[dict[str, str | float]] = []
    for stage, path in outs:
        if path.parent.name == "metrics" and path.suffix == ".json" and path.is_file():
            rows += [
                {"stage": stage, "metric": key, "value": value}
                for key, value in flatten(json.loads(path.read_text(encoding="utf-8"))).items()
                if isinstance(value, str | int | float)  # lists and nulls are not for a table
            ]
    return rows


def pictures(outs: list[tuple[str, Path]]) -> str:
    """The PNG files among `outs` as one markdown page of data URIs, up to `MAX_MARKDOWN`; the rest by name."""
    parts: list[str] = []
    left_out: list[str] = []
    room = MAX_MARKDOWN
    folders = [path for _, path in outs if path.is_dir()]
    for png in sorted(png for folder in folders for png in folder.glob("*.png")):
        part = f"## {png.stem.replace('_', ' ')}\n\n![{png.stem}](data:image/png;base64,{_base64(png)})\n"
        if len(part) <= room:
            parts.append(part)
            room -= len(part)
        else:
            left_out.append(f"- {png.name}")
    if left_out:
        parts.append("\nToo large for this page, see the folder:\n" + "\n".join(left_out) + "\n")
    return "\n".join(parts)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
