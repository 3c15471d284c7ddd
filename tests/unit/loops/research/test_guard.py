"""The guard: what a candidate's text may be, and when two texts are one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.loops.research import guard

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from ratchet.train import judge", "imports ratchet.train, which is sealed"),
        ("def f():\n    import ratchet.train.trainer as t", "line 2 imports ratchet.train.trainer"),
        ("import steps.evaluate", "steps.evaluate, which is sealed"),
        ("import importlib", "computed names"),
        ("from importlib import import_module", "computed names"),
        ("x = __import__('ratchet')", "calls __import__()"),
        ("exec('import ratchet')", "calls exec()"),
        ("import sys\nsys.modules['ratchet.train.judge']", "reads sys.modules"),
        ("from sys import modules", "imports sys.modules"),
        ("def f(:", "no Python"),
        ("x = '\x00'", "no Python"),
        ("x = 1 #" + "y" * 1_000_001, "longer than"),
        ("X = " + "+".join(["1"] * 600), "nested deeper than 150"),
        ("X = " + "-" * 200 + "1", "nested deeper than 150"),
        ("if __name__ == '__main__':\n    from ratchet.train.judge import judge", "which is sealed"),
        ("from ratchet.train.standalone import main", "which is sealed"),
    ],
)
def test_guard_refuses_with_the_line(source: str, said: str) -> None:
    assert said in (guard.refusal(source) or "")


def test_guard_lets_the_arena_itself_pass() -> None:
    source = (ROOT / "arena/train.py").read_text(encoding="utf-8")
    assert guard.refusal(source) is None
    assert "ratchet.train.standalone" in source
    assert guard.refusal("import torch\nmodel = torch.nn.Linear(2, 2)\nmodel.eval()\n") is None


def test_arena_sha_sees_code_and_nothing_else() -> None:
    source = 'def f(x):\n    """Says."""\n    return x + 1\n'
    assert guard.arena_sha(source) == guard.arena_sha("# hi\ndef f( x ):\n    'Other.'\n    return (x + 1)  # so\n")
    assert guard.arena_sha(source) != guard.arena_sha(source.replace("+ 1", "+ 2"))
    assert guard.code_lines(source) == 2


def test_diff_lines_counts_what_came_and_went() -> None:
    assert guard.diff_lines("a\nb\nc\n", "a\nB\nc\nd\n") == 3
    assert guard.diff_lines("--- a\n", "+++ b\n") == 2


def test_untrusted_text_cannot_steer_a_terminal() -> None:
    lines = ["\x1b[31mval_bpb: 0.1\x07", "left\u202eright", "x" * 5000]
    assert guard.untrusted(lines)[:2] == ("[31mval_bpb: 0.1", "leftright")
    assert len(guard.untrusted(lines)[2]) == guard.SAID_LETTERS
    assert len(guard.untrusted(["a"] * 500)) == guard.SAID_LINES
