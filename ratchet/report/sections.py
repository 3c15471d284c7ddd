"""The report's sections: each is a function from the facts of a result to a piece of HTML.

Knows what a reader asks, in order; refuses to know files and how the page is put together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import yaml

from ratchet.report import graph, markup, series, svg
from ratchet.report.facts import Facts
from ratchet.report.markup import Card, Column
from ratchet.report.plots import (
    bpb_shares,
    mean_label,
    schedule_sentence,
    speed_sentence,
    step_label,
    training_sentence,
    verdict_sentence,
)
from ratchet.tables.records import flatten

ISOLATION = {
    "weak": "isolation: weak – the candidate ran as a plain process, which could have read the validation data",
    "container": "isolation: container – the candidate could not see the validation data",
}


def result(facts: Facts) -> str:
    """The headline in one sentence, what qualifies it, and the figures behind it."""
    judged, trained = facts.metrics["evaluate"], facts.metrics["train"]
    gain, documents = judged["gain_over_ngram"], judged["documents"]
    side = "fewer than" if gain >= 0 else "more than"
    sentence = (
        f"After {trained['steps']:,} steps on {series.short(trained['tokens'])} tokens the model needs "
        f"<strong>{judged['val_bpb']:.4f} bits per byte</strong> for {documents:,} documents that it never saw: "
        f"<em>{abs(gain):.4f} {side}</em> a byte n-gram model."
    )
    badges = [(ISOLATION.get(judged["isolation"], judged["isolation"]), judged["isolation"] == "weak")]
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
    return markup.cards(
        [
            Card("Validation", f"{judged['val_bpb']:.4f}", f"bits per byte. {interval}"),
            Card("Byte n-gram", f"{judged['ngram_bpb']:.4f}", "bits per byte on the same documents"),
            Card("Training loss", f"{trained['final_loss']:.3f}", "nats per token, last 10 steps"),
            Card("Model", f"{trained['params_m']:.2f}M", f"parameters, {trained.get('dtype', 'dtype unknown')}"),
            Card(
                "Training", series.duration(took["training_seconds"]), f"{series.short(took['tokens_per_s'])} tokens/s"
            ),
            Card("Judged", series.short(judged["bytes"]), f"bytes in {judged['documents']:,} documents"),
        ]
    )


def training(facts: Facts, smoothing: float) -> str:
    """Loss, learning rate and gradient norm by step."""
    table = facts.history
    step, loss = table["step"].to_numpy(float), table["loss"].to_numpy(float)
    label = step_label(facts)
    curve = svg.line_chart(
        svg.Chart("training-curve", "Training loss", training_sentence(facts), label, "nats per token"),
        [
            svg.Line("each step", step, loss, "raw"),
            svg.Line(mean_label(smoothing), step, series.smooth(loss, smoothing), "main"),
        ],
    )
    rate = svg.line_chart(
        svg.Chart(
            "learning-rate", "Learning-rate schedule", schedule_sentence(facts), label, "multiplier", from_zero=True
        ),
        [svg.Line("multiplier", step, table["lr_scale"].to_numpy(float), "other")],
    )
    return f'{curve}<div class="two charts">{rate}{_gradient(facts, smoothing, label)}</div>'


def _gradient(facts: Facts, smoothing: float, label: str) -> str:
    table = facts.history.dropna(subset=["grad_norm"])
    if table.empty:
        return ""
    step, norm = table["step"].to_numpy(float), table["grad_norm"].to_numpy(float)
    says = f"median {series.short(float(np.median(norm)))}, largest {series.short(float(norm.max()))} at step {int(step[norm.argmax()]):,}"
    chart = svg.Chart("gradient-norm", "Gradient norm", says, label, "norm before the update", from_zero=True)
    return svg.line_chart(
        chart,
        [
            svg.Line("each step", step, norm, "raw"),
            svg.Line(mean_label(smoothing), step, series.smooth(norm, smoothing), "main"),
        ],
    )


def speed(facts: Facts, smoothing: float) -> str:
    """Throughput and memory by step, and where the time went."""
    table, took = facts.steps, facts.timing
    step, rate = table["step"].to_numpy(float), table["tokens_per_s"].to_numpy(float)
    median = float(np.median(rate))
    chart = svg.Chart(
        "throughput", "Throughput", speed_sentence(facts), "optimizer step", "tokens per second",
        rules=(svg.Rule(f"median {series.short(median)}", median, "base"),), from_zero=True,
    )  # fmt: skip
    curve = svg.line_chart(
        chart,
        [
            svg.Line("each step", step, rate, "raw"),
            svg.Line(mean_label(smoothing), step, series.smooth(rate, smoothing), "main"),
        ],
    )
    spent = {
        "in training steps": series.duration(took["training_seconds"]),
        "before the first step": series.duration(took["startup_seconds"]),
        "waiting for checkpoints": f"{series.duration(took['checkpoint_seconds'])} ({100 * took['checkpoint_seconds'] / max(1e-9, took['training_seconds']):.1f} % of training)",
        "the whole process": series.duration(took["total_seconds"]),
        "share of the peak arithmetic": f"{took['mfu_percent']:.1f} %"
        if took.get("mfu_percent")
        else "not known for this device",
    }
    return f'{curve}<div class="two charts">{_memory(facts)}{markup.pairs("Where the time went", spent)}</div>'


def _memory(facts: Facts) -> str:
    table = facts.steps.dropna(subset=["memory_mb"])
    if table.empty:
        return ""
    chart = svg.Chart(
        "memory", "Memory", f"peak {facts.timing['peak_vram_mb']:,.0f} MB", "optimizer step", "MB", from_zero=True
    )
    return svg.line_chart(
        chart, [svg.Line("in use", table["step"].to_numpy(float), table["memory_mb"].to_numpy(float), "other")]
    )


def documents(facts: Facts, most: int) -> str:
    """How hard the documents are: their distribution, and a table of at most `most` of them, hardest first (0: all)."""
    judged = facts.metrics["evaluate"]
    edges, shares = bpb_shares(facts)
    chart = svg.Chart(
        "val-bpb", "Bits per byte of each document", verdict_sentence(facts), "bits per byte", "share of the split's bytes, %",
        rules=(svg.Rule("this model", judged["val_bpb"], "main"), svg.Rule("byte n-gram", judged["ngram_bpb"], "base")),
    )  # fmt: skip
    table = facts.documents.dropna(subset=["bpb"]).sort_values(["bpb", "document"], ascending=[False, True])
    shown = table.head(most) if most else table
    columns = [
        Column("Document"),
        Column("Bits per byte"),
        Column("Bytes"),
        Column("Tokens"),
        Column("Begins with", text=True),
    ]
    rows = [
        (int(row.document), float(row.bpb), int(row.bytes), int(row.tokens), row.beginning)
        for row in shown.itertuples(index=False)
    ]
    left_out = f" The {len(shown):,} hardest of {len(table):,} are listed." if len(shown) < len(table) else ""
    return (
        f"{svg.bar_chart(chart, edges, shares, 'share of bytes')}"
        '<div class="documents"><div class="tools"><label for="filter">Show the documents with these words'
        '<input type="search" id="filter" autocomplete="off" spellcheck="false"></label>'
        f'<output class="count" for="filter" aria-live="polite">{len(rows)} documents</output></div>'
        f"{markup.sortable(columns, rows, caption='Documents of the validation split', sorted_by=1)}"
        f"<p><small>The heads of the columns sort.{left_out}</small></p></div>"
    )


def data(facts: Facts) -> str:
    """What the model was trained on, and in which pieces: the facts of the stages before training."""
    panels = []
    for stage in ("prepare", "tokenizer", "pack"):
        flat = {
            key: value for key, value in flatten(facts.metrics.get(stage, {})).items() if not isinstance(value, list)
        }
        if flat:
            panels.append(markup.pairs(stage, flat))
    return f'<div class="two">{"".join(panels)}</div>'


def lineage(facts: Facts) -> str:
    """The stages with what each read and wrote, by DVC's hashes."""
    notes = {node.name: _short_hash(node.outs[0].hash) if node.outs else "" for node in facts.lineage}
    rows = [(escape(node.name), escape(node.desc), _items(node.deps), _items(node.outs)) for node in facts.lineage]
    table = markup.plain_table(("Stage", "Does", "Read", "Wrote"), rows, caption="Stages, their inputs and outputs")
    return f'<div class="graph-box" tabindex="0" role="region" aria-label="Lineage, drawn">{graph.graph(facts.lineage, notes)}</div>{markup.details("Every file with its hash", table)}'


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
            escape(markup.written(made.get("device"))),
            escape(markup.written(made.get("threads"))),
            escape(", ".join(f"{name} {version}" for name, version in (made.get("versions") or {}).items() if version)),
            escape(markup.written(made.get("platform"))),
            f"<code>{_short_hash(made.get('constraints_sha256'))}</code>",
            escape(made.get("image_digest") or "none"),
        )
        for stage, made in facts.provenance.items()
    ]
    heads = ("Stage", "Commit", "Device", "Threads", "Versions", "Platform", "Constraints", "Image")
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
    params = {key: value for node in facts.lineage for key, value in node.params.items()}
    model = next(
        (out for node in facts.lineage if node.name == "train" for out in node.outs if out.path.endswith("model")), None
    )
    lines = [
        f"git checkout {made.get('commit') or '<the commit that ran; this tree was not in git>'}",
        "make setup",
        ".venv/bin/dvc repro",
        f"grep val_bpb metrics/evaluate.json         # must say {judged['val_bpb']!r}",
    ]
    if model and model.hash:
        lines.append(f"grep -A1 'path: {model.path}' dvc.lock   # must say md5: {model.hash}")
    dirty = [stage for stage, each in facts.provenance.items() if each.get("dirty")]
    warning = (
        f'<p class="note">The tree had changes that no commit holds when {escape(", ".join(dirty))} ran. '
        "The commit alone does not give this result: put the parameters below into params.yaml first, and expect a "
        "difference if more than they had changed.</p>"
        if dirty
        else ""
    )
    told = yaml.safe_dump(params, sort_keys=False, allow_unicode=True)
    same = f"{made.get('device') or 'the same device'}, {made.get('threads') or 'as many'} threads, torch {(made.get('versions') or {}).get('torch', 'of the same version')}"
    return (
        f"{warning}{markup.command(chr(10).join(lines))}"
        f"<p>The bytes are equal on the same kind of machine: {escape(markup.written(same))}.</p>"
        f"{markup.details('The parameters of this result', markup.command(told)) if params else ''}"
    )
