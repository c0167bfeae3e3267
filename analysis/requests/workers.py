"""What the load generators say of themselves: figures of `worker_samples`, one definition for all who ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.storage.deployed import WorkerFacts
from squall.scenarios.units import NS_PER_S


def column(samples: pa.Table, name: str) -> Floats:
    """A column without nulls, as floats."""
    return np.asarray(samples.column(name).to_numpy(), dtype=np.float64)


def busy_ratios(samples: pa.Table) -> Floats:
    """CPU time of each sample over its length, without what was spent waiting busily for the next instant."""
    used_ns = column(samples, "cpu_ns") - column(samples, "spin_ns")
    return np.maximum(used_ns, 0.0) / column(samples, "interval_ns")


def peak_total(samples: pa.Table, name: str) -> int:
    """Largest sum over the workers of one second of column `name`; 0 of none."""
    return int(np.bincount(seconds_of(samples), weights=column(samples, name)).max(initial=0.0))


def seconds_of(samples: pa.Table) -> npt.NDArray[np.int64]:
    """(n,) the second that each sample ends in, counted from the first sample's end.

    All workers sample at one instant of the run, late by their event loops: hence the half second.
    """
    t_ns: npt.NDArray[Any] = samples.column("t_ns").to_numpy()
    if not len(t_ns):
        return np.empty(0, np.int64)
    return np.asarray((t_ns - t_ns.min() + NS_PER_S // 2) // NS_PER_S, dtype=np.int64)


LANE_COST = "a request costs 2 to 5 times the CPU, and is sent later (docs/client.md)"
"""docs/results.md: 34 to 99 us of CPU against 13 to 22 us."""


def lane_text(workers: Sequence[WorkerFacts]) -> str:
    """Which workers of a manifest do without the C lane, why, and what that costs; empty where none does."""
    reasons = Counter(one.no_lane for one in workers if one.no_lane)
    if not reasons:
        return ""
    n, reason = reasons.total(), ", ".join(reasons)
    return f"without the C lane in {n} of {len(workers)} workers: {reason}; {LANE_COST}"
