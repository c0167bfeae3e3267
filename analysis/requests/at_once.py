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
        begin, end = (np.clip(one, span.start_ns, span.end_ns) for one in (begin_ns, end_ns))
        busy_ns += int((end - begin).sum())
        _, counts = steps(begin, end)
        most = max(most, int(counts.max(initial=0)))
    return busy_ns / sum(span.end_ns - span.start_ns for span in spans), most


def steps(begin_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """The instants at which one begins or ends, sorted, each once, and the count from each on."""
    instants, place = np.unique(np.concatenate([begin_ns, end_ns]), return_inverse=True)
    n_begun, n_over = (
        np.bincount(of, minlength=len(instants)) for of in (place[: len(begin_ns)], place[len(begin_ns) :])
    )
    return instants, (n_begun - n_over).cumsum()
