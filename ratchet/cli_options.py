"""Options that several commands of `ratchet` have, each declared once."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

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
