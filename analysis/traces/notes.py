"""What the figures of a trace mean for its replay, one sentence each. It says nothing that no figure shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.series.burstiness import PEAK_WINDOW_NS
from squall.scenarios.series.logging_tick import Grid
from squall.scenarios.units import NS_PER_S

DRIFT_FACTOR = 1.5  # c2 over local c2 from which the rate's drift, not the gaps, makes it
NO_TAIL_INDEX = 3.5
"""An exponential law gives about 3.9 at 5 %; an index from here on shows no heavy tail."""


def grid_note(grid: Grid) -> list[str]:
    """The mend for stamps on a coarse grid."""
    if grid.tick_ns is None:
        return []
    return [
        f"The log's tick is {duration_text(grid.tick_ns)}, {count_text(grid.per_tick_count)} arrivals in each: "
        "as they are, the stamps replay as batches. Use quantum: spread."
    ]


def series_notes(figures: Mapping[str, Any]) -> list[str]:
    """What makes the bursts, and the load that they allow."""
    notes = []
    c2, local = figures["gap_c2_ratio"], figures["local_c2_ratio"]
    if c2 is not None and local is not None and c2 > DRIFT_FACTOR * local:
        notes.append(
            f"c² is {count_text(c2)} over all but {count_text(local)} inside {window_text(figures['local_window_ns'])}:"
            " the rate's drift makes it, not the gaps. One CV cannot model that."
        )
    if figures["safe_load_ratio"] is not None:
        notes.append(
            f"Above {share_text(figures['safe_load_ratio'])} mean load the busiest {window_text(PEAK_WINDOW_NS)}"
            " alone overloads the server."
        )
    tail = _tail(figures["gap_tails"])
    if tail is not None and tail >= NO_TAIL_INDEX:
        notes.append("The gaps show no heavy tail.")
    return notes


def size_notes(name: str, figures: Mapping[str, Any]) -> list[str]:
    """A size that was cut off, or whose mean or variance depends on how long one looks."""
    if figures["cap"] is not None:
        most, n_most = figures["cap"]
        return [
            f"{name} is cut off at {count_text(most)}, which {count_text(n_most)} arrivals have: its tail is not seen."
        ]
    tail = _tail(figures["tails"])
    if tail is None or tail >= 2:
        return []
    moment = "mean" if tail <= 1 else "variance"
    return [
        f"{name} has a tail of index {count_text(tail)}: its {moment} grows with the length of the trace."
    ]


def _tail(tails: Sequence[Mapping[str, Any]]) -> float | None:
    """The first index that there is."""
    return next((one["index"] for one in tails if one["index"] is not None), None)


def window_text(window_ns: int) -> str:
    """`10 ms`, `60 s`: a window's length without digits that it does not have."""
    return f"{window_ns / NS_PER_S:g} s" if window_ns >= NS_PER_S else f"{window_ns / 1e6:g} ms"
