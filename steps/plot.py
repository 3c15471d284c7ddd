"""Stage `plot`: draw a result's curves and write its report, one page that needs no network.

Reads what the other stages wrote and checks that it belongs together. Computes no result.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from ratchet.core import atomic
from ratchet.params import Params
from ratchet.report import (
    facts,
    html,
    plots,
    progress_plot,
    skill_section,
    team_curves,
    team_section,
    training_dashboard,
)
from ratchet.stage import Needs, Stage


class PlotParams(Params):
    """What defines the pictures."""

    smoothing: float = Field(ge=0, le=0.5, description="the bold curves average over this share of the run")
    dpi: int = Field(ge=50, le=600, description="dots per inch of the PNGs, which are 8 x 4.5 inches")
    documents: int = Field(ge=0, description="rows of the report's table of documents, hardest first; 0 = all")


class Inputs(NamedTuple):
    """The record of training, the judge's account and its texts, the loops, metrics, provenance, the look."""

    history: Path = Path("data/train/history.tsv")
    timing: Path = Path("data/train/timing")
    documents: Path = Path("data/evaluate/documents.parquet")
    judging: Path = Path("data/evaluate/timing.json")
    texts: Path = Path("data/prepare/val")
    session: Path = Path("data/iterate")
    skill: Path = Path("data/skill")
    team: Path = Path("data/team")
    team_timing: Path = Path("data/team-timing.json")
    prepare_metrics: Path = Path("metrics/prepare.json")
    tokenizer_metrics: Path = Path("metrics/tokenizer.json")
    pack_metrics: Path = Path("metrics/pack.json")
    train_metrics: Path = Path("metrics/train.json")
    evaluate_metrics: Path = Path("metrics/evaluate.json")
    iterate_metrics: Path = Path("metrics/iterate.json")
    skill_metrics: Path = Path("metrics/skill.json")
    team_metrics: Path = Path("metrics/team.json")
    prepare_provenance: Path = Path("data/prepare/provenance.json")
    tokenizer_provenance: Path = Path("data/tokenizer-provenance.json")
    pack_provenance: Path = Path("data/pack/provenance.json")
    train_provenance: Path = Path("data/train/provenance.json")
    evaluate_provenance: Path = Path("data/evaluate/provenance.json")
    iterate_provenance: Path = Path("data/iterate-provenance.json")
    skill_provenance: Path = Path("data/skill-provenance.json")
    team_provenance: Path = Path("data/team-provenance.json")
    style: Path = Path("ratchet/report/page.css")
    script: Path = Path("ratchet/report/page.js")


class Outputs(NamedTuple):
    """A folder with the seven PNGs and report.html."""

    plots: Path = Path("data/plot")
    provenance: Path = Path("data/plot-provenance.json")


def run(params: PlotParams, inputs: Inputs, outputs: Outputs) -> None:
    """Draw everything first, then publish the folder whole. Raises InputError when an input is unfit."""
    told = inputs._asdict()
    result = facts.read(
        history_file=inputs.history,
        timing_folder=inputs.timing,
        documents_file=inputs.documents,
        judging_file=inputs.judging,
        texts_folder=inputs.texts,
        metrics_files={name[: -len("_metrics")]: path for name, path in told.items() if name.endswith("_metrics")},
        provenance_files={
            name[: -len("_provenance")]: path for name, path in told.items() if name.endswith("_provenance")
        },
        session_folder=inputs.session,
        skill_folder=inputs.skill,
        team_folder=inputs.team,
        team_timing_file=inputs.team_timing,
        root=Path(),
    )
    pictures = plots.draw(result, smoothing=params.smoothing, dpi=params.dpi)
    pictures[progress_plot.FILE] = progress_plot.draw(result.session.course, dpi=params.dpi)
    if result.skill.steps is not None:
        pictures[training_dashboard.FILE] = skill_section.dashboard(result.skill, dpi=params.dpi)
    pictures[team_curves.FILE] = team_section.picture(result.team, dpi=params.dpi)
    page = html.build(
        result,
        smoothing=params.smoothing,
        documents=params.documents,
        style=inputs.style.read_text(encoding="utf-8"),
        script=inputs.script.read_text(encoding="utf-8"),
    )
    with atomic.output_folder(outputs.plots) as folder:
        for name, picture in pictures.items():
            (folder / name).write_bytes(picture)
        (folder / "report.html").write_text(page, encoding="utf-8")
    print(f"plot: {plots.verdict_sentence(result)}; open {outputs.plots / 'report.html'}")


def needs(_params: PlotParams) -> Needs:
    """What the lineage is read from; DVC itself writes dvc.lock, so neither can be an input."""
    return Needs(reads=tuple(path for path in (Path("dvc.yaml"), Path("dvc.lock")) if path.exists()))


STAGE = Stage("plot", PlotParams, Inputs(), Outputs(), run, needs=needs)

if __name__ == "__main__":
    STAGE.main()
