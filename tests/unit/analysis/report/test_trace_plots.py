"""What a trace's plots draw: the right numbers on the right axes, on a page that loads nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.report.plots import Plot, Trace
from squall.analysis.report.trace_plots import exceedance, gap_plot, rate_plot, size_plot, trace_plots
from squall.analysis.traces.info import trace_summary

S = 1_000_000_000
Int64s = NDArray[np.int64]


def poisson(n: int, span_s: int, seed: int = 1) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, span_s * S, n))


def named(plot: Plot, name: str) -> Trace:
    return next(one for one in plot.traces if one["name"].startswith(name))


def test_rates_are_arrivals_per_second_in_bins_and_over_longer_ones() -> None:
    # 1/s for 1,000 s, then 3/s for 1,000 s: bins of 1 s, an envelope of 10 s, minutes on the axis
    times = np.concatenate([np.arange(1_000) * S, 1_000 * S + np.arange(3_001) * S // 3])
    plot = rate_plot(times)
    assert (plot.kind, plot.x_label) == ("step", "time from the first arrival, min")
    bins, envelope = named(plot, "mean of 1 s"), named(plot, "envelope: mean of 10 s")
    assert bins["y"][:1_000] == [1.0] * 1_000
    assert bins["y"][1_000:2_000] == [3.0] * 1_000
    assert envelope["y"] == [1.0] * 100 + [3.0] * 101  # the last twice, so that a step shows it
    assert envelope["x"][100] == pytest.approx(1_000 / 60)


def test_the_share_above_is_exact_at_every_point() -> None:
    values = (np.random.default_rng(2).pareto(1.2, 5_000) * 1e6).astype(np.int64)
    x, share = exceedance(values)
    assert share.tolist() == pytest.approx([float((values > at).mean()) for at in x], rel=1e-12)
    assert share[0] >= 0.995
    assert share[-1] == pytest.approx(1 / 5_000)  # the second largest value: one row is above
    assert np.all(np.diff(x) > 0)
    assert exceedance(np.zeros(10, np.int64))[0].size == 0
    assert exceedance(np.full(10, 3))[0].size == 0


def test_gaps_of_poisson_arrivals_lie_on_the_exponential_curve_and_of_bursts_above_it() -> None:
    n = 50_000
    plot = gap_plot(poisson(n, 5_000))
    trace, law = named(plot, "trace"), named(plot, "exponential")
    mean_s = 0.1
    for x, share in zip(trace["x"], trace["y"], strict=True):
        expected = math.exp(-x / mean_s)
        if expected * n > 100:  # a binomial share: standard error √(p (1 - p)/n), and the mean's own
            assert share == pytest.approx(expected, abs=5 * math.sqrt(expected / n))
    assert law["y"] == pytest.approx([math.exp(-x / mean_s) for x in law["x"]], rel=0.05)
    gaps = np.random.default_rng(3).gamma(0.25, 0.4, n)  # c² = 4, the same mean
    bursty = named(gap_plot((np.cumsum(gaps) * S).astype(np.int64)), "trace")
    above = [share for x, share in zip(bursty["x"], bursty["y"], strict=True) if x > 5 * mean_s]
    assert above[0] is not None
    assert above[0] > 3 * math.exp(-5)


def test_the_dispersion_plot_has_band_poisson_and_both_series_of_a_coarse_log() -> None:
    stamps = poisson(30_000, 3_600) // S * S
    summary = trace_summary(stamps)
    plot = trace_plots(stamps, summary)[2]
    assert plot.kind == "loglog"
    assert [one["name"] for one in plot.traces] == [
        "90 % block bootstrap", "spread inside ticks", "stamps as logged", "Poisson: 1",
    ]  # fmt: skip
    band, spread, logged, one = plot.traces
    assert spread["x"] == [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    assert spread["y"] == [row["idc_ratio"] for row in summary["spread"]["dispersion"]]
    assert logged["y"] == [row["idc_ratio"] for row in summary["as_is"]["dispersion"]]
    assert band["x"] == [0.01, 0.1, 1.0, 10.0, 100.0, 100.0, 10.0, 1.0, 0.1, 0.01]
    assert all(low < high for high, low in zip(band["y"][:5], band["y"][:4:-1], strict=True))
    assert one["y"] == [1.0, 1.0]
    assert "Rough at 1,000 s" in plot.note


def test_sizes_are_drawn_without_empty_rows() -> None:
    plot = size_plot("bytes", np.array([-1, -1, 1, 2, 3, 4]))
    assert dict(zip(plot.traces[0]["x"], plot.traces[0]["y"], strict=True))[2.0] == 0.5
    assert size_plot("bytes", np.array([-1, -1])).absent == "no row has this size"
    assert size_plot("bytes", np.array([0, 0])).absent == "all sizes are equal or 0"


def test_what_cannot_be_drawn_says_why() -> None:
    stamps = np.array([0, S // 1_000])
    plots = trace_plots(stamps, trace_summary(stamps))
    assert [plot.absent for plot in plots] == [
        "the trace is shorter than 1 s",
        "all gaps are equal or 0",
        "the trace is too short: no window fits ten times",
    ]
