"""Fits by the dispersion curve: for processes without a likelihood, and a second fit of two that have one.

A likelihood looks at the next arrival and so at the shortest scales; the curve of IDC(w) over windows of 1 s to
1000 s, at most a tenth of the span, looks at all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from squall.analysis.arrays import Floats
from squall.analysis.fitting.criteria import LEAST_PER_WINDOW
from squall.analysis.fitting.dispersion_formulas import fgn_idc, hawkes_idc, mmpp_c2, mmpp_idc
from squall.analysis.fitting.fitted import (
    Fitted,
    Parameter,
    arrivals_of,
    logistic,
    logit,
    rate_text,
    rounded,
    time_text,
)
from squall.analysis.fitting.hawkes import LARGEST_BETA, LEAST_BETA, LEAST_N
from squall.analysis.fitting.mmpp import LARGEST_BASE, LARGEST_PEAK, LEAST_BASE
from squall.scenarios.arrivals.stationary import LARGEST_HAWKES_N
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


Starts = Sequence[tuple[float, ...]]
"""Parameters to begin the search at."""


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


def fit_fgn(times_ns: NDArray[np.int64], end_ns: int, seed: int = 1, bin_ns: int = NS_PER_S) -> Fitted | None:
    """sigma and hurst of a log-fGn rate in bins of `bin_ns`."""
    bin_s = bin_ns / NS_PER_S

    def estimate(curve: DispersionCurve, starts: Starts) -> Floats:
        m = np.maximum(1, np.round(curve.windows_s / bin_s)).astype(np.int64)

        def misses(at: Floats) -> Floats:
            return curve.misses(
                fgn_idc(curve.rate_hz, math.exp(at[0]), at[1], m, bin_s, curve.span_s / bin_s), 0.0
            )

        bounds = ([math.log(1e-3), LEAST_HURST], [math.log(3.0), LARGEST_HURST])
        at = _least_squares(misses, [(math.log(sigma), hurst) for sigma, hurst in starts], bounds)
        return np.array([math.exp(at[0]), at[1]])

    scenario = {"kind": "fgn", "bin": format_duration(bin_ns)}
    names = (("sigma", ""), ("hurst", ""))
    starts = [(sigma, hurst) for sigma in (0.1, 0.5, 1.0) for hurst in (0.7, 0.9)]
    return _fitted("fgn", names, estimate, starts, scenario, times_ns, end_ns, seed, least_s=bin_s)


def fit_hawkes_curve(times_ns: NDArray[np.int64], end_ns: int, seed: int = 1) -> Fitted | None:
    """n and beta (1/s) of a Hawkes process whose IDC is that of the series."""

    def estimate(curve: DispersionCurve, starts: Starts) -> Floats:
        windows = np.append(curve.windows_s, curve.span_s)

        def misses(at: Floats) -> Floats:
            idc = hawkes_idc(logistic(at[0]), curve.rate_hz * math.exp(at[1]), windows)
            return curve.misses(idc[:-1], float(idc[-1]))

        bounds = (
            [logit(LEAST_N), math.log(LEAST_BETA)],
            [logit(LARGEST_HAWKES_N), math.log(LARGEST_BETA)],
        )
        at = _least_squares(
            misses, [(logit(n), math.log(beta / curve.rate_hz)) for n, beta in starts], bounds
        )
        return np.array([logistic(at[0]), curve.rate_hz * math.exp(at[1])])

    names = (("n", ""), ("beta", "1/s"))
    rate_hz = times_ns.size / end_ns * NS_PER_S
    starts = [(n, beta * rate_hz) for n in (0.3, 0.8) for beta in (0.01, 0.1)]
    return _fitted("hawkes-curve", names, estimate, starts, {"kind": "hawkes"}, times_ns, end_ns, seed)


def fit_mmpp_curve(times_ns: NDArray[np.int64], end_ns: int, seed: int = 1) -> Fitted | None:
    """Peak, base and tau (s) of a two-state MMPP whose IDC, and c2 of gaps, are those of the series."""

    def estimate(curve: DispersionCurve, starts: Starts) -> Floats:
        windows = np.append(curve.windows_s, curve.span_s)

        def misses(at: Floats) -> Floats:
            shape = (1 + math.exp(at[0]), logistic(at[1]), math.exp(at[2]))
            idc = mmpp_idc(curve.rate_hz, *shape, windows)
            gaps = math.log(mmpp_c2(curve.rate_hz, *shape) / curve.c2) * _C2_WEIGHT
            return np.append(curve.misses(idc[:-1], float(idc[-1])), gaps)

        bounds = (
            [math.log(1e-3), logit(LEAST_BASE), math.log(0.1 / curve.rate_hz)],
            [math.log(LARGEST_PEAK), logit(LARGEST_BASE), math.log(curve.span_s / 4)],
        )
        free = [(math.log(peak - 1), logit(base), math.log(tau)) for peak, base, tau in starts]
        at = _least_squares(misses, free, bounds)
        return np.array([1 + math.exp(at[0]), logistic(at[1]), math.exp(at[2])])

    names = (("peak", ""), ("base", ""), ("tau", "s"))
    starts = [(peak, base, tau) for peak in (1.1, 2.0) for base in (0.2, 0.8) for tau in (10.0, 100.0)]
    return _fitted("mmpp-curve", names, estimate, starts, {"kind": "mmpp"}, times_ns, end_ns, seed)


def fit_bmodel(
    times_ns: NDArray[np.int64], end_ns: int, seed: int = 1, bin_ns: int = NS_PER_S
) -> Fitted | None:
    """Bias of a b-model with pieces of at most `bin_ns`.

    With q = b² + (1 - b)² the masses of the 2^k pieces of level k have E Σ p² = q^k, so that n Poisson arrivals have
    IDC = 1 + n (q^k - 2^-k)·2^k/(2^k - 1) over them; fitted at k = 3 … the last level, on that grid alone.
    """
    if LEAST_PER_WINDOW * end_ns > bin_ns * times_ns.size:
        return None
    n_levels = max(0, math.ceil(math.log2(end_ns / bin_ns)))
    levels = np.arange(3, n_levels + 1)
    if levels.size < 3:
        return None
    pieces = 2.0**levels

    def estimate_at(counted: NDArray[np.int64], starts: Starts) -> Floats:
        counts = window_counts(counted, -(-end_ns // 2**n_levels), 0, 2**n_levels * -(-end_ns // 2**n_levels))
        sums = [counts.reshape(2**k, -1).sum(axis=1) for k in levels.tolist()]
        seen = np.array([max(one.var(ddof=1) / one.mean(), LEAST_IDC) for one in sums])
        sd = np.sqrt(2 / pieces + _CURVE_SD**2)

        def misses(at: Floats) -> Floats:
            q = at[0] ** 2 + (1 - at[0]) ** 2
            idc = 1 + counted.size * (q**levels - 1 / pieces) * pieces / (pieces - 1)
            return np.asarray(np.log(idc / seen) / sd)

        return _least_squares(misses, starts, ([0.5], [LARGEST_BIAS]))

    scenario = {"kind": "b-model", "bin": format_duration(bin_ns)}
    return _with_errors(
        "b-model", (("bias", ""),), estimate_at, [(0.52,), (0.6,), (0.75,)], scenario, times_ns, end_ns, seed
    )


def _fitted(
    name: str,
    names: Sequence[tuple[str, str]],
    estimate: Callable[[DispersionCurve, Starts], Floats],
    starts: Starts,
    scenario: Mapping[str, object],
    times_ns: NDArray[np.int64],
    end_ns: int,
    seed: int,
    least_s: float = 1.0,
) -> Fitted | None:
    def estimate_of(times: NDArray[np.int64], starts: Starts) -> Floats:
        curve = dispersion_curve(times, end_ns, least_s)
        return np.full(len(names), np.nan) if curve is None else estimate(curve, starts)

    return _with_errors(name, names, estimate_of, starts, scenario, times_ns, end_ns, seed)


def _with_errors(
    name: str,
    names: Sequence[tuple[str, str]],
    estimate: Callable[[NDArray[np.int64], Starts], Floats],
    starts: Starts,
    scenario: Mapping[str, object],
    times_ns: NDArray[np.int64],
    end_ns: int,
    seed: int,
) -> Fitted | None:
    """The estimate, and its standard error by parametric bootstrap: the spread of the estimates of 12 draws from it.

    (Efron, Tibshirani, An Introduction to the Bootstrap, 1993, 6.5). That spread is itself known to 1/√22 = 21 %.
    """
    at = estimate(times_ns, starts)
    if not np.isfinite(at).all():
        return None
    rate_hz = times_ns.size / end_ns * NS_PER_S
    texts = {label: _text(float(value), unit) for (label, unit), value in zip(names, at, strict=True)}
    whole = {"kind": scenario["kind"], "rate": rate_text(rate_hz), **texts, **scenario}
    arrivals = arrivals_of(whole)
    streams = np.random.default_rng(seed).spawn(N_REPEATS)
    again = np.array([estimate(arrivals.draw(rng, end_ns), [tuple(at)]) for rng in streams])
    errors = again.std(axis=0, ddof=1)
    found = tuple(
        Parameter(label, float(value), float(error) if error > 0 else None, unit)
        for (label, unit), value, error in zip(names, at, errors, strict=True)
    )
    return Fitted(name, (Parameter("rate", rate_hz, None, "1/s"), *found), len(found) + 1, whole)


def _text(value: float, unit: str) -> object:
    """As a scenario file has it."""
    match unit:
        case "s":
            return time_text(value)
        case "1/s":
            return rate_text(value)
        case _:
            return rounded(value)


def _least_squares(
    misses: Callable[[Floats], Floats],
    starts: Starts,
    bounds: tuple[list[float], list[float]],
) -> Floats:
    """The best of the least squares from each start."""
    low, high = np.array(bounds[0]) + _INSIDE, np.array(bounds[1]) - _INSIDE
    found = [
        optimize.least_squares(misses, np.clip(start, low, high), bounds=bounds, diff_step=1e-5, xtol=1e-6)
        for start in starts
    ]
    at: Floats = min(found, key=lambda one: float(one.cost)).x
    return at
