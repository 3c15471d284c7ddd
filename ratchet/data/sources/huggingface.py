"""Source `huggingface`: parquet shards of a dataset on the hub, by their resolve addresses; one shard held out.

Refuses to know how a file travels (ratchet/data/download.py). The held-out shard alone feeds validation and test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.data.documents import check_column, open_parquet, read_texts
from ratchet.data.download import Downloads, Fetched, Patience, Wanted
from ratchet.data.sources.protocol import Corpus, CorpusFile, Document
from ratchet.params import Params
from ratchet.settings import Settings, settings

KEY = "prepare.huggingface"


class HuggingFaceParams(Params):
    """`prepare.huggingface`."""

    repo: str = Field(default="karpathy/climbmix-400b-shuffle", pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    revision: str = Field(default="main", min_length=1, description="branch, tag or commit; a commit never moves")
    shard: str = Field(default="shard_{index:05d}.parquet", description="a shard's name; {index} is its number")
    shards: int = Field(default=8, ge=1, description="training shards, numbered from 0")
    held_out_shard: int = Field(
        default=6542, ge=0, description="number of the shard that gives validation and test documents"
    )
    column: str = Field(default="text", min_length=1, description="the column that holds the text")
    language: str = Field(default="en", description="BCP 47 tag of the text; und = not said")
    licence: str = Field(default="see the dataset's page", description="licence of the text, for the manifest")
    sha256: dict[str, str] = Field(default_factory=dict, description="pinned sha256 of shards, by name; may be empty")


class HuggingFaceSource:
    """See the module."""

    def __init__(self, params: HuggingFaceParams, where: Settings | None = None) -> None:
        self.params, self.where = params, where or settings()

    def open(self) -> Corpus:
        """Fetch what the cache lacks, held-out shard first. Raises as `Downloads.fetch`."""
        params = self.params
        fetched = self._downloads().fetch([self._wanted(name) for name in self.shard_names()])

        def documents() -> Iterator[Document]:
            for number, shard in enumerate(fetched):
                pool = "held_out" if number == 0 else "train"
                for text in read_texts(shard.path, params.column, where=shard.name):
                    yield Document(text, params.language, pool)

        files = tuple(CorpusFile(shard.name, shard.size, shard.sha256) for shard in fetched)
        return Corpus(params.repo, params.licence, files, documents, _origin(params, fetched))

    def shard_names(self) -> list[str]:
        """The held-out shard, then the training shards. Raises InputError when it is among them or names collide."""
        params = self.params
        if params.held_out_shard < params.shards:
            what = f"shard {params.held_out_shard} is held out and is one of the {params.shards} training shards"
            raise InputError(f"{KEY}.held_out_shard", what, "choose a shard after the training shards")
        try:
            names = [params.shard.format(index=index) for index in (params.held_out_shard, *range(params.shards))]
        except (KeyError, IndexError, ValueError) as error:
            what = f"{params.shard!r} cannot be filled with a number: {error!r}"
            raise InputError(f"{KEY}.shard", what, "write it like shard_{index:05d}.parquet") from None
        if len(set(names)) < len(names):
            do = "write it like shard_{index:05d}.parquet"
            raise InputError(f"{KEY}.shard", f"{params.shard!r} names all shards alike", do)
        unknown = sorted(set(params.sha256) - set(names))
        if unknown:
            do = f"the names are {names[1]} … {names[-1]} and {names[0]}"
            raise InputError(f"{KEY}.sha256", f"pins {unknown[0]!r}, which is no shard in use", do)
        return names

    def _wanted(self, name: str) -> Wanted:
        params = self.params
        base = self.where.hub.rstrip("/")
        url = f"{base}/datasets/{params.repo}/resolve/{quote(params.revision, safe='')}/{quote(name)}"
        pin = params.sha256.get(name)
        return Wanted(name, url, pin.lower() if pin else None, f"{KEY}.sha256.{name}")

    def _downloads(self) -> Downloads:
        where = self.where
        token = where.hub_token.get_secret_value() if where.hub_token else None
        patience = Patience(attempts=where.download_attempts, backoff_s=where.download_backoff_s)
        return Downloads(where.downloads, patience, where.download_workers, token, self._check_shard)

    def _check_shard(self, path: Path, name: str) -> None:
        with open_parquet(path, where=name) as file:
            check_column(file, self.params.column, name)


def _origin(params: HuggingFaceParams, fetched: list[Fetched]) -> str:
    """`owner/name@commit`, with the revision asked for where the hub told no commit."""
    commits = sorted({shard.revision for shard in fetched if shard.revision})
    return f"{params.repo}@{'+'.join(commits) or params.revision}"
