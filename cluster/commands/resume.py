"""`squall resume`: what a broken run left, gathered and sealed."""

from __future__ import annotations

import typer

from squall.cluster.commands.ending import EXIT_ERROR, EXIT_INVALID, interruptible
from squall.cluster.commands.options import JsonOption, RayOption, RunArgument
from squall.cluster.commands.printed import print_summary


def resume(run: RunArgument, ray: RayOption = None, as_json: JsonOption = False) -> None:
    """Gathers what a broken run left on this machine's disk, and seals the run with it. Needs no Ray.

    What a run left on its nodes by `records.keep` is brought into the run directory: --ray names a Ray that has them.
    """
    from squall.analysis.storage.home import brought_home, send_away
    from squall.analysis.storage.store import RunStore
    from squall.cluster.driver.resume import resume_run
    from squall.cluster.kept.home import bring_records

    with interruptible() as interrupts:
        with interrupts.allowed():
            here = brought_home(run)
            bring_records(here, ray)
        result = resume_run(here, interrupts)
        with interrupts.allowed():
            where = send_away(RunStore.open(here))
    print_summary(result.summary, where, as_json)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID if result.status == "INVALID" else EXIT_ERROR)
