"""GPUs over stretches of time, all processes together: temporal activity, overlap, idle gaps, streams, samples.

K, C, A: unions of all kernels, all copies, all operations (kernels, copies, sets) of a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import Reach
from squall.analysis.metrics.activity import Activity, activity
from squall.analysis.metrics.measures import NO_CLOCK_LIMIT, Measures, ratio
from squall.analysis.metrics.operations import NONE_NS, Row, by_group, runs_of_rows
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.query import rows

if TYPE_CHECKING:
    import duckdb

_CLASSES_NS = {
    "below_10us": (0, 10_000),
    "10us_to_100us": (10_000, 100_000),
    "100us_to_1ms": (100_000, 1_000_000),
    "1ms_or_more": (1_000_000, np.inf),
}

# Of each process that executed batches, what others ran on its GPUs, and the edges of its batches (`sign` -1, 1) as
# operations of no length. A process uses the GPUs on which it had any operation, ever.
_FOREIGN = """
WITH uses AS (SELECT DISTINCT node, process, gpu_number FROM lanes),
owners AS (
    SELECT dense_rank() OVER (ORDER BY node, process) AS owner, *
    FROM uses SEMI JOIN numbered USING (node, process)
    WHERE gpu_number IN (SELECT gpu_number FROM uses GROUP BY gpu_number HAVING count(*) > 1)),
-- streams of other processes on the GPUs of an owner
others AS (
    SELECT DISTINCT owner, lane FROM lanes l
    JOIN owners u ON l.node = u.node AND l.gpu_number = u.gpu_number AND l.process <> u.process)
SELECT owner, 0 AS grp, 0 AS sign, start_ns, end_ns FROM operations JOIN others USING (lane)
UNION ALL
SELECT owner, grp, unnest([-1, 1]), unnest([start_ns, greatest(start_ns, end_ns)]) AS t_ns, t_ns
FROM numbered JOIN (SELECT DISTINCT owner, node, process FROM owners) USING (node, process)
ORDER BY owner, start_ns
"""

# Operations of the processes of an instance, in what was recorded of the phase, that belong to any batch. Of those that
# a window ties to a batch it is known how many there are, not which.
_ATTRIBUTION = """
WITH ran AS (
    SELECT phase, node, process, sum(n) AS n, sum(n_tied) AS n_tied
    FROM (
        SELECT phase, lane, count(*) AS n, count(batch) AS n_tied
        FROM operations o JOIN stretches s ON o.start_ns >= s.start_ns AND o.start_ns < s.end_ns GROUP BY ALL)
    JOIN (SELECT DISTINCT lane, node, process FROM lanes) USING (lane) GROUP BY ALL),
in_windows AS (
    SELECT phase, node, process, coalesce(sum(n_kernels + n_copies), 0) AS n_in_windows
    FROM picked WHERE tie = 'window' AND process IS NOT NULL GROUP BY ALL)
SELECT grp, least(sum(coalesce(n_tied, 0) + coalesce(n_in_windows, 0)), sum(n)) / nullif(sum(n), 0) AS ratio
FROM (SELECT DISTINCT grp, node, process FROM numbered WHERE process IS NOT NULL) JOIN instances USING (grp)
LEFT JOIN ran USING (phase, node, process) LEFT JOIN in_windows USING (phase, node, process)
GROUP BY grp
"""

_BY_GPM = ("sm_util", "sm_occupancy", "tensor_util", "dram_util", "fp16_util", "fp32_util")
_BY_NVML = ("util", "memory_util", "sm_clock_hz", "power_instant_w")
# A NaN says as little as a null.
_MEAN = """sum({name} * {interval}) FILTER (isfinite({name}::DOUBLE))
    / nullif(sum({interval}) FILTER (isfinite({name}::DOUBLE)), 0) AS {name}"""
_MEANS = ", ".join(
    _MEAN.format(name=name, interval=interval)
    for interval, names in (("gpm_interval_ns", _BY_GPM), ("interval_ns", _BY_NVML))
    for name in names
)
_SAMPLES = f"""
SELECT s.phase, gpu_uuid AS gpu, count(*) AS n_samples, {_MEANS},
    count(*) FILTER (throttle_reasons & ~{NO_CLOCK_LIMIT} <> 0) / nullif(count(throttle_reasons), 0)
        AS throttled_ratio,
    coalesce(bit_or(throttle_reasons), 0) AS throttle_reasons, count(throttle_reasons) AS n_throttle_samples
FROM gpu_samples JOIN spans s ON t_ns - interval_ns >= first_ns AND t_ns <= last_ns
WHERE mig_instance = '' AND interval_ns > 0 GROUP BY ALL ORDER BY ALL
"""


def gpu_activity(connection: duckdb.DuckDBPyConnection, gpus: Sequence[str]) -> dict[tuple[str, str], Row]:
    """By phase and GPU what ran in the `cells` of the phase: a row for each of `gpus`, those of `add_lanes`."""
    found = activity(connection, len(gpus))
    cells = connection.execute("SELECT phase, end_ns - start_ns AS ns FROM cells ORDER BY cell").fetchnumpy()
    return {
        (phase, gpu): _of_gpu(found, np.flatnonzero(cells["phase"] == phase), at, cells["ns"])
        for phase in dict.fromkeys(cells["phase"])
        for at, gpu in enumerate(gpus)
    }


def _of_gpu(found: Activity, cells: Int64s, gpu: int, length_ns: Int64s) -> Row:
    """Of one GPU, column `gpu` of `found`, in `cells`."""
    wall_ns = int(length_ns[cells].sum())
    any_ns, kernel_ns, copy_ns, overlap_ns, stream_ns = (
        int(one[cells, gpu].sum())
        for one in (found.any_ns, found.kernel_ns, found.copy_ns, found.overlap_ns, found.stream_ns)
    )
    places = cells * found.any_ns.shape[1] + gpu
    idle, between = (one.ns[np.isin(one.place, places)] for one in (found.idle, found.between))
    return {
        "profiled_ns": wall_ns,
        "kernel_ratio": kernel_ns / wall_ns,
        "busy_ratio": any_ns / wall_ns,
        "copy_ratio": copy_ns / wall_ns,
        "copy_ns": copy_ns,
        "copy_overlap_ratio": ratio(overlap_ns, copy_ns),
        "streams_mean": ratio(stream_ns, any_ns),
        "idle_gaps": gap_figures(idle),
        "compute_gaps": gap_figures(between),
        # a burst of compute ends where no kernel runs for 10 us or longer, or with the cell
        "n_compute_bursts": int((between >= 10_000).sum() + (found.kernel_ns[cells, gpu] > 0).sum()),
    }


def gap_figures(gaps_ns: Int64s) -> Row:
    """How many, how long, and how they fall on classes of length."""
    whole_ns = int(gaps_ns.sum())
    classes = {
        name: gaps_ns[(gaps_ns >= least_ns) & (gaps_ns < most_ns)]
        for name, (least_ns, most_ns) in _CLASSES_NS.items()
    }
    return {
        "n": len(gaps_ns),
        "total_ns": whole_ns,
        "p50_ns": rank_value(gaps_ns, 0.5),
        "max_ns": int(gaps_ns.max()) if len(gaps_ns) else None,
        "classes": {
            name: {"n": len(own), "ns": int(own.sum()), "time_ratio": ratio(int(own.sum()), whole_ns)}
            for name, own in classes.items()
        },
    }


def gpu_samples(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """What NVML and GPM say of each GPU over the span of each phase: means over time of the samples wholly in it.
    `throttle_reasons`: bits that any sample had; `n_throttle_samples`: those that have bits."""
    return rows(connection, _SAMPLES)


def foreign_ns(connection: duckdb.DuckDBPyConnection) -> dict[int, int]:
    """Of each group with profiled batches the time, as long as its batches took, in which another process used a GPU of
    theirs: what others cover before the end of each batch less what before its start."""
    found: dict[int, int] = defaultdict(int)
    for _, parts in groupby(runs_of_rows(connection, _FOREIGN), key=itemgetter(0)):
        reach, covered_ns = Reach(NONE_NS), 0
        for _, (grp, sign, start_ns, end_ns) in parts:
            before_ns, fresh_ns = reach.beyond(start_ns, end_ns)
            upto_ns = covered_ns + np.cumsum(fresh_ns) - fresh_ns - np.maximum(before_ns - start_ns, 0)
            covered_ns += int(fresh_ns.sum())
            is_edge = sign != 0
            groups, at = np.unique(grp[is_edge], return_inverse=True)
            sums_ns = np.zeros(len(groups), np.int64)
            np.add.at(sums_ns, at, (sign * upto_ns)[is_edge])
            for group, ns in zip(groups.tolist(), sums_ns.tolist(), strict=True):
                found[group] += ns
    return found


def attribution(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """Of each group the `ratio` of its processes' operations, over the `stretches` of its phase, that have a batch."""
    return by_group(connection, _ATTRIBUTION)


def sample_measures(sampled: Row | None) -> Measures:
    """The measures that samples of the instance's GPU give."""
    if sampled is None:
        return {}
    names = {f"gpu_{name}_ratio": name for name in ("sm_util", "tensor_util", "dram_util", "util")}
    return {
        **{measure: sampled[name] for measure, name in names.items()},
        "throttled_ratio": sampled["throttled_ratio"],
        "n_throttle_samples": float(sampled["n_throttle_samples"]),
    }
