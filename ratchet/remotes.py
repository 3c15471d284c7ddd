"""What stores raise. Each client of DVC's remotes has errors of its own, which no base class joins."""

from __future__ import annotations

CLIENTS = (
    "aiobotocore",
    "aiohttp",
    "asyncssh",
    "azure",
    "botocore",
    "gcsfs",
    "google",
    "httpx",
    "oss2",
    "s3fs",
    "webdav4",
)


def is_clients(error: BaseException) -> bool:
    """Whether `error` comes from a store's client."""
    return type(error).__module__.partition(".")[0] in CLIENTS
