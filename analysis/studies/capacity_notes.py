"""What is to be said of an answer beside its figures, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from squall.analysis.report.templates import decision
from squall.analysis.studies.capacity_probe import BRACKET, Probe, disorder
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.studies.capacity_search import Found
from squall.analysis.wording import duration_text


def cause_below(queue_delay_ns: int) -> str:
    """Why less load is not kept, in words."""
    if queue_delay_ns:
        return (
            f"queue delay: at low load a batch is not full before its first request has waited for"
            f" {duration_text(queue_delay_ns)} (its batcher's max_queue_delay)"
        )
    return "not known: no batcher of the server has a queue delay; the diagnosis of the low probe may say"


def notes_of(
    found: Found, scale: str, most_reason: str, rows: Sequence[Row], edge_run: str | None
) -> tuple[str, ...]:
    """The notes, none or more; `most_reason`: as in `Settings`; `edge_run`: the run at the capacity."""
    edge = next((one for one in rows if one.run == edge_run), None)
    noise = _disorder(rows) if scale == "time" and found.low is None else None
    return tuple(decision("capacity_notes", found, scale, most_reason, edge, noise))


def _disorder(rows: Sequence[Row]) -> tuple[float, Probe, Probe] | None:
    """Where one schedule did most worse at less load, which no queue makes it do."""
    tried = sorted((one for one in rows if one.purpose == BRACKET), key=attrgetter("seed"))
    found = [disorder(one.probe for one in own) for _, own in groupby(tried, attrgetter("seed"))]
    return max((one for one in found if one is not None), key=lambda one: one[0], default=None)
