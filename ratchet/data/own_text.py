"""`ratchet init --text FOLDER`: point `prepare` at one's own files by editing the values in params.yaml in place.

Changes the values' characters alone, so that comments and layout stay. Refuses to know how the files are prepared.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Literal

import yaml

from ratchet import params as params_file
from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.data.sources.parquet import ParquetParams, ParquetSource
from ratchet.data.sources.protocol import Corpus
from ratchet.data.sources.text import TextParams, TextSource

SET_HERE = frozenset({"folder", "sha256"})


def set_source(params_path: Path, kind: Literal["text", "parquet"], folder: Path, **options: str | None) -> str:
    """Make `prepare` read `folder`, pinned by its sha256; return what to tell the user.

    `options`: other keys of the section `prepare.KIND` (separator, glob, column, language, licence); those that are
    None stay as they are. Every file is read once before anything is changed. A folder inside the project is written
    relative to it, another one absolute.
    Raises InputError (no such folder, option or column, no matching file, not UTF-8) with params.yaml untouched.
    """
    given = _checked_options(kind, {key: value for key, value in options.items() if value is not None})
    document = params_file.read_document(params_path)
    section = dict(document.get("prepare", {}).get(kind) or {})
    section |= {"folder": str(folder.resolve()), "sha256": None, **given}
    corpus = _open(kind, section, params_path)
    documents, size = _count(corpus)
    values = {"source": kind, **{f"{kind}.{key}": value for key, value in given.items()}}
    values |= {f"{kind}.folder": _written(folder, params_path.parent), f"{kind}.sha256": corpus.sha256}
    text = params_path.read_text(encoding="utf-8")
    for dotted, value in values.items():
        text = set_value(text, f"prepare.{dotted}", value, params_path)
    atomic.write_text(params_path, text)
    return (
        f"prepare now reads {len(corpus.files):,} file(s) in {folder}: {documents:,} documents, {size:,} characters. "
        f"Next: `ratchet run`. When the files change, run this again: their sha256 is pinned in {params_path.name}."
    )


def set_value(text: str, dotted: str, value: str | None, where: Path | str) -> str:
    """The YAML `text` with the scalar at key `dotted` replaced; all other characters stay as they are.

    Raises InputError when the key is not there or holds no scalar.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in dotted.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((below for name, below in pairs if name.value == key), None)
    if node is None:
        raise InputError(where, f"has no key {dotted!r}", "`git checkout` the file, or write the key yourself")
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(where, f"{dotted} holds a {node.tag.rpartition(':')[2]}", "put a single value there")
    begin, end = node.start_mark.index, node.end_mark.index
    space = "" if text[:begin].endswith((" ", "\n")) else " "
    return text[:begin] + space + _scalar(value) + text[end:]


def _scalar(value: str | None) -> str:
    """`value` as one line of YAML. A JSON string is a YAML string; plain where that reads back as the same string."""
    if value is None:
        return "null"
    plain = value.isprintable() and not set(value) & set("#:\"'{}[],&*!|>%@`\\") and value == value.strip()
    return value if plain and yaml.safe_load(value) == value else json.dumps(value, ensure_ascii=False)


def _checked_options(kind: str, options: dict[str, str]) -> dict[str, str]:
    known = set((TextParams if kind == "text" else ParquetParams).model_fields) - SET_HERE
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(sorted(known))}"
            raise InputError(f"init --{kind}", f"unknown option {key!r}", hint)
    return options


def _open(kind: str, section: dict[str, object], params_path: Path) -> Corpus:
    if kind == "text":
        return TextSource(params_file.validate(section, "prepare.text", TextParams, params_path)).open()
    return ParquetSource(params_file.validate(section, "prepare.parquet", ParquetParams, params_path)).open()


def _count(corpus: Corpus) -> tuple[int, int]:
    """Documents with text, and their characters. Raises InputError when there is none."""
    documents = size = 0
    for document in corpus.documents():
        if document.text and document.text.strip():
            documents += 1
            size += len(document.text)
    if documents == 0:
        raise InputError(f"init --{corpus.name}", f"{len(corpus.files)} file(s) hold no text", "name another folder")
    return documents, size


def _written(folder: Path, project: Path) -> str:
    """`folder` as params.yaml gets it."""
    whole, root = folder.resolve(), project.resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else str(whole)
