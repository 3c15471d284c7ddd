"""What an HTTP answer means for a transfer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from ratchet.data.transfer import RefusedError, TryAgainError, read_offer, retry_after, wait_before_retry

SHA = "ab" * 32


def answer(status: int, before: httpx.Response | None = None, **headers: str) -> httpx.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.Response(status, headers=named, history=[before] if before else [])


def test_retry_after_in_seconds_is_read() -> None:
    assert retry_after("17") == 17.0


def test_retry_after_as_a_date_is_read_from_now() -> None:
    wait = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True))
    assert wait is not None
    assert 85 < wait <= 90
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize("value", [None, "", "soon"])
def test_retry_after_that_says_nothing_is_none(value: str | None) -> None:
    assert retry_after(value) is None


def test_wait_doubles_up_to_the_longest_and_is_the_same_every_time() -> None:
    waits = [wait_before_retry("http://x", tries, None, 1.0, 60.0) for tries in range(1, 12)]
    assert waits == [wait_before_retry("http://x", tries, None, 1.0, 60.0) for tries in range(1, 12)]
    for tries, wait in enumerate(waits, start=1):
        whole = min(60.0, 2.0 ** (tries - 1))
        assert whole / 2 <= wait <= whole


def test_wait_of_two_files_differs_and_what_the_server_asks_wins() -> None:
    assert wait_before_retry("http://x", 1, None, 1.0, 60.0) != wait_before_retry("http://y", 1, None, 1.0, 60.0)
    assert wait_before_retry("http://x", 1, 7.0, 1.0, 60.0) == 7.0


def test_offer_takes_size_sha256_and_commit_from_the_redirect() -> None:
    hub = answer(302, x_linked_size="9", x_linked_etag=f'"{SHA}"', x_repo_commit="c0ffee")
    offer = read_offer(answer(200, hub, content_length="9", etag='"e"'), 0)
    assert (offer.start, offer.size, offer.etag, offer.sha256, offer.revision) == (0, 9, '"e"', SHA, "c0ffee")


def test_offer_whose_linked_etag_is_no_sha256_has_none() -> None:
    hub = answer(302, x_linked_etag='"d41d8cd98f00b204e9800998ecf8427e"')
    assert read_offer(answer(200, hub, content_length="9"), 0).sha256 is None


def test_offer_of_a_part_begins_where_it_was_asked_to() -> None:
    offer = read_offer(answer(206, content_range="bytes 5-8/9", content_length="4"), 5)
    assert (offer.start, offer.size) == (5, 9)


@pytest.mark.parametrize("content_range", ["bytes 4-8/9", "bytes 5-8/*", ""])
def test_offer_of_another_part_is_tried_again_from_the_start(content_range: str) -> None:
    with pytest.raises(TryAgainError) as caught:
        read_offer(answer(206, content_range=content_range), 5)
    assert caught.value.discard


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 520])
def test_offer_of_a_server_in_trouble_is_tried_again(status: int) -> None:
    with pytest.raises(TryAgainError) as caught:
        read_offer(answer(status, retry_after="3"), 0)
    assert (caught.value.retry_after_s, caught.value.discard) == (3.0, False)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_offer_that_will_not_come_is_refused(status: int) -> None:
    with pytest.raises(RefusedError, match=str(status)):
        read_offer(answer(status), 0)
