"""The example of docs/runs.md runs as it is printed, and does what the page says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ratchet.core.rundir import list_runs

PAGE = Path(__file__).parents[3] / "docs" / "runs.md"


def test_runs_page_example_resumes_and_goes_on(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    def run(text: str) -> bytes:
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
        (info,) = list_runs(tmp_path / "runs")
        return (info.path / "ledger.jsonl").read_bytes()

    first = run(code)
    assert run(code) == first
    more = run(code.replace("steps=5", "steps=9"))
    assert more.startswith(first)
    (info,) = list_runs(tmp_path / "runs")
    assert (info.state, info.seq, info.why) == ("finished", 9, "5 steps")


def test_runs_page_tree_names_the_files_that_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in ("identity.json", "ledger.jsonl", "HEAD", "manifest.json", "lock", "end.json", "stop"):
        assert f"\n  {name} " in text or f" {name} (" in text
