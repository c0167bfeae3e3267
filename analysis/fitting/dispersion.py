"""Fits by the dispersion curve: for processes without a likelihood, and a second fit of two that have one.

A likelihood looks at the next arrival and so at the shortest scales; the curve of IDC(w) over windows of 1 s to
1000 s, at most a tenth of the span, looks at all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from squall.analysis.arrays import Floats
from squall.analysis.fitting.criteria import LEAST_PER_WINDOW
from squall.analysis.fitting.dispersion_formulas import fgn_idc, hawkes_idc, mmpp_c2, mmpp_idc
from squall.analysis.fitting.fitted import LOG, PLAIN, Coordinate, Fitted, Parameter, arrivals_of, scenario_of
from squall.analysis.fitting.hawkes import coordinates as hawkes_coordinates
from squall.analysis.fitting.mmpp import levels
from squall.scenarios.series.burstiness import gap_c2, idc_shifted, window_counts
from squall.scenarios.units import NS_PER_S, format_duration

N_REPEATS = 12
LEAST_WINDOWS = 10
LONGEST_WINDOW_S = 1000.0
LEAST_IDC = 1e-3
LEAST_HURST, LARGEST_HURST = 0.5, 0.98
LARGEST_BIAS = 0.99
_STEPS = (1, 2, 5)
_INSIDE = 1e-6
_CURVE_SD = 0.05
"""Error of ln IDC that any model is allowed, so that the shortest windows, of which there are most, do not rule."""
_C2_WEIGHT = 5.0


Times = NDArray[np.int64]
Problem = tuple[Sequence[Coordinate], Callable[..., Floats]]
"""Parameters that are sought, and by how many standard deviations their values miss the series."""


@dataclass(frozen=True, eq=False)
class DispersionCurve:
    """IDC of a series at windows (m,) in s, the whole windows in the span, the c2 of its gaps, its rate and span."""

    windows_s: Floats
    idc: Floats
    n_windows: Floats
    c2: float
    rate_hz: float
    span_s: float

    def misses(self, model: Floats, whole: float) -> Floats:
        """(ln expected - ln seen)/sd at each window for the IDC `model` (m,) and `whole`, its IDC at the span.

        The variance is taken about the mean of the sample, which moves with the whole: of M windows it has the
        expectation (I(w) - I(span)/M)·M/(M - 1) times the mean. sd² = 2/M + 0.05²: the variance of M normal values.
        """
        expected = np.maximum((model - whole / self.n_windows) / (1 - 1 / self.n_windows), LEAST_IDC)
        misses: Floats = np.log(expected / self.idc) / np.sqrt(2 / self.n_windows + _CURVE_SD**2)
        return misses

    def with_whole(self, idc: Callable[[Floats], Floats]) -> tuple[Floats, float]:
        """The IDC at the windows, and at the span."""
        found = idc(np.append(self.windows_s, self.span_s))
        return found[:-1], float(found[-1])


def dispersion_curve(
    times_ns: NDArray[np.int64], end_ns: int, least_s: float = 1.0
) -> DispersionCurve | None:
    """At 1, 2, 5, 10 … times `least_s` up to 1000 s and a tenth of the span; None with fewer than 3 windows.

    And None where the first of them holds fewer than 0.005 arrivals on average.
    """
    span_s = end_ns / NS_PER_S
    longest = min(LONGEST_WINDOW_S, span_s / LEAST_WINDOWS)
    if LEAST_PER_WINDOW * span_s > least_s * times_ns.size:
        return None
    ladder = (step * 10.0**k for k in range(12) for step in _STEPS)
    windows = [least_s * x for x in ladder if least_s * x <= longest]
    found = [idc_shifted(times_ns, round(w * NS_PER_S), 0, end_ns) for w in windows]
    kept = [(w, idc) for w, idc in zip(windows, found, strict=True) if idc is not None and idc > LEAST_IDC]
    c2 = gap_c2(times_ns)
    if len(kept) < 3 or c2 is None:
        return None
    seconds, idc = np.array(kept).T
    return DispersionCurve(seconds, idc, np.floor(span_s / seconds), c2, times_ns.size / span_s, span_s)


def fit_fgn(times_ns: Times, end_ns: int, seed: int = 1, bin_ns: int = NS_PER_S) -> Fitted | None:
    """sigma and hurst of a log-fGn rate in bins of `bin_ns`."""
    bin_s = bin_ns / NS_PER_S

    def problem(curve: DispersionCurve) -> Problem:
        m = np.maximum(1, np.round(curve.windows_s / bin_s)).astype(np.int64)
        span_bins = curve.span_s / bin_s

        def misses(sigma: float, hurst: float) -> Floats:
            return curve.misses(fgn_idc(curve.rate_hz, sigma, hurst, m, bin_s, span_bins), 0.0)

        return (
            Coordinate("sigma", LOG, 1e-3, 3.0),
            Coordinate("hurst", PLAIN, LEAST_HURST, LARGEST_HURST),
        ), misses

    starts = product((0.1, 0.5, 1.0), (0.7, 0.9))
    bin_text = format_duration(bin_ns)
    return _fitted(
        "fgn", "fgn", _by_curve(problem, end_ns, bin_s), starts, times_ns, end_ns, seed, bin=bin_text
    )


def fit_hawkes_curve(times_ns: Times, end_ns: int, seed: int = 1) -> Fitted | None:
    """n and beta (1/s) of a Hawkes process whose IDC is that of the series."""

    def problem(curve: DispersionCurve) -> Problem:
        def misses(n: float, beta: float) -> Floats:
            return curve.misses(*curve.with_whole(lambda windows: hawkes_idc(n, beta, windows)))

        return hawkes_coordinates(curve.rate_hz, "1/s"), misses

    rate_hz = times_ns.size / end_ns * NS_PER_S
    starts = [(n, beta * rate_hz) for n, beta in product((0.3, 0.8), (0.01, 0.1))]
    return _fitted("hawkes-curve", "hawkes", _by_curve(problem, end_ns), starts, times_ns, end_ns, seed)


def fit_mmpp_curve(times_ns: Times, end_ns: int, seed: int = 1) -> Fitted | None:
    """Peak, base and tau (s) of a two-state MMPP whose IDC, and c2 of gaps, are those of the series."""

    def problem(curve: DispersionCurve) -> Problem:
        def misses(peak: float, base: float, tau: float) -> Floats:
            rate_hz = curve.rate_hz
            gaps = math.log(mmpp_c2(rate_hz, peak, base, tau) / curve.c2) * _C2_WEIGHT
            idc = curve.with_whole(lambda windows: mmpp_idc(rate_hz, peak, base, tau, windows))
            return np.append(curve.misses(*idc), gaps)

        return (*levels(), Coordinate("tau", LOG, 0.1 / curve.rate_hz, curve.span_s / 4, "s")), misses

    starts = product((1.1, 2.0), (0.2, 0.8), (10.0, 100.0))
    return _fitted("mmpp-curve", "mmpp", _by_curve(problem, end_ns), starts, times_ns, end_ns, seed)


def fit_bmodel(times_ns: Times, end_ns: int, seed: int = 1, bin_ns: int = NS_PER_S) -> Fitted | None:
    """Bias of a b-model with pieces of at most `bin_ns`.

    With q = b² + (1 - b)² the masses of the 2^k pieces of level k have E Σ p² = q^k, so that n Poisson arrivals have
    IDC = 1 + n (q^k - 2^-k)·2^k/(2^k - 1) over them; fitted at k = 3 … the last level, on that grid alone.
    """
    if LEAST_PER_WINDOW * end_ns > bin_ns * times_ns.size:
        return None
    n_levels = max(0, math.ceil(math.log2(end_ns / bin_ns)))
    ks = np.arange(3, n_levels + 1)
    if ks.size < 3:
        return None
    pieces = 2.0**ks

    def problem(counted: Times) -> Problem:
        width_ns = -(-end_ns // 2**n_levels)
        counts = window_counts(counted, width_ns, 0, 2**n_levels * width_ns)
        sums = [counts.reshape(2**k, -1).sum(axis=1) for k in ks.tolist()]
        seen = np.array([max(one.var(ddof=1) / one.mean(), LEAST_IDC) for one in sums])
        sd = np.sqrt(2 / pieces + _CURVE_SD**2)

        def misses(bias: float) -> Floats:
            q = bias**2 + (1 - bias) ** 2
            idc = 1 + counted.size * (q**ks - 1 / pieces) * pieces / (pieces - 1)
            return np.asarray(np.log(idc / seen) / sd)

        return (Coordinate("bias", PLAIN, 0.5, LARGEST_BIAS),), misses

    starts = [(0.52,), (0.6,), (0.75,)]
    bin_text = format_duration(bin_ns)
    return _fitted("b-model", "b-model", problem, starts, times_ns, end_ns, seed, bin=bin_text)


def _by_curve(
    problem: Callable[[DispersionCurve], Problem], end_ns: int, least_s: float = 1.0
) -> Callable[[Times], Problem | None]:
    """The problem of the curve of a series."""

    def of_series(times_ns: Times) -> Problem | None:
        curve = dispersion_curve(times_ns, end_ns, least_s)
        return None if curve is None else problem(curve)

    return of_series


def _fitted(
    name: str,
    kind: str,
    problem: Callable[[Times], Problem | None],
    starts: Iterable[Sequence[float]],
    times_ns: Times,
    end_ns: int,
    seed: int,
    **more: object,
) -> Fitted | None:
    """The estimate, and its standard error by parametric bootstrap: the spread of the estimates of 12 draws from it.

    (Efron, Tibshirani, An Introduction to the Bootstrap, 1993, 6.5). That spread is itself known to 1/√22 = 21 %. None
    where the series is too short for the problem.
    """
    found = problem(times_ns)
    if found is None:
        return None
    values = _least_squares(*found, starts)
    rate_hz = times_ns.size / end_ns * NS_PER_S
    parameters = [
        Parameter(one.name, value, None, one.unit) for one, value in zip(found[0], values, strict=True)
    ]
    scenario = scenario_of(kind, rate_hz, parameters, **more)
    arrivals = arrivals_of(scenario)
    drawn = [problem(arrivals.draw(rng, end_ns)) for rng in np.random.default_rng(seed).spawn(N_REPEATS)]
    again = [[math.nan] * len(values) if one is None else _least_squares(*one, [values]) for one in drawn]
    errors = np.std(again, axis=0, ddof=1).tolist()
    told = [
        replace(one, stderr=error if error > 0 else None)
        for one, error in zip(parameters, errors, strict=True)
    ]
    return Fitted(name, (Parameter("rate", rate_hz, None, "1/s"), *told), len(told) + 1, scenario)


def _least_squares(
    coordinates: Sequence[Coordinate], misses: Callable[..., Floats], starts: Iterable[Sequence[float]]
) -> list[float]:
    """The values of the best of the least squares from each start."""
    low, high = np.array([one.bounds for one in coordinates]).T

    def values(at: Floats) -> list[float]:
        return [one.value(x) for one, x in zip(coordinates, at.tolist(), strict=True)]

    found = []
    for start in starts:
        free = [one.free(value) for one, value in zip(coordinates, start, strict=True)]
        inside = np.clip(free, low + _INSIDE, high - _INSIDE)
        found.append(
            optimize.least_squares(
                lambda at: misses(*values(at)), inside, bounds=(low, high), diff_step=1e-5, xtol=1e-6
            )
        )
    return values(min(found, key=lambda one: float(one.cost)).x)
