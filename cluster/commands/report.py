"""`squall report`: the HTML report of a run, written again."""

from __future__ import annotations

import typer

from squall.cluster.commands.options import RunArgument


def report(run_dir: RunArgument) -> None:
    """The HTML report again, from the run directory alone."""
    from squall.analysis.render.report import write_report
    from squall.analysis.storage.store import RunStore

    store = RunStore.open(run_dir)
    write_report(store)
    typer.echo(f"{store.where}/report.html")
