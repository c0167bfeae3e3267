"""Figures of a probe's run, from its tables and `probe.json`: no GPU and no torch.

Medians are of the active calls. Of an operator, the host's time of a call is that with nothing recorded beside it, and
what the kernels take is known from the profiler alone; `kernel_of_cpu_ratio` compares with the time in aten operators
under the profiler, as its own table does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.query import over, rows
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.published.probe import BASE, STAGES, WHOLE

FILE = "probe.json"
RowFigures = dict[str, float | str]

_OF_SIZES = """
    WITH marked AS (
        SELECT *, part = 'first' AS is_first, part = 'active' AND under = 'nothing' AS is_warm,
            part = 'active' AND under = 'profiler' AS is_profiled
        FROM measured)
    , medians AS (
        SELECT size,
            median(host_ns) FILTER (is_first) AS first_call_ns, median(synced_ns) FILTER (is_first) AS first_synced_ns,
            median(host_ns) FILTER (is_warm) AS warm_call_ns, median(synced_ns) FILTER (is_warm) AS warm_synced_ns,
            median(event_ns) FILTER (is_warm) AS call_event_ns,
            median(host_ns) FILTER (is_profiled) AS profiled_call_ns,
            median(op_cpu_ns) FILTER (is_profiled) AS op_cpu_ns,
            median(kernel_ns) FILTER (is_profiled) AS call_kernel_ns,
            median(n_kernels) FILTER (is_profiled) AS call_kernels_count
        FROM marked GROUP BY size)
    SELECT *, first_call_ns / nullif(warm_call_ns, 0) AS first_of_warm_ratio,
        call_kernel_ns / nullif(op_cpu_ns, 0) AS kernel_of_cpu_ratio,
        call_kernel_ns / nullif(first_call_ns, 0) AS kernel_of_first_ratio,
        -- 2 n^3 + n^2 operations of a matmul_add; 1,000 a ns are 10^12 a second
        (2 * size::DOUBLE ^ 3 + size::DOUBLE ^ 2) / nullif(call_kernel_ns, 0) / 1000 AS compute_tflops,
        CASE WHEN call_kernel_ns > warm_call_ns THEN 'compute' WHEN call_kernel_ns <= warm_call_ns THEN 'overhead' END
            AS bound
    FROM medians"""
_OF_VARIANTS = f"""
    WITH active AS (SELECT * FROM measured WHERE part = 'active')
    -- call by call what its stages on the device took together
    , on_device AS (
        SELECT variant, repeat, call, sum(span_ns)::BIGINT AS span_ns
        FROM active WHERE stage IN ('h2d', 'preprocess', 'inference', 'fused', 'd2h') GROUP BY ALL)
    , devices AS (SELECT variant, median(span_ns) AS device_ns FROM on_device GROUP BY variant)
    , variants AS (
        SELECT variant,
            {", ".join(f"median(span_ns) FILTER (stage = '{name}') AS stage_{name}_ns" for name in STAGES)},
            median(span_ns) FILTER (stage = 'total') AS pipeline_ns,
            -- in calls, one behind the other: batches a second
            count(*) FILTER (stage = 'total') * 1e9 / sum(span_ns) FILTER (stage = 'total') AS throughput_hz
        FROM active GROUP BY variant)
    SELECT *, throughput_hz / max(throughput_hz) FILTER (WHERE variant = $base) OVER () - 1 AS gain_ratio
    FROM variants LEFT JOIN devices USING (variant)"""


def probe_figures(run_dir: Path) -> dict[str, RowFigures]:
    """Row name to figures, named as in `scenarios/published/figures.py`: a row a size and `all sizes`, or a variant.

    Raises AnalysisError for a run that is not a sealed one of a probe, or that was broken off.
    """
    store = RunStore.open(run_dir)
    probe = store.manifest.probe
    if probe is None:
        raise AnalysisError(f"{store.where} is not the run of a probe")
    if not store.is_sealed or store.manifest.status not in ("VALID", "INVALID"):
        raise AnalysisError(f"{store.where} was broken off, and has no figures")
    require_intact(store)
    facts = json_of(store.read_text(FILE))["facts"]
    if probe["kind"] == "operator":
        calls = store.read("probe_calls") if store.has("probe_calls") else None
        return operator_figures(calls, probe["sizes"], facts["left_out"], facts["no_kernels"])
    stages = store.read("probe_stages") if store.has("probe_stages") else None
    return pipeline_figures(stages, facts["left_out"])


def operator_figures(
    calls: pa.Table | None, sizes: Sequence[int], left_out: Mapping[str, str], no_kernels: str
) -> dict[str, RowFigures]:
    """Of table `probe_calls`. `left_out`: why a size has no calls; `no_kernels`: why no kernel was recorded, or ""."""
    known = {} if calls is None else rows_by(calls, _OF_SIZES, "size")
    found: dict[str, RowFigures] = {}
    spans: list[tuple[int, float, float]] = []  # size, host and kernels
    for size in sizes:
        name = str(size)
        if name in left_out or calls is None:
            found[name] = {"not_measured": left_out.get(name, "the run has no calls")}
            continue
        found[name] = known.get(size, {})
        host, kernels = found[name].get("warm_call_ns"), found[name].get("call_kernel_ns")
        if isinstance(host, float) and isinstance(kernels, float):
            spans.append((size, host, kernels))
    found[WHOLE] = _crossover(spans) if spans else {"not_measured": no_kernels or "no size was measured"}
    return found


def _crossover(spans: Sequence[tuple[int, float, float]]) -> RowFigures:
    """The smallest size at which the kernels take longer than the host's call.

    log(kernels / host) is taken for straight in log(size) between the two sizes around its zero.
    """
    above = [index for index, (_, host, kernels) in enumerate(spans) if kernels > host]
    if not above:
        return {"bound": f"overhead at every size up to {spans[-1][0]}"}
    if above[0] == 0:
        return {"bound": f"compute at every size from {spans[0][0]}"}
    (low, *before), (high, *behind) = spans[above[0] - 1], spans[above[0]]
    under, over = math.log(before[1] / before[0]), math.log(behind[1] / behind[0])
    share = -under / (over - under)
    return {
        "crossover_size_count": math.exp(math.log(low) + share * (math.log(high) - math.log(low))),
        "bound": "overhead below the crossover, compute above it",
    }


def pipeline_figures(stages: pa.Table | None, left_out: Mapping[str, str]) -> dict[str, RowFigures]:
    """Of table `probe_stages`, by variant in the order of the rows."""
    known: dict[Any, RowFigures] = {}
    if stages is not None:
        variants = stages["variant"].cast(pa.string())
        stages = stages.filter(pc.invert(pc.is_in(variants, pa.array([*left_out], pa.string()))))
        figures = rows_by(stages, _OF_VARIANTS, "variant", base=BASE.name)
        known = {name: figures[name] for name in pc.unique(variants).to_pylist() if name in figures}
    return known | {name: {"not_measured": why} for name, why in left_out.items()}


def rows_by(measured: pa.Table, query: str, key: str, **values: object) -> dict[Any, RowFigures]:
    """What the query makes of table `measured`, by the value of column `key`; without what is null."""
    with over({"measured": measured}) as connection:
        found = rows(connection, query, values)
    return {row.pop(key): {name: value for name, value in row.items() if value is not None} for row in found}
