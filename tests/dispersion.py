"""The index of dispersion of one grid of windows, by its definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.series.burstiness import LEAST_WINDOWS, window_counts


def index_of_dispersion(
    times_ns: NDArray[np.int64], window_ns: int, start_ns: int, end_ns: int
) -> float | None:
    """Var/mean of the counts per window; None below `LEAST_WINDOWS` whole windows or without an instant."""
    counts = window_counts(times_ns, window_ns, start_ns, end_ns)
    if counts.size < LEAST_WINDOWS or not counts.any():
        return None
    return float(counts.var(ddof=1) / counts.mean())
