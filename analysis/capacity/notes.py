"""What is to be said of an answer beside its figures, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from squall.analysis.capacity.probe import BRACKET, disorder
from squall.analysis.capacity.rows import Row
from squall.analysis.capacity.search import Found
from squall.analysis.decisions.figures import INVALID
from squall.analysis.wording import duration_text, rate_text, share_text


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
    notes = list(_notes(found, scale, next((one for one in rows if one.run == edge_run), None)))
    if most_reason and any(one.edge.kind == "nothing fails" for one in found.seeds):
        notes.append(most_reason)
    if scale == "time" and found.low is None:
        notes += _disorder(rows)
    return tuple(notes)


def _disorder(rows: Sequence[Row]) -> Iterator[str]:
    """Where one schedule did much worse at less load, which no queue makes it do."""
    tried = sorted((one for one in rows if one.purpose == BRACKET), key=attrgetter("seed"))
    found = [disorder(one.probe for one in own) for _, own in groupby(tried, attrgetter("seed"))]
    worst = max((one for one in found if one is not None), key=lambda one: one[0], default=None)
    if worst is not None:
        share, low, high = worst
        yield (
            f"noise: the schedule of seed {low.seed} had a figure {share_text(share)} higher at"
            f" {rate_text(low.rate_hz)} than at {rate_text(high.rate_hz)}, which no load does but the host: use a"
            " quieter host or longer phases"
        )


def _notes(found: Found, scale: str, edge: Row | None) -> Iterator[str]:
    is_found = found.kind == "found"
    if scale == "amplitude":
        yield (
            "scaled by amplitude: other rates over the same durations, drawn anew at each load, so that the verdict of"
            " a seed need not be monotone in the load"
        )
    if is_found and len(found.seeds) == 1:
        yield "one seed: an interval and a safe load need two or more"
    unmeasured = [str(one.seed) for one in found.seeds if one.edge.rate_hz is None]
    if unmeasured and is_found:
        yield f"seed {', '.join(unmeasured)} could not be measured near the edge and is left out"
    if edge is not None and edge.is_short:
        bursts = f"{edge.n_bursts} bursts and " if edge.n_bursts else ""
        yield (
            f"short: the run at the capacity has {bursts}{edge.n_busy_periods} busy periods; fewer than 10 and 30"
            " flatter: make the measured phases longer"
        )
    if is_found and found.low_probe is None:
        yield "no load far below the edge was tried: whether it is kept is not known"
    elif found.low_probe is not None and found.low_probe.verdict == INVALID:
        yield "the load far below the edge could not be measured: whether it is kept is not known"
    if found.safe is not None and found.safe.n_steps_down and found.safe.is_confirmed:
        yield f"fresh seeds broke the safe load that the seeds gave: it is {found.safe.n_steps_down} precisions below"
    if is_found and found.safe is not None and found.safe.is_confirmed is None:
        yield "the safe load is not confirmed: fresh seeds could not be measured there"
    if found.safe is not None and found.safe.is_confirmed is False:
        yield "the safe load is not confirmed: fresh seeds broke it at every step down"
