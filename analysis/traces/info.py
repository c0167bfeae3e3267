"""Figures of a series of arrivals: rate, bursts, memory, tails, and what they do to a queue.

Definitions stand where the estimators are, in `squall.scenarios.series.burstiness`,
`squall.scenarios.series.correlation` and `squall.scenarios.series.logging_tick`. The span runs from the first arrival
to the last. A figure is None where the series does not carry it. Beside the series a description holds at most two
more arrays of its length and some pieces of 2**20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.statistics.bootstrap import BLOCK_NS, shifted_band
from squall.analysis.traces.notes import grid_note, series_notes, size_notes
from squall.scenarios.errors import AnalysisError
from squall.scenarios.series.burstiness import (
    LEAST_WINDOWS,
    PEAK_WINDOW_NS,
    ROUGH_WINDOWS,
    busiest_window,
    cap_of,
    gap_c2,
    gd1_wait_p99,
    hill,
    idc_shifted,
    largest,
    local_c2s,
    local_window_ns,
    window_counts,
)
from squall.scenarios.series.correlation import (
    autocorrelation,
    gap_rank_correlation,
    hurst_haar,
    hurst_variance_time,
)
from squall.scenarios.series.logging_tick import Grid, find_grid, spread_in_ticks
from squall.scenarios.units import NS_PER_S

Figures = dict[str, Any]
"""As JSON has them."""
DISPERSION_WINDOWS_NS = tuple(NS_PER_S * 10**power // 100 for power in range(6))
PEAK_WINDOWS_NS = (NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S)
COUNT_LAGS = (1, 10, 60)
LOAD_RATIOS = (0.5, 0.8)
TAIL_RATIOS = (0.05, 0.01)
SPREAD_SEED = 1
TOP_SESSIONS = 10
_MOST_COUNTS = 2**24
_MOST_BLOCKS = 2**14
"""Of a bootstrap, 57 days in blocks of 300 s; those of a longer trace are longer, so that memory has a bound."""
_PIECE = 2**20


def trace_summary(
    stamp_ns: Int64s,
    sizes: Mapping[str, Int64s] | None = None,
    session: Int64s | None = None,
    tick_ns: float | None = None,
) -> dict[str, Any]:
    """Figures, as JSON has them, of the stamps in order, of the sizes (-1: empty) and of the sessions beside them.

    `spread` has those of the arrivals spread inside their ticks, where the grid is coarse. `tick_ns` states the logging
    tick where `find_grid` must not guess it. Raises AnalysisError below two arrivals and for stamps out of order.
    """
    _check(stamp_ns, sizes or {}, session)
    grid = find_grid(stamp_ns) if tick_ns is None else _stated_grid(stamp_ns, tick_ns)
    as_is = describe_series(stamp_ns, grid.tick_ns)
    spread = None
    if grid.tick_ns is not None:
        spread = describe_series(spread_in_ticks(stamp_ns, grid.tick_ns, SPREAD_SEED))
    sized = {name: describe_sizes(values) for name, values in (sizes or {}).items()}
    figures = as_is if spread is None else spread
    notes = [*grid_note(grid), *series_notes(figures)]
    notes += [note for name, one in sized.items() for note in size_notes(name, one)]
    return {
        "n": int(stamp_ns.size),
        "first_ns": int(stamp_ns[0]),
        "last_ns": int(stamp_ns[-1]),
        "stamps": asdict(grid),
        "as_is": as_is,
        "spread": spread,
        "spread_seed": SPREAD_SEED,
        "sizes": sized,
        "sessions": None if session is None else describe_sessions(session),
        "notes": notes,
    }


def describe_series(times_ns: Int64s, tick_ns: float | None = None) -> Figures:
    """Figures of two or more sorted instants; `tick_ns` where these lie on a coarse grid.

    On a grid gaps have few values: their tail and their ranks would be the grid's, and are left out.
    """
    start_ns, end_ns = int(times_ns[0]), int(times_ns[-1])
    span_ns = end_ns - start_ns
    local = local_c2s(times_ns, start_ns, end_ns) if span_ns else np.zeros(0)
    unit_ns = _count_unit_ns(span_ns, tick_ns)
    counts = window_counts(times_ns, unit_ns, start_ns, end_ns)
    peaks = _peaks(times_ns, start_ns, end_ns)
    return {
        "first_ns": start_ns,
        "span_ns": span_ns,
        "rate_hz": times_ns.size * NS_PER_S / span_ns if span_ns else None,
        "gap_c2_ratio": gap_c2(times_ns),
        "local_c2_ratio": float(np.median(local)) if local.size else None,
        "local_window_ns": local_window_ns(span_ns),
        "n_local_windows": int(local.size),
        "peaks": peaks,
        "safe_load_ratio": next(
            (1 / p["peak_to_mean_ratio"] for p in peaks if p["window_ns"] == PEAK_WINDOW_NS), None
        ),
        "dispersion": [_dispersion(times_ns, w, start_ns, end_ns) for w in DISPERSION_WINDOWS_NS],
        "gap_autocorrelation": autocorrelation(np.diff(times_ns)),
        "gap_rank_correlation": gap_rank_correlation(times_ns) if tick_ns is None else None,
        "count_unit_ns": unit_ns,
        "count_autocorrelation": {str(lag): autocorrelation(counts, lag) for lag in COUNT_LAGS},
        "gap_tails": _tails(np.diff(times_ns)) if tick_ns is None else [],
        "hurst_variance_time": hurst_variance_time(counts),
        "hurst_variance_time_from_10": hurst_variance_time(counts, 10),
        "hurst_haar": hurst_haar(counts),
        "gd1_wait_p99": {str(load): gd1_wait_p99(times_ns, load) for load in LOAD_RATIOS},
    }


def describe_sizes(values: Int64s) -> Figures:
    """Figures of sizes of 0 or more; negative ones count as empty."""
    kept = values[values >= 0] if values.size and values.min() < 0 else values
    n_empty = int(values.size - kept.size)
    if not kept.size:
        nothing = dict.fromkeys(("mean", "c2_ratio", "p99", "max", "cap"))
        return {"n": 0, "n_empty": n_empty, **nothing, "tails": []}
    mean = float(kept.mean())
    pieces = (kept[begin : begin + _PIECE] for begin in range(0, kept.size, _PIECE))
    cap = cap_of(kept)
    squares = sum(float(np.square(piece - mean).sum()) for piece in pieces)
    return {
        "n": int(kept.size),
        "n_empty": n_empty,
        "mean": mean,
        "c2_ratio": squares / (kept.size - 1) / mean**2 if kept.size > 1 and mean else None,
        "p99": float(largest(kept, kept.size - math.ceil(0.99 * kept.size) + 1)[0]),
        "max": float(kept.max()),
        "tails": _tails(kept, is_cut=cap is not None),
        "cap": cap,
    }


def describe_sessions(session: Int64s) -> Figures:
    """Number of sessions, and the share of the rows that the ten largest hold."""
    ordered = np.sort(session)
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    counts = np.diff(firsts, append=ordered.size)
    top = min(TOP_SESSIONS, counts.size)
    top_ratio = float(largest(counts, top).sum() / ordered.size)
    return {"n": int(counts.size), "top_count": top, "top_ratio": top_ratio}


def _check(stamp_ns: Int64s, sizes: Mapping[str, Int64s], session: Int64s | None) -> None:
    if stamp_ns.size < 2:
        raise AnalysisError(f"the trace has {stamp_ns.size} arrivals: figures need 2 or more")
    for begin in range(0, stamp_ns.size, _PIECE):
        piece = stamp_ns[begin : begin + _PIECE + 1]
        back = np.flatnonzero(piece[1:] < piece[:-1])
        if back.size:
            row = begin + int(back[0]) + 1
            raise AnalysisError(f"arrival {row} (from 0) is before arrival {row - 1}: sort the trace")
    columns = {**sizes, **({} if session is None else {"session": session})}
    for name, values in columns.items():
        if values.size != stamp_ns.size:
            raise AnalysisError(f"column {name} has {values.size} rows for {stamp_ns.size} arrivals")


def _stated_grid(stamp_ns: Int64s, tick_ns: float) -> Grid:
    found = find_grid(stamp_ns)
    n_ticks = int(stamp_ns[-1] - stamp_ns[0]) / tick_ns + 1
    is_jittered = bool(found.resolution_ns % tick_ns)
    return Grid(found.resolution_ns, found.equal_ratio, tick_ns, is_jittered, stamp_ns.size / n_ticks)


def _peaks(times_ns: Int64s, start_ns: int, end_ns: int) -> list[Figures]:
    peaks: list[Figures] = []
    for window_ns in PEAK_WINDOWS_NS:
        found = busiest_window(times_ns, window_ns, start_ns, end_ns)
        n_windows = (end_ns - start_ns) // window_ns
        if found is not None and n_windows >= 2:
            n_inside = int(np.searchsorted(times_ns, start_ns + n_windows * window_ns))
            begin_ns, count = found
            ratio = count * n_windows / n_inside
            peaks.append(
                {"window_ns": window_ns, "start_ns": begin_ns, "count": count, "peak_to_mean_ratio": ratio}
            )
    return peaks


def _dispersion(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> Figures:
    n_windows = (end_ns - start_ns) // window_ns
    block_ns = max(BLOCK_NS, (end_ns - start_ns) // _MOST_BLOCKS)
    low, high = shifted_band(times_ns, window_ns, start_ns, end_ns, block_ns) or (None, None)
    return {
        "window_ns": window_ns,
        "idc_ratio": idc_shifted(times_ns, window_ns, start_ns, end_ns, ROUGH_WINDOWS),
        "n_windows": n_windows,
        "is_rough": n_windows < LEAST_WINDOWS,
        "low_ratio": low,
        "high_ratio": high,
    }


def _count_unit_ns(span_ns: int, tick_ns: float | None) -> int:
    """1 s, or the tick if that is longer; ten times more until the counts of the span fit."""
    unit_ns = max(NS_PER_S, round(tick_ns or 0))
    while span_ns // unit_ns > _MOST_COUNTS:
        unit_ns *= 10
    return unit_ns


def _tails(values: Int64s, is_cut: bool = False) -> list[Figures]:
    """Hill's index of the largest values with its standard error; none of values that were cut off."""
    none = {"index": None, "stderr": None, "n_tail": 0}
    found = {share: None if is_cut else hill(values, share) for share in TAIL_RATIOS}
    return [{"share_ratio": share, **(asdict(one) if one else none)} for share, one in found.items()]
