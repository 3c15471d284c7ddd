"""Downloads from a hub that drops, refuses, truncates and lies: the cache holds whole, checked files or none."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from download_hub import COMMIT, Fault, Hub

from ratchet.core.errors import InfrastructureError, InputError, RatchetError
from ratchet.data.download import Downloads, Patience, Wanted

SIZE = 300_000
NAMES = ("shard_00000.parquet", "shard_00001.parquet", "shard_00002.parquet")
FAST = Patience(attempts=3, backoff_s=0.01)


def some_bytes(name: str, size: int = SIZE) -> bytes:
    return random.Random(name).randbytes(size)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(files={name: some_bytes(name) for name in NAMES}) as hub:
        yield hub


def wanted(hub: Hub, name: str = NAMES[0], sha256: str | None = None) -> Wanted:
    return Wanted(name, f"{hub.address}/datasets/me/texts/resolve/main/{name}", sha256, f"prepare.sha256.{name}")


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def refused(cache: Path, *what: Wanted, error: type[RatchetError] = InfrastructureError) -> str:
    with pytest.raises(error) as caught:
        Downloads(cache, FAST).fetch(what)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_download_of_three_shards_gives_checked_files_in_the_order_asked(hub: Hub, tmp_path: Path) -> None:
    fetched = Downloads(tmp_path, FAST, workers=2).fetch([wanted(hub, name) for name in NAMES])
    assert [one.name for one in fetched] == list(NAMES)
    for one in fetched:
        assert one.path.read_bytes() == hub.files[one.name]
        assert one.path.name == one.sha256 == hashlib.sha256(hub.files[one.name]).hexdigest()
        assert (one.size, one.revision) == (SIZE, COMMIT)
    assert not list((tmp_path / "parts").glob("*.part"))


def test_download_again_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    first = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    hub.log.clear()
    assert Downloads(tmp_path, FAST).fetch([wanted(hub)]) == first
    assert hub.log == []


def test_download_after_503_tries_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(status=503), Fault(status=503)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]
    assert len(hub.asked(NAMES[0], "/bytes/")) == 3


def test_download_after_503_with_retry_after_waits_as_long(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(status=503, retry_after="1")]
    began = time.monotonic()
    Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert time.monotonic() - began >= 1.0


def test_download_asked_to_wait_for_hours_gives_up_at_once(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(status=429, retry_after="7200")]
    began = time.monotonic()
    message = refused(tmp_path, wanted(hub))
    assert time.monotonic() - began < 5
    assert NAMES[0] in message
    assert "7200 s" in message


def test_download_of_a_server_always_down_names_the_shard_and_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[1]] = [Fault(status=503)] * 20
    message = refused(tmp_path, wanted(hub, NAMES[1]))
    assert message.startswith(f"{NAMES[1]}: the server answered 503")
    assert len(hub.asked(NAMES[1], "/bytes/")) == FAST.attempts
    assert files_below(tmp_path) == []


def test_download_cut_in_mid_body_asks_for_the_rest_by_range(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(drop_after=150_000)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]
    first, second = hub.asked(NAMES[0], "/bytes/")
    assert "range" not in first.headers
    assert second.headers["if-range"] == hub.etag(NAMES[0])
    assert second.headers["range"] == "bytes=150000-"


def test_download_cut_often_but_moving_on_does_not_give_up(hub: Hub, tmp_path: Path) -> None:
    name = "big.parquet"
    hub.files[name] = some_bytes(name, 12 << 20)
    hub.faults[name] = [Fault(drop_after=(2 << 20) + 5)] * 5
    (one,) = Downloads(tmp_path, Patience(attempts=2, backoff_s=0.01)).fetch([wanted(hub, name)])
    assert one.path.read_bytes() == hub.files[name]
    assert len(hub.asked(name, "/bytes/")) == 6


def test_download_from_a_server_that_ignores_range_starts_over(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(drop_after=150_000), Fault(ignore_range=True)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]


def test_download_resumed_with_another_range_than_asked_starts_over(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(drop_after=150_000), Fault(shift_range=-7)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]
    assert "range" not in hub.asked(NAMES[0], "/bytes/")[-1].headers


def test_download_of_a_file_that_changed_meanwhile_never_joins_two_versions(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(drop_after=150_000), *[Fault(drop_after=0)] * FAST.attempts]
    refused(tmp_path, wanted(hub))
    hub.files[NAMES[0]] = some_bytes("a new version")
    hub.faults.clear()
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]


def test_download_without_a_strong_etag_does_not_resume(hub: Hub, tmp_path: Path) -> None:
    hub.weak_etag = True
    hub.faults[NAMES[0]] = [Fault(drop_after=150_000)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]
    assert all("range" not in request.headers for request in hub.log)


def test_download_given_up_in_mid_body_continues_in_the_next_run(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(drop_after=100_000), *[Fault(drop_after=0)] * FAST.attempts]
    message = refused(tmp_path, wanted(hub))
    assert NAMES[0] in message
    assert "the next run continues" in message
    assert not list((tmp_path / "objects").iterdir())
    hub.faults.clear()
    hub.log.clear()
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]
    (request,) = hub.asked(NAMES[0], "/bytes/")
    assert request.headers["range"] != "bytes=0-"


def test_download_of_a_truncated_file_names_the_shard_and_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(short_by=1000)] * 20
    message = refused(tmp_path, wanted(hub))
    assert message.startswith(f"{NAMES[0]}: is offered with 299,000 bytes where its record says 300,000")
    assert files_below(tmp_path) == []


def test_download_without_length_cut_short_is_noticed(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(short_by=1000, no_length=True)] * 20
    message = refused(tmp_path, wanted(hub))
    assert NAMES[0] in message
    assert "299,000 bytes where" in message
    assert not list((tmp_path / "objects").iterdir())


def test_download_whose_size_nobody_tells_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.linked = False
    hub.faults[NAMES[0]] = [Fault(no_length=True)]
    assert "without a size" in refused(tmp_path, wanted(hub), error=InputError)
    assert files_below(tmp_path) == []


def test_download_damaged_once_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(flip_byte=77)]
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert one.path.read_bytes() == hub.files[NAMES[0]]


def test_download_with_the_wrong_sha256_names_the_shard_and_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[0]] = [Fault(flip_byte=77)] * 20
    message = refused(tmp_path, wanted(hub))
    assert message.startswith(f"{NAMES[0]}: has sha256 ")
    assert hashlib.sha256(hub.files[NAMES[0]]).hexdigest() in message
    assert files_below(tmp_path) == []


def test_download_that_the_hub_says_differs_from_the_pin_is_refused_before_its_bytes(hub: Hub, tmp_path: Path) -> None:
    message = refused(tmp_path, wanted(hub, sha256="0" * 64), error=InputError)
    assert message.startswith(f"prepare.sha256.{NAMES[0]}: {NAMES[0]} has sha256 ")
    assert len(hub.asked(NAMES[0], "/bytes/")) == 1
    assert files_below(tmp_path) == []


def test_download_that_differs_from_the_pin_is_refused_where_the_hub_tells_no_sha256(hub: Hub, tmp_path: Path) -> None:
    hub.linked = False
    message = refused(tmp_path, wanted(hub, sha256="0" * 64), error=InputError)
    assert hashlib.sha256(hub.files[NAMES[0]]).hexdigest() in message
    assert len(hub.log) == 2
    assert files_below(tmp_path) == []


def test_download_cached_under_another_sha256_than_pinned_is_not_used(hub: Hub, tmp_path: Path) -> None:
    Downloads(tmp_path, FAST).fetch([wanted(hub)])
    new = hub.files[NAMES[0]] = some_bytes("a new version")
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub, sha256=hashlib.sha256(new).hexdigest())])
    assert one.path.read_bytes() == new


def test_download_damaged_in_the_cache_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    (one,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    with one.path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    (again,) = Downloads(tmp_path, FAST).fetch([wanted(hub)])
    assert again.path.read_bytes() == hub.files[NAMES[0]]


def test_download_of_a_missing_shard_is_refused_without_a_retry(hub: Hub, tmp_path: Path) -> None:
    message = refused(tmp_path, wanted(hub, "shard_99999.parquet"), error=InputError)
    assert message.startswith("shard_99999.parquet: the server answered 404")
    assert len(hub.log) == 1


def test_download_without_access_tells_which_setting_and_no_token(hub: Hub, tmp_path: Path) -> None:
    hub.token = "right"
    with pytest.raises(InputError) as caught:
        Downloads(tmp_path, FAST, token="secret-but-wrong").fetch([wanted(hub)])
    assert "RATCHET_HUB_TOKEN" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_download_redirected_to_another_host_keeps_the_token_from_it(hub: Hub, tmp_path: Path) -> None:
    with Hub(files=hub.files) as elsewhere:
        hub.bytes_at, hub.token = elsewhere.address, "secret"
        downloads = Downloads(tmp_path, FAST, token="secret")
        downloads.fetch([wanted(hub)])
        assert hub.log[0].headers["authorization"] == "Bearer secret"
        assert [request.headers.get("authorization") for request in elsewhere.log] == [None]
    assert "secret" not in repr(downloads)
    for path in tmp_path.rglob("*.json"):
        assert "secret" not in path.read_text()


def test_download_refused_by_the_check_does_not_enter_the_cache(hub: Hub, tmp_path: Path) -> None:
    def check(path: Path, name: str) -> None:
        raise InputError(name, f"is no parquet file ({path.stat().st_size} bytes)", "try another")

    with pytest.raises(InputError, match=r"shard_00000\.parquet: is no parquet file"):
        Downloads(tmp_path, FAST, check=check).fetch([wanted(hub)])
    assert files_below(tmp_path) == []


def test_download_that_fails_stops_the_others(hub: Hub, tmp_path: Path) -> None:
    hub.faults[NAMES[1]] = [Fault(status=503, retry_after="600")]
    began = time.monotonic()
    with pytest.raises(InputError, match="nothing_here"):
        Downloads(tmp_path, FAST).fetch([wanted(hub, NAMES[1]), wanted(hub, "nothing_here")])
    assert time.monotonic() - began < 10


def test_download_from_an_address_nobody_answers_names_the_shard(tmp_path: Path) -> None:
    with Hub() as gone:
        pass
    assert refused(tmp_path, wanted(gone)).startswith(NAMES[0])


def test_download_from_no_address_names_the_setting(tmp_path: Path) -> None:
    message = refused(tmp_path, Wanted(NAMES[0], "hub.example/texts"), error=InputError)
    assert "RATCHET_HUB" in message
