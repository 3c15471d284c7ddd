"""A process that waits for its job: once taken, it is the job's in every respect, its log too."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ratchet.loops.research.warm import WarmProcess
from ratchet.sandbox.job import End, Job, Limits
from ratchet.sandbox.process import ProcessSandbox, RunningProcess

WAITS = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
told = Path(sys.argv[1]).read_text()
print("begins", told, flush=True)
while not Path(told).exists():
    time.sleep(0.01)
print("ends", flush=True)
"""
"""In place of a training, which takes seconds to import: waits as one does; ends when the file it is told exists."""


class Quick(ProcessSandbox):
    def start(self, job: Job) -> RunningProcess:
        return super().start(replace(job, argv=("python", "-c", WAITS, job.argv[-1])))


def job_in(folder: Path) -> Job:
    folder.mkdir(exist_ok=True)
    limits = Limits(seconds=60.0, memory_mb=1024, processes=16)
    return Job(name=folder.name, argv=("python",), folder=folder, log=folder / "run.log", limits=limits)


def test_warm_process_writes_into_the_log_of_the_job_that_took_it(tmp_path: Path) -> None:
    job = job_in(tmp_path / "second")
    job.log.write_text("of an attempt that was killed\n")
    warm = WarmProcess(Quick(), tmp_path / "warm/0", job_in(tmp_path / "first"))
    assert warm.fits(job)
    with warm.take(job, tmp_path / "goes on") as running:
        until = time.monotonic() + 60
        while "\n" not in job.log.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        assert job.log.read_text() == f"begins {tmp_path / 'goes on'}\n"
        assert running.poll() is None
        (tmp_path / "goes on").touch()
        ended = running.wait()
    assert (ended.end, ended.last) == (End.DONE, (f"begins {tmp_path / 'goes on'}", "ends"))
    assert job.log.read_text().endswith("ends\n")
    assert not (tmp_path / "warm/0").exists()


def test_warm_process_that_nobody_takes_is_ended_and_its_folder_goes(tmp_path: Path) -> None:
    warm = WarmProcess(Quick(), tmp_path / "warm/0", job_in(tmp_path / "first"))
    other = job_in(tmp_path / "second")
    assert not warm.fits(replace(other, limits=replace(other.limits, memory_mb=512)))
    warm.close()
    assert not (tmp_path / "warm/0").exists()
