"""Options and arguments that several commands take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from squall.scenarios.errors import ScenarioError

_Out = TypeVar("_Out")


def _place(out: str) -> str:
    """`out`, which may be an address. Raises StoreError for one that cannot be, before anything is done."""
    if ":" in out:
        from squall.analysis.storage.object_folder import place_at

        place_at(out)
    return out


def on_disk(out: _Out) -> _Out:
    """`out`, a folder or file here or None. Raises ScenarioError for an address, before anything is done."""
    if ":" in str(out):
        from squall.analysis.storage.object_folder import refuse_address

        refuse_address(str(out))
    return out


def _variables(names: list[str] | None) -> list[str]:
    """All that are allowed."""
    from squall.cluster.commands.headers import variables_allowed

    return variables_allowed(names or ())


OutOption = Annotated[
    str,
    typer.Option(
        "--out",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Folder or object storage that takes the run.",
        callback=_place,
    ),
]
RunsOption = Annotated[
    Path, typer.Option("--out", help="Folder that takes a folder with all runs.", callback=on_disk)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Print all of the summary, not what decides alone.")
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", help="Address of a Ray cluster to join; none: this machine alone, without Ray."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key: phases.burst.arrivals.rate=300/s. Repeatable."
    ),
]
AllowEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-env", metavar="NAME", help="${NAME} of the file may go into headers. Repeatable.",
        callback=_variables,
    ),
]  # fmt: skip
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the plan and the payloads.")]
StopWhenDecidedOption = Annotated[
    bool,
    typer.Option("--stop-when-decided", help="End the load once the outcome of all promises is certain."),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", "-u", "--url", help="Use the Triton at this URL: http://host:port or https://host:port."
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="A run directory, or its address: s3://bucket/prefix/RUN.", metavar="RUN")
]


def absolute(run: str) -> str:
    """The run directory as a path that is true in any working directory; an address as it is."""
    from squall.analysis.storage.object_folder import is_address

    return run if is_address(run) else os.path.realpath(run)


def run_dirs(folder: Path) -> list[Path]:
    """The run directory that `folder` is, or all below it. Raises ScenarioError where there is none."""
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: no such file or folder")
    if (folder / "manifest.json").is_file():
        return [folder]
    found = [
        path.parent
        for path in sorted(folder.rglob("manifest.json"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise ScenarioError(f"{folder} has no run in it")
    return found


def changes_of(
    overrides: list[str] | None, seed: int | None, server: str | None, stop_when_decided: bool = False
) -> list[str]:
    """All that the command line changes in the scenario, as `--set` texts."""
    found = list(overrides or [])
    if seed is not None:
        found.append(f"seed={seed}")
    if server is not None:
        found.append(f"server.url={server}")
    if stop_when_decided:
        found.append("stop_when=decided")
    return found
