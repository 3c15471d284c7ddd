"""Experiments as runs of a Prefect deployment, called by its name: watched, and called again when a worker is lost.

A run gives a sign of life by renewing its progress (flows/experiment.py). One that gives none for so long is marked
as crashed and called anew, which another worker takes; a result that is there after all counts, whoever brought it.
What a cut network interrupts is asked again. Refuses to know how files travel (exchange.py). Imports no flow.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from ratchet.core.errors import InfrastructureError
from ratchet.loops.research.exchange import Carrier, insistently
from ratchet.loops.research.executor import Experiment, Laboratory, Result, StoppedError, Worker

T = TypeVar("T")
ATTEMPTS = 3
POLL_S = 2.0
STARTING = 5
"""Times `lost_s` that a worker may take to start a run it has taken, fetching an image perhaps."""
BEATS = 5
"""Signs of life that a run gives in the time after which it counts as lost."""


def through_deployment(name: str, carrier: Carrier, lost_s: float) -> Laboratory:
    """A laboratory that calls the deployment `name` and waits: the experiment runs where its work pool has a worker."""
    this = uuid.uuid4().hex

    def call(job: Experiment, worker: Worker) -> Result:
        why = ""
        received = partial(insistently, partial(carrier.received, job), lost_s, worker.stopping)
        for attempt in range(ATTEMPTS):
            if there := received():
                return there
            parameters = {**carrier.parameters(job), "beat_s": lost_s / BEATS}
            key = f"{this}-{job.key}-{job.split.name}-{attempt}"
            why = asyncio.run(Call(name, worker.stopping, lost_s).run(parameters, key))
            if worker.stopping.is_set():
                raise StoppedError
        if there := received():
            return there
        what = f"experiment {job.number} gave no result in {ATTEMPTS} runs; the last {why or 'left none'}"
        raise InfrastructureError(f"deployment {name}", what, "see its log on the server, and run again")

    return call


@dataclass
class Call:
    """One run of the deployment `name`, to its end."""

    name: str
    stopping: threading.Event
    lost_s: float
    _sign: object = None
    _heard: float = field(default_factory=monotonic)
    _looked: float = 0.0

    async def run(self, parameters: dict[str, Any], key: str) -> str:
        """Why it gave no result; "" when it completed. Raises InfrastructureError when it cannot be called at all."""
        from httpx import HTTPStatusError
        from prefect.client.orchestration import get_client
        from prefect.deployments import run_deployment
        from prefect.exceptions import PrefectException
        from prefect.states import Cancelling, Crashed

        call = partial(
            run_deployment, self.name, parameters=parameters, timeout=0, as_subflow=False, idempotency_key=key
        )
        try:
            run: Any = await self._asked(call)  # pyright: ignore[reportArgumentType]
            async with get_client() as client:
                mark, read, asked = (
                    partial(client.set_flow_run_state, run.id),
                    partial(client.read_flow_run, run.id),
                    False,
                )
                while not run.state.is_final():
                    if self.stopping.is_set() and not asked:
                        await self._asked(partial(mark, Cancelling()))
                        asked = True
                    if await self._is_lost(client, run):
                        why = f"gave no sign of life for {self.lost_s:g} s"
                        await self._asked(partial(mark, Crashed(message=why), force=True))
                        return why
                    await (asyncio.sleep(POLL_S / 4) if asked else asyncio.to_thread(self.stopping.wait, POLL_S))
                    run = await self._asked(read)
        except (PrefectException, RuntimeError, HTTPStatusError) as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            do = "serve it, or set RATCHET_EXECUTOR=threads"
            raise InfrastructureError(f"deployment {self.name}", said, do) from error
        return "" if run.state.is_completed() else f"ended {run.state.name}: {run.state.message}"

    async def _is_lost(self, client: Any, run: Any) -> bool:
        """Whether a run that a worker has taken has given no new sign for `lost_s`. One that waits in the queue is not
        lost."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        if run.state.is_scheduled():
            self._heard = monotonic()
        elif run.state.is_running() and monotonic() - self._looked > self.lost_s / BEATS:
            self._looked = monotonic()
            mine = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
            signs = await self._asked(partial(client.read_artifacts, flow_run_filter=mine))
            sign = [(str(each.id), str(each.updated)) for each in signs]
            if sign != self._sign:
                self._sign, self._heard = sign, monotonic()
        return monotonic() - self._heard > self.lost_s * (STARTING if run.state.is_pending() else 1)

    async def _asked(self, request: Callable[[], Awaitable[T]]) -> T:
        """The server's answer to `request`, asked again while the network is cut; nobody is lost meanwhile."""
        from httpx import HTTPStatusError, TransportError

        begun = monotonic()
        while True:
            try:
                answer = await request()
            except (TransportError, OSError, HTTPStatusError) as error:
                if isinstance(error, HTTPStatusError) and error.response.status_code < 500:
                    raise  # an answer, and no sign of a server under load
                if monotonic() - begun > self.lost_s or self.stopping.is_set():
                    what = f"no server answers ({type(error).__name__})"
                    do = "start it, or set RATCHET_EXECUTOR=threads"
                    raise InfrastructureError(f"deployment {self.name}", what, do) from None
                await asyncio.sleep(POLL_S)
            else:
                self._heard += monotonic() - begun
                return answer
