"""`squall selftest`: proves the client of this host against a null server."""

from __future__ import annotations

from typing import Annotated

import typer

from squall.cluster.commands.ending import EXIT_INVALID, EXIT_UNDECIDED, interruptible
from squall.cluster.commands.options import JsonOption
from squall.cluster.commands.printed import print_result


def selftest(
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-i", help="http or grpc; none: both.")
    ] = None,
    duration: Annotated[str, typer.Option("--duration", help="Length of a step of the sweep.")] = "1s",
    check_duration: Annotated[
        str | None,
        typer.Option("--check-duration", help="Length of a known answer.  [default: 4s, or 30s with --full]"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Also sweep this many at once. [default: by the cores]"),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Queues at loads 0.5, 0.8 and 0.95, not only 0.8.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of arrivals and service times.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Proves the client of this host against a null server: highest rate, send lag, CPU, known answers."""
    from squall.analysis.statistics.answers import UNMEASURABLE
    from squall.cluster.commands.selftest_runs import options_of
    from squall.cluster.commands.selftest_runs import selftest as prove
    from squall.cluster.commands.selftest_screen import render
    from squall.cluster.progress import Screen

    options = options_of(protocol, duration, check_duration, workers, full, seed)
    with interruptible() as interrupts, interrupts.allowed():
        result = prove(options, Screen().step)
    print_result(result, lambda _: render(result), as_json)
    if not result["passed"]:
        raise typer.Exit(EXIT_UNDECIDED if result["status"] == UNMEASURABLE else EXIT_INVALID)
