"""A stage's process as a fork of this one: `python -m steps.STAGE` without a new Python that loads torch."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import ratchet.train.launch  # noqa: F401  (with torch: loaded once here rather than in every fork)
from ratchet.settings import settings


def run_forked(stage: str, project: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the stage `stage` said and how it ended in the folder `project`, with `environment` and nothing else."""
    module = importlib.import_module(f"steps.{stage}")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = _as_its_own(module, project, environment)
            except BaseException:  # noqa: BLE001  (the child must never return into the test runner)
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess([stage], code, *texts)


def _as_its_own(module: Any, project: Path, environment: dict[str, str]) -> int:
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(project)
    settings.cache_clear()
    try:
        module.STAGE.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
