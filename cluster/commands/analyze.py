"""`squall analyze`: what is derived from a run directory, made again here or spread over Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from squall.cluster.commands.ending import interruptible
from squall.cluster.commands.options import JsonOption, RunArgument, VerboseOption, absolute
from squall.cluster.commands.printed import print_summary
from squall.cluster.interrupts import Interrupts
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import parse_size

if TYPE_CHECKING:
    from squall.analysis.storage.store import RunStore
    from squall.cluster.remote.spread import TaskSpread

LEAST_MEMORY_BYTES = 64 * 1024**2
"""DuckDB cannot sort or group with less."""


def analyze(
    run_dir: RunArgument,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", help="What it may hold in memory, such as 4GiB; more spills to the run directory."
        ),
    ] = "2GiB",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS|local",
            help="Spread a large run over the Ray there, each task with that memory; all nodes must see the run "
            "directory under one path, or reach its object storage. local: over this machine's CPUs.",
        ),
    ] = None,
    as_json: JsonOption = False,
    is_verbose: VerboseOption = False,
) -> None:
    """Join, windows, summary and report again, from the run directory alone."""
    from squall.analysis.report.derive import derive
    from squall.analysis.storage.intact import content_errors_of
    from squall.analysis.storage.store import RunStore

    memory_bytes = _memory_bytes(memory)
    with interruptible() as interrupts:
        with interrupts.allowed():
            store = RunStore.open(absolute(run_dir))  # a task has another working directory
        with (
            _spread_over(ray, store, interrupts) as spread,
            interrupts.allowed(),
            content_errors_of(store.where),
        ):
            summary = derive(
                store, memory_bytes, spread
            )  # a signal leaves of each table the old or the new one
    print_summary(summary, store.where, as_json, is_verbose)


@contextmanager
def _spread_over(ray: str | None, store: RunStore, interrupts: Interrupts) -> Iterator[TaskSpread | None]:
    """Over the Ray at that address, which may be `LOCAL`; None without Ray."""
    if ray is None:
        yield None
        return
    from squall.cluster.remote.session import Session
    from squall.cluster.remote.spread import TaskSpread

    with Session(ray):
        interrupts.install_again()
        yield TaskSpread(store.where)


def _memory_bytes(memory: str) -> int:
    try:
        found = parse_size(memory)
    except ValueError as error:
        raise ScenarioError(f"--memory: {error}") from error
    if found < LEAST_MEMORY_BYTES:
        raise ScenarioError(f"--memory: {memory} is too little, give at least 64 MiB")
    return found
