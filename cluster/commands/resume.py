"""`squall resume`: what a broken run left, gathered and sealed."""

from __future__ import annotations

from typing import Annotated

import typer

from squall.cluster.commands.ending import EXIT_ERROR, EXIT_INVALID, interruptible
from squall.cluster.commands.options import JsonOption, RunArgument, VerboseOption
from squall.cluster.commands.printed import print_summary
from squall.scenarios.errors import ClusterError, ScenarioError


def resume(
    run: RunArgument,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="s3://BUCKET/PREFIX", help="Object storage that takes the run then."),
    ] = None,
    as_json: JsonOption = False,
    is_verbose: VerboseOption = False,
) -> None:
    """Gathers what a broken run left on this machine's disk, and seals the run with it. Needs no Ray.

    A run goes to object storage where --out or RUN itself is an address, whatever its manifest says.
    """
    from squall.analysis.storage.held_folder import sole_holder
    from squall.analysis.storage.home import (
        bring_home,
        home_of,
        is_to_be_sent,
        send_away,
        sending_command,
        unsent_text,
    )
    from squall.analysis.storage.object_folder import place_at
    from squall.analysis.storage.store import RunStore
    from squall.cluster.driver.resume import resume_run
    from squall.cluster.progress import Screen

    parent = place_at(out) if out is not None else None
    if out is not None and parent is None:
        raise ScenarioError("--out: name object storage, s3://BUCKET/PREFIX: a run that lies here stays here")
    with interruptible() as interrupts:
        with interrupts.allowed():
            here = home_of(run).resolve()
        busy = ClusterError(f"{here} is being written by a squall that still runs")
        with sole_holder(here, busy):
            with interrupts.allowed():
                bring_home(run, here)
            result = resume_run(here, interrupts)
            store = RunStore.open(here)
            named = place_at(run)
            address = "" if named is None else named.address
            if parent is not None:
                address = f"{parent.address}/{store.run}"
            if not address and is_to_be_sent(store):
                Screen().step(f"it stays here: {sending_command(store)} brings it to object storage")
            try:
                with interrupts.allowed():
                    where = send_away(store, address)
            except KeyboardInterrupt:
                Screen().step(unsent_text(store))
                raise
    print_summary(result.summary, where, as_json, is_verbose)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID if result.status == "INVALID" else EXIT_ERROR)
