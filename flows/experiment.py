"""One candidate as a Prefect flow: the unit that travels to a work pool. The research loop calls it by its name.

`python -m flows.experiment --workers 2` serves the deployment `experiment/experiment` here; elsewhere deploy it to a
docker or kubernetes work pool whose workers share the folder of the runs. Refuses to know why it is tried.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from prefect import flow

from ratchet.loops.research.events import Everyone
from ratchet.loops.research.executor import Experiment, Worker
from ratchet.loops.research.experiment import Workbench, kept, patient
from ratchet.sandbox.choose import choose
from ratchet.settings import settings
from ratchet.train.device import resolve_device


@flow(name="experiment", persist_result=False, log_prints=True)
def experiment(job: dict[str, Any]) -> None:
    """Train and judge the experiment `job` (the JSON of an Experiment); its result is left in its folder.

    Raises InfrastructureError when the world failed; a candidate that crashes is a result.
    """
    here = settings()
    device = resolve_device(here.device, here.threads)
    bench = Workbench(choose(here, device=device.torch_name), (device,), Everyone())
    asked = Experiment.of(job)
    result = kept(patient(bench))(asked, Worker())
    print(f"experiment {asked.number}: {result.reason or f'val_bpb {result.val_bpb:.6f}'}")


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the deployment until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m flows.experiment", description=main.__doc__)
    parser.add_argument("--workers", type=int, default=1, help="experiments at once (iterate.parallel)")
    experiment.serve("experiment", limit=parser.parse_args(argv).workers, pause_on_shutdown=False)


if __name__ == "__main__":
    main()
