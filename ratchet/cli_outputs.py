"""The commands of `ratchet` for what was made: look at it, share it, fetch it, let it write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli_options import Json, Override, Profile

app = typer.Typer()


@app.command()
def report(
    profile: Profile = None,
    override: Override = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--serve", metavar="PORT", min=0, max=65535, help="Serve it on localhost; 0: any port."),
    ] = None,
) -> None:
    """Say where the report is: one HTML page that needs no network. With --profile or -S that of that copy."""
    from ratchet.commands import setup

    setup.report(profile=profile, overrides=override or [], open_it=open_it, port=port)


@app.command()
def push(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[STAGE|PATH]...", help="Left out: all outputs.")
    ] = None,
    remote: Annotated[str | None, typer.Option(metavar="NAME", help="Left out: DVC's default remote.")] = None,
) -> None:
    """Send outputs to a DVC remote: a folder, or any store that DVC speaks, such as S3.

    ratchet push
    ratchet push train data/tokenizer
    """
    from ratchet.commands import store

    store.push(targets or [], remote=remote)


@app.command()
def pull(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[STAGE|PATH]...", help="Left out: all outputs.")
    ] = None,
    remote: Annotated[str | None, typer.Option(metavar="NAME", help="Left out: DVC's default remote.")] = None,
) -> None:
    """Bring the outputs that dvc.lock names from a DVC remote, the report among them, without running anything.

    ratchet pull
    """
    from ratchet.commands import store

    store.pull(targets or [], remote=remote)


@app.command()
def get(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME[@VERSION]]", help="VERSION: a tag, branch or commit. Left out: a list."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Left out: artifacts/NAME@VERSION.")] = None,
    as_json: Json = False,
) -> None:
    """List the named artifacts, or fetch one as it was at a revision, with a card that says what it is.

    Yours stay as they are: it is put into a folder of its own.

      ratchet get
      ratchet get model
      ratchet get model@v1.2 --out /tmp/model
    """
    from ratchet.commands import artifacts

    artifacts.get(name, out=out, as_json=as_json)


@app.command()
def sample(
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="Left out: a document from its beginning.")] = "",
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Left out: data/train/model.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the most probable token.")] = 0.8,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    as_json: Json = False,
) -> None:
    """Let a trained model write: text from data/train/model, or from one that `ratchet get model` fetched.

    ratchet sample "The river" --tokens 50
    ratchet sample --model artifacts/model@v1.2 --seed 7
    """
    from ratchet.commands import sample as sampling

    sampling.sample(prompt, model=model, count=tokens, temperature=temperature, seed=seed, as_json=as_json)
