"""Options and arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutOption = Annotated[Path, typer.Option("--out", help="Folder that takes the run directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")]
RayOption = Annotated[
    str | None, typer.Option("--ray", help="Address of a Ray cluster to join; none: a local one.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key: phases.burst.arrivals.rate=300/s. Repeatable."
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the plan and the payloads.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", "-u", "--url", help="Use the Triton at this URL: http://host:port or https://host:port."
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")]
