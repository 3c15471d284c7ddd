"""What docs/llm.md and docs/proposers.md show works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.llm.endpoint import Endpoint
from ratchet.loops.research.program import parse_program
from ratchet.loops.research.proposers import Kind
from ratchet.loops.research.proposers.command import PLACES, CommandParams, words
from ratchet.loops.research.proposers.edit_blocks import apply, parse
from ratchet.loops.research.proposers.llm import LlmParams
from ratchet.loops.research.proposers.replay import ReplayParams
from ratchet.loops.research.proposers.search import SearchParams
from ratchet.params import parse_yaml, validate

ROOT = Path(__file__).resolve().parents[4]
PAGES = [ROOT / "docs/llm.md", ROOT / "docs/proposers.md"]
SECTIONS = {"search": SearchParams, "llm": LlmParams, "command": CommandParams, "replay": ReplayParams}


def blocks(language: str, page: Path) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_python_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks("python", page))
    assert code
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    if page.name == "llm.md":
        assert ended.stdout == "Something short.\n" * 2


def test_page_yaml_is_what_the_proposers_take() -> None:
    shown = [parse_yaml(text)["iterate"] for text in blocks("yaml", PAGES[1])]
    assert {section["proposer"] for section in shown} == {Kind.SEARCH, Kind.LLM, Kind.COMMAND}
    for section in shown:
        name = section["proposer"]
        assert validate(section[name], name, SECTIONS[name])


def test_page_front_matter_and_edit_fit_the_committed_arena() -> None:
    front, edit = blocks("", PAGES[1])
    assert parse_program(front).objective.maximum == {"params_m": 12.0, "memory_gb": 4.0}
    arena = (ROOT / "arena/train.py").read_text(encoding="utf-8")
    assert apply(arena, parse(edit).blocks) != arena


def test_page_command_templates_split_into_words() -> None:
    templates = re.findall(
        r"^\| [^|]+ \| `([^`]+)` \|", PAGES[1].read_text(encoding="utf-8").partition("| agent |")[2], re.M
    )
    assert len(templates) == 5
    for template in templates:
        assert CommandParams(template=template)
        assert any("question.md" in word or word == "arena/train.py" for word in words(template, PLACES))


def test_page_of_language_models_names_every_parameter_of_an_endpoint() -> None:
    page = PAGES[0].read_text(encoding="utf-8")
    for name in Endpoint.model_fields:
        assert f"`{name}`" in page


def test_page_of_proposers_names_every_proposer() -> None:
    page = PAGES[1].read_text(encoding="utf-8")
    for kind in Kind:
        assert f"\n## {kind}\n" in page
