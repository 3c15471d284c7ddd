"""program.md: an optional front matter that binds, and prose that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.loops.research.program import Objective, parse_program, read_program

RUSSIAN = "# Задание\r\n\n--- ищи компактные модели; попробуй альтернативы RoPE ---\n\n---\nконец"


@pytest.mark.parametrize("prose", [RUSSIAN, "", "# Goal\n\n    code\n", "---- not a front matter\n", "---\u00a0x\n"])
def test_program_without_front_matter_is_prose_to_the_letter(prose: str) -> None:
    program = parse_program(prose)
    assert (program.brief, program.objective, program.search) == (prose, Objective(), {})


def test_program_front_matter_gives_the_objective_and_leaves_the_prose_untouched() -> None:
    program = parse_program(
        "---\nobjective: {minimise: val_bpb, max: {params_m: 12, memory_gb: 1.5}}\n"
        "search: {DEPTH: [1, 4], HEADS: }\n---\n" + RUSSIAN
    )
    assert program.brief == RUSSIAN
    assert program.objective == Objective("val_bpb", {"params_m": 12.0, "memory_gb": 1.5})
    assert program.search == {"DEPTH": [1, 4], "HEADS": None}


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("objectve: {}", "unknown key 'front matter.objectve'; did you mean 'objective'?"),
        ("objective: {minimize: val_bpb}", "unknown key 'front matter.objective.minimize'; did you mean 'minimise'?"),
        ("objective: {minimise: loss}", "front matter.objective.minimise = 'loss': input should be 'val_bpb'"),
        ("objective: {max: {param_m: 12}}", "'front matter.objective.max.param_m'; did you mean 'params_m'?"),
        (
            "objective: {max: {params_m: -1}}",
            "front matter.objective.max.params_m = -1: input should be greater than 0",
        ),
        ("objective: {max: {memory_gb: .nan}}", "front matter.objective.max.memory_gb = nan"),
        ("objective: {max: [12]}", "front matter.objective.max = [12]"),
        ("just words", "the front matter holds a str, not a mapping"),
        ("objective: {", "the front matter is not YAML"),
        ("search: {DEPTH: 4}", "front matter.search.DEPTH = 4"),
        ("search: {DEPTH: []}", "search.DEPTH = [] names nothing that can be tried"),
        ("search: {DEPTH: [1, .inf]}", "names nothing that can be tried"),
    ],
)
def test_program_front_matter_that_is_wrong_is_one_clear_error(head: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_program(f"---\n{head}\n---\nprose\n", "arena/program.md")
    assert said in str(caught.value)
    assert str(caught.value).startswith("arena/program.md: ")
    assert "\n" not in str(caught.value)


def test_program_front_matter_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="never ends"):
        parse_program("---\nobjective: {}\n\nprose\n")


def test_program_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "program.md").write_bytes("\ufeff---\nobjective: {max: {params_m: 3}}\n---\nпоиск\n".encode())
    program = read_program(tmp_path / "program.md")
    assert (program.brief, dict(program.objective.maximum)) == ("поиск\n", {"params_m": 3.0})


def test_program_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_program(tmp_path / "program.md")
    (tmp_path / "program.md").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8 at byte 3"):
        read_program(tmp_path / "program.md")


def test_program_of_the_repository_parses() -> None:
    program = read_program(Path("arena/program.md"))
    assert "val_bpb" in program.brief
    assert program.objective.minimise == "val_bpb"
