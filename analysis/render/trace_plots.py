"""The plots of a series of arrivals: rate, gaps, dispersion, sizes. Data of the axes' units, no drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.render.plots_data import Plot, Series, bin_ns_for
from squall.analysis.wording import duration_text
from squall.scenarios.series.burstiness import largest, window_counts
from squall.scenarios.series.logging_tick import spread_in_ticks
from squall.scenarios.units import NS_PER_S

ENVELOPE_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400)
BINS_PER_ENVELOPE = 6
N_THRESHOLDS = 300
N_TAIL_ROWS = 200
BODY_RATIO = 0.995
_PIECE = 2**20

Pieces = Callable[[], Iterator[NDArray[np.float64]]]


@dataclass(frozen=True)
class Styled(Series):
    """A curve that is not drawn as the rest: `style` is faint, solid, points or reference (dashed, grey)."""

    style: str


@dataclass(frozen=True)
class Band(Series):
    """The area between `low` and `y`, pale, in the colour of the series after it."""

    low: list[float | None]


def trace_plots(
    stamp_ns: Int64s, summary: Mapping[str, Any], sizes: Mapping[str, Int64s] | None = None
) -> list[Plot]:
    """Plots of the series that `trace_info.trace_summary` described, in the order of a page.

    On a coarse logging grid rate and gaps are those of the arrivals spread inside their ticks, as in the summary.
    """
    tick_ns = summary["stamps"]["tick_ns"]
    times_ns, note = stamp_ns, ""
    if tick_ns is not None:
        times_ns = spread_in_ticks(stamp_ns, tick_ns, summary["spread_seed"])
        note = f"Arrivals spread inside their ticks of {duration_text(tick_ns)}. "
    plots = [rate_plot(times_ns, note), gap_plot(times_ns, note), dispersion_plot(summary)]
    return plots + [size_plot(name, values) for name, values in (sizes or {}).items()]


def rate_plot(times_ns: Int64s, note: str = "") -> Plot:
    """Arrivals per second in bins, and their mean over longer ones: the envelope."""
    span_ns = int(times_ns[-1] - times_ns[0])
    bin_ns = bin_ns_for(span_ns)
    envelope_ns = (
        next((s for s in ENVELOPE_S if s * NS_PER_S >= BINS_PER_ENVELOPE * bin_ns), 86_400) * NS_PER_S
    )
    unit, unit_ns = _time_unit(span_ns)
    series = (
        Styled(f"mean of {_width_text(bin_ns)}", *_rates(times_ns, bin_ns, unit_ns), style="faint"),
        Styled(
            f"envelope: mean of {_width_text(envelope_ns)}",
            *_rates(times_ns, envelope_ns, unit_ns),
            style="solid",
        ),
    )
    head = ("Arrivals over time", f"time from the first arrival, {unit}", "arrivals per second", "step")
    if any(not one.x for one in series):
        return Plot(*head, absent=f"the trace is shorter than {_width_text(envelope_ns)}")
    return Plot(*head, series, f"{note}Whole bins only.")


def gap_plot(times_ns: Int64s, note: str = "") -> Plot:
    """Share of gaps longer than x, and the exponential law of the same mean."""
    head = ("Gaps between arrivals", "gap, s", "share of gaps longer than that", "ccdf")
    mean_ns = int(times_ns[-1] - times_ns[0]) / (times_ns.size - 1)
    x_ns, share = exceedance(lambda: _float_pieces(np.diff(times_ns)), times_ns.size - 1)
    if not x_ns.size:
        return Plot(*head, absent="all gaps are equal or 0")
    law = np.geomspace(x_ns[0], max(x_ns[-1], mean_ns), N_THRESHOLDS)
    law = law[law < mean_ns * np.log(2.0 * times_ns.size)]  # as far as half a gap is expected
    series = (
        Series("trace", (x_ns / NS_PER_S).tolist(), share.tolist()),
        Styled(
            "exponential, same mean", (law / NS_PER_S).tolist(), np.exp(-law / mean_ns).tolist(), "reference"
        ),
    )
    return Plot(*head, series, f"{note}Above the dashed line: more long gaps than Poisson has.")


def size_plot(name: str, values: Int64s) -> Plot:
    """Share of rows whose size is above x; empty ones left out."""
    kept = values[values >= 0] if values.size and values.min() < 0 else values
    head = (f"Sizes: {name}", name, "share of rows larger than that", "ccdf")
    x, share = exceedance(lambda: _float_pieces(kept), kept.size)
    if not x.size:
        return Plot(*head, absent="all sizes are equal or 0" if kept.size else "no row has this size")
    note = "A straight line on these axes is a power law: a heavy tail."
    return Plot(*head, (Series(name, x.tolist(), share.tolist()),), note)


def dispersion_plot(summary: Mapping[str, Any]) -> Plot:
    """Index of dispersion against the window, with its bootstrap band and Poisson's 1."""
    head = ("Dispersion of counts", "window, s", "variance over mean of counts", "loglog")
    main = summary["spread"] or summary["as_is"]
    curve = [one for one in main["dispersion"] if one["idc_ratio"]]
    if not curve:
        return Plot(*head, absent="the trace is too short: no window fits ten times")
    series: list[Series] = []
    banded = [one for one in curve if one["low_ratio"]]
    if banded:
        low, high = ([one[end] for one in banded] for end in ("low_ratio", "high_ratio"))
        series.append(Band("90 % block bootstrap", _windows_s(banded), high, low))
    name = "trace" if summary["spread"] is None else "spread inside ticks"
    series.append(Styled(name, _windows_s(curve), [one["idc_ratio"] for one in curve], "points"))
    if summary["spread"] is not None:
        logged = [one for one in summary["as_is"]["dispersion"] if one["idc_ratio"]]
        series.append(
            Styled("stamps as logged", _windows_s(logged), [one["idc_ratio"] for one in logged], "points")
        )
    ends = [curve[0]["window_ns"] / NS_PER_S, curve[-1]["window_ns"] / NS_PER_S]
    series.append(Styled("Poisson: 1", ends, [1.0, 1.0], "reference"))
    rough = [duration_text(one["window_ns"]) for one in curve if one["is_rough"]]
    note = "A curve that climbs is a rate that drifts or bursts that last."
    return Plot(
        *head, tuple(series), note + (f" Rough at {', '.join(rough)}: under ten windows." if rough else "")
    )


def exceedance(pieces: Pieces, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(x, share of values above x), exact, at log-spaced x and at the largest values; x and share above 0.

    `pieces` gives the n values twice over, a piece at a time. The curve begins where the share is 99.5 %:
    below it a logarithmic axis would show decades of nothing. Empty where fewer than two values differ.
    """
    least, most, tail = np.inf, 0.0, np.zeros(0)
    for piece in pieces():
        above = piece[piece > 0]
        if above.size:
            least, most = min(least, float(above.min())), max(most, float(above.max()))
            tail = np.concatenate((tail, largest(above, min(N_TAIL_ROWS, above.size))))
            tail = largest(tail, min(N_TAIL_ROWS, tail.size))
    if most <= 0:
        return np.zeros(0), np.zeros(0)
    x = np.unique(np.concatenate((np.geomspace(least, most, N_THRESHOLDS), tail)))
    hits = np.zeros(x.size + 1, dtype=np.int64)
    for piece in pieces():
        hits += np.bincount(np.searchsorted(x, piece), minlength=x.size + 1)
    share = (n - np.cumsum(hits[:-1])) / n
    begin = max(0, int(np.count_nonzero(share > BODY_RATIO)) - 1)
    kept = (share > 0) & (np.arange(x.size) >= begin)
    return x[kept], share[kept]


def _rates(stamp_ns: Int64s, bin_ns: int, unit_ns: int) -> tuple[list[float], list[float | None]]:
    """Bin starts in the axis' unit and arrivals per second; the last bin twice, so that a step shows it."""
    counts = window_counts(stamp_ns, bin_ns, int(stamp_ns[0]), int(stamp_ns[-1]))
    if not counts.size:
        return [], []
    edges = np.arange(counts.size + 1) * (bin_ns / unit_ns)
    rates = (counts * (NS_PER_S / bin_ns)).tolist()
    return edges.tolist(), [*rates, rates[-1]]


def _windows_s(rows: list[Mapping[str, Any]]) -> list[float]:
    return [one["window_ns"] / NS_PER_S for one in rows]


def _float_pieces(values: Int64s) -> Iterator[NDArray[np.float64]]:
    for begin in range(0, values.size, _PIECE):
        yield values[begin : begin + _PIECE].astype(np.float64)


def _time_unit(span_ns: int) -> tuple[str, int]:
    """Unit of a time axis that leaves numbers of two digits or so."""
    if span_ns < 300 * NS_PER_S:
        return "s", NS_PER_S
    if span_ns < 3 * 3_600 * NS_PER_S:
        return "min", 60 * NS_PER_S
    return ("h", 3_600 * NS_PER_S) if span_ns < 4 * 86_400 * NS_PER_S else ("days", 86_400 * NS_PER_S)


def _width_text(width_ns: int) -> str:
    """A bin's width in whole units."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if width_ns % (size * NS_PER_S) == 0 and width_ns >= 2 * size * NS_PER_S:
            return f"{width_ns // (size * NS_PER_S)} {unit}"
    return f"{width_ns / NS_PER_S:g} s"
