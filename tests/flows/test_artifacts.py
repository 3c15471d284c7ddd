"""Progress and results in the UI: in order, awaited, and never a reason to fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from flows import artifacts
from flows.artifacts import Progress, show_results
from ratchet.dag import Dag, Node

SOME = UUID(int=1)


def test_progress_late_update_cannot_overwrite_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    async def slow(_artifact: UUID, percent: float) -> UUID:
        await asyncio.sleep(0.2 if percent < 100 else 0.0)
        seen.append(percent)
        return SOME

    monkeypatch.setattr(artifacts, "aupdate_progress_artifact", slow)

    async def one_stage() -> None:
        progress = Progress(SOME, 1)
        progress.read("step 1/4  loss 2.0")
        await asyncio.sleep(0.01)
        progress.read("step 2/4  loss 1.0")
        await progress.advance()
        assert progress.pending is not None
        assert progress.pending.done()

    asyncio.run(one_stage())
    assert seen == [25.0, 100.0]


def test_api_that_fails_is_told_once_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def down(*_: object, **__: object) -> UUID:
        raise httpx.ConnectError("refused")

    for name in ("acreate_progress_artifact", "aupdate_progress_artifact", "acreate_table_artifact"):
        monkeypatch.setattr(artifacts, name, down)
    artifacts.say_once.cache_clear()
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/a.json").write_text('{"x": 1}')
    node = Node("a", "", (), timeout_s=None, retries=0, outs=(Path("metrics/a.json"),))

    async def one_flow() -> None:
        without = await Progress.start("p", 1, "")
        without.read("step 1/2")
        await without.advance()
        await Progress(SOME, 1).advance()
        await show_results(tmp_path, Dag((node,)))

    asyncio.run(one_flow())
    assert capsys.readouterr().err == "pipeline: the UI lacks progress or results: ConnectError: refused\n"
