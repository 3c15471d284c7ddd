"""Progress and results in the UI: in order, awaited, and never a reason to fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import httpx
import pytest

import made_session
import made_team
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
    assert capsys.readouterr().err == "prefect: the UI lacks progress or results: ConnectError: refused\n"


def test_progress_follows_the_experiments_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    async def update(_artifact: UUID, percent: float) -> UUID:
        seen.append(percent)
        return SOME

    monkeypatch.setattr(artifacts, "aupdate_progress_artifact", update)

    async def one_stage() -> None:
        progress = Progress(SOME, 1)
        progress.read("iterate: experiment 3/12: keep 1.5432: the gain 0.02 is above the threshold 0.006")
        await progress.close()

    asyncio.run(one_stage())
    assert seen == [25.0]


def test_alerts_on_what_stages_left_are_shown_and_none_while_nothing_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[list[dict[str, str]], str]] = []

    async def table(rows: list[dict[str, str]], key: str, description: str) -> UUID:
        assert key == "alerts"
        seen.append((rows, description))
        return SOME

    monkeypatch.setattr(artifacts, "acreate_table_artifact", table)
    asyncio.run(artifacts.show_alerts(tmp_path))
    assert seen == []
    made_team.make_team(tmp_path)
    asyncio.run(artifacts.show_alerts(tmp_path))
    ((rows, said),) = seen
    assert said == "1 alerts on team"
    assert rows[0]["what"] == "the rise is <b>made up</b>"
    assert rows[0]["stage"] == "team"


def test_session_page_has_picture_hits_and_cost_and_shows_words_as_letters(tmp_path: Path) -> None:
    made = made_session.rows(6)
    made[3]["description"] = "[a](javascript:x) | <b> *b*"
    made_session.make_session(tmp_path, made=made)
    page = artifacts.session_page(tmp_path / "data/iterate")
    assert page.startswith("6 experiments, 2 kept, 0 crashed: 1.5917 →")
    assert "Cost so far: 0.075." in page
    assert "data:image/png;base64,iVBOR" in page
    assert "\\[a\\](javascript:x) \\| \\<b\\> \\*b\\*" in page
    assert len(page.encode()) < artifacts.MAX_MARKDOWN


def test_session_page_before_the_first_row_is_none(tmp_path: Path) -> None:
    assert artifacts.session_page(tmp_path) == ""
    (tmp_path / "results.tsv").write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n")
    assert artifacts.session_page(tmp_path) == ""
