"""The Python examples of docs/tokenizer.md and docs/packing.md run as they are written, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core import atomic
from ratchet.data.packing import pack_split
from ratchet.data.row_plan import Gaps
from ratchet.data.tokenizer_training import train
from ratchet.settings import child_environment

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXTS = [f"Sentence {number} speaks of {number * 7919 % 1000} things, naïvely." for number in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tokenizer.md", "packing.md"])
def test_docs_python_examples_run(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "data/tokenizer"
    folder.mkdir(parents=True)
    caps = {"max_characters": 10**6, "max_document_characters": 10**6}
    train(TEXTS, vocab_size=300, where="corpus", **caps)[0].save(folder)
    for name, gaps in (("train", Gaps.FILL), ("val", Gaps.PAD)):
        with atomic.output_folder(tmp_path / "data/pack" / name) as packed:
            pack_split(TEXTS, folder, packed, sequence_len=16, gaps=gaps, where="corpus", workers=1)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    printed = ""
    for block in blocks:
        command = [sys.executable, "-c", block]
        done = subprocess.run(
            command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    if page == "packing.md":
        assert "Sentence 0 speaks" in printed
