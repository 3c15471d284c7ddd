"""What the pages say exists: every link, every command and option, every setting, every make target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ratchet.cli import app
from ratchet.settings import QUIET_TOOLS, Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "data/README.md"])
PAGES = [page for page in PAGES if page.is_file()]

LINK = re.compile(r"\]\(([^)\s]+)\)")
RATCHET = re.compile(r"(?:^\$ |`)ratchet ((?:[a-z]+ ?)?[^`\n|]*)", re.MULTILINE)
MAKE = re.compile(r"(?:^\$ |`)make ([a-z-]+)", re.MULTILINE)
COMMAND = typer.main.get_command(app)


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors that a forge gives a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_words(said: str) -> Iterator[str]:
    """The verbs and long options of `ratchet <said>` that do not exist."""
    command: Any = COMMAND
    for word in said.split():
        verbs: dict[str, Any] = getattr(command, "commands", {})
        if verbs and re.fullmatch(r"[a-z]+", word):
            if word not in verbs:
                yield word
                return
            command = verbs[word]
        elif re.match(r"--?[a-zA-Z]", word):
            known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
            option = word.rstrip(",.;:)").partition("=")[0]
            if option not in known:
                yield option


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_page_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{ids(page)}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{ids(page)}: {link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_page_commands_and_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for said in RATCHET.findall(text):
        assert not list(unknown_words(said)), f"{ids(page)}: `ratchet {said}`"
    for target in MAKE.findall(text):
        assert target in targets(), f"{ids(page)}: `make {target}`"


@pytest.mark.parametrize(
    ("said", "unknown"),
    [
        ("run --profile smoke", []),
        ("run -S train.seed=2 --frm x", ["--frm"]),
        ("runs gc --superseded", []),
        ("rnu", ["rnu"]),
        ("--help", []),
    ],
)
def test_unknown_words_finds_what_does_not_exist(said: str, unknown: list[str]) -> None:
    assert list(unknown_words(said)) == unknown


def test_settings_page_has_every_setting_and_default() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        line = next((line for line in page.splitlines() if line.startswith(f"| `RATCHET_{name.upper()}` |")), None)
        assert line, f"docs/settings.md lacks RATCHET_{name.upper()}"
        assert str(field.description) in line
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        assert field.default is None or f"`{default}`" in line
    assert set(re.findall(r"`RATCHET_(\w+)`", page)) <= {name.upper() for name in Settings.model_fields}
    for name, value in QUIET_TOOLS.items():
        assert f"| `{name}` | `{value}` |" in page


def test_help_of_make_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert set(phony.group(1).replace("\\", " ").split()) == targets()
    assert len(re.findall(r"^[a-z-]+:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)) == len(targets())


def test_ci_runs_the_makefile_and_nothing_of_its_own() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()
    assert "run: bash .ci/run" in (ROOT / ".github/workflows/ci.yaml").read_text()
    for workflow in (ROOT / ".github/workflows").glob("*.yaml"):
        text = workflow.read_text()
        assert "permissions:\n  contents: read\n" in text
        assert all(re.search(r"@[0-9a-f]{40} # v", line) for line in text.splitlines() if "uses:" in line)
