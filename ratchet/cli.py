"""The command line `ratchet`. Declares verbs and options; what they do is in ratchet/commands, imported when used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ratchet import cli_outputs
from ratchet.cli_options import Json, Override, Profile, Resume
from ratchet.core.errors import RatchetError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    add_completion=False,
    help="""Machine-learning research that only moves forward and can be replayed.

    Ratchet runs a pipeline of stages:

      [bold]prepare → tokenizer → pack → train → evaluate → iterate → plot[/bold]
      [bold]skill → plot[/bold]
      [bold]team → plot[/bold]

    A stage runs only when something that it depends on has changed. A run
    that was killed goes on where it stopped. The same inputs give the same
    bytes. What defines a result stands in [bold]params.yaml[/bold]; where it runs is the
    environment's: RATCHET_DEVICE=cpu, RATCHET_THREADS=2 (docs/settings.md).

    [bold]Start here[/bold]

      ratchet run                     bring everything up to date, then
      ratchet report --open           look at it

    [bold]Your own text[/bold]

      ratchet init --text my_texts/   a folder of text files
      ratchet run

    [bold]Try something without touching params.yaml[/bold]

      ratchet run -S train.seed=2     in a copy, with one value changed
      ratchet run --profile smoke     in a copy, under profiles/smoke.yaml

    [bold]Research: let the arena be improved overnight[/bold]

      ratchet watch                   the session that runs, live
      ratchet results                 what it came to; reads others' too
      ratchet promote                 its best arena, as a commit here

    [bold]Share what was made[/bold]

      ratchet push, ratchet pull      outputs, to a remote and back
      ratchet get model@v1.2          an artifact as it was, with its card
      ratchet sample "The river"      let the model write

    [bold]What is going on, and what went wrong[/bold]

      ratchet status                  what would run and why, every run
      ratchet logs train --follow     what a stage says
      ratchet stop                    commit and end what is running
      ratchet run                     … and go on with it
      ratchet doctor                  is everything here that a run needs?

    Every command names the next one to type. [bold]dvc repro[/bold] always works too,
    and gives the same bytes. Exit codes: 0 done, 1 a stage failed, 2 wrong
    input, 3 the world failed (network, disk), 130 stopped.
    """,
)
runs_app = typer.Typer(no_args_is_help=True, help="Run directories: checkpoints and ledgers of runs, kept in runs/.")
app.add_typer(runs_app, name="runs")
wandb_app = typer.Typer(no_args_is_help=True, help="Weights & Biases, which mirrors the record of a run.")
app.add_typer(wandb_app, name="wandb")
app.add_typer(cli_outputs.app)


@app.command()
def run(
    profile: Profile = None,
    override: Override = None,
    first: Annotated[str | None, typer.Option("--from", metavar="STAGE", help="This stage and those below.")] = None,
    last: Annotated[str | None, typer.Option("--until", metavar="STAGE", help="This stage and those above.")] = None,
    force: Annotated[list[str] | None, typer.Option(metavar="STAGE", help="Run it, changed or not.")] = None,
    resume: Resume = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, why and how; run nothing.")] = False,
) -> None:
    """Run what has changed, as a Prefect flow; say "up to date" when nothing has.

    With --profile or -S the run happens in a copy of the project under
    .ratchet/copies: your params.yaml, outputs and dvc.lock stay as they are.
    The same profile finds the same copy again.

      ratchet run --dry-run
      ratchet run --profile smoke
      ratchet run -S train.seed=2 -S train.horizon.value=200
      ratchet run --from train --force train
    """
    from ratchet.commands import pipeline

    choice = pipeline.Choice(first=first, last=last, force=tuple(force or ()))
    pipeline.run(choice, profile=profile, overrides=override or [], resume=resume, dry_run=dry_run)


@app.command()
def status(as_json: Json = False) -> None:
    """Show what is up to date, what would run and why, and every run; also while a stage runs."""
    from ratchet.commands import pipeline

    pipeline.status(as_json=as_json)


@app.command()
def logs(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A stage, or a run as `ratchet runs ls` names it.")],
    count: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines from the end.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    profile: Profile = None,
    override: Override = None,
) -> None:
    """Print the end of a stage's or a run's log; with --profile or -S of a stage in that copy.

    ratchet logs train --follow
    ratchet logs iterate/7          what experiment 7 printed
    """
    from ratchet.commands import runs

    runs.logs(name, count=count, follow=follow, profile=profile, overrides=override or [])


@app.command()
def stop(
    name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Left out: the one that runs.")] = None,
) -> None:
    """Ask a run, from another shell, to commit a checkpoint and end after its present step."""
    from ratchet.commands import runs

    runs.stop(name)


@app.command()
def watch(
    name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Left out: the session that runs.")] = None,
) -> None:
    """Watch a research session from another shell: what is tried, running best, time left. Ctrl-C ends the watching.

    ratchet watch
    """
    from ratchet.commands import research

    research.watch(name)


@app.command()
def results(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Left out: data/iterate/results.tsv.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="OUT", help="Draw the picture there.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Read what is readable, list what is left out.")] = False,
    hits: Annotated[int, typer.Option(min=0, help="So many of the largest improvements.")] = 10,
    profile: Profile = None,
    override: Override = None,
    as_json: Json = False,
) -> None:
    """Say what a research session came to: kept, crashed, best, largest improvements, cost.

    Reads the results.tsv of any research loop with the published columns (commit val_bpb memory_gb status
    description), in whatever order and shape, and says what it had to assume. Without FILE the project's own, or with
    --profile or -S that of that copy.

      ratchet results
      ratchet results night.tsv --png night.png
      ratchet results messy.tsv --lenient --json
    """
    from ratchet.commands import research

    place = research.ledger_file(file, profile, override or [])
    research.results(place, png=png, lenient=lenient, hits=hits, as_json=as_json)


@app.command()
def alerts(profile: Profile = None, override: Override = None, as_json: Json = False) -> None:
    """Say what to look at in the results here, of every loop: jumps, spikes, noise, overfitting, a dead proposer.

    Each with its numbers and what to do. With --profile or -S those of that copy. Exit code 0: a result with alerts is
    a result.

      ratchet alerts
      ratchet alerts --json
    """
    from ratchet.commands import alerts as commands

    commands.alerts(profile=profile, overrides=override or [], as_json=as_json)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A revision, an experiment, a run, a folder, or `.`.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Likewise; measured against A.")],
    png: Annotated[Path | None, typer.Option(metavar="OUT", help="Draw both losses there.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="All of it as one page, in that file.")] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request: what differs.")] = False,
) -> None:
    """Two versions side by side: parameters, metrics with the paired gain, curves, the arena's diff.

    ratchet compare main .                    what the working tree changes
    ratchet compare 3f2c9a7d 9b01e2aa         two experiments of a session
    ratchet compare train/9c0ffee1 train/51   two runs
    ratchet compare v1.0 . --html FILE        as a page for the browser
    """
    from ratchet.commands import compare as comparing

    comparing.run(first, second, png=png, html=html, as_json=as_json, as_markdown=as_markdown)


@app.command()
def promote(
    tag: Annotated[str | None, typer.Argument(metavar="[TAG]", help="Left out: the session in data/iterate.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also when the session has no progress.")] = False,
) -> None:
    """Bring a finished session's best arena into the checkout: one commit of arena/train.py with its evidence.

    Refused when arena/train.py has uncommitted changes. An arena that has
    changed since the session began is merged; no other file is touched.

      ratchet promote
      ratchet promote nov30
    """
    from ratchet.commands import research

    research.promote(tag, force=force)


@app.command()
def resume(
    name: Annotated[str, typer.Argument(metavar="RUN", help="As `ratchet runs ls` names it; a loop means its latest.")],
    adopt_code: Annotated[
        bool, typer.Option("--adopt-code", help="Go on under changed code; both hashes are recorded.")
    ] = False,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Accept another device kind, dtype or thread count; the run is marked."),
    ] = False,
    resume: Resume = None,
    profile: Profile = None,
    override: Override = None,
) -> None:
    """Continue one run. A change since it started is refused, with the keys, old and new.

    A plain `ratchet run` continues a run too, when nothing has changed; otherwise it starts a fresh one. A run of a
    copy is continued there: name the same --profile and -S.

      ratchet resume train
      ratchet resume train/3f2a91c0d4e5b677 --adopt-code
      ratchet resume train --profile smoke --resume auto
    """
    from ratchet.commands import pipeline

    accepted = pipeline.Accepted(resume=resume, adopt_code=adopt_code, allow_inexact=allow_inexact)
    pipeline.resume(name, accepted, profile=profile, overrides=override or [])


@app.command()
def init(
    text: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Text files, one document each.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Parquet files with a text column.")] = None,
    glob: Annotated[str | None, typer.Option(help="Which files below the folder, such as **/*.md.")] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between two documents of a text file.")] = None,
    column: Annotated[str | None, typer.Option(help="The parquet column that holds the text.")] = None,
    language: Annotated[str | None, typer.Option(help="For the manifest: a BCP 47 tag such as en.")] = None,
    licence: Annotated[str | None, typer.Option(help="For the manifest.")] = None,
) -> None:
    """Train on your own text: point the stage prepare at a folder, in params.yaml.

    The folder's contents are pinned by their sha256: type it again when they change.

      ratchet init --text my_texts/
      ratchet init --text notes/ --glob '**/*.md' --language en
      ratchet init --parquet dump/ --column body
    """
    from ratchet.commands import setup

    options = {"glob": glob, "separator": separator, "column": column, "language": language, "licence": licence}
    setup.init(text=text, parquet=parquet, options=options)


@app.command()
def serve(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the server that is started here.")] = 4200,
) -> None:
    """Keep the schedules of prefect.yaml on this machine: a server, a worker, the deployments. Ctrl-C ends them.

    With PREFECT_API_URL set the deployments go to that server and none is started.
    """
    from ratchet.commands import serve as commands

    raise typer.Exit(commands.serve(port=port))


@app.command()
def doctor(
    stage: Annotated[
        str | None, typer.Argument(metavar="[STAGE]", help="That stage in full; left out: a line each.")
    ] = None,
    override: Override = None,
    as_json: Json = False,
) -> None:
    """Look at everything a run needs, and say what to do about what is missing; then the exit code is 1.

    Python, packages, disk, git, DVC and its remote, device, containers, W&B; of a stage its parameters, inputs,
    outputs, room, memory, keys. `ratchet doctor skill` asks each endpoint one short question; nothing else is asked.

      ratchet doctor
      ratchet doctor train -S train.knobs.DEPTH=8
    """
    from ratchet.commands import doctor as examining

    raise typer.Exit(examining.doctor(stage, override or [], as_json=as_json))


@app.command()
def skill(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The plan, its cost, one task through it.")] = False,
    override: Override = None,
) -> None:
    """Train the skill document, or with --dry-run say what that would ask and cost.

    It is the stage `skill` alone, as `ratchet run` would run it: with -S in a copy of the project.

      ratchet skill --dry-run -S skill.use_slow_update=true
      ratchet skill
    """
    from ratchet.commands import pipeline
    from ratchet.commands import skill as commands

    if dry_run:
        commands.dry_run(override or [])
    else:
        choice = pipeline.Choice(first="skill", last="skill")
        pipeline.run(choice, profile=None, overrides=override or [], resume=None, dry_run=False)


@wandb_app.command("mirror")
def wandb_mirror(run: Annotated[str, typer.Argument(metavar="RUN", help="As `ratchet runs ls` names it.")]) -> None:
    """Send what the W&B run of a team training lacks, from its fsynced rows. Nothing is sent twice.

    ratchet wandb mirror team
    """
    from ratchet.commands import runs

    runs.mirror(run)


@runs_app.command("ls")
def runs_ls(as_json: Json = False) -> None:
    """List every run: its state, committed steps, age and size."""
    from ratchet.commands import runs

    runs.ls(as_json=as_json)


@runs_app.command("rm")
def runs_rm(names: Annotated[list[str], typer.Argument(metavar="RUN...")]) -> None:
    """Remove runs with their checkpoints. What they published stays."""
    from ratchet.commands import runs

    runs.rm(names)


@runs_app.command("gc")
def runs_gc(
    finished: Annotated[
        bool, typer.Option("--finished", help="Also whole runs that have reached their horizon.")
    ] = False,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also whole runs with a later one of their loop.")
    ] = False,
) -> None:
    """Free space: all checkpoints but the newest good one of each run."""
    from ratchet.commands import runs

    runs.gc(finished=finished, superseded=superseded)


def main() -> None:
    """The console script: an error whose cause is known is one line and an exit code."""
    try:
        app()
    except RatchetError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
