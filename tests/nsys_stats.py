"""Summaries by name of a scrubbed report, to be held against `nsys stats` on the same report.

Named as its reports are since 2023. Ranges that are not ours have no name here: they are summed as one.
"""

from __future__ import annotations

import pyarrow as pa

from squall.analysis.nsys.allowed import (
    KERNELS,
    MEMCPYS,
    MEMSETS,
    NVTX,
    OS_RUNTIME_CALL,
    OSRT,
    RUNTIME,
    START_END,
)
from squall.analysis.nsys.names import API_VERSION, COPY_KINDS, copy_kind
from squall.analysis.nsys.report import NsysReport

_SPANS = '"end" - start AS value'
_COPY = """'[CUDA ' || CASE WHEN starts_with(kind, 'UVM ') THEN 'Unified Memory memcpy ' || substr(kind, 5)
    ELSE 'memcpy ' || kind END || ']'"""
_MEMORY = f"""
SELECT {_COPY} AS name, {{value}} FROM {MEMCPYS} JOIN copy_kinds ON id = copyKind
UNION ALL SELECT '[CUDA memset]', {{value}} FROM {MEMSETS}
"""

_SOURCES: dict[str, tuple[str, str]] = {
    "cuda_api_sum": (
        "name",
        f"SELECT regexp_replace(n.value, '{API_VERSION}', '') AS name, {_SPANS}"
        f" FROM {RUNTIME} LEFT JOIN StringIds n ON id = nameId",
    ),
    "cuda_gpu_kern_sum": (
        "name",
        f"SELECT n.value AS name, {_SPANS} FROM {KERNELS} LEFT JOIN StringIds n ON id = demangledName",
    ),
    "cuda_gpu_kern_sum:base": (
        "name",
        f"SELECT n.value AS name, {_SPANS} FROM {KERNELS} LEFT JOIN StringIds n ON id = shortName",
    ),
    "cuda_gpu_kern_gb_sum:base": (
        "name, gridX, gridY, gridZ, blockX, blockY, blockZ",
        f"SELECT n.value AS name, gridX, gridY, gridZ, blockX, blockY, blockZ, {_SPANS}"
        f" FROM {KERNELS} LEFT JOIN StringIds n ON id = shortName",
    ),
    "cuda_gpu_mem_time_sum": ("name", _MEMORY.format(value=_SPANS)),
    "cuda_gpu_mem_size_sum": ("name", _MEMORY.format(value="bytes AS value")),
    "osrt_sum": (
        "name",
        f"SELECT n.value AS name, {_SPANS} FROM {OSRT} LEFT JOIN StringIds n ON id = nameId"
        f" WHERE coalesce(eventClass, {OS_RUNTIME_CALL}) = {OS_RUNTIME_CALL}",
    ),
    "nvtx_sum": (
        "name, style",
        f"SELECT coalesce(text, n.value) AS name, {_SPANS},"
        f" CASE WHEN eventType = {START_END} THEN 'StartEnd' ELSE 'PushPop' END AS style"
        f' FROM {NVTX} LEFT JOIN StringIds n ON id = textId WHERE "end" IS NOT NULL',
    ),
}
SUMMARIES = tuple(_SOURCES)


def summary(report: NsysReport, name: str) -> pa.Table:
    """One of `SUMMARIES`: a row for each name, the largest total first; no rows where nothing was recorded.

    `n` events with their `total`, `mean`, `median` (of an even n the mean of the middle two), `least`, `most` and
    `deviation` (of a sample, null for one event), in ns, for `cuda_gpu_mem_size_sum` in bytes.
    """
    by, source = _SOURCES[name]
    keys = by.replace("name", "coalesce(name, '') AS name", 1)
    query = f"""
SELECT {keys}, count(*) AS n, sum(value)::BIGINT AS total, avg(value) AS mean, median(value) AS median,
    min(value) AS least, max(value) AS most, stddev_samp(value) AS deviation
FROM ({source}) GROUP BY ALL ORDER BY total DESC, {by}
"""
    with report.connect() as connection:
        connection.execute("CREATE TEMP TABLE copy_kinds(id BIGINT, kind VARCHAR)")
        found = {n: copy_kind(*texts) for n, texts in report.kinds("ENUM_CUDA_MEMCPY_OPER").items()}
        for number, kind in (found or COPY_KINDS).items():
            connection.execute("INSERT INTO copy_kinds VALUES (?, ?)", [number, kind])
        return connection.sql(query).to_arrow_table()
