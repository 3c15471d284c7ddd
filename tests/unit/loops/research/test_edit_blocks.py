"""Search/replace blocks: exact or refused, with words that help; nothing but the arena."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from made_question import ARENA
from ratchet.loops.research.proposers.edit_blocks import Block, EditError, apply, check, parse


def block(search: str, replace: str, head: str = "") -> str:
    return f"{head}<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


WIDER = block("WIDTH: Annotated[int, 1, 64] = 8", "WIDTH: Annotated[int, 1, 64] = 16")


def edited(reply: str, source: str = ARENA) -> str:
    after = apply(source, parse(reply).blocks)
    check(source, after)
    return after


def test_edit_block_replaces_its_lines_and_nothing_else() -> None:
    assert edited(f"DESCRIPTION: wider\n{WIDER}") == ARENA.replace("= 8", "= 16")


def test_edit_several_blocks_apply_in_order() -> None:
    again = block("WIDTH: Annotated[int, 1, 64] = 16", "WIDTH: Annotated[int, 1, 64] = 32")
    reply = f"{WIDER}\nand then\n\n{again}{block('    # the model', '    # wide')}"
    assert edited(reply) == ARENA.replace("= 8", "= 32").replace("# the model", "# wide")


def test_edit_in_fences_with_windows_line_ends_and_the_arenas_path_is_read() -> None:
    reply = f"**Description:** wider\n\narena/train.py\n```python\n{WIDER}```\n".replace("\n", "\r\n")
    assert parse(reply).description == "wider"
    assert "= 16" in edited(reply)


@pytest.mark.parametrize(
    ("said", "description"),
    [
        ("DESCRIPTION: шире\n", "шире"),
        ("Let me think.\ndescription : wider, for room\n", "wider, for room"),
        ("Only prose here.\nAnd more.\n", "Only prose here."),
        ("", ""),
    ],
)
def test_edit_description_is_its_line_or_the_first_prose(said: str, description: str) -> None:
    assert parse(said + WIDER).description == description


def test_edit_that_deletes_lines_is_an_empty_replacement() -> None:
    reply = "<<<<<<< SEARCH\n    # the model\n=======\n>>>>>>> REPLACE\n" + WIDER
    assert "# the model" not in edited(reply)
    assert parse(reply).blocks[0] == Block(("    # the model",), ())


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("I would rather talk about it.", "the reply has no block"),
        (f"```python\n{ARENA}\n```", "the reply has no block"),
        ("<<<<<<< SEARCH\nx\n=======\ny\n", "block 1 has no end"),
        (WIDER + "<<<<<<< SEARCH\nx\n", "block 2 has no end"),
        ("<<<<<<< SEARCH\nx\n>>>>>>> REPLACE\n", "block 1 has no line ======="),
        (block("x", "y\n=======\nz"), "block 1 has two lines ======="),
        ("<<<<<<< SEARCH\nx\n" + WIDER, "block 1 has no end"),
        (block("", "x = 1"), "block 1 searches for nothing"),
        (block("WIDTH = 8", "WIDTH = 9"), "block 1 does not apply: its SEARCH is not in the file"),
        (block("RATE: Annotated[float, 0.001, 1.0] = 0", "x"), "'RATE: Annotated[float, 0.001, 1.0, \"log\"] = 0.1' "),
        (block("  # the model", "  # x"), "but at line 11 with other spaces"),
        (block("    # the model ", "    # x"), "but at line 11 with other spaces"),
        (block("= 8", "= 9"), "does not apply"),
        (WIDER + WIDER, "block 2 does not apply"),
        (block("    return WIDTH * RATE", "    return WIDTH *"), "no Python: invalid syntax at line 12 ("),
        (block("    # the model", "    # the best model"), "the edit changes nothing that runs"),
        (block("x", "y", "ratchet/train/judge.py\n"), "it edits ratchet/train/judge.py; only arena/train.py"),
        (block("x", "y", "### FILE: `params.yaml`\n```yaml\n"), "it edits params.yaml"),
        ("<<<<<<< SEARCH ../judge.py\nx\n=======\ny\n>>>>>>> REPLACE\n", "it edits ../judge.py"),
        (block("x", "y", "..\\arena\\train.py\n"), "it edits ../arena/train.py"),
    ],
)  # fmt: skip
def test_edit_that_is_none_is_refused_with_words_that_help(reply: str, said: str) -> None:
    with pytest.raises(EditError) as caught:
        edited(reply)
    assert said in str(caught.value)


def test_edit_with_two_matches_names_their_lines() -> None:
    with pytest.raises(EditError, match="block 1 is ambiguous: its SEARCH is at lines 1, 3; add lines around it"):
        edited(block("x = 1", "x = 2"), "x = 1\ny = 0\nx = 1\n")
    assert edited(block("y = 0\nx = 1", "y = 0\nx = 2"), "x = 1\ny = 0\nx = 1\n") == "x = 1\ny = 0\nx = 2\n"


def test_edit_of_a_file_without_a_last_line_end_keeps_it_so() -> None:
    assert edited(block("y = 2", "y = 3"), "x = 1\ny = 2") == "x = 1\ny = 3"


def test_edit_nested_too_deep_to_be_compared_is_refused(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(1000)  # Python's own; a library may have raised it
    with pytest.raises(EditError, match="recursion"):
        edited(block("y = 2", "y = " + "+".join(["2"] * 990)), "x = 1\ny = 2")
