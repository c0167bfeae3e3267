"""How many of something were under way at one time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.storage.timeline import RunPhase


def at_once(begin_ns: Int64s, end_ns: Int64s, spans: Sequence[RunPhase]) -> tuple[float, int]:
    """Mean and most of the intervals [begin, end) that hold an instant, over the instants of `spans`; (n,) each."""
    busy_ns, most = 0, 0
    for span in spans:
        begin, end = (np.sort(np.clip(one, span.start_ns, span.end_ns)) for one in (begin_ns, end_ns))
        busy_ns += int((end - begin).sum())
        # the most are under way where one has just begun
        n_begun, n_over = (np.searchsorted(one, begin, side="right") for one in (begin, end))
        most = max(most, int((n_begun - n_over).max(initial=0)))
    return busy_ns / sum(span.end_ns - span.start_ns for span in spans), most
