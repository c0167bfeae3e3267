"""Figures of a run from what nsys saw in its measured phases: kernels, copies, CUDA calls, waits of the OS runtime.

    kernels of batches    ▐█ ██ █▌      ▐██ █ █▌        ▐█ █▌
                          └ span ┘ idle └ span ┘
    another instance             ▐█ ██▌

The span of a batch is the GPU's compute of one execution: from its first kernel to the end of its last. Idle between
bursts is what no span of any batch on the device covers, between the first and the last of a phase. What nsys traced as
whole CUDA graphs tells neither its kernels nor their number: then figures of single kernels are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

GEMM = re.compile(r"gemm|gemv|nvjet|xmma|wgmma|cutlass|cublas|triton_tem_\w{0,200}mm", re.IGNORECASE)
"""Names of matrix products: cuBLAS (nvjet_… on Hopper and later), CUTLASS, TensorRT (…xmma…), Inductor's templates."""
NO_GEMM = re.compile(
    r"splitk_?reduce|flash|fmha|softmax|layer_?norm|conv(?!ert)|fprop|dgrad|wgrad", re.IGNORECASE
)
"""Of the same libraries, no matrix product by itself."""
LAYER_NORM = re.compile(r"layer_?norm", re.IGNORECASE)
WHOLE_GRAPH = "CUDA graph"
SYNC, LAUNCH, COPY = ("blocking sync",), ("launch", "graph launch"), ("blocking copy", "async copy")
"""Classes of CUDA calls (`squall.analysis.nsys.names.call_class`). A copy that blocks, as one of pageable memory does,
is a copy."""

_BATCH = "phase, node, server, instance, instance_device, batch_id"
_GPU = "node, CASE WHEN gpu_uuid = '' THEN server || '/' || process || '/' || device ELSE gpu_uuid END"
_MEASURED = "measured AS (SELECT unnest($names) AS phase)"
_SEEN = f"""
    , kinds AS (SELECT unnest($full_names) AS full_name, unnest($are_gemms) AS is_gemm, unnest($are_norms) AS is_norm)
    , seen AS (
        SELECT {_BATCH}, concat_ws('/', {_GPU}) AS gpu, start_ns, end_ns, is_gemm, is_norm
        FROM kernels SEMI JOIN measured USING (phase) JOIN kinds ON kinds.full_name = kernels.full_name::VARCHAR)"""
_BURSTS = f"""{_SEEN}
    , bursts AS (
        SELECT phase, gpu, min(start_ns) AS start_ns, max(end_ns) AS end_ns, count(*) AS n,
            count(*) FILTER (is_gemm) AS n_gemms
        FROM seen WHERE batch_id IS NOT NULL GROUP BY {_BATCH}, gpu)"""
Found = dict[str, float]
Values = Mapping[str, Any]
"""Of a query's parameters."""


def is_gemm(name: str) -> bool:
    """Whether a kernel of that full name is a matrix product."""
    return GEMM.search(name) is not None and NO_GEMM.search(name) is None


def device_figures(store: RunStore, phases: Sequence[str]) -> Found:
    """Figures over `phases`, by name; empty where nsys recorded nothing of them."""
    reads = {
        "kernels": _kernel_figures,
        "memcpys": _copy_figures,
        "cuda_api": _call_figures,
        "osrt": _wait_figures,
    }
    there = [table for table in reads if store.has(table)]
    found: Found = {}
    if not there or not phases:
        return found
    with connect(store, there) as connection:
        for table in there:
            found |= reads[table](connection, {"names": [*phases]})
    return found


def _rows(
    connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Of a query behind `_MEASURED`."""
    rows: list[tuple[Any, ...]] = connection.execute(f"WITH {_MEASURED} {query}", dict(values)).fetchall()
    return rows


def _known(**figures: float | None) -> Found:
    return {name: float(value) for name, value in figures.items() if value is not None}


def _copy_figures(connection: duckdb.DuckDBPyConnection, values: Values) -> Found:
    query = "SELECT avg(bytes) FROM memcpys SEMI JOIN measured USING (phase) WHERE copy_kind = 'HtoD'"
    ((mean,),) = _rows(connection, query, values)
    return _known(h2d_mean_bytes=mean)


def _wait_figures(connection: duckdb.DuckDBPyConnection, values: Values) -> Found:
    query = "SELECT sum(end_ns - start_ns) FROM osrt SEMI JOIN measured USING (phase) WHERE name = 'sem_wait'"
    ((total,),) = _rows(connection, query, values)
    return _known(sem_wait_ns=total)


def _call_figures(connection: duckdb.DuckDBPyConnection, values: Values) -> Found:
    query = """
        SELECT call_class::VARCHAR, sum(end_ns - start_ns)::DOUBLE FROM cuda_api SEMI JOIN measured USING (phase)
        GROUP BY ALL"""
    return call_shares(dict(_rows(connection, query, values)))


def call_shares(ns_of: Mapping[str, float]) -> Found:
    """Shares of the time in CUDA calls, from the time of each class; empty without any."""
    total = sum(ns_of.values())
    if total <= 0:
        return {}
    kinds = {"sync": SYNC, "launch": LAUNCH, "copy": COPY}
    return {
        f"{kind}_share_ratio": sum(ns_of.get(name, 0.0) for name in names) / total
        for kind, names in kinds.items()
    }


def _kernel_figures(connection: duckdb.DuckDBPyConnection, values: Values) -> Found:
    query = "SELECT DISTINCT full_name::VARCHAR FROM kernels SEMI JOIN measured USING (phase)"
    names = [str(one) for (one,) in _rows(connection, query, values)]
    if not names:
        return {}
    kinds = {
        **values,
        "full_names": names,
        "are_gemms": [is_gemm(one) for one in names],
        "are_norms": [LAYER_NORM.search(one) is not None for one in names],
    }
    has_graphs = WHOLE_GRAPH in names
    return {
        **_burst_figures(connection, kinds, has_graphs),
        **({} if has_graphs else _single_figures(connection, kinds)),
    }


def _burst_figures(connection: duckdb.DuckDBPyConnection, kinds: Values, has_graphs: bool) -> Found:
    query = f"{_BURSTS} SELECT median(end_ns - start_ns), median(n), median(n_gemms) FROM bursts"
    ((span, n, n_gemms),) = _rows(connection, query, kinds)
    query = f"""{_BURSTS}
        SELECT median(gap_ns) FROM (
            SELECT start_ns - max(end_ns) OVER (
                PARTITION BY phase, gpu ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS gap_ns FROM bursts)
        WHERE gap_ns > 0"""
    ((gap,),) = _rows(connection, query, kinds)
    if has_graphs:
        n = n_gemms = None
    return _known(
        gpu_compute_p50_ns=span, idle_gap_p50_ns=gap, kernels_per_batch_count=n, gemms_per_batch_count=n_gemms
    )


def _single_figures(connection: duckdb.DuckDBPyConnection, kinds: Values) -> Found:
    query = f"""{_SEEN}
        SELECT avg(end_ns - start_ns), median(end_ns - start_ns), sum(end_ns - start_ns)::DOUBLE,
            sum(end_ns - start_ns) FILTER (is_norm)::DOUBLE, avg(end_ns - start_ns) FILTER (is_norm)
        FROM seen"""
    ((mean, middle, total, norm_total, norm_mean),) = _rows(connection, query, kinds)
    share = norm_total / total if norm_total is not None and total else None
    return _known(
        kernel_mean_ns=mean,
        kernel_p50_ns=middle,
        layer_norm_share_ratio=share,
        layer_norm_mean_ns=norm_mean,
    )
