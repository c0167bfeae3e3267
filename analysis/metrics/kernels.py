"""Kernels by configuration: durations, tensor cores, how launches fill the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from squall.analysis.metrics.measures import Measures
from squall.analysis.metrics.operations import IS_WHOLE, KEY, Row, add_table, groups_of_rows, median
from squall.analysis.occupancy import DeviceLimits, Launch, filling
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.query import rows

if TYPE_CHECKING:
    import duckdb

TENSOR_CORES = (
    r"[shicb](884|1688|8816|16816|161616|168128|16832)|[hi]mma|wmma|gmma|tcgen05|tensorop|nvjet|xmma|flash_fwd|fmha"
    r"|conv1x1|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv2d_c1_k1|direct_group"
)
"""Names of kernels that use tensor cores, in any case, as far as names say: see docs/metrics.md for the source of each
part."""

TOP = 20

_CONFIG = """name, full_name, grid_x, grid_y, grid_z, block_x, block_y, block_z, registers_per_thread,
    static_shared_bytes + dynamic_shared_bytes AS shared_bytes, theoretical_occupancy, gpu_uuid"""
_WHOLE = f"kernels k JOIN numbered USING ({KEY}) WHERE k.end_ns >= k.start_ns AND {IS_WHOLE}"
_NS = "k.end_ns - k.start_ns"
# By launch configuration.
_CONFIGS = f"""
CREATE TEMP TABLE kernel_configs AS
SELECT grp, {_CONFIG}, count(*) AS n, sum({_NS}) AS ns, min({_NS}) AS min_ns, max({_NS}) AS max_ns,
    count(*) FILTER ({_NS} < 10_000) AS n_short
FROM {_WHOLE} GROUP BY ALL
"""
# Of each group the first by full name and grid.
_RANKED = f"""
CREATE TEMP TABLE ranked AS
SELECT grp, full_name, grid_x, grid_y, grid_z, sum(n) AS n, sum(ns) AS total_ns, min(min_ns) AS min_ns,
    max(max_ns) AS max_ns,
    row_number() OVER (PARTITION BY grp ORDER BY sum(ns) DESC, full_name, grid_x, grid_y, grid_z) AS place
FROM kernel_configs GROUP BY grp, full_name, grid_x, grid_y, grid_z QUALIFY place <= {TOP}
"""
_OTHERS = 0
_DURATIONS = f"""
SELECT grp, coalesce(place, {_OTHERS}) AS place, {_NS} AS ns
FROM (SELECT * FROM {_WHOLE}) k LEFT JOIN ranked USING (grp, full_name, grid_x, grid_y, grid_z) ORDER BY grp
"""
_TIMES = {"grp": pa.int32(), "place": pa.int64(), "median_ns": pa.float64(), "p95_ns": pa.int64()}
_MOST = 1 << 62
_SIZE = f"""least(grid_x::HUGEINT * grid_y * grid_z, {_MOST})::BIGINT AS n_blocks,
    least(block_x::HUGEINT * block_y * block_z, {_MOST})::BIGINT AS n_threads"""
_SIZES = f"""
SELECT DISTINCT gpu_uuid, {_SIZE}, registers_per_thread, shared_bytes FROM kernel_configs
WHERE registers_per_thread IS NOT NULL AND shared_bytes IS NOT NULL
"""
_FILLINGS = {
    "gpu_uuid": pa.string(), "n_blocks": pa.int64(), "n_threads": pa.int64(), "registers_per_thread": pa.int64(),
    "shared_bytes": pa.int64(), "limiter": pa.string(), "waves_count": pa.float64(), "sm_cover_ratio": pa.float64(),
    "grid_occupancy_ratio": pa.float64(),
}  # fmt: skip

_FIGURES = f"""
WITH configs AS (
    SELECT *, regexp_matches(full_name, $tensor_cores, 'i') AS is_tensor,
        CASE WHEN isfinite(theoretical_occupancy) THEN theoretical_occupancy END AS occupancy_ratio
    FROM (SELECT *, {_SIZE} FROM kernel_configs)
    LEFT JOIN fillings USING (gpu_uuid, n_blocks, n_threads, registers_per_thread, shared_bytes)),
-- means over kernel time; null where no kernel has the value
weighted AS (
    SELECT grp, sum(ns) AS all_ns, sum(ns) FILTER (waves_count IS NOT NULL) AS filled_ns,
        coalesce(sum(ns) FILTER (is_tensor), 0) / nullif(all_ns, 0) AS tensor_time_ratio,
        sum(occupancy_ratio * ns ORDER BY full_name, ns) / nullif(sum(ns) FILTER (occupancy_ratio IS NOT NULL), 0)
            AS occupancy_ratio,
        sum(grid_occupancy_ratio * ns ORDER BY full_name, ns) / nullif(filled_ns, 0) AS grid_occupancy_ratio,
        coalesce(sum(ns) FILTER (waves_count < 1), 0) / nullif(filled_ns, 0) AS sub_wave_time_ratio,
        sum(sm_cover_ratio * ns ORDER BY full_name, ns) / nullif(filled_ns, 0) AS sm_cover_ratio,
        coalesce(filled_ns, 0) / nullif(all_ns, 0) AS sizes_known_time_ratio,
        count(DISTINCT (full_name, grid_x, grid_y, grid_z)) AS n_configurations
    FROM configs GROUP BY grp),
-- by full name and grid; sizes are those of the largest configuration
largest AS (
    SELECT * FROM configs
    QUALIFY row_number() OVER (PARTITION BY grp, full_name, grid_x, grid_y, grid_z
        ORDER BY ns DESC, block_x, block_y, block_z, registers_per_thread, shared_bytes, gpu_uuid) = 1),
tops AS (
    SELECT grp, list({{
        'name': c.name, 'full_name': full_name, 'grid': [grid_x, grid_y, grid_z],
        'block': [c.block_x, c.block_y, c.block_z], 'n': r.n, 'total_ns': r.total_ns,
        'share_ratio': r.total_ns / nullif(all_ns, 0), 'median_ns': median_ns, 'min_ns': r.min_ns, 'max_ns': r.max_ns,
        'is_tensor': c.is_tensor, 'occupancy_ratio': c.occupancy_ratio, 'limiter': c.limiter,
        'waves_count': c.waves_count, 'sm_cover_ratio': c.sm_cover_ratio}} ORDER BY place) AS top
    FROM ranked r JOIN times USING (grp, place) JOIN largest c USING (grp, full_name, grid_x, grid_y, grid_z)
    JOIN weighted USING (grp) GROUP BY grp),
sums AS (
    SELECT grp, sum(n) AS n, sum(ns) AS total_ns, max(max_ns) AS max_ns, sum(n_short) AS n_short
    FROM configs GROUP BY grp)
SELECT grp, coalesce(n, 0) AS n, coalesce(total_ns, 0) AS total_ns, total_ns / n AS mean_ns, median_ns, p95_ns, max_ns,
    n_short / n AS below_10us_ratio,
    w.* EXCLUDE (grp, all_ns, filled_ns, n_configurations), coalesce(n_configurations, 0) AS n_configurations,
    top
FROM instances LEFT JOIN sums USING (grp) LEFT JOIN weighted w USING (grp) LEFT JOIN tops USING (grp)
LEFT JOIN (FROM times WHERE place IS NULL) USING (grp)
"""


def kernel_figures(
    connection: duckdb.DuckDBPyConnection, limits: Mapping[str, DeviceLimits]
) -> dict[int, Row]:
    """Figures of the kernels of each group, see docs/metrics.md. `limits` by GPU; a single one's hold for all."""
    connection.execute(_CONFIGS)
    alone = next(iter(limits.values())) if len(limits) == 1 else None
    filled = []
    for uuid, *sizes in connection.execute(_SIZES).fetchall():
        limit = limits.get(uuid, alone)
        found = filling(Launch(*sizes), limit) if limit is not None else None
        if found is not None:
            shares = found.waves_count, found.sm_cover_ratio, found.grid_occupancy_ratio
            filled.append((uuid, *sizes, found.limiter, *shares))
    add_table(connection, "fillings", _FILLINGS, filled)
    connection.execute(_RANKED)
    add_table(connection, "times", _TIMES, _times(connection))
    figures = rows(connection, _FIGURES, {"tensor_cores": TENSOR_CORES})
    return {row["grp"]: {**row, "top": row["top"] or ()} for row in figures}


def _times(
    connection: duckdb.DuckDBPyConnection,
) -> Iterator[tuple[int, int | None, float | None, int | None]]:
    """Rows of `times`, of each group by place, and of all its kernels without one. DuckDB's quantiles would hold all
    durations of all groups in memory, four times."""
    for grp, (place, ns) in groups_of_rows(connection, _DURATIONS):
        yield grp, None, median(ns), rank_value(ns, 0.95)
        for one in np.unique(place[place != _OTHERS]):
            own = ns[place == one]
            yield grp, int(one), median(own), rank_value(own, 0.95)


def kernel_measures(kernels: Row) -> Measures:
    """The measures of the kernels of an instance."""
    names = ("sub_wave_time_ratio", "sm_cover_ratio", "occupancy_ratio", "tensor_time_ratio")
    return {name: kernels[name] for name in names}
