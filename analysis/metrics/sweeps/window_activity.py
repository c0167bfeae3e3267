"""What ran on the GPUs in each window of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.intervals import joined_up
from squall.analysis.metrics.sweeps.device_ops import DeviceOps, slice_rows
from squall.analysis.metrics.sweeps.gpu_sweep import GpuSweep
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.nsys import DEVICE_TABLES

NAMES = ("gpu_kernel_ratio", "gpu_busy_ratio", "gpu_copy_ratio", "copy_overlap_ratio", "gpu_streams_mean")


@dataclass(frozen=True, eq=False)
class WindowActivity:
    """`NAMES` of windows in order of time. `is_covered` (n,): a report covers it from edge to edge."""

    is_covered: NDArray[np.bool_]
    values: Mapping[str, Floats]
    """Of each name a value for each covered window; NaN where there is none. Empty where nothing is known."""

    def columns(self, first: int, n: int) -> dict[str, pa.Array]:
        """Those of the `n` windows from number `first` on; null where unknown."""
        own = self.is_covered[first : first + n]
        n_before = int(np.count_nonzero(self.is_covered[:first]))
        last = n_before + int(np.count_nonzero(own))
        return {name: _placed(values[n_before:last], own) for name, values in self.values.items()}


def window_activity(
    store: RunStore, t_ns: Int64s, window_ns: int, covered: Sequence[tuple[int, int]], memory_limit_bytes: int
) -> WindowActivity:
    """`NAMES` for windows that start at `t_ns`, ascending: means over the GPUs that operations of the run ran on.

    Null in windows that `covered`, stretches in order of time, does not cover from edge to edge, and where the run has
    no operations. A ratio of overlap is null in a window without a copy, streams in one without an operation.
    """
    is_covered = _is_covered(t_ns, window_ns, covered)
    if not is_covered.any() or not any(store.has(table) for table in DEVICE_TABLES):
        return WindowActivity(is_covered, {})
    start_ns = t_ns[is_covered]
    ops = DeviceOps(store, None)
    sweep = GpuSweep(start_ns, start_ns + window_ns, with_gaps=False)
    for piece in ops.slices(slice_rows(memory_limit_bytes)):
        sweep.add(piece)
    gpus = list(sweep.times().values())
    if not gpus:
        return WindowActivity(is_covered, {})
    kernel, busy, copy, overlap, stream = (
        np.sum([getattr(gpu, name) for gpu in gpus], axis=0)
        for name in ("kernel_ns", "any_ns", "copy_ns", "overlap_ns", "stream_ns")
    )
    wall_ns = np.full(len(start_ns), window_ns * len(gpus))
    parts = ((kernel, wall_ns), (busy, wall_ns), (copy, wall_ns), (overlap, copy), (stream, busy))
    return WindowActivity(
        is_covered, {name: _ratio(part, whole) for name, (part, whole) in zip(NAMES, parts, strict=True)}
    )


def _is_covered(t_ns: Int64s, window_ns: int, covered: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Whether each window lies in one of `covered`, those that touch taken as one."""
    spans = np.array(covered, np.int64).reshape(-1, 2)
    found = np.zeros(len(t_ns), bool)
    for first_ns, last_ns in zip(*joined_up(spans[:, 0], spans[:, 1]), strict=True):
        found |= (t_ns >= first_ns) & (t_ns + window_ns <= last_ns)
    return found


def _ratio(part: Int64s, whole: Int64s) -> Floats:
    """part / whole; NaN where `whole` is 0."""
    values = np.full(len(part), np.nan)
    np.divide(part, whole, out=values, where=whole > 0)
    return values


def _placed(values: Floats, is_covered: NDArray[np.bool_]) -> pa.Array:
    """`values` in the covered windows; null elsewhere and for NaN."""
    placed = np.full(len(is_covered), np.nan)
    placed[is_covered] = values
    return pa.array(placed, mask=np.isnan(placed))
