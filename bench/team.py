"""The team loop against the published trainer (comlrl 1.4.3): env steps a second, peak memory, bytes of a checkpoint.

    .venv/bin/python -m pip install --no-deps --target FOLDER comlrl==1.4.3 datasets dill multiprocess xxhash
    .venv/bin/python bench/team.py --published FOLDER [--items 8] [--tokens 64] [--threads 2]

Both train two agents of the same weights for one epoch on the same prompts, with the same group size, token limit and
sampling, all weights, and save one checkpoint; each in a process of its own, the two in turn so many times. Loading is
not counted. `cpu_ratio` compares CPU seconds: on a busy machine it is the steadier figure at one thread. `--default`
trains the shipped default as well, for so many epochs, to see what saving costs a run of its size: the seconds it
stands still for it, and the CPU seconds that saving takes wherever it runs. Kept in bench/results/team.json.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results

ROOT = Path(__file__).resolve().parent.parent
GENERATIONS = 4
SETTINGS: dict[str, Any] = {
    "num_turns": 1, "num_train_epochs": 1, "num_generations": GENERATIONS, "temperature": 0.6, "top_p": 0.6,
    "top_k": 50, "agent_learning_rate": 5e-6, "rollout_buffer_size": 2, "eval_interval": 0, "num_agents": 2,
}  # fmt: skip


def length_ratio(first: list[str], second: list[str]) -> list[float]:
    """The shipped form of the published example's reward: never the same for a whole group, so all is learnt from."""
    return [math.exp(-abs(len(b) / max(1, len(a)) - 2.5)) for a, b in zip(first, second, strict=True)]


def items(count: int) -> list[dict[str, str]]:
    """Prompts of the shipped task."""
    from ratchet.loops.team.tasks import Sizes, load_task

    return [dict(item) for item in load_task("stories", 0, Sizes(count, 1)).train]


def ours(model: Path, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One epoch of the team loop."""
    from ratchet.loops.team import TeamConfig, TeamTrainer
    from ratchet.settings import Settings

    here = Settings.model_validate({"runs": folder, "wandb": "disabled", "device": "cpu", "threads": asked.threads})
    config = TeamConfig.model_validate(SETTINGS | {"max_new_tokens": asked.tokens})
    trainer = TeamTrainer(config, model=str(model), reward=length_ratio, train_dataset=items(asked.items), here=here)
    saving = Saving()
    begun, cpu = time.perf_counter(), time.process_time()
    ending = trainer.train()
    told = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu, **saving.told()}
    assert trainer.path is not None
    return told | {"env_steps": ending.state.env_step, "folder": str((trainer.path / "checkpoint-1").resolve())}


def default(_model: Path, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The section `team` of params.yaml for `asked.default` epochs, from its first look to its last."""
    from ratchet.loops.team import session as sessions
    from ratchet.loops.team.parameters import SECTION, TeamParams
    from ratchet.params import load
    from ratchet.settings import Settings

    here = Settings.model_validate({"runs": folder, "wandb": "disabled", "device": "cpu", "threads": asked.threads})
    params = load(SECTION, TeamParams).model_copy(update={"num_train_epochs": asked.default})
    session = sessions.from_params(params, here)
    saving = Saving()
    begun, cpu = time.perf_counter(), time.process_time()
    with sessions.open_session(session, here) as run:
        ending = sessions.Driver(session, run, here).drive()
    told = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu, **saving.told()}
    return told | {"env_steps": ending.state.env_step, "epochs": asked.default, "folder": str(run.path)}


class Saving:
    """What saving costs, by watching what does it: rounding at an epoch's end, writing, waiting, making durable."""

    def __init__(self) -> None:
        from ratchet.loops.team.behind import StoreBehind
        from ratchet.loops.team.team import Team

        self.still, self.cpu = 0.0, 0.0
        Team.round_moments = self._watched(Team.round_moments, counts_cpu=True)
        StoreBehind.capture = self._watched(StoreBehind.capture, counts_cpu=True)
        StoreBehind.wait = self._watched(StoreBehind.wait, counts_cpu=False)
        StoreBehind.make_durable = self._in_its_thread(StoreBehind.make_durable)

    def told(self) -> dict[str, float]:
        """As figures."""
        return {"saving_seconds": self.still, "saving_cpu_seconds": self.cpu}

    def _watched(self, plain: Any, *, counts_cpu: bool) -> Any:
        def watched(*arguments: Any, **more: Any) -> Any:
            begun, cpu = time.perf_counter(), time.process_time()
            found = plain(*arguments, **more)
            self.still += time.perf_counter() - begun
            self.cpu += time.process_time() - cpu if counts_cpu else 0.0
            return found

        return watched

    def _in_its_thread(self, plain: Any) -> Any:
        def watched(*arguments: Any, **more: Any) -> Any:
            cpu = time.thread_time()
            plain(*arguments, **more)
            self.cpu += time.thread_time() - cpu

        return watched


def published(model: Path, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same with the published trainer."""
    import torch
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer  # pyright: ignore[reportMissingImports]
    from transformers import AutoTokenizer

    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    trainer = MAGRPOTrainer(
        agent_model=str(model), num_agents=2, tokenizer=AutoTokenizer.from_pretrained(model), reward_func=length_ratio,
        train_dataset=items(asked.items), args=MAGRPOConfig(**SETTINGS | {"max_new_tokens": asked.tokens}),
    )  # fmt: skip
    begun, cpu = time.perf_counter(), time.process_time()
    trainer.train(checkpoint_dir=str(folder))
    told = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    return told | {"env_steps": trainer.env_step, "folder": str(folder)}


def child(which: str, asked: argparse.Namespace) -> None:
    """One training; its figures as one line of JSON."""
    sys.path.insert(0, str(ROOT))
    if which == "published":
        sys.path.append(asked.published)
    from ratchet.llm import smollm2
    from ratchet.settings import settings

    model = smollm2.converted(settings().downloads)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        told = {"ours": ours, "published": published, "default": default}[which](model, asked, Path(scratch))
        files = [path.stat().st_size for path in Path(told.pop("folder")).rglob("*") if path.is_file()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(told | {"checkpoint_mb": sum(files) / 2**20, "peak_mb": peak}), flush=True)


def measured(which: str, arguments: list[str]) -> dict[str, Any]:
    """The figures of one child."""
    command = [sys.executable, __file__, "--child", which, *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", default="", help="folder with the published library; empty: ours alone")
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1, help="how often each of the two is measured")
    parser.add_argument("--scratch", default=None, help="where checkpoints are written")
    parser.add_argument("--default", type=int, default=0, help="epochs of the default to train as well; 0: none")
    parser.add_argument("--child", choices=("ours", "published", "default"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked)
        return
    names = ["ours", "published"] if asked.published else ["ours"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(asked.turns):
        for name in names[:: -1 if turn % 2 else 1]:
            found[name].append(measured(name, sys.argv[1:]))
    if asked.default:
        found["default"] = [measured("default", sys.argv[1:])]
    told = figures(found, asked)
    if asked.published:
        results.keep("team", told)
    else:
        print(json.dumps(told, indent=2))


def figures(found: dict[str, list[dict[str, Any]]], asked: argparse.Namespace) -> dict[str, Any]:
    """Medians of each, and the ratios where there are two."""
    told: dict[str, Any] = {
        "items": asked.items,
        "tokens": asked.tokens,
        "threads": asked.threads,
        "turns": asked.turns,
    }
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    for name, each in middle.items():
        told |= {f"{name}_{key}": round(value, 3) for key, value in each.items()}
        told[f"{name}_env_steps_per_s"] = round(each["env_steps"] / each["seconds"], 4)
    own = middle["ours"]
    for name, of in (("saving_share_percent", own), ("default_saving_share_percent", middle.get("default"))):
        if of is not None:
            told[name] = round(100 * of["saving_seconds"] / of["seconds"], 2)
            told[name.replace("share", "cpu_share")] = round(100 * of["saving_cpu_seconds"] / of["cpu_seconds"], 2)
    if other := middle.get("published"):
        told["ratio"] = round(other["seconds"] / own["seconds"] * own["env_steps"] / other["env_steps"], 3)
        told["cpu_ratio"] = round(other["cpu_seconds"] / own["cpu_seconds"] * own["env_steps"] / other["env_steps"], 3)
        told["peak_ratio"] = round(own["peak_mb"] / other["peak_mb"], 3)
        told["checkpoint_ratio"] = round(own["checkpoint_mb"] / other["checkpoint_mb"], 3)
    return told


if __name__ == "__main__":
    main()
