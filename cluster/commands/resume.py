"""`squall resume`: what a broken run left, gathered and sealed."""

from __future__ import annotations

import typer

from squall.cluster.commands.ending import EXIT_ERROR, EXIT_INVALID, interruptible
from squall.cluster.commands.options import JsonOption, RayOption, RunArgument
from squall.cluster.commands.printed import print_summary
from squall.scenarios.errors import ClusterError


def resume(run: RunArgument, ray: RayOption = None, as_json: JsonOption = False) -> None:
    """Gathers what a broken run left on this machine's disk, and seals the run with it. Needs no Ray.

    What a run left on its nodes by `records.keep` is brought into the run directory: --ray names a Ray that has them.
    """
    from squall.analysis.storage.held_folder import sole_holder
    from squall.analysis.storage.home import bring_home, home_of, send_away, unsent_text
    from squall.analysis.storage.store import RunStore
    from squall.cluster.driver.resume import resume_run
    from squall.cluster.kept.home import bring_records
    from squall.cluster.progress import Screen

    with interruptible() as interrupts:
        with interrupts.allowed():
            here = home_of(run).resolve()
        busy = ClusterError(f"{here} is being written by a squall that still runs")
        with sole_holder(here, busy):
            with interrupts.allowed():
                bring_home(run, here)
                bring_records(here, ray)
            result = resume_run(here, interrupts)
            store = RunStore.open(here)
            try:
                with interrupts.allowed():
                    where = send_away(store)
            except KeyboardInterrupt:
                Screen().step(unsent_text(store))
                raise
    print_summary(result.summary, where, as_json)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID if result.status == "INVALID" else EXIT_ERROR)
