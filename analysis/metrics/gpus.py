"""GPUs over stretches of time, all processes together: temporal activity, overlap, idle gaps, streams, samples.

K, C, A: unions of all kernels, all copies, all operations (kernels, copies, sets) of a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.metrics.measures import NO_CLOCK_LIMIT, Measures
from squall.analysis.metrics.operations import (
    BEFORE,
    KEY,
    Row,
    by_group,
    covered,
    distributions,
    pieces,
    read_rows,
)

if TYPE_CHECKING:
    import duckdb

_USES = "CREATE TEMP TABLE uses AS SELECT DISTINCT node, process, gpu FROM operations"

IN_CELLS = "operations o JOIN cells c ON o.start_ns < c.end_ns AND o.end_ns > c.start_ns"
"""Operations with each of the `cells` (cell, start_ns, end_ns: disjoint stretches of time) that they meet."""

# Operations cut to a cell, by the gaps that they end: how many, and what they add to each union. `…_before`: how far
# those reached that start before, in the cell.
_ACTIVITY = f"""
CREATE TEMP TABLE activity AS
WITH cut AS (
    SELECT c.cell, o.gpu, o.kind, o.node, o.process, o.context, o.stream, c.start_ns AS cell_ns,
        greatest(o.start_ns, c.start_ns) AS start_ns, least(o.end_ns, c.end_ns) AS end_ns
    FROM {{in_cells}}),
placed AS (
    SELECT *, max(end_ns) OVER earlier AS any_before, max(end_ns) OVER in_stream AS stream_before,
        max(end_ns) FILTER (kind = 'kernel') OVER earlier AS kernel_before,
        max(end_ns) FILTER (kind = 'copy') OVER earlier AS copy_before,
        max(end_ns) FILTER (kind <> 'set') OVER earlier AS either_before
    FROM cut
    WINDOW earlier AS (PARTITION BY cell, gpu ORDER BY start_ns, end_ns {BEFORE}),
        in_stream AS (PARTITION BY cell, gpu, node, process, context, stream ORDER BY start_ns, end_ns {BEFORE}))
SELECT cell, gpu, max(end_ns) AS last_ns, count(*) AS times,
    {{gaps}}
    sum(greatest(0, end_ns - greatest(start_ns, any_before))) AS any_ns,
    sum(greatest(0, end_ns - greatest(start_ns, stream_before))) AS stream_ns,
    sum(greatest(0, end_ns - greatest(start_ns, kernel_before))) FILTER (kind = 'kernel') AS kernel_ns,
    sum(greatest(0, end_ns - greatest(start_ns, copy_before))) FILTER (kind = 'copy') AS copy_ns,
    sum(greatest(0, end_ns - greatest(start_ns, either_before))) FILTER (kind <> 'set') AS either_ns
FROM placed GROUP BY ALL
"""
_GAP_COLUMNS = """
    -- of A, from the edge of the cell on; of K, between two kernels
    CASE WHEN start_ns > coalesce(any_before, cell_ns) THEN start_ns - coalesce(any_before, cell_ns) END AS idle_ns,
    CASE WHEN kind = 'kernel' AND start_ns > kernel_before THEN start_ns - kernel_before END AS between_ns,
"""
CELL_SUMS = """
SELECT cell, gpu, max(last_ns) AS last_ns, sum(any_ns) AS any_ns, coalesce(sum(stream_ns), 0) AS stream_ns,
    coalesce(sum(kernel_ns), 0) AS kernel_ns, coalesce(sum(copy_ns), 0) AS copy_ns,
    -- a copy and a kernel at once: |K| + |C| - |K u C|
    coalesce(sum(kernel_ns), 0) + coalesce(sum(copy_ns), 0) - coalesce(sum(either_ns), 0) AS overlap_ns
FROM activity GROUP BY ALL
"""
"""Query: of each cell and GPU how long something ran in it; none where nothing did."""

_GAPS = """
SELECT phase, gpu, 'idle' AS what, idle_ns AS value, times
FROM activity JOIN cells USING (cell) WHERE idle_ns IS NOT NULL
UNION ALL
SELECT phase, gpu, 'between', between_ns, times
FROM activity JOIN cells USING (cell) WHERE between_ns IS NOT NULL
UNION ALL  -- from the last operation to the edge of the cell
SELECT phase, gpu, 'idle', end_ns - coalesce(last_ns, start_ns), 1
FROM cells CROSS JOIN gpus LEFT JOIN sums USING (cell, gpu) WHERE end_ns > coalesce(last_ns, start_ns)
UNION ALL
SELECT phase, gpu, what, NULL, 0
FROM (SELECT DISTINCT phase FROM cells) CROSS JOIN gpus CROSS JOIN (VALUES ('idle'), ('between')) AS kinds(what)
"""
_FIGURES = f"""
WITH gpus AS (SELECT DISTINCT gpu FROM uses),
sums AS ({CELL_SUMS}),
gaps AS ({distributions(_GAPS, "phase, gpu, what", with_classes=True)}),
of_phase AS (
    SELECT phase, gpu, sum(end_ns - start_ns) AS profiled_ns, sum(any_ns) AS any_ns, sum(stream_ns) AS stream_ns,
        coalesce(sum(kernel_ns), 0) AS kernel_ns, coalesce(sum(copy_ns), 0) AS copy_ns, sum(overlap_ns) AS overlap_ns,
        count(*) FILTER (kernel_ns > 0) AS n_with_kernels
    FROM cells CROSS JOIN gpus LEFT JOIN sums USING (cell, gpu) GROUP BY ALL)
SELECT phase, gpu, profiled_ns, s.kernel_ns / profiled_ns AS kernel_ratio,
    coalesce(any_ns, 0) / profiled_ns AS busy_ratio,
    s.copy_ns / profiled_ns AS copy_ratio, s.copy_ns, overlap_ns / nullif(s.copy_ns, 0) AS copy_overlap_ratio,
    stream_ns / nullif(any_ns, 0) AS streams_mean,
    {{'n': i.n, 'total_ns': i.total_ns, 'p50_ns': i.p50_ns, 'max_ns': i.max_ns, 'classes': i.classes}} AS idle_gaps,
    {{'n': k.n, 'total_ns': k.total_ns, 'p50_ns': k.p50_ns, 'max_ns': k.max_ns, 'classes': k.classes}} AS compute_gaps,
    -- a burst of compute ends where no kernel runs for 10 us or longer, or with the cell
    k.n - k.n_below_10us + n_with_kernels AS n_compute_bursts
FROM of_phase s JOIN gaps i USING (phase, gpu) JOIN gaps k USING (phase, gpu)
WHERE i.what = 'idle' AND k.what = 'between'
ORDER BY phase, gpu
"""

# How long others used a GPU of the process that executed a batch, as long as the batch took. A process uses the GPUs on
# which it had any operation, ever.
_FOREIGN = f"""
WITH shared AS (SELECT gpu FROM uses GROUP BY gpu HAVING count(*) > 1),
foreign_uses AS (
    SELECT o.node, u.process, o.start_ns, o.end_ns
    FROM operations o JOIN (SELECT * FROM uses SEMI JOIN shared USING (gpu)) u USING (node, gpu)
    WHERE o.process <> u.process),
busy AS ({pieces("FROM foreign_uses", "node, process")}),
edges AS (
    SELECT grp, node, process, unnest([start_ns, greatest(start_ns, end_ns)]) AS t_ns, unnest([-1, 1]) AS sign
    FROM numbered WHERE process IS NOT NULL)
SELECT grp, sum(sign * {covered("t_ns", "b")})::BIGINT AS ns
FROM edges e ASOF LEFT JOIN busy b ON e.node = b.node AND e.process = b.process AND e.t_ns >= b.from_ns
GROUP BY grp
"""

# Operations of the processes of an instance, in what was recorded of the phase, that belong to any batch. Of those that
# a window ties to a batch it is known how many there are, not which.
_ATTRIBUTION = f"""
WITH ran AS (
    SELECT phase, o.node, o.process, count(*) AS n, count(batch) AS n_tied
    FROM operations o JOIN stretches s ON o.start_ns >= s.start_ns AND o.start_ns < s.end_ns
    LEFT JOIN numbered USING ({KEY}) GROUP BY ALL),
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


def used_gpus(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The GPUs that operations ran on; makes table `uses`, of which process ran any on which."""
    connection.execute(_USES)
    return [gpu for (gpu,) in connection.execute("SELECT DISTINCT gpu FROM uses ORDER BY gpu").fetchall()]


def add_activity(connection: duckdb.DuckDBPyConnection, in_cells: str, with_gaps: bool) -> None:
    """Makes `activity` of `operations` in `cells`, as `in_cells` joins them: see `IN_CELLS`."""
    connection.execute(_ACTIVITY.format(in_cells=in_cells, gaps=_GAP_COLUMNS if with_gaps else ""))


def gpu_activity(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """What ran on each GPU in the `cells` of each phase; a GPU that any operation ran on has a row for each."""
    add_activity(connection, IN_CELLS, with_gaps=True)
    return read_rows(connection, _FIGURES)


def gpu_samples(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """What NVML and GPM say of each GPU over the span of each phase: means over time of the samples wholly in it.
    `throttle_reasons`: bits that any sample had; `n_throttle_samples`: those that have bits."""
    return read_rows(connection, _SAMPLES)


def foreign_ns(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """Of each group with profiled batches the time `ns` in these in which another process used a GPU of theirs."""
    return by_group(connection, _FOREIGN)


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
