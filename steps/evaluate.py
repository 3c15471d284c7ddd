"""Stage evaluate: judge the trained model on the validation split, beside a byte n-gram model of the same documents.

Writes what is the same on every rerun apart from what is not (time, and how far the secret probe saw answers move).
The test split is not read here. Refuses to know how judging works.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.data.documents import read_documents
from ratchet.data.packing import PackedSplit
from ratchet.data.tokenizer import Tokenizer
from ratchet.sandbox.choose import choose
from ratchet.settings import settings
from ratchet.stage import Needs, Stage
from ratchet.train.device import exclusive, resolve_device, used_machine
from ratchet.train.evaluate_parameters import EvaluateParams, NgramParams
from ratchet.train.judge import Judgement, judge
from ratchet.train.ngram import ByteNgram
from ratchet.train.scoring import bits_per_byte


class Inputs(NamedTuple):
    """The model, the packed documents it is judged on, and the text that the baseline learns from and is judged on."""

    model: Path = Path("data/train/model")
    split: Path = Path("data/pack/val")
    tokenizer: Path = Path("data/tokenizer")
    train_documents: Path = Path("data/prepare/train")
    documents: Path = Path("data/prepare/val")


class Outputs(NamedTuple):
    """The table of documents, the time it took, the metrics, where they came from."""

    documents: Path = Path("data/evaluate/documents.parquet")
    timing: Path = Path("data/evaluate/timing.json")
    metrics: Path = Path("metrics/evaluate.json")
    provenance: Path = Path("data/evaluate/provenance.json")


def run(params: EvaluateParams, inputs: Inputs, outputs: Outputs) -> None:
    """Judge `inputs.model`. Raises Refused when the judge gives no number; nothing is written then."""
    device = resolve_device(settings().device, settings().threads)
    with exclusive(device):
        judgement = judge(
            inputs.model,
            PackedSplit.load(inputs.split),
            Tokenizer.load(inputs.tokenizer).token_bytes,
            device=device,
            batch_rows=params.batch_rows,
            sandbox=choose(settings(), device=device.torch_name),
            limit_s=params.limit_s,
        )
    baseline = judge_ngram(params.ngram, inputs)
    documents = beside(judgement.documents, baseline, inputs.documents)
    metrics = summarise(judgement, documents)
    with atomic.output_file(outputs.documents) as path:
        pq.write_table(pa.Table.from_pandas(documents, preserve_index=False), path)
    atomic.write_json(outputs.timing, timing(judgement, baseline))
    atomic.write_json(outputs.metrics, metrics)
    baseline_and_gain = f"a byte n-gram model {metrics['ngram_bpb']:.4f} (gain {metrics['gain_over_ngram']:+.4f})"
    print(
        f"evaluate: val_bpb {metrics['val_bpb']:.6f}, {baseline_and_gain}; "
        f"{len(documents):,} documents at {judgement.tokens_per_s:,.0f} tokens/s"
    )


@dataclass(frozen=True)
class Baseline:
    """What the n-gram model pays for each document, in nats, and the bytes it was paid for."""

    nats: np.ndarray
    sizes: np.ndarray
    seconds: float


def judge_ngram(params: NgramParams, inputs: Inputs) -> Baseline:
    """Train the baseline on the training documents and judge it on the validation documents."""
    started = monotonic()
    texts = (text.encode() for text in read_documents(inputs.train_documents))
    model = ByteNgram.train(texts, context=params.context_bytes, discount=params.discount)
    held_out = [text.encode() for text in read_documents(inputs.documents)]
    sizes = np.array([len(text) for text in held_out], dtype=np.int64)
    return Baseline(model.nats(held_out), sizes, monotonic() - started)


def beside(documents: pd.DataFrame, baseline: Baseline, folder: Path) -> pd.DataFrame:
    """The judge's table with the columns bpb and ngram_nats. Raises InputError when both did not see the same bytes."""
    numbers = documents["document"].to_numpy()
    same = len(numbers) == len(baseline.sizes) and np.array_equal(numbers, np.arange(len(numbers)))
    if not same or not np.array_equal(documents["bytes"].to_numpy(), baseline.sizes):
        what = f"its {len(baseline.sizes)} documents of {baseline.sizes.sum()} bytes are not those that were packed"
        judged = f"({len(numbers)} of {documents['bytes'].sum()} bytes)"
        raise InputError(folder, f"{what} {judged}", "run `dvc repro --force pack`")
    bpb = [bits_per_byte(nats, size) for nats, size in zip(documents["nats"], documents["bytes"], strict=True)]
    return documents.assign(bpb=bpb, ngram_nats=baseline.nats)


def summarise(judgement: Judgement, documents: pd.DataFrame) -> dict[str, Any]:
    """metrics/evaluate.json: nothing in it depends on time or on the probe's secret."""
    size = int(documents["bytes"].sum())
    ngram_bpb = bits_per_byte(float(documents["ngram_nats"].sum()), size)
    probe = judgement.probe
    return {
        "val_bpb": judgement.val_bpb,
        "ngram_bpb": ngram_bpb,
        "gain_over_ngram": ngram_bpb - judgement.val_bpb,
        "documents": len(documents),
        "bytes": size,
        "tokens": int(documents["tokens"].sum()),
        "probe": {
            "rows": probe.rows,
            "repeated_rows": probe.repeated,
            "tolerance_nats": probe.tolerance,
            "verdict": probe.verdict,
        },
        "isolation": judgement.isolation,
    }


def timing(judgement: Judgement, baseline: Baseline) -> dict[str, float]:
    """data/evaluate/timing.json: what differs from run to run."""
    return {
        "tokens_per_s": judgement.tokens_per_s,
        "seconds": judgement.seconds,
        "startup_seconds": judgement.startup_seconds,
        "ngram_seconds": baseline.seconds,
        "probe_max_shift_nats": judgement.probe.max_shift,
    }


def needs(_params: EvaluateParams) -> Needs:
    """The judge stays out: it starts the candidates' containers, and no container ever holds the engine's socket."""
    return Needs(outside="the judge starts containers for its candidates (RATCHET_SANDBOX)")


STAGE = Stage("evaluate", EvaluateParams, Inputs(), Outputs(), run, used_machine, needs)

if __name__ == "__main__":
    STAGE.main()
