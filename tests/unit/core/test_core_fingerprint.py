"""Hashes and import closures: what must change an identity and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.fingerprint import (
    ABSENT,
    closure_digest,
    code_digest,
    constraints_digest,
    differences,
    digest,
    file_digest,
    flatten,
    import_closure,
    tree_digest,
)

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)
IDENTITIES = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3), lambda inner: st.dictionaries(KEYS, inner | LEAVES, max_size=3)
)


@given(IDENTITIES)
def test_digest_order_of_keys_does_not_count(identity: dict[str, object]) -> None:
    assert digest(identity) == digest(dict(reversed(identity.items())))


@given(IDENTITIES, IDENTITIES)
def test_differences_are_empty_exactly_when_the_digests_of_flat_identities_agree(
    old: dict[str, object], new: dict[str, object]
) -> None:
    assert (differences(old, new) == []) == (digest(flatten(old)) == digest(flatten(new)))
    assert differences(old, old) == []


@given(IDENTITIES, KEYS, LEAVES)
def test_differences_name_an_added_key_both_ways(identity: dict[str, object], key: str, value: object) -> None:
    identity.pop(key, None)
    more = identity | {key: value}
    assert differences(identity, more) == [(key, ABSENT, value)]
    assert differences(more, identity) == [(key, value, ABSENT)]


def test_differences_tell_one_from_true_and_from_one_point_zero() -> None:
    assert [c.key for c in differences({"a": 1, "b": 1, "c": 0}, {"a": True, "b": 1.0, "c": False})] == ["a", "b", "c"]


def test_change_reads_as_key_old_arrow_new() -> None:
    assert str(differences({"lr": {"max": 0.1}}, {"lr": {"max": 0.2}})[0]) == "lr.max 0.1 → 0.2"


def test_digest_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"x": float("nan")})


def test_tree_digest_counts_names_and_bytes_but_not_place_order_or_time(tmp_path: Path) -> None:
    for folder, order in (("one", ["a", "b/c"]), ("two", ["b/c", "a"])):
        for name in order:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(name)
    one, two = tmp_path / "one", tmp_path / "two"
    assert tree_digest(one) == tree_digest(two)
    (two / "a").rename(two / "d")
    assert tree_digest(one) != tree_digest(two)
    (two / "d").rename(two / "a")
    (two / "b").rename(two / "e")
    assert tree_digest(one) != tree_digest(two)
    (two / "e").rename(two / "b")
    assert tree_digest(one) == tree_digest(two)
    (two / "a").write_text("A")
    assert tree_digest(one) != tree_digest(two)
    assert tree_digest(one / "a") == file_digest(one / "a")
    with pytest.raises(FileNotFoundError):
        tree_digest(tmp_path / "three")


CASES = {
    "import lib.a": {"lib/a.py", "lib/__init__.py"},
    "import lib.a as x, os": {"lib/a.py", "lib/__init__.py"},
    "from lib import a": {"lib/a.py", "lib/__init__.py"},
    "from lib.a import thing": {"lib/a.py", "lib/__init__.py"},
    "def f():\n    from lib import b": {"lib/a.py", "lib/b.py", "lib/__init__.py"},
    "import lib": {"lib/__init__.py"},
    "from lib.sub.deep import x": {"lib/__init__.py", "lib/sub/__init__.py", "lib/sub/deep.py", "lib/a.py"},
    "import lib.sub.alone": {"lib/__init__.py", "lib/sub/__init__.py", "lib/sub/alone.py"},
    "import json": set(),
}


@pytest.mark.parametrize("line", CASES)
def test_import_closure_finds_what_a_line_imports(line: str, tmp_path: Path) -> None:
    files = {"lib/__init__.py": "", "lib/a.py": "import os", "lib/b.py": "from .a import x", "lib/sub/__init__.py": "",
             "lib/sub/deep.py": "from .. import a", "lib/unused.py": "", "lib/sub/alone.py": "",
             "main.py": line}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {path.relative_to(tmp_path).as_posix() for path in import_closure(tmp_path / "main.py", tmp_path)}
    assert found == CASES[line] | {"main.py"}


def test_import_closure_survives_a_cycle_and_gives_paths_under_the_root_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import b")
    (tmp_path / "b.py").write_text("import a")
    monkeypatch.chdir(tmp_path)
    assert import_closure(Path("a.py"), Path()) == [Path("a.py"), Path("b.py")]


CODE = 'def f(x):\n    """Say."""\n    return x + 1\n'
SAME = {
    "a comment": "# why\n" + CODE,
    "formatting": "def f( x ) :\n\n  return (x+1)  # one\n",
    "the docstring": CODE.replace("Say.", "Explain."),
    "no docstring": "def f(x):\n    return x + 1\n",
    "a module docstring": '"""New."""\n' + CODE,
}
OTHER = {"a constant": CODE.replace("1", "2"), "a name": CODE.replace("x", "y"), "a line": CODE + "f(1)\n"}


@pytest.mark.parametrize("kind", [*SAME, *OTHER])
def test_code_digest_counts_what_is_computed_and_nothing_else(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(CODE)
    before = code_digest([file])
    file.write_text((SAME | OTHER)[kind])
    assert (code_digest([file]) == before) == (kind in SAME)


def test_code_digest_does_not_count_the_folder_but_which_file_holds_what(tmp_path: Path) -> None:
    def written(folder: str, **files: str) -> list[Path]:
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / f"{name}.py").write_text(text)
        return [tmp_path / folder / f"{name}.py" for name in files]

    assert code_digest(written("one", a="1", b="2")) == code_digest(reversed(written("two", a="1", b="2")))
    assert code_digest(written("three", a="2", b="1")) != code_digest(written("four", a="1", b="2"))


def test_code_digest_file_that_is_no_python_counts_by_its_bytes(tmp_path: Path) -> None:
    prompt = tmp_path / "brief.md"
    prompt.write_text("# not a comment")
    before = code_digest([prompt])
    prompt.write_text("# not a comment ")
    assert code_digest([prompt]) != before


def test_closure_digest_counts_what_any_module_imports_under_the_root_once(tmp_path: Path) -> None:
    files = {
        "lib/__init__.py": "",
        "lib/both.py": "X = 1",
        "one.py": "import lib.both",
        "two.py": "from lib import both",
    }
    (tmp_path / "lib").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    modules = [tmp_path / "one.py", tmp_path / "two.py"]
    before = closure_digest(modules, tmp_path)
    assert before == code_digest(tmp_path / name for name in files)
    (tmp_path / "lib/both.py").write_text("X = 2")
    assert closure_digest(modules, tmp_path) != before


def test_constraints_digest_is_that_of_the_file_and_none_without_one(tmp_path: Path) -> None:
    assert constraints_digest(tmp_path) is None
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    assert constraints_digest(tmp_path) == file_digest(tmp_path / "constraints.txt")
