"""The figures of measure phases: load, latency, outcomes, batches, Triton's own counts, decomposition.

Each function returns a record of `phase_figures`, or None where its table is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.join.counts import Accounting
from squall.analysis.requests.by_server import by_server
from squall.analysis.requests.failures import failures_of, is_cut, is_unreached
from squall.analysis.requests.requests import Requests, in_order, model_names, together
from squall.analysis.requests.sequences import sequence_figures
from squall.analysis.requests.users import users_of_run
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.by_model import by_model
from squall.analysis.verdict.measured import QUANTILES, RunTables, answer_figures
from squall.analysis.verdict.phase_figures import (
    LoadFigures,
    PhaseFigures,
    RateFigures,
    RowFigures,
    SeriesFigures,
)
from squall.scenarios.series.burstiness import (
    LEAST_WINDOWS,
    gap_c2,
    idc_shifted,
    local_c2,
    peak_to_mean,
    safe_load,
)
from squall.scenarios.units import NS_PER_S

_SAFE_WINDOWS_NS = (60 * NS_PER_S, 10 * NS_PER_S, NS_PER_S)


def phase_figures(
    tables: RunTables,
    spans: Sequence[RunPhase],
    account: Accounting | None = None,
    of_models: Mapping[str, Accounting | None] = MappingProxyType({}),
) -> PhaseFigures:
    """All figures over the requests of the phases `spans`; `users` only of a closed loop.

    `account`: where their time went, from `squall.analysis.report.accounting.accounting`; `of_models`: that of the
    requests of each of several models.
    """
    names = [span.name for span in spans]
    own = tables.in_phases(names)
    measured = own.requests
    users = (
        None
        if measured.is_open
        else users_of_run(tables.requests, spans, tables.manifest, tables.locust_samples)
    )
    return PhaseFigures(
        **answer_figures(own, spans, account),
        phases=tuple(names),
        duration_ns=sum(span.end_ns - span.start_ns for span in spans),
        load=load_figures(measured, spans),
        users=users.figures() if users else None,
        failures=failures_of(measured, tables.manifest.scenario),
        servers=by_server(tables.requests, tables.undisturbed, names, tables.manifest),
        by_model=by_model(model_names(tables.requests, tables.manifest), own, spans, of_models),
        sequences=sequence_figures(tables.sequences, spans, QUANTILES),
        loaded_ns=sum(_loaded_ns(measured, span) for span in spans) if measured.is_open else None,
    )


def _loaded_ns(measured: Requests, span: RunPhase) -> int:
    """The length of the phase, or where its last arrivals were never sent, up to the last one that was."""
    own = measured.in_phases([span.name])
    is_known = own.is_sent | is_unreached(own) | is_cut(own)
    if not len(own) or is_known[-1]:
        return span.end_ns - span.start_ns
    tried = np.flatnonzero(is_known)
    return int(own.scheduled_ns[tried[-1]]) - span.start_ns if len(tried) else 0


def load_figures(measured: Requests, spans: Sequence[RunPhase]) -> LoadFigures:
    """Intended against delivered load. Burstiness is of one phase: left out over several."""
    return LoadFigures(
        intended=_series_figures(measured.scheduled_ns, spans) if measured.is_open else None,
        delivered=_series_figures(measured.sent_ns[together(measured.is_sent)], spans),
        rows=RowFigures(
            mean_count=float(measured.rows.mean()) if len(measured) else None,
            max_count=int(measured.rows.max(initial=0)),
        ),
    )


def _series_figures(times_ns: Int64s, spans: Sequence[RunPhase]) -> SeriesFigures | RateFigures:
    """Counts and burstiness of the instants that lie in the spans themselves."""
    ordered = in_order(times_ns)
    if len(spans) == 1:
        return series_figures(ordered, spans[0].start_ns, spans[0].end_ns)
    n = sum(len(_within(ordered, span.start_ns, span.end_ns)) for span in spans)
    seconds = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    return RateFigures(n, n / seconds if seconds else None)


def series_figures(times_ns: Int64s, start_ns: int, end_ns: int) -> SeriesFigures:
    """Count, rate and burstiness of the sorted instants that lie in [start_ns, end_ns), which is not empty."""
    times = _within(times_ns, start_ns, end_ns)
    safe_ns = next((w for w in _SAFE_WINDOWS_NS if (end_ns - start_ns) // w >= LEAST_WINDOWS), None)

    def idc(window_ns: int) -> float | None:
        return idc_shifted(times, window_ns, start_ns, end_ns)

    def peak(window_ns: int) -> float | None:
        is_carried = (end_ns - start_ns) // window_ns >= LEAST_WINDOWS
        return peak_to_mean(times, window_ns, start_ns, end_ns) if is_carried else None

    return SeriesFigures(
        n=len(times),
        rate_hz=len(times) * NS_PER_S / (end_ns - start_ns),
        gap_c2_ratio=gap_c2(times),
        local_c2_ratio=local_c2(times, start_ns, end_ns),
        idc_100ms_ratio=idc(NS_PER_S // 10),
        idc_1s_ratio=idc(NS_PER_S),
        idc_10s_ratio=idc(10 * NS_PER_S),
        idc_100s_ratio=idc(100 * NS_PER_S),
        peak_to_mean_60s_ratio=peak(60 * NS_PER_S),
        peak_to_mean_10s_ratio=peak(10 * NS_PER_S),
        peak_to_mean_1s_ratio=peak(NS_PER_S),
        safe_load_ratio=safe_load(times, start_ns, end_ns, safe_ns) if safe_ns else None,
        safe_load_window_ns=safe_ns,
    )


def _within(times_ns: Int64s, start_ns: int, end_ns: int) -> Int64s:
    """Those of the sorted instants that lie in [start_ns, end_ns), without a copy."""
    first, last = np.searchsorted(times_ns, (start_ns, end_ns))
    return times_ns[first:last]
