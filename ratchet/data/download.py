"""Files over HTTP into a content-addressed cache: each appears whole and checked, or not at all.

Knows Range, ETag, Retry-After and sha256; refuses to know what is in a file or which site it comes from.

The cache: `objects/SHA256` (whole files), `urls/KEY.json` (what an address gave), `parts/KEY.part` and `KEY.json`
(a half file and the ETag it belongs to, kept so that the next try, or the next run, fetches only the rest).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import file_digest
from ratchet.data.transfer import Offer, RefusedError, TryAgainError, read_offer, wait_before_retry

PROGRESS_BYTES = 1 << 20
"""A try that brought this much more does not count against the attempts, so that a big file comes over a bad line."""
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Wanted:
    """One file to fetch. `name` is what errors call it; `sha256` is its pin, held by the params key `pin_key`."""

    name: str
    url: str
    sha256: str | None = None
    pin_key: str = ""


@dataclass(frozen=True)
class Fetched:
    """One file that is there. `revision`: the commit the server said it served, or ''."""

    name: str
    path: Path
    size: int
    sha256: str
    revision: str


@dataclass(frozen=True)
class Patience:
    """How long to try: `attempts` in a row without progress; waits from `backoff_s`, doubling to `longest_wait_s`."""

    attempts: int = 6
    backoff_s: float = 1.0
    longest_wait_s: float = 60.0
    longest_retry_after_s: float = 900.0


@dataclass
class Downloads:
    """A cache in `folder`. `token` goes to the address asked for, and is dropped on a redirect to another host."""

    folder: Path
    patience: Patience = field(default_factory=Patience)
    workers: int = 4
    token: str | None = field(default=None, repr=False)
    check: Callable[[Path, str], None] = lambda path, name: None
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)

    def fetch(self, wanted: Sequence[Wanted]) -> list[Fetched]:
        """All of `wanted`, in its order, fetched by parallel workers. A rerun fetches nothing.

        `check(path, name)` may refuse a whole file before it enters the cache. Raises InputError (no such file, no
        access, another sha256 than pinned) or InfrastructureError (network, server), naming the file; the first error
        stops the other workers, which keep their half files for the next run.
        """
        for part in ("objects", "urls", "parts"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        headers = {"Accept-Encoding": "identity", "User-Agent": "ratchet"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        stop = threading.Event()
        with (
            httpx.Client(headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as client,
            ThreadPoolExecutor(self.workers, thread_name_prefix="download") as pool,
        ):
            futures = [pool.submit(_Fetch(self, client, one, stop).run) for one in wanted]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                failed = [f for f in futures if f in done and not f.cancelled() and f.exception() is not None]
                if failed:
                    failed[0].result()
            finally:
                stop.set()
                for future in futures:
                    future.cancel()
        return [future.result() for future in futures]


class _Fetch:
    """One file's way into the cache."""

    def __init__(self, downloads: Downloads, client: httpx.Client, wanted: Wanted, stop: threading.Event) -> None:
        self.downloads, self.client, self.wanted, self.stop = downloads, client, wanted, stop
        key = hashlib.sha256(wanted.url.encode()).hexdigest()[:32]
        self.record = downloads.folder / "urls" / f"{key}.json"
        self.part = downloads.folder / "parts" / f"{key}.part"
        self.state = downloads.folder / "parts" / f"{key}.json"
        self.wrong_digest: str | None = None

    def run(self) -> Fetched:
        """From the cache, or over the network with retries."""
        with _locked(self.part.with_suffix(".lock")):
            cached = self._cached()
            if cached is not None:
                return cached
            return self._retry()

    def _cached(self) -> Fetched | None:
        """The file if it is there, whole, and what is pinned. A damaged object is removed."""
        if not self.record.exists():
            return None
        known = json.loads(self.record.read_text(encoding="utf-8"))
        path = self.downloads.folder / "objects" / known["sha256"]
        if not path.exists() or (self.wanted.sha256 or known["sha256"]) != known["sha256"]:
            return None
        if path.stat().st_size != known["size"] or file_digest(path) != known["sha256"]:
            path.unlink()
            return None
        return Fetched(self.wanted.name, path, known["size"], known["sha256"], known["revision"])

    def _retry(self) -> Fetched:
        patience, tries, furthest = self.downloads.patience, 0, self._part_size()
        while True:
            try:
                return self._try_once()
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise InputError(
                    self.wanted.name, f"{self.wanted.url} is no address: {error}", "set RATCHET_HUB"
                ) from None
            except (TryAgainError, httpx.RequestError) as error:
                reason = str(error) or type(error).__name__
                asked = error.retry_after_s if isinstance(error, TryAgainError) else None
            moved_on = self._part_size() >= furthest + PROGRESS_BYTES  # beyond any try before, so that it must end
            furthest = max(furthest, self._part_size())
            tries = 0 if moved_on else tries + 1
            if tries >= patience.attempts or (asked or 0) > patience.longest_retry_after_s:
                raise self._give_up(reason, asked)
            pause = wait_before_retry(self.wanted.url, tries, asked, patience.backoff_s, patience.longest_wait_s)
            self.downloads.say(f"{self.wanted.name}: {reason}; trying again in {pause:.1f} s")
            if self.stop.wait(pause):
                raise InfrastructureError(self.wanted.name, "stopped because another file failed", "run again")

    def _give_up(self, reason: str, asked: float | None) -> InfrastructureError:
        told = f", asking to wait {asked:.0f} s" if asked else ""
        kept = f"; {self._part_size():,} bytes are kept and the next run continues" if self._part_size() else ""
        what = f"{reason}{told}, after {self.downloads.patience.attempts} tries without progress ({self.wanted.url})"
        return InfrastructureError(self.wanted.name, what, f"check the network or the hub and run again{kept}")

    def _try_once(self) -> Fetched:
        """One request, for the rest of the half file if there is one. Raises TryAgainError when a retry may help."""
        etag = self._resumable_etag()
        offset = self._part_size() if etag else 0
        headers = {"Range": f"bytes={offset}-", "If-Range": etag} if etag and offset else {}
        with self.client.stream("GET", self.wanted.url, headers=headers) as response:
            try:
                offer = read_offer(response, offset)
            except RefusedError as refused:
                raise InputError(self.wanted.name, f"{refused} ({self.wanted.url})", refused.do) from None
            except TryAgainError as again:
                if again.discard:
                    self._discard()
                raise
            self._check_pin_before(offer)
            self._receive(response, offer)
        return self._accept(offer)

    def _check_pin_before(self, offer: Offer) -> None:
        """Do not fetch a whole file that its server already says is another one."""
        pin = self.wanted.sha256
        if pin and offer.sha256 and pin != offer.sha256:
            raise self._differs(offer.sha256)

    def _differs(self, digest: str) -> InputError:
        do = "restore what was pinned, or change the pin to accept the new file"
        what = f"{self.wanted.name} has sha256 {digest}, pinned is {self.wanted.sha256}"
        return InputError(self.wanted.pin_key or self.wanted.name, what, do)

    def _receive(self, response: httpx.Response, offer: Offer) -> None:
        """Append the body to the half file, whose identity is written down first."""
        atomic.write_json(self.state, asdict(offer))
        with self.part.open("ab" if offer.start else "wb") as file:
            for chunk in response.iter_raw():  # as they arrive: a chunk size would lose the last bytes of a cut
                if self.stop.is_set():
                    raise InfrastructureError(self.wanted.name, "stopped because another file failed", "run again")
                file.write(chunk)

    def _accept(self, offer: Offer) -> Fetched:
        """Check the finished half file and move it into the cache."""
        size = self._part_size()
        if offer.size is not None and size != offer.size:
            if size > offer.size:
                self._discard()
            raise TryAgainError(f"gave {size:,} bytes where {offer.size:,} were announced")
        digest = file_digest(self.part)
        expected = self.wanted.sha256 or offer.sha256
        if expected and digest != expected:
            self._refuse_digest(digest, expected)
        try:
            self.downloads.check(self.part, self.wanted.name)
        except InputError:
            self._discard()
            raise
        return self._publish(digest, size, offer)

    def _refuse_digest(self, digest: str, expected: str) -> None:
        """A damaged transfer may be repeated; the same wrong bytes twice are another file."""
        self._discard()
        if self.wanted.sha256 and digest == self.wrong_digest:
            raise self._differs(digest)
        self.wrong_digest = digest
        raise TryAgainError(f"has sha256 {digest}, not {expected}")

    def _publish(self, digest: str, size: int, offer: Offer) -> Fetched:
        target = self.downloads.folder / "objects" / digest
        atomic.fsync_file(self.part)
        self.part.replace(target)
        atomic.fsync_folder(target.parent)
        known = {"url": self.wanted.url, "sha256": digest, "size": size, "revision": offer.revision}
        atomic.write_json(self.record, known)
        self.state.unlink(missing_ok=True)
        self.downloads.say(f"{self.wanted.name}: fetched, {size:,} bytes, sha256 {digest[:12]}…")
        return Fetched(self.wanted.name, target, size, digest, offer.revision)

    def _resumable_etag(self) -> str | None:
        """The strong ETag of the half file; without one its rest could belong to another file."""
        if not self.part.exists() or not self.state.exists():
            return None
        etag = json.loads(self.state.read_text(encoding="utf-8"))["etag"]
        return etag if etag and not etag.startswith("W/") else None

    def _part_size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep two processes off one half file; the second waits and then finds the file in the cache."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
