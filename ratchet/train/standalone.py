"""`python arena/train.py`: train that file on the data already packed, judge it, print the published block.

The same sealed trainer, the same judge and the same run directories as the stages; only nothing of DVC is touched.
Refuses to make data.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ratchet import params as params_file
from ratchet.core.errors import InputError
from ratchet.data.packing import PackedSplit
from ratchet.data.tokenizer import Tokenizer
from ratchet.sandbox.choose import choose
from ratchet.settings import settings
from ratchet.stage import guarded
from ratchet.train.device import exclusive, resolve_device
from ratchet.train.evaluate_parameters import EvaluateParams
from ratchet.train.job import Published, Request
from ratchet.train.judge import Judgement, judge
from ratchet.train.launch import train_and_publish
from ratchet.train.parameters import TrainParams
from ratchet.train.summary import published_block

ROWS, VALIDATION, TOKENIZER = Path("data/pack/train"), Path("data/pack/val"), Path("data/tokenizer")


def main(arena: str) -> None:
    """Train and judge the file `arena` in the project's folder, and end the process.

    Exit code 0, 2 for wrong input, 130 or 143 when a signal ended the training (saved; the same command continues it).
    """
    sys.exit(guarded("arena", lambda: _train_and_judge(Path(arena))))


def _train_and_judge(arena: Path) -> None:
    for path in (ROWS, VALIDATION, TOKENIZER):
        if not path.exists():
            raise InputError(path, "no such folder", "make the data once with `make run`, or `dvc repro pack`")
    params, judging = params_file.load("train", TrainParams), params_file.load("evaluate", EvaluateParams)
    with tempfile.TemporaryDirectory() as folder:
        out = Published(*(Path(folder) / name for name in ("model", "history.tsv", "timing", "metrics.json")))
        train_and_publish(Request(params, ROWS, TOKENIZER, arena), out, settings())
        print("judging on the validation split", file=sys.stderr, flush=True)
        judgement = _judge(out.model, judging)
        clock = _read(out.timing / "summary.json")
        clock["total_seconds"] += judgement.startup_seconds + judgement.seconds
        print(published_block(judgement.val_bpb, _read(out.metrics), clock), flush=True)


def _judge(model: Path, params: EvaluateParams) -> Judgement:
    """As the stage `evaluate` does, without its baseline."""
    device, token_bytes = resolve_device(settings().device, settings().threads), Tokenizer.load(TOKENIZER).token_bytes
    with exclusive(device):
        return judge(
            model,
            PackedSplit.load(VALIDATION),
            token_bytes,
            device=device,
            batch_rows=params.batch_rows,
            sandbox=choose(settings(), device=device.torch_name),
            limit_s=params.limit_s,
        )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
