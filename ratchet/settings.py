"""Settings: where and how a run happens, never what it computes. The ONLY reader of os.environ.

Every field comes from the environment variable `RATCHET_<NAME>` (or a `.env` file in the project's folder) and has a
default. Nothing here may reach a fingerprint or a result. `child_environment` is what every child process gets.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from dotenv import dotenv_values
from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.core.errors import InputError

PREFIX = "RATCHET_"
QUIET_TOOLS = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "MPLBACKEND": "Agg",
    "PYTHONUTF8": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""What keeps the tools below Ratchet from phoning home, drawing on a screen, losing a lease, misreading UTF-8."""

JOB_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "TZ")
"""All that a job in a sandbox sees of the caller's environment: no key, no token, no home."""

WANDB_SERVICE = "WANDB_SERVICE"
"""Where W&B tells child processes of its service: `<version>-<process that started it>-<kind>-<address>`."""

_KEY = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
SHORTEST_KEY = 8
"""A shorter value of such a name is a number or a switch, and would be found everywhere."""


class Settings(BaseSettings):
    """One process' settings. Fields: where it runs, who it talks to, how much it says."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    device: str = Field("auto", description="auto, cpu, cuda, cuda:INDEX or mps; auto takes cuda when there is one")
    threads: int = Field(0, ge=0, description="CPU threads for torch; 0 = as many as the cpuset allows")
    ranks: int = Field(
        1, ge=1, description="processes that share one training: one a GPU from the device on, or a part of the CPUs"
    )
    wandb: Literal["online", "offline", "disabled"] = Field("offline", description="Weights & Biases mode")
    wandb_project: str = Field("ratchet", description="Weights & Biases project")
    wandb_entity: str | None = Field(None, description="Weights & Biases entity (team or user)")
    log_interval: int = Field(
        1, ge=1, description="write one line of training progress every N steps when not on a terminal"
    )
    runs: Path = Field(Path("runs"), description="folder of the run directories: scratch, ignored by git and DVC")
    resume_run: Path | None = Field(
        None, description="run that must continue (`ratchet resume` sets it); null = by inputs"
    )
    resume: Literal["newest", "auto"] = Field(
        "newest", description="auto: a damaged newest checkpoint gives way; the team loop always gives way, and says so"
    )
    adopt_code: bool = Field(False, description="with resume_run: continue under changed code, recorded")
    allow_inexact: bool = Field(False, description="with resume_run: accept another device kind, dtype or thread count")
    hub: str = Field("https://huggingface.co", description="base address datasets are fetched from")
    hub_token: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("RATCHET_HUB_TOKEN", "HF_TOKEN"),
        description="access token for gated datasets (HF_TOKEN works too); sent to the hub alone, never written",
    )
    downloads: Path = Field(Path(".ratchet/downloads"), description="content-addressed cache of fetched files")
    download_workers: int = Field(4, ge=1, description="shards fetched at once")
    download_attempts: int = Field(6, ge=1, description="tries in a row without progress before a fetch gives up")
    llm_base_url: str | None = Field(
        None, description="base address of an OpenAI-compatible endpoint, such as http://localhost:8000/v1"
    )
    llm_key: SecretStr | None = Field(None, description="key of that endpoint; sent to it alone, never written")
    llm_attempts: int = Field(6, ge=1, description="tries of one call before the run stops with its cause")
    llm_backoff_s: float = Field(1.0, ge=0, description="first wait between two tries of a call, s; doubles to 60 s")
    llm_timeout_s: float = Field(300.0, gt=0, description="seconds that one try may take until its last byte")
    image_digest: str | None = Field(None, description="digest of the container image this runs in, for provenance")
    sandbox: Literal["auto", "process", "container", "required"] = Field(
        "auto",
        description="where agent-written code runs: a container, else a process; required (or container): no else",
    )
    stages_in: Literal["process", "container"] = Field(
        "process", description="where the stages prepare, tokenizer, pack, train, plot run: same command, same bytes"
    )
    executor: Literal["threads", "prefect", "pool"] = Field(
        "threads",
        description="who runs a session's experiments: threads here, or a Prefect deployment by its name, "
        "whose workers share the folder of the runs (prefect) or the DVC remote alone (pool)",
    )
    experiment_deployment: str = Field(
        "experiment/experiment", description="the deployment that executor=prefect or pool calls, as FLOW/NAME"
    )
    experiment_lost_s: float = Field(
        120.0, gt=0, description="seconds without a sign of life after which an experiment elsewhere is called anew"
    )
    image: str | None = Field(None, description="image of the containers; null = what containers/build.py has built")
    download_backoff_s: float = Field(1.0, ge=0, description="first wait between two tries, s; doubles, at most 60 s")
    env_file: Path = Field(Path(".env"), description="file with more of these; copies read the project's")


@cache
def settings() -> Settings:
    """This process' settings. Raises InputError naming the variable when one is wrong or unknown."""
    file = os.environ.get("RATCHET_ENV_FILE", ".env")
    _refuse_unknown(os.environ, "environment")
    _refuse_unknown([name.upper() for name in dotenv_values(file)], file)
    try:
        return Settings(_env_file=file)  # pyright: ignore[reportCallIssue]  (every field has a default)
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper().removeprefix(PREFIX)
        raise InputError(
            "environment", f"{name}={first['input']!r}: {first['msg'].lower()}", f"change or unset {name}"
        ) from None


def secret(name: str) -> SecretStr | None:
    """The environment variable `name`, of the environment or the `.env` file, for a key that params call by name."""
    value = os.environ.get(name) or dotenv_values(os.environ.get("RATCHET_ENV_FILE", ".env")).get(name)
    return SecretStr(value) if value else None


def _refuse_unknown(names: Iterable[str], where: str) -> None:
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(PREFIX), [k.removeprefix(PREFIX) for k in known], n=1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"unset it; there are {', '.join(known)}"
            raise InputError(where, f"unknown setting {name}", hint)  # its value may be a secret


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a child process: this one's, the tools below kept quiet, and `more` on top.

    What the user has set of `QUIET_TOOLS` stays as it is.
    """
    home = {"PREFECT_HOME": str(Path(".ratchet/prefect").resolve())}
    return {**QUIET_TOOLS, **home, **os.environ, **more}


def job_environment(names: Iterable[str] = JOB_ENVIRONMENT) -> dict[str, str]:
    """What a job in a sandbox gets of this process' environment: the allow-list `names`, and what keeps tools quiet."""
    return {**QUIET_TOOLS, **{name: os.environ[name] for name in names if name in os.environ}}


def is_key(name: str) -> bool:
    """Whether a variable of that name may hold a key."""
    return _KEY.search(name) is not None


def key_values() -> frozenset[str]:
    """The values of every variable that may hold a key, in the environment and in the file of settings."""
    file = dotenv_values(os.environ.get("RATCHET_ENV_FILE", ".env"))
    pairs = [*os.environ.items(), *file.items()]
    return frozenset(value for name, value in pairs if is_key(name) and value and len(value) >= SHORTEST_KEY)


def quiet_this_process() -> None:
    """Apply `child_environment` to this process; call before prefect, dvc or wandb is imported."""
    os.environ.update(child_environment())


def set_in_this_process(name: str, value: str) -> None:
    """Set one environment variable for libraries that read it when they start; what the user has set stays."""
    os.environ.setdefault(name, value)


def forget_wandb_service_of_parent() -> None:
    """Let this process start a W&B service of its own, whatever service a parent process told its children of.

    The parent's would outlive a kill of this process and go on holding its run as in use, which refuses the resume.
    """
    _, starter, *_ = os.environ.get(WANDB_SERVICE, "--").split("-")
    if starter != str(os.getpid()):
        os.environ.pop(WANDB_SERVICE, None)
