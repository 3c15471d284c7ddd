"""The command line `ratchet`. Declares verbs and options; what they do is in ratchet/commands, imported when used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.core.errors import RatchetError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    add_completion=False,
    help="""Machine-learning research that only moves forward and can be replayed.

    Ratchet runs a pipeline of stages:

      [bold]prepare → tokenizer → pack → train → evaluate → plot[/bold]

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]
Profile = Annotated[str | None, typer.Option("--profile", "-p", help="A file of profiles/, without .yaml.")]
Override = Annotated[
    list[str] | None, typer.Option("--set", "-S", metavar="KEY=VALUE", help="Change one parameter, in a copy.")
]
Resume = Annotated[
    Literal["newest", "auto"] | None,
    typer.Option(
        "--resume", help="auto: a damaged newest checkpoint gives way to the one before; newest: it is an error."
    ),
]


@app.command()
def run(
    profile: Profile = None,
    override: Override = None,
    first: Annotated[str | None, typer.Option("--from", metavar="STAGE", help="This stage and those below.")] = None,
    last: Annotated[str | None, typer.Option("--until", metavar="STAGE", help="This stage and those above.")] = None,
    force: Annotated[list[str] | None, typer.Option(metavar="STAGE", help="Run it, changed or not.")] = None,
    resume: Resume = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why; run nothing.")] = False,
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
def report(
    profile: Profile = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Say where the report is: one HTML page that needs no network."""
    from ratchet.commands import setup

    setup.report(profile=profile, open_it=open_it)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at everything a run needs: Python, packages, disk, git, DVC. Exit code 1 when something is missing."""
    from ratchet.commands import setup

    raise typer.Exit(setup.doctor(as_json=as_json))


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
