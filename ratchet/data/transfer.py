"""What an HTTP answer means for a file transfer: take it, take it from the start, try again, or give up.

Pure: reads headers and status, touches no file and no clock but the one a date in Retry-After is compared with.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
SHA256 = re.compile(r"[0-9a-f]{64}")
RETRIABLE = frozenset({408, 425, 429, 500, 502, 503, 504})


class TryAgainError(Exception):
    """It may help to try again. `discard`: not from this half file."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None, discard: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s, self.discard = retry_after_s, discard


class RefusedError(Exception):
    """It will not help to try again; `do` might."""

    def __init__(self, reason: str, do: str) -> None:
        super().__init__(reason)
        self.do = do


@dataclass(frozen=True)
class Offer:
    """What a server promises. `size`: bytes of the whole file; `start`: where this body begins in it.

    `sha256`: of the whole file, where the server says it (X-Linked-Etag); `revision`: X-Repo-Commit.
    """

    start: int
    size: int | None
    etag: str | None
    sha256: str | None
    revision: str


def read_offer(response: httpx.Response, offset: int) -> Offer:
    """The offer in an answer to a request that began at byte `offset`. Raises TryAgainError or RefusedError."""
    _check_status(response)
    start, size = _body_place(response, offset)
    linked_size, sha256, revision = _linked(response)
    if linked_size is not None and size is not None and linked_size != size:
        raise TryAgainError(f"is offered with {size:,} bytes where its record says {linked_size:,}", discard=True)
    size = linked_size if size is None else size
    if size is None and response.headers.get("transfer-encoding", "").lower() != "chunked":
        raise RefusedError("comes without a size, so a cut could not be seen", "use a server that sends Content-Length")
    return Offer(start, size, response.headers.get("etag"), sha256, revision)


def _check_status(response: httpx.Response) -> None:
    status, said = response.status_code, f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
    if status in (200, 206):
        return
    if status == 416:
        raise TryAgainError(said, discard=True)
    if status in RETRIABLE or status >= 500:
        raise TryAgainError(said, retry_after_s=retry_after(response.headers.get("retry-after")))
    if status in (401, 403):
        raise RefusedError(said, "accept the dataset's terms on its page and set RATCHET_HUB_TOKEN")
    if status in (404, 410):
        raise RefusedError(said, "check prepare.huggingface: repo, revision, shard, shards and held_out_shard")
    raise RefusedError(said, "check RATCHET_HUB and prepare.huggingface")


def _body_place(response: httpx.Response, offset: int) -> tuple[int, int | None]:
    """Where the body begins and how long the whole file is. A 200 to a Range request is the whole file anew."""
    if response.status_code == 200:
        length = response.headers.get("content-length", "")
        return 0, int(length) if length.isdigit() else None
    told = CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if told is None or int(told[1]) != offset:
        raise TryAgainError(f"answered a request from byte {offset} with another range", discard=True)
    return offset, int(told[3])


def _linked(response: httpx.Response) -> tuple[int | None, str | None, str]:
    """Size, sha256 and commit that the hub tells on the way to where the bytes lie."""
    size, sha256, revision = None, None, ""
    for step in (*response.history, response):
        told = step.headers.get("x-linked-size", "")
        size = int(told) if told.isdigit() else size
        etag = step.headers.get("x-linked-etag", "").removeprefix("W/").strip('"').lower()
        sha256 = etag if SHA256.fullmatch(etag) else sha256
        revision = step.headers.get("x-repo-commit", revision)
    return size, sha256, revision


def retry_after(value: str | None) -> float | None:
    """Seconds to wait that a Retry-After header asks for (a number or a date); None when it asks for none."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def wait_before_retry(url: str, tries: int, asked_s: float | None, first_s: float, longest_s: float) -> float:
    """Seconds to wait before the next try: what the server asked for, else doubling from `first_s` up to `longest_s`.

    The jitter (half of the wait to all of it) is derived from the address and the try, so that workers spread and a
    rerun waits the same.
    """
    if asked_s is not None:
        return asked_s
    point = int.from_bytes(hashlib.sha256(f"{url} {tries}".encode()).digest()[:8], "big") / 2**64
    return min(longest_s, first_s * 2 ** max(0, tries - 1)) * (0.5 + point / 2)
