"""What SECURITY.md promises of files: nothing is unpickled, evaluated or run that is only data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for top in ("ratchet", "steps", "flows", "arena") for path in (ROOT / top).rglob("*.py"))
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN = {("torch", "load"), ("torch", "save"), ("pd", "read_pickle"), ("pandas", "read_pickle")}
FORBIDDEN |= {("yaml", name) for name in ("unsafe_load", "full_load", "load_all", "Loader", "UnsafeLoader")}


def wrong(text: str) -> list[str]:
    """What in a module may run what is only data, as `line: name`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found += [f"{node.lineno}: {a.name}" for a in names if a.name.partition(".")[0] in UNPICKLERS]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNPICKLERS:
                found.append(f"{node.lineno}: {module}")
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in FORBIDDEN:
                found.append(f"{node.lineno}: {owner}.{name}")
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(f"{node.lineno}: {name}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr="load"), keywords=keywords):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                if given.get("allow_pickle") != "False":
                    found.append(f"{node.lineno}: np.load without allow_pickle=False")
            case _:
                pass
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_reads_data_as_data(path: Path) -> None:
    found = wrong(path.read_text(encoding="utf-8"))
    if path == ROOT / "ratchet/train/arena.py":  # runs the arena, which is code and no data
        assert [each.partition(" ")[2] for each in found] == ["exec"]
    else:
        assert not found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "import yaml\nyaml.load('x', Loader=yaml.Loader)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x')",
        "eval('1')",
    ],
)
def test_wrong_sees_each_way_to_run_data(text: str) -> None:
    assert wrong(text)


def test_wrong_allows_plain_reading() -> None:
    assert not wrong("import numpy as np\nnp.load('x', allow_pickle=False)\nmodel.eval()")
