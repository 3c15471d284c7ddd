"""The contract between dvc.yaml and the code: deps, outs, metrics and params are what each step really uses.

Without it DVC serves stale results in silence, for it knows only dvc.yaml. `python -m ratchet.contract --write`
mends the deps; tests/contract fails when they lie. Refuses to know what any stage does.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from ratchet import params as params_file
from ratchet.core.errors import RatchetError
from ratchet.core.fingerprint import import_closure
from ratchet.stage import CHECKER, LAUNCHER, Stage

PIPELINE = Path("dvc.yaml")

ALWAYS = ("constraints.txt",)
"""A dep of every stage: another version of a package may give another result."""

ELSEWHERE = (LAUNCHER, CHECKER)
"""Started, but no dep. One runs the same command in another place, and tests show that the bytes are the same; the
other refuses a result or lets it be."""

_MODULE = re.compile(r"(ratchet|steps|flows)(\.\w+)+")


class Claim(NamedTuple):
    """What one stage reads and writes, as sorted POSIX paths relative to the project."""

    deps: tuple[str, ...]
    outs: tuple[str, ...]
    metrics: tuple[str, ...]


def step(name: str) -> Stage[Any, Any, Any]:
    """The Stage object of `steps/<name>.py`."""
    return cast("Stage[Any, Any, Any]", importlib.import_module(f"steps.{name}").STAGE)


@cache  # files do not change while this process looks at them
def truth(name: str, root: Path) -> Claim:
    """What the code of stage `name` really uses: the files it imports or starts, its inputs, its outputs."""
    stage = step(name)
    code = (path.relative_to(root).as_posix() for path in code_of(root / "steps" / f"{name}.py", root))
    outputs = [Path(path).as_posix() for path in stage.outputs]
    metrics = [path for path in outputs if path.startswith("metrics/")]
    return Claim(
        _sorted([*ALWAYS, *code, *(Path(path).as_posix() for path in stage.inputs)]),
        _sorted(path for path in outputs if path not in metrics),
        _sorted(metrics),
    )


def code_of(module_file: Path, root: Path) -> list[Path]:
    """The import closure of a module, with those of the modules it starts as processes (`-m ratchet.x`)."""
    found: set[Path] = set()
    todo = [module_file]
    while todo:
        new = set(import_closure(todo.pop(), root)) - found
        found |= new
        todo += [path for file in new for path in _started(file, root) if path not in found]
    return sorted(found)


def _started(file: Path, root: Path) -> Iterable[Path]:
    """Files of the project's modules whose dotted name stands in `file` as a string of its own."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_started(node.value):
            path = root / Path(*node.value.split(".")).with_suffix(".py")
            if path.is_file():
                yield path


def _is_started(text: str) -> bool:
    return text not in ELSEWHERE and _MODULE.fullmatch(text) is not None


def claimed(entry: Mapping[str, Any]) -> Claim:
    """What a stage's entry in dvc.yaml says."""
    return Claim(*(_sorted(_paths(entry.get(key, ()))) for key in Claim._fields))


def _paths(items: Iterable[str | Mapping[str, Any]]) -> Iterable[str]:
    for item in items:
        yield item if isinstance(item, str) else next(iter(item))


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(paths)))


def lies(pipeline: Mapping[str, Any], root: Path) -> list[str]:
    """Every way in which `pipeline` (the parsed dvc.yaml) differs from the code, each with the lines to paste."""
    found: list[str] = []
    for name, entry in pipeline.get("stages", {}).items():
        said, true = claimed(entry), truth(name, root)
        for key in Claim._fields:
            ours, theirs = getattr(said, key), getattr(true, key)
            if ours != theirs:
                missing = [f"lacks {path}" for path in theirs if path not in ours]
                extra = [f"names {path}, which is none" for path in ours if path not in theirs]
                found.append(f"dvc.yaml: {name}.{key} {', '.join(missing + extra)}; paste\n{_block(key, theirs)}")
        found += _other_lies(name, entry)
    return found


def _other_lies(name: str, entry: Mapping[str, Any]) -> Iterable[str]:
    if entry.get("params") != [name]:
        yield f"dvc.yaml: {name}.params is {entry.get('params')}; paste\n    params:\n      - {name}"
    if entry.get("cmd") != f"python -m steps.{name}":
        yield f"dvc.yaml: {name}.cmd is {entry.get('cmd')!r}; paste\n    cmd: python -m steps.{name}"
    for item in entry.get("metrics", ()):
        if isinstance(item, str) or item[next(iter(item))] != {"cache": False}:
            yield f"dvc.yaml: {name}.metrics has a cached one; give it `cache: false`, git keeps it"


def _block(key: str, paths: Sequence[str]) -> str:
    tail = ":\n          cache: false" if key == "metrics" else ""
    return "\n".join([f"    {key}:", *(f"      - {path}{tail}" for path in paths)])


def with_true_deps(text: str, root: Path) -> str:
    """The text of dvc.yaml with every stage's deps as they are; all else, comments included, stays."""
    for name in params_file.read_document(root / PIPELINE)["stages"]:
        block = re.compile(rf"(^  {re.escape(name)}:\n(?:    .*\n)*?)    deps:\n(?:      - .*\n)*", re.MULTILINE)
        deps = _block("deps", truth(name, root).deps)
        text = block.sub(lambda found, deps=deps: f"{found.group(1)}{deps}\n", text, count=1)
    return text


def wrong_params(path: Path, names: Iterable[str], over: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong in the sections `names` of a params file with `over` laid on it, one line each."""
    document = params_file.merge(params_file.read_document(path), over or {})
    found: list[str] = []
    for name in names:
        try:
            params_file.validate(document.get(name) or {}, name, step(name).params, path)
        except RatchetError as error:
            found.append(str(error))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print every lie and return 1, or with --write mend the deps first."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.contract", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the true deps into dvc.yaml")
    if parser.parse_args(argv).write:
        PIPELINE.write_text(with_true_deps(PIPELINE.read_text(encoding="utf-8"), Path.cwd()), encoding="utf-8")
    pipeline = params_file.read_document(PIPELINE)
    found = [*lies(pipeline, Path.cwd()), *wrong_params(params_file.PARAMS_FILE, pipeline["stages"])]
    print("\n".join(found) or "dvc.yaml: tells the truth", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
