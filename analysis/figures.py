"""The figures of measure phases: load, latency, outcomes, batches, Triton's own counts, decomposition.

Each function returns a JSON-able mapping with unit suffixes, or None where its table is absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.closed_loop import user_time
from analysis.failures import failures_of
from analysis.join_counts import JoinCounts, join_figures
from analysis.lag_parts import lag_parts
from analysis.latency import nearest_rank, quantiles
from analysis.limits import LIMITS
from analysis.requests import Bools, Int64s, Labels, Requests, in_order, together
from analysis.stretches import run_lengths
from analysis.timeline import RunPhase
from scenarios.burstiness import LEAST_WINDOWS, gap_c2, idc_shifted, local_c2, peak_to_mean, safe_load
from scenarios.units import NS_PER_S

QUANTILES = (0.50, 0.90, 0.95, 0.99, 0.999)
BATCH_COLUMNS = ["phase", "start_ns", "end_ns", "rows", "n_requests", "n_foreign"]
"""Columns of `batches` that figures and identities read: not the ids of its requests."""
MOST_DETAILS = 8
"""Different words for failures that a summary lists; the table holds all."""

_IDC_WINDOWS = {"100ms": NS_PER_S // 10, "1s": NS_PER_S, "10s": 10 * NS_PER_S, "100s": 100 * NS_PER_S}
_PEAK_WINDOWS = {"60s": 60 * NS_PER_S, "10s": 10 * NS_PER_S, "1s": NS_PER_S}


@dataclass(frozen=True, eq=False)
class RunTables:
    """What figures are made of. None where the table is absent; of `joined` its counts by phase.

    `batches` has at least `BATCH_COLUMNS`.
    """

    manifest: Mapping[str, Any]
    requests: Requests
    joined: Mapping[str, JoinCounts] | None
    batches: pa.Table | None
    triton_samples: pa.Table | None


def phase_figures(
    tables: RunTables, spans: Sequence[RunPhase], account: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """All figures over the requests of the phases `spans`; `users` only of a closed loop.

    `account`: where their time went, from `analysis.accounting.accounting`.
    """
    names = [span.name for span in spans]
    measured = tables.requests.in_phases(names)
    users = None if measured.is_open else user_time(tables.requests, spans, tables.manifest)
    return {
        "phases": names,
        "duration_ns": sum(span.end_ns - span.start_ns for span in spans),
        "load": load_figures(measured, spans),
        "users": users.figures() if users else None,
        "latency": latency_figures(measured),
        "failures": failures_of(measured, tables.manifest.get("scenario")).to_mapping(),
        "outcomes": outcome_figures(measured),
        "batches": batch_figures(rows_in(tables.batches, names)),
        "triton": triton_figures(rows_in(tables.triton_samples, names)),
        "join": join_figures(tables.joined, names, account),
    }


def rows_in(table: pa.Table | None, phases: Sequence[str]) -> pa.Table | None:
    """The rows of `table` in one of `phases`; None if there is no table."""
    if table is None:
        return None
    return table.filter(pa.array(Labels.from_column(table.column("phase")).is_any_of(phases)))


def load_figures(measured: Requests, spans: Sequence[RunPhase]) -> dict[str, Any]:
    """Intended against delivered load; intended is None in a closed loop. Burstiness is of one phase: left out
    over several."""
    return {
        "intended": _series_figures(measured.scheduled_ns, spans) if measured.is_open else None,
        "delivered": _series_figures(measured.sent_ns[together(measured.is_sent)], spans),
        "rows": {
            "mean_count": float(measured.rows.mean()) if len(measured) else None,
            "max_count": int(measured.rows.max(initial=0)),
        },
    }


def _series_figures(times_ns: Int64s, spans: Sequence[RunPhase]) -> dict[str, Any]:
    """Counts and burstiness of the instants that lie in the spans themselves."""
    ordered = in_order(times_ns)
    if len(spans) == 1:
        return series_figures(ordered, spans[0].start_ns, spans[0].end_ns)
    n = sum(len(_within(ordered, span.start_ns, span.end_ns)) for span in spans)
    seconds = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    return {"n": n, "rate_hz": n / seconds if seconds else None}


def series_figures(times_ns: Int64s, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Count, rate and burstiness of the sorted instants that lie in [start_ns, end_ns), which is not empty.

    None where the span holds fewer than 10 windows of a figure. `safe_load_ratio`: the load above which the busiest
    window of `safe_load_window_ns`, the longest of 60, 10 and 1 s that the span holds 10 of, brings more than a
    server can work off in it, whatever the gaps are.
    """
    times = _within(times_ns, start_ns, end_ns)
    safe_ns = next((w for w in _PEAK_WINDOWS.values() if (end_ns - start_ns) // w >= LEAST_WINDOWS), None)
    return {
        "n": len(times),
        "rate_hz": len(times) * NS_PER_S / (end_ns - start_ns),
        "gap_c2_ratio": gap_c2(times),
        "local_c2_ratio": local_c2(times, start_ns, end_ns),
        **{f"idc_{name}_ratio": idc_shifted(times, w, start_ns, end_ns) for name, w in _IDC_WINDOWS.items()},
        **{
            f"peak_to_mean_{name}_ratio": peak_to_mean(times, w, start_ns, end_ns)
            if (end_ns - start_ns) // w >= LEAST_WINDOWS
            else None
            for name, w in _PEAK_WINDOWS.items()
        },
        "safe_load_ratio": safe_load(times, start_ns, end_ns, safe_ns) if safe_ns else None,
        "safe_load_window_ns": safe_ns,
    }


def _within(times_ns: Int64s, start_ns: int, end_ns: int) -> Int64s:
    """Those of the sorted instants that lie in [start_ns, end_ns), without a copy."""
    first, last = np.searchsorted(times_ns, (start_ns, end_ns))
    return times_ns[first:last]


def latency_figures(measured: Requests) -> dict[str, Any]:
    """Response, service and lag: quantiles with intervals, mean and largest of those that ended ok.

    A request that did not end ok counts as infinitely slow in response and service, one whose record was lost too: no
    quantile is better for what nobody saw. For lag, one never sent or lost does. `lag_parts`: of each quantile of
    response time that there is, what of it is lag. A closed loop has service time alone.
    """
    parts = run_lengths(measured.phase.codes)
    is_failed = ~measured.is_ok
    service = {"service": _spread(measured.service_ns, is_failed, parts)}
    if not measured.is_open:
        return service
    return {
        "response": _spread(measured.response_ns, is_failed, parts),
        **service,
        "lag": _spread(measured.lag_ns, ~measured.is_sent, parts),
        "lag_parts": [one and one.to_mapping() for one in lag_parts(measured, QUANTILES, LIMITS)],
    }


def _spread(values_ns: Int64s, is_failed: Bools, stretches: Sequence[int]) -> dict[str, Any]:
    finite_ns = values_ns[together(~is_failed)]
    figures = {
        "n": len(values_ns),
        "n_failed": int(is_failed.sum()),
        "mean_of_finite_ns": round(float(finite_ns.mean())) if len(finite_ns) else None,
        "max_of_finite_ns": int(finite_ns.max()) if len(finite_ns) else None,
    }
    del finite_ns
    return {
        **figures,
        "quantiles": [asdict(quantile) for quantile in quantiles(values_ns, QUANTILES, is_failed, stretches)],
    }


def outcome_figures(measured: Requests) -> dict[str, Any]:
    """How many requests ended how, and the commonest words for failures."""
    is_failed = ~measured.is_ok
    outcome, detail = measured.outcome.take(is_failed), measured.detail.take(is_failed)
    n_words = max(1, len(detail.words))
    pairs, firsts, counts = np.unique(
        outcome.codes.astype(np.int64) * n_words + detail.codes, return_index=True, return_counts=True
    )
    commonest = np.lexsort((firsts, -counts))[:MOST_DETAILS]
    details = [
        {"outcome": outcome.words[pair // n_words], "detail": detail.words[pair % n_words], "n": n}
        for pair, n in zip(pairs[commonest].tolist(), counts[commonest].tolist(), strict=True)
    ]
    n_ok = int(measured.is_ok.sum())
    return {
        "n": len(measured),
        "n_ok": n_ok,
        "ok_ratio": n_ok / len(measured) if len(measured) else None,
        "counts": dict(sorted(measured.outcome.counts().items(), key=lambda item: -item[1])),
        "details": details,
    }


def batch_figures(batches: pa.Table | None) -> dict[str, Any] | None:
    """Sizes of the batches that the models themselves recorded."""
    if batches is None:
        return None
    rows = batches.column("rows").to_numpy()
    sizes, counts = np.unique(rows, return_counts=True)
    n_requests = batches.column("n_requests").to_numpy()
    compute_ns = batches.column("end_ns").to_numpy() - batches.column("start_ns").to_numpy()
    return {
        "n": len(rows),
        "rows_total_count": int(rows.sum()),
        "rows_mean_count": mean(rows),
        "rows_p50_count": rank_value(rows, 0.50),
        "rows_p95_count": rank_value(rows, 0.95),
        "rows_max_count": rank_value(rows, 1.0),
        "requests_mean_count": mean(n_requests),
        "compute_mean_ns": mean(compute_ns),
        "rows_histogram": {str(size): int(n) for size, n in zip(sizes, counts, strict=True)},
    }


def triton_figures(samples: pa.Table | None) -> dict[str, Any] | None:
    """Triton's own statistics: counts, and times as means over the requests that succeeded."""
    if samples is None:
        return None
    totals = {
        name: int(samples.column(name).to_numpy().sum())
        for name in ("request_count", "failure_count", "inference_count", "execution_count")
    }
    n = totals["request_count"]
    for name in ("queue", "compute_input", "compute_infer", "compute_output", "success"):
        total_ns = int(samples.column(f"{name}_ns").to_numpy().sum())
        totals[f"{name}_mean_ns"] = round(total_ns / n) if n else None  # type: ignore[assignment]
    sizes = samples.column("batch_sizes").combine_chunks().flatten().to_pylist()
    counts = samples.column("batch_counts").combine_chunks().flatten().to_pylist()
    histogram: Counter[int] = Counter()
    for size, count in zip(sizes, counts, strict=True):
        histogram[size] += count
    return {**totals, "batch_size_histogram": {str(size): histogram[size] for size in sorted(histogram)}}


def mean(values: npt.NDArray[Any]) -> float | None:
    """Arithmetic mean; None of none."""
    return float(values.mean()) if len(values) else None


def rank_value(values: npt.NDArray[Any], q: float) -> int | None:
    """Nearest-rank quantile of all there are (q = 1 is the largest): it describes, it estimates nothing."""
    if not len(values):
        return None
    rank = nearest_rank(q, len(values)) - 1
    return int(np.partition(values, rank)[rank])
