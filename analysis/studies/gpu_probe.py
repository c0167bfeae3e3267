"""Probes of the GPU alone: figures of a probe's run, from its tables and `probe.json`, and whether they can be trusted.

No GPU and no torch. docs/probes.md has what each check means.

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
from squall.analysis.storage.sealed import CheckResult, Verdict
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.published.probe import BASE, STAGES, WHOLE

FILE = "probe.json"
Facts = Mapping[str, Any]
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
    at_low, at_high = math.log(before[1] / before[0]), math.log(behind[1] / behind[0])
    share = -at_low / (at_high - at_low)
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


MOST_SPREAD = 0.25
"""Of the medians of the repeats, from the least to the most, by the middle one: published gains are of about 0.3, and
a spread as large as those would leave nothing of them."""
MOST_QUEUED = 0.05
"""Share of the time in which the probe could run that it waited for a CPU: half of the smallest share that matters."""
MOST_BUSY = 0.05
"""nvidia-smi's utilisation before the start: an idle GPU tells 0, and one tick of a monitor a few hundredths."""
HELD_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Bits of NVML's clocks event reasons: hardware slowdown, software and hardware thermal, hardware power brake. The
software power cap (0x04) belongs to the card: under large products it is what the card can do."""
_SPREADS = """
    -- largest less smallest median of the repeats over their median; of one repeat, nothing
    WITH medians AS (
        SELECT {name}::VARCHAR AS name, median({span}) AS span_ns
        FROM measured WHERE part = 'active' AND {counts} GROUP BY name, repeat)
    SELECT name, (max(span_ns) - min(span_ns)) / median(span_ns) AS spread_ratio
    FROM medians GROUP BY name HAVING count(*) > 1"""
_SPANS = {
    "operator": {"name": "size", "span": "synced_ns", "counts": "under = 'nothing'"},
    "pipeline": {"name": "variant", "span": "span_ns", "counts": "stage = 'total'"},
}
"""Of an operator, the time until the device is done: what the host alone takes for a call says nothing where the device
takes longer."""


def judge_probe(
    kind: str, device: str, rows: pa.Table, facts: Facts, gpu_samples: Sequence[Facts], before: Facts
) -> Verdict:
    """`rows`: table `probe_calls` or `probe_stages`. `gpu_samples`: rows of that table during the probe. `before`:
    `util`, the busiest of the probe's GPU as a ratio, and `n_processes` on it, each None where NVML does not tell."""
    spreads = rows_by(rows, _SPREADS.format(**_SPANS[kind]), "name")
    value_of = {name: float(figures["spread_ratio"]) for name, figures in spreads.items()}
    worst = max(value_of, key=lambda name: value_of[name], default="")
    spread = value_of.get(worst)
    checks = [
        _check(
            "repeats alike", spread, MOST_SPREAD, "ratio",
            "largest spread of the medians of the repeats, by the middle one",
            f"the repeats differ: of {worst!r} their medians spread over {spread or 0:.0%} of the middle one, allowed "
            f"{MOST_SPREAD:.0%}: other work on the host or the GPU, or a clock that changes",
            "there is one repeat",
        )
    ]  # fmt: skip
    share = facts["host_share"]  # of the thread that makes the calls, while nothing else was recorded
    queued_ns, cpu_ns = share.get("queued_ns"), share.get("cpu_ns")
    is_known = queued_ns is not None and cpu_ns is not None and queued_ns + cpu_ns > 0
    queued = queued_ns / (queued_ns + cpu_ns) if is_known else None
    checks.append(
        _check(
            "CPU of the probe", queued, MOST_QUEUED, "ratio",
            "share of its runnable time that the probe waited for a CPU",
            f"other processes took the probe's CPU: it waited {queued or 0:.0%} of its time for one (put aside "
            f"{share.get('n_put_aside', 0)} times), allowed {MOST_QUEUED:.0%}",
            "the kernel does not tell (/proc/thread-self/schedstat)",
        )
    )  # fmt: skip
    if device == "gpu":
        util, n_processes = before.get("util"), before.get("n_processes")
        told = [one["throttle_reasons"] for one in gpu_samples if one.get("throttle_reasons") is not None]
        n_held = sum(1 for reasons in told if reasons & HELD_DOWN)
        checks += [
            _check(
                "GPU idle before", util, MOST_BUSY, "ratio",
                "nvidia-smi's utilisation of the GPU before the probe began",
                f"the GPU was busy before the probe began: utilisation {util or 0:.0%}", "NVML does not tell",
            ),
            _check(
                "GPU without others", n_processes, 0, "count",
                "processes with a context on the GPU before the probe began",
                f"{n_processes} other processes had the GPU before the probe began", "NVML does not tell",
            ),
            _check(
                "GPU clocks", n_held if told else None, 0, "count",
                "samples in which heat or a slowdown by hardware held the clocks of the GPU down",
                f"the clocks of the GPU were held down by heat or by hardware in {n_held} of {len(told)} samples",
                "NVML gave no sample",
            ),
        ]  # fmt: skip
    if kind == "pipeline":
        differing = "; ".join(f"{name}: {why}" for name, why in facts["differing"].items())
        checks.append(
            _check(
                "outputs alike", len(facts["differing"]), 0, "count",
                "variants whose outputs are not those of the modules alone",
                "the outputs differ from those of the modules alone, and the figures of such a variant are left out:"
                f" {differing}", "",
            )
        )  # fmt: skip
    reasons = tuple(one.reason for one in checks if one.reason)
    return Verdict(status="INVALID" if reasons else "VALID", reasons=reasons, checks=tuple(checks))


def _check(
    name: str, value: float | None, limit: float, unit: str, meaning: str, reason: str, why_not: str
) -> CheckResult:
    """`reason` counts where the value is above the limit; `why_not` where there is no value."""
    is_met = value is None or value <= limit
    return CheckResult(
        name=name, value=value, limit=limit, unit=unit, is_met=is_met, meaning=meaning,
        reason="" if is_met else reason, not_assessed=why_not if value is None else "",
    )  # fmt: skip
