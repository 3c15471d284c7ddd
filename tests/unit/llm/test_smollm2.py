"""The local model's identity; what it answers is tested in tests/unit/loops/skill."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.llm import smollm2


def test_hash_of_the_model_file_is_taken_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(smollm2, "gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(smollm2, "file_digest", lambda path: hashed.append(path) or "ab" * 32)
    smollm2.sha256.cache_clear()
    assert smollm2.sha256() == smollm2.sha256() == "ab" * 32
    smollm2.sha256.cache_clear()
    assert hashed == [Path("model.gguf")]
