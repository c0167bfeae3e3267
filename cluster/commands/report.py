"""`squall report`: the HTML report of a run, written again."""

from __future__ import annotations

from squall.cluster.commands.ending import interruptible
from squall.cluster.commands.options import RunArgument
from squall.cluster.commands.printed import say


def report(run_dir: RunArgument) -> None:
    """The HTML report again, from the run directory alone."""
    from squall.analysis.report.page import write_report
    from squall.analysis.storage.intact import content_errors_of, require_intact
    from squall.analysis.storage.store import RunStore

    with interruptible() as interrupts, interrupts.allowed():
        store = RunStore.open(run_dir)
        with content_errors_of(store.where):
            require_intact(store, derived_too=True)
            write_report(store)
    say(f"{store.where}/report.html")
