"""`squall bundle`: all that a node without a package index needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def bundle(
    out: Annotated[Path, typer.Argument(help="A new folder, or a file that ends in .tar.", metavar="OUT")],
    for_python: Annotated[
        str, typer.Option("--for-python", help="Python of the nodes, such as 3.12; none: that of this one.")
    ] = f"{sys.version_info.major}.{sys.version_info.minor}",
) -> None:
    """Writes what a node without a package index needs: wheels, Triton where it is cached, and install.sh."""
    from squall.cluster.deploy.bundle import write_bundle

    write_bundle(out, for_python)
    typer.echo(f"{out}: on the node, `sh install.sh FOLDER` installs it")
