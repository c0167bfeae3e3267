"""`squall report`: the HTML report of a run, written again."""

from __future__ import annotations

import typer

from squall.cluster.commands.analyze import reaching
from squall.cluster.commands.ending import interruptible
from squall.cluster.commands.options import RayOption, RunArgument


def report(run_dir: RunArgument, ray: RayOption = None) -> None:
    """The HTML report again, from the run directory alone. --ray: of a run that left its records on its nodes."""
    from squall.analysis.render.report import write_report
    from squall.analysis.storage.store import RunStore

    with interruptible() as interrupts:
        store = RunStore.open(run_dir)
        with reaching(ray, store, interrupts), interrupts.allowed():
            write_report(store)
    typer.echo(f"{store.where}/report.html")
