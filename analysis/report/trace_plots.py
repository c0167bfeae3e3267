"""The plots of a series of arrivals: rate, gaps, dispersion, sizes. Data of the axes' units, no drawing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.report.plots import Plot, Trace, band, curve
from squall.analysis.report.run_plots import bin_ns_for, ccdf
from squall.analysis.wording import duration_text
from squall.scenarios.series.burstiness import window_counts
from squall.scenarios.series.logging_tick import spread_in_ticks
from squall.scenarios.units import NS_PER_S

ENVELOPE_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400)
BINS_PER_ENVELOPE = 6
N_POINTS = 500
BODY_RATIO = 0.995


def trace_plots(
    stamp_ns: Int64s, summary: Mapping[str, Any], sizes: Mapping[str, Int64s] | None = None
) -> list[Plot]:
    """Plots of the series that `traces.info.trace_summary` described, in the order of a page.

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
    traces = [
        curve(f"mean of {_width_text(bin_ns)}", *_rates(times_ns, bin_ns, unit_ns), "faint"),
        curve(
            f"envelope: mean of {_width_text(envelope_ns)}", *_rates(times_ns, envelope_ns, unit_ns), "solid"
        ),
    ]
    is_short = any(not one["x"] for one in traces)
    return Plot(
        "Arrivals over time",
        f"time from the first arrival, {unit}",
        "arrivals per second",
        "step",
        () if is_short else traces,
        f"{note}Whole bins only.",
        f"the trace is shorter than {_width_text(envelope_ns)}" if is_short else "",
    )


def gap_plot(times_ns: Int64s, note: str = "") -> Plot:
    """Share of gaps longer than x, and the exponential law of the same mean."""
    plot = Plot("Gaps between arrivals", "gap, s", "share of gaps longer than that", "ccdf")
    mean_ns = int(times_ns[-1] - times_ns[0]) / (times_ns.size - 1)
    x_ns, share = exceedance(np.diff(times_ns))
    if not x_ns.size:
        return replace(plot, absent="all gaps are equal or 0")
    law = np.geomspace(x_ns[0], max(x_ns[-1], mean_ns), N_POINTS)
    law = law[law < mean_ns * np.log(2.0 * times_ns.size)]  # as far as half a gap is expected
    expected = np.exp(-law / mean_ns).tolist()
    traces = [
        curve("trace", (x_ns / NS_PER_S).tolist(), share.tolist()),
        curve("exponential, same mean", (law / NS_PER_S).tolist(), expected, "reference"),
    ]
    note += "Above the dashed line: more long gaps than Poisson has."
    return replace(plot, traces=traces, note=note)


def size_plot(name: str, values: Int64s) -> Plot:
    """Share of rows whose size is above x; empty ones left out."""
    plot = Plot(f"Sizes: {name}", name, "share of rows larger than that", "ccdf")
    known = values[values >= 0] if values.size and values.min() < 0 else values
    x, share = exceedance(known)
    if not x.size:
        return replace(plot, absent="all sizes are equal or 0" if known.size else "no row has this size")
    note = "A straight line on these axes is a power law: a heavy tail."
    return replace(plot, traces=[curve(name, x.tolist(), share.tolist())], note=note)


def dispersion_plot(summary: Mapping[str, Any]) -> Plot:
    """Index of dispersion against the window, with its bootstrap band and Poisson's 1."""
    plot = Plot("Dispersion of counts", "window, s", "variance over mean of counts", "loglog")
    series = {"trace": summary["as_is"]}
    if summary["spread"] is not None:
        series = {"spread inside ticks": summary["spread"], "stamps as logged": summary["as_is"]}
    curves = {
        name: [one for one in of_name["dispersion"] if one["idc_ratio"]] for name, of_name in series.items()
    }
    main = next(iter(curves.values()))
    if not main:
        return replace(plot, absent="the trace is too short: no window fits ten times")
    traces: list[Trace] = []
    banded = [one for one in main if one["low_ratio"]]
    if banded:
        high, low = ([one[end] for one in banded] for end in ("high_ratio", "low_ratio"))
        traces.append(band("90 % block bootstrap", _windows_s(banded), high, low))
    for name, rows in curves.items():
        traces.append(curve(name, _windows_s(rows), [one["idc_ratio"] for one in rows], "points"))
    ends = _windows_s([main[0], main[-1]])
    traces.append(curve("Poisson: 1", ends, [1.0, 1.0], "reference"))
    rough = ", ".join(duration_text(one["window_ns"]) for one in main if one["is_rough"])
    note = "A curve that climbs is a rate that drifts or bursts that last."
    return replace(
        plot, traces=traces, note=note + (f" Rough at {rough}: under ten windows." if rough else "")
    )


def exceedance(values: Int64s) -> tuple[Floats, Floats]:
    """(x, share of `values` above x), as `ccdf` draws it, from where the share is 99.5 %: below it a logarithmic axis
    would show decades of nothing."""
    x, share = ccdf(values, values.size, N_POINTS)
    begin = max(0, int(np.count_nonzero(share > BODY_RATIO)) - 1)
    return x[begin:], share[begin:]


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
