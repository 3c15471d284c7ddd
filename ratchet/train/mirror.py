"""Weights & Biases as a mirror of the record: each committed step once, in order, in one run, however often it resumes.

The fsynced record is the truth; this only repeats it, so nothing that goes wrong here may stop or change a training:
one warning, then silence. Refuses to know models. `wandb` is imported only when the mode is not `disabled`.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from ratchet.core import atomic
from ratchet.core.errors import first_line
from ratchet.settings import Settings, forget_wandb_service_of_parent
from ratchet.train.wandb_files import recorded_alerts, recorded_steps

if TYPE_CHECKING:
    from ratchet.tables.findings import Found  # only its name: a candidate's process needs no pandas for a mirror

Mode = Literal["online", "offline", "disabled"]


class Sent(NamedTuple):
    """What of a row is sent, and under which prefix. `name` of the stage and what is `doing` are for messages."""

    name: str
    columns: tuple[str, ...]
    doing: str

    @property
    def step(self) -> str:
        """The metric that all others are drawn over."""
        return f"{self.name}/step"


IDENTITY_FILE = "wandb.json"

LEVELS = {"warning": "WARN", "note": "INFO"}
"""W&B's word for a finding's severity."""
TITLE_LETTERS = 63
"""W&B takes no longer title of an alert."""

INIT_SECONDS = 30.0
FINISH_SECONDS = 60.0
PATIENCE_SECONDS = 5.0
"""W&B keeps the first limit itself; if even that hangs, the thread it ends in is left behind after the second."""


class RunIdentity(TypedDict):
    """Which W&B run a training is; it travels in the checkpoint, so that a resume goes on in the same one."""

    id: str
    project: str
    entity: str | None


def new_identity(settings: Settings) -> RunIdentity | None:
    """A fresh W&B run; None when the mode is disabled. Draws from the system, not from any seeded generator."""
    if settings.wandb == "disabled":
        return None
    return {"id": secrets.token_hex(4), "project": settings.wandb_project, "entity": settings.wandb_entity}


def kept_identity(folder: Path, settings: Settings) -> RunIdentity | None:
    """The W&B run that the run directory `folder` names, or a new one that it names from now on; None when disabled."""
    path = folder / IDENTITY_FILE
    if settings.wandb == "disabled":
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        identity = new_identity(settings)
        atomic.write_json(path, identity)
        return identity


class Mirror:
    """Sends committed rows to one W&B run. Starts on the first row, and skips what the run already holds."""

    def __init__(self, mode: Mode, folder: Path, config: Mapping[str, Any], sent: Sent) -> None:
        self._mode, self._folder, self._config, self._sent = mode, folder, dict(config), sent
        self._run: Any = None
        self._held: set[int] = set()
        self._alerted: set[str] = set()
        self._last = -1
        self._broken = mode == "disabled"

    def send(self, identity: RunIdentity | None, rows: Iterable[Mapping[str, Any]]) -> None:
        """Send those of `rows` (committed, in order of step) that have not been sent."""
        new = [row for row in rows if row["step"] > self._last]
        if self._broken or identity is None or not new:
            return
        name, columns, _ = self._sent
        with self._harmless():
            self._run = self._run or self._start(identity)
            for row in new:
                if row["step"] not in self._held:
                    values = {f"{name}/{column}": row[column] for column in columns if row[column] is not None}
                    self._run.log({self._sent.step: row["step"], **values}, step=row["step"], commit=True)
                self._last = row["step"]

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Set `values` in the summary of the run, when one has started."""
        if self._broken or self._run is None:
            return
        with self._harmless():
            self._run.summary.update(dict(values))

    def tell(self, look: Callable[[], Iterable[Found]]) -> None:
        """Show the findings on what was sent, which `look` gives: each as an alert, once however often the run resumes
        (while its folder `wandb` is there), and all of them, with their present numbers, in the summary."""
        if self._broken or self._run is None:
            return
        name = self._sent.name
        with self._harmless():
            found = list(look())
            told = {each.what: f"{each.evidence}; {each.do}" for each in found}
            for each in found:
                title = f"{name}: {each.what}"[:TITLE_LETTERS]
                if title not in self._alerted:
                    self._run.alert(title=title, text=told[each.what], level=LEVELS[each.severity])
                    self._alerted.add(title)
            self._run.summary.update({f"{name}/alerts": len(found), f"{name}/alert": told})

    def close(self, exit_code: int = 0) -> None:
        """End the process' part of the run; W&B writes out what it holds, for `FINISH_SECONDS` and no longer."""
        run, self._run = self._run, None
        if self._broken or run is None:
            return

        def finish() -> None:
            with self._harmless():
                run.finish(exit_code=exit_code)

        thread = threading.Thread(target=finish, daemon=True, name="W&B finish")
        thread.start()
        thread.join(FINISH_SECONDS + PATIENCE_SECONDS)
        if thread.is_alive():
            self._give_up(TimeoutError(f"did not end within {FINISH_SECONDS + PATIENCE_SECONDS:g} s"))

    def _start(self, identity: RunIdentity) -> Any:
        self._held = recorded_steps(self._folder, identity["id"])
        self._alerted = recorded_alerts(self._folder, identity["id"])
        if self._mode == "online":
            try:
                return self._online(identity)
            except Exception as error:  # noqa: BLE001  (no key, no network: the record can be synced later)
                print(f"{self._sent.name}: W&B: {first_line(error)}; going on offline", file=sys.stderr, flush=True)
        return self._open(identity, "offline")

    def _online(self, identity: RunIdentity) -> Any:
        import wandb

        if not wandb.Api().api_key:
            raise ConnectionError("no API key; `wandb login` or set WANDB_API_KEY")
        run = self._open(identity, "online")
        self._held = set(range(run.starting_step))  # the server's word: what was never uploaded is sent again
        return run

    def _open(self, identity: RunIdentity, mode: Literal["online", "offline"]) -> Any:
        import wandb

        quiet = wandb.Settings(
            x_transaction_log_flush_interval=1,  # at the default of 15 s a kill loses every row
            x_disable_stats=True,
            console="off",
            silent=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,  # holds at the process' exit as well
            finish_timeout_raises=True,
        )
        forget_wandb_service_of_parent()
        run = wandb.init(**identity, mode=mode, dir=self._folder, config=self._config, resume="allow", settings=quiet)
        run.define_metric(self._sent.step)
        run.define_metric(f"{self._sent.name}/*", step_metric=self._sent.step)
        return run

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """The boundary: whatever W&B raises, a training goes on without its mirror."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        told = f"{self._sent.name}: W&B: {first_line(error)}; {self._sent.doing} goes on without its mirror"
        print(f"{told}, the record is complete", file=sys.stderr, flush=True)
