"""The report's sections: each is a function from the facts of a result to a piece of HTML.

Knows what a reader asks, in order; refuses to know files and how the page is put together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import yaml

from ratchet.report import graph, markup, series, svg
from ratchet.report.facts import Facts
from ratchet.report.markup import Card, Column
from ratchet.report.plots import (
    bpb_shares,
    gain_and_interval,
    mean_label,
    schedule_sentence,
    speed_sentence,
    step_label,
    training_sentence,
    verdict_sentence,
)
from ratchet.tables import training_findings

MODEL = "data/train/model"

ISOLATION = {
    "weak": "isolation: weak (a plain process, which could have read the validation data)",
    "container": "isolation: container (the validation data was out of reach)",
}


def result(facts: Facts) -> str:
    """The headline in one sentence, what qualifies it, and the figures behind it."""
    judged, trained = facts.metrics["evaluate"], facts.metrics["train"]
    gain = judged["gain_over_ngram"]
    side = "fewer than" if gain >= 0 else "more than"
    steps, documents = series.count(trained["steps"], "step"), series.count(judged["documents"], "document")
    sentence = (
        f"After {steps} on {series.short(trained['tokens'])} tokens the model needs "
        f"<strong>{judged['val_bpb']:.4f} bits per byte</strong> for {documents} that it never saw: "
        f"<em>{abs(gain):.4f} {side}</em> a byte n-gram model."
    )
    badges = [(ISOLATION[judged["isolation"]], judged["isolation"] == "weak")]
    badges.append((f"look-ahead probe: {judged['probe']['verdict']}", False))
    dirty = [stage for stage, made in facts.provenance.items() if made.get("dirty")]
    if dirty:
        badges.append((f"uncommitted changes in the tree: {', '.join(dirty)}", True))
    items = "".join(f"<li{' class=warn' if warn else ''}>{escape(text)}</li>" for text, warn in badges)
    return f'<p class="headline">{sentence}</p><ul class="badges">{items}</ul>'


def figures(facts: Facts) -> str:
    """The headline's figures as cards."""
    judged, trained, took = facts.metrics["evaluate"], facts.metrics["train"], facts.timing
    low, high = facts.interval
    interval = "" if math.isnan(low) else f"95 % over documents: {low:.3f} – {high:.3f}"
    gain, _, over = gain_and_interval(facts).partition(" ")
    return markup.cards(
        [
            Card("Validation", f"{judged['val_bpb']:.4f}", f"bits per byte. {interval}"),
            Card(
                "Byte n-gram",
                f"{judged['ngram_bpb']:.4f}",
                f"bits per byte, the same {series.short(judged['bytes'])} bytes",
            ),
            Card("Below the n-gram" if judged["gain_over_ngram"] >= 0 else "Above the n-gram", gain, over),
            Card("Training loss", f"{trained['final_loss']:.3f}", "nats per token, last 10 steps"),
            Card("Model", f"{trained['params_m']:.2f}M", f"parameters, {trained.get('dtype', 'dtype unknown')}"),
            Card(
                "Training", series.duration(took["training_seconds"]), f"{series.short(took['tokens_per_s'])} tokens/s"
            ),
        ]
    )


def training(facts: Facts, smoothing: float) -> str:
    """What to see at once; loss, learning rate and gradient norm by step."""
    table, label = facts.history, step_label(facts)
    curve = svg.line_chart(
        svg.Chart("training-curve", "Training loss", training_sentence(facts), label, "nats per token"),
        _raw_and_smooth(table["step"], table["loss"], smoothing),
    )
    schedule = svg.Chart(
        "learning-rate", "Learning-rate schedule", schedule_sentence(facts), label, "share of the peak", from_zero=True
    )
    rate = svg.line_chart(schedule, [svg.Line("multiplier", _array(table["step"]), _array(table["lr_scale"]), "other")])
    judged = training_findings.in_evaluation(facts.metrics["evaluate"], facts.metrics["train"])
    alerts = markup.findings([*training_findings.in_training(table, facts.steps), *judged])
    return f'{alerts}{curve}<div class="two charts">{rate}{_gradient(facts, smoothing, label)}</div>'


def _gradient(facts: Facts, smoothing: float, label: str) -> str:
    table = facts.history.dropna(subset=["grad_norm"])
    if table.empty:
        return ""
    norm, step = _array(table["grad_norm"]), _array(table["step"])
    median, largest = series.short(float(np.median(norm))), series.short(float(norm.max()))
    says = f"median {median}, largest {largest} at step {int(step[norm.argmax()]):,}"
    chart = svg.Chart("gradient-norm", "Gradient norm", says, label, "norm before the update", from_zero=True)
    return svg.line_chart(chart, _raw_and_smooth(table["step"], table["grad_norm"], smoothing))


def _raw_and_smooth(x: pd.Series, y: pd.Series, smoothing: float) -> list[svg.Line]:
    step, values = _array(x), _array(y)
    smoothed = svg.Line(mean_label(smoothing), step, series.smooth(values, smoothing), "main")
    return [svg.Line("each step", step, values, "raw"), smoothed]


def _array(values: pd.Series) -> series.Array:
    return values.to_numpy(dtype=np.float64)


def speed(facts: Facts, smoothing: float) -> str:
    """Throughput and memory by step, and where the time went."""
    table, took = facts.steps, facts.timing
    median = float(table["tokens_per_s"].median())
    rules = (svg.Rule(f"median {series.short(median)}", median, "base"),)
    says = speed_sentence(facts)
    chart = svg.Chart(
        "throughput", "Throughput", says, "optimizer step", "tokens per second", rules=rules, from_zero=True
    )
    curve = svg.line_chart(chart, _raw_and_smooth(table["step"], table["tokens_per_s"], smoothing))
    waited = 100 * took["checkpoint_seconds"] / max(1e-9, took["training_seconds"])
    spent = {
        "in training steps": series.duration(took["training_seconds"]),
        "before the first step": series.duration(took["startup_seconds"]),
        "waiting for checkpoints": f"{series.duration(took['checkpoint_seconds'])}, {waited:.1f} % of training",
        "the whole process": series.duration(took["total_seconds"]),
        "of the device's peak arithmetic": f"{took['mfu_percent']:.1f} %" if took.get("mfu_percent") else "not known",
    }
    judging = {
        "questions and answers": series.duration(facts.judging["seconds"]),
        "tokens per second": facts.judging["tokens_per_s"],
        "loading the model twice": series.duration(facts.judging["startup_seconds"]),
        "the byte n-gram model": series.duration(facts.judging["ngram_seconds"]),
        "largest move the probe saw": f"{facts.judging['probe_max_shift_nats']:.1e} nats",
    }
    panels = markup.pairs("Where the time went", spent) + markup.pairs("Judging", judging)
    return f'{curve}<div class="two charts">{_memory(facts)}<div class="stack">{panels}</div></div>'


def _memory(facts: Facts) -> str:
    table = facts.steps.dropna(subset=["memory_mb"])
    if table.empty:
        return ""
    says = f"peak {facts.timing['peak_vram_mb']:,.0f} MB"
    chart = svg.Chart("memory", "Memory", says, "optimizer step", "MB", from_zero=True)
    return svg.line_chart(chart, [svg.Line("in use", _array(table["step"]), _array(table["memory_mb"]), "other")])


def documents(facts: Facts, most: int) -> str:
    """How hard the documents are: their distribution, and a table of at most `most` of them, hardest first (0: all)."""
    judged = facts.metrics["evaluate"]
    edges, shares, ngram_shares = bpb_shares(facts)
    rules = (
        svg.Rule("all, this model", judged["val_bpb"], "main"),
        svg.Rule("all, n-gram", judged["ngram_bpb"], "base"),
    )
    says, title = verdict_sentence(facts), "Bits per byte of each document"
    chart = svg.Chart("val-bpb", title, says, "bits per byte", "share of the split's bytes, %", rules=rules)
    bars = svg.bar_chart(chart, edges, ("documents, this model", shares), ("documents, byte n-gram", ngram_shares))
    return bars + _document_table(facts, most)


def _document_table(facts: Facts, most: int) -> str:
    table = facts.documents.sort_values(["bpb", "document"], ascending=[False, True])
    table = table.assign(gain=table["ngram_nats"] / math.log(2) / table["bytes"] - table["bpb"])
    shown = table.head(most) if most else table
    columns = [
        *map(Column, ("Document", "Bits per byte", "Below n-gram", "Bytes", "Tokens")),
        Column("Begins with", text=True),
    ]
    rows = shown[["document", "bpb", "gain", "bytes", "tokens", "beginning"]].itertuples(index=False, name=None)
    left_out = f" The {len(shown):,} hardest of {len(table):,} are listed." if len(shown) < len(table) else ""
    return (
        '<div class="documents"><div class="tools"><label for="filter">Show the documents with these words'
        '<input type="search" id="filter" autocomplete="off" spellcheck="false"></label>'
        f'<output class="count" for="filter" aria-live="polite">{len(shown)} documents</output></div>'
        f"{markup.sortable(columns, rows, caption='Documents of the validation split', sorted_by=1)}"
        f'<p class="hint">The heads of the columns sort.{left_out}</p></div>'
    )


def lineage(facts: Facts) -> str:
    """The stages with what each read and wrote, by DVC's hashes."""
    notes = {node.name: _short_hash(node.outs[0].hash) if node.outs else "" for node in facts.lineage}
    rows = [(escape(node.name), escape(node.desc), _items(node.deps), _items(node.outs)) for node in facts.lineage]
    table = markup.plain_table(("Stage", "Does", "Read", "Wrote"), rows, caption="Stages, their inputs and outputs")
    drawing = markup.scrolling(graph.graph(facts.lineage, notes), "Lineage, drawn", "graph-box")
    return drawing + markup.details("Every file with its hash", table)


def _items(items: tuple[Any, ...]) -> str:
    return "<br>".join(f"{escape(item.path)} <code>{_short_hash(item.hash)}</code>" for item in items)


def _short_hash(digest: str | None) -> str:
    return escape(digest[:8]) if digest else "no hash yet"


def provenance(facts: Facts) -> str:
    """Which code, environment and machine made each stage's outputs."""
    rows = [
        (
            escape(stage),
            _commit(made),
            escape(f"{made.get('device') or 'cpu'}, {markup.written(made.get('threads'))} threads"),
            escape(", ".join(f"{name} {version}" for name, version in (made.get("versions") or {}).items() if version)),
            escape(markup.written(made.get("platform"))),
            f"<code>{_short_hash(made.get('constraints_sha256'))}</code>",
            escape(made.get("image_digest") or "none"),
        )
        for stage, made in facts.provenance.items()
    ]
    heads = ("Stage", "Commit", "Ran on", "Versions", "Platform", "Constraints", "Image")
    return markup.plain_table(heads, rows, caption="Provenance of each stage")


def _commit(made: Mapping[str, Any]) -> str:
    commit = f"<code>{escape(made['commit'][:10])}</code>" if made.get("commit") else "outside git"
    if not made.get("dirty"):
        return commit
    return (
        f'{commit} <span class="badge warn">dirty tree</span> <code>{_short_hash(made.get("dirty_diff_sha256"))}</code>'
    )


def reproduce(facts: Facts) -> str:
    """The commands that make this very result again, and how to see that it is the same."""
    made, judged = facts.provenance["evaluate"], facts.metrics["evaluate"]
    lines = [
        f"git checkout {made.get('commit') or 'COMMIT   # this tree was not in git'}",
        "make setup",
        ".venv/bin/dvc repro",
        f"grep val_bpb metrics/evaluate.json    # {judged['val_bpb']!r}",
    ]
    model = {out.path: out.hash for node in facts.lineage for out in node.outs if out.path == MODEL}.get(MODEL)
    if model:
        lines.append(f"grep -A2 'path: {MODEL}' dvc.lock    # md5: {model}")
    params = {key: value for node in facts.lineage for key, value in node.params.items()}
    told = yaml.safe_dump(params, sort_keys=False, allow_unicode=True)
    versions = made.get("versions") or {}
    same = (
        f"{made.get('device') or 'cpu'}, {markup.written(made.get('threads'))} threads, torch {versions.get('torch')}"
    )
    return (
        f"{_dirty_warning(facts)}{markup.command(chr(10).join(lines))}"
        f'<p class="hint">The same bytes come out on the same kind of machine: {escape(same)}.</p>'
        f"{markup.details('The parameters of this result', markup.command(told)) if params else ''}"
    )


def _dirty_warning(facts: Facts) -> str:
    dirty = [stage for stage, made in facts.provenance.items() if made.get("dirty")]
    if not dirty:
        return ""
    return (
        f'<p class="note">No commit holds the whole tree that ran {escape(", ".join(dirty))}: it had other changes. '
        "Put the parameters below into params.yaml before you run; if more than parameters had changed, the result "
        "will differ.</p>"
    )
