"""`ratchet init`, `report`: before the first run, and after it."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from ratchet.commands.project import REPORT, enter_project, find_copy, say_next
from ratchet.copies import as_options
from ratchet.core.errors import InputError
from ratchet.params import PARAMS_FILE


def init(*, text: Path | None, parquet: Path | None, options: Mapping[str, str | None]) -> None:
    """Point the stage prepare at one's own text, in params.yaml; `options` are other keys of its section."""
    from ratchet.data.own_text import set_source

    if (text is None) == (parquet is None):
        raise InputError("ratchet init", "needs exactly one source", "add `--text FOLDER` or `--parquet FOLDER`")
    kind: Literal["text", "parquet"] = "text" if text is not None else "parquet"
    folder = (text or parquet or Path()).resolve()
    enter_project()
    print(set_source(PARAMS_FILE, kind, folder, **options))
    say_next("ratchet run --dry-run")


def report(*, profile: str | None, overrides: Sequence[str], open_it: bool, port: int | None = None) -> None:
    """Say where the report is; `open_it`: show it in the browser; `port`: serve it to this machine until Ctrl-C.

    Raises InputError when there is none, no browser, or the port is taken.
    """
    project = enter_project()
    path = find_copy(project, profile, overrides) / REPORT
    if not path.is_file():
        do = f"type `ratchet run{as_options(profile, overrides)}`"
        raise InputError(path.relative_to(project), "no report yet", do)
    print(path)
    if open_it and not webbrowser.open(path.as_uri()):
        raise InputError("browser", "none to be found on this machine", f"open {path.as_uri()} in one")
    if port is not None:
        _serve(path, port)


def _serve(page: Path, port: int) -> None:
    """The page and its pictures, to this machine alone: a laptop reaches it through `ssh -L`."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(page.parent))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise InputError("--serve", f"port {port}: {error.strerror}", "name another one") from None
    with server, suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{server.server_address[1]}/{page.name}; Ctrl-C ends it", flush=True)
        server.serve_forever()
