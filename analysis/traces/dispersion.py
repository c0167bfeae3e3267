"""Fits by the dispersion curve: for processes without a likelihood, and a second fit of two that have one.

A likelihood looks at the next arrival and so at the shortest scales; the curve of IDC(w) over windows of 1 s to
1000 s, at most a tenth of the span, looks at all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from squall.analysis.arrays import Floats
from squall.analysis.traces.criteria import LEAST_PER_WINDOW
from squall.analysis.traces.dispersion_formulas import fgn_idc, hawkes_idc, mmpp_c2, mmpp_idc
from squall.analysis.traces.fitted import LOG, PLAIN, Coordinate, Fitted, Parameter, arrivals_of, scenario_of
from squall.analysis.traces.hawkes import coordinates as hawkes_coordinates
from squall.analysis.traces.mmpp import levels
from squall.scenarios.records import Frozen
from squall.scenarios.series.burstiness import gap_c2, idc_shifted, window_counts
from squall.scenarios.units import NS_PER_S

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


class DispersionCurve(Frozen, eq=False):
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

    def misses_of(self, idc: Callable[[Floats], Floats]) -> Floats:
        """`misses` of a model whose IDC at windows is `idc`, the span being one of them."""
        found = idc(np.append(self.windows_s, self.span_s))
        return self.misses(found[:-1], float(found[-1]))


def dispersion_curve(times_ns: Times, end_ns: int) -> DispersionCurve | None:
    """At 1, 2, 5, 10 … s up to 1000 s and a tenth of the span; None with fewer than 3 windows.

    And None where the first of them holds fewer than 0.005 arrivals on average.
    """
    span_s = end_ns / NS_PER_S
    longest = min(LONGEST_WINDOW_S, span_s / LEAST_WINDOWS)
    if LEAST_PER_WINDOW * span_s > times_ns.size:
        return None
    windows = [w for w in (step * 10.0**k for k in range(12) for step in _STEPS) if w <= longest]
    found = [idc_shifted(times_ns, round(w * NS_PER_S), 0, end_ns) for w in windows]
    kept = [(w, idc) for w, idc in zip(windows, found, strict=True) if idc is not None and idc > LEAST_IDC]
    c2 = gap_c2(times_ns)
    if len(kept) < 3 or c2 is None:
        return None
    seconds, idc = np.array(kept).T
    return DispersionCurve(seconds, idc, np.floor(span_s / seconds), c2, times_ns.size / span_s, span_s)


class Pieces(Frozen, eq=False):
    """IDC of a series of `n` arrivals over 2^k pieces of its span at each level k, (m,)."""

    levels: NDArray[np.int64]
    idc: Floats
    n: int


def pieces_of(times_ns: Times, end_ns: int) -> Pieces | None:
    """At the levels from 3 to the last, whose pieces are of 1 s at most; None where these are fewer than three, or a
    second holds fewer than 0.005 arrivals on average."""
    n_levels = max(0, math.ceil(math.log2(end_ns / NS_PER_S)))
    levels = np.arange(3, n_levels + 1)
    if LEAST_PER_WINDOW * end_ns > NS_PER_S * times_ns.size or levels.size < 3:
        return None
    width_ns = -(-end_ns // 2**n_levels)
    counts = window_counts(times_ns, width_ns, 0, 2**n_levels * width_ns)
    sums = [counts.reshape(2**k, -1).sum(axis=1) for k in levels.tolist()]
    idc = np.array([max(one.var(ddof=1) / one.mean(), LEAST_IDC) for one in sums])
    return Pieces(levels, idc, times_ns.size)


class CurveFit(Frozen):
    """A process `kind` whose dispersion is made that of the series: its parameters, of what is `seen` of the series,
    and by how many standard deviations their values miss that. `starts`: values to begin at, by the rate in 1/s."""

    name: str
    kind: str
    seen: Callable[[Times, int], Any]
    coordinates: Callable[[Any], Sequence[Coordinate]]
    misses: Callable[..., Floats]
    starts: Callable[[float], Iterable[Sequence[float]]]
    more: Mapping[str, str] = field(default_factory=dict)


def _hawkes(curve: DispersionCurve, n: float, beta: float) -> Floats:
    return curve.misses_of(partial(hawkes_idc, n, beta))


def _mmpp(curve: DispersionCurve, peak: float, base: float, tau: float) -> Floats:
    """The c2 of the gaps is one miss more."""
    gaps = math.log(mmpp_c2(curve.rate_hz, peak, base, tau) / curve.c2) * _C2_WEIGHT
    return np.append(curve.misses_of(partial(mmpp_idc, curve.rate_hz, peak, base, tau)), gaps)


def _fgn(curve: DispersionCurve, sigma: float, hurst: float) -> Floats:
    """Of a rate in bins of 1 s."""
    m = np.maximum(1, np.round(curve.windows_s)).astype(np.int64)
    return curve.misses(fgn_idc(curve.rate_hz, sigma, hurst, m, 1.0, curve.span_s), 0.0)


def _bmodel(seen: Pieces, bias: float) -> Floats:
    """With q = b² + (1 - b)² the masses of the 2^k pieces of level k have E Σ p² = q^k, so that n Poisson arrivals have
    IDC = 1 + n (q^k - 2^-k)·2^k/(2^k - 1) over them, on that grid alone."""
    q, pieces = bias**2 + (1 - bias) ** 2, 2.0**seen.levels
    idc = 1 + seen.n * (q**seen.levels - 1 / pieces) * pieces / (pieces - 1)
    return np.asarray(np.log(idc / seen.idc) / np.sqrt(2 / pieces + _CURVE_SD**2))


CURVES = (
    CurveFit(
        "hawkes-curve", "hawkes", dispersion_curve, lambda curve: hawkes_coordinates(curve.rate_hz, "1/s"), _hawkes,
        lambda rate_hz: [(n, beta * rate_hz) for n, beta in product((0.3, 0.8), (0.01, 0.1))],
    ),
    CurveFit(
        "mmpp-curve", "mmpp", dispersion_curve,
        lambda curve: (*levels(), Coordinate("tau", LOG, 0.1 / curve.rate_hz, curve.span_s / 4, "s")), _mmpp,
        lambda _: product((1.1, 2.0), (0.2, 0.8), (10.0, 100.0)),
    ),
    CurveFit(
        "fgn", "fgn", dispersion_curve,
        lambda _: (Coordinate("sigma", LOG, 1e-3, 3.0), Coordinate("hurst", PLAIN, LEAST_HURST, LARGEST_HURST)), _fgn,
        lambda _: product((0.1, 0.5, 1.0), (0.7, 0.9)), {"bin": "1s"},
    ),
    CurveFit(
        "b-model", "b-model", pieces_of, lambda _: (Coordinate("bias", PLAIN, 0.5, LARGEST_BIAS),), _bmodel,
        lambda _: [(0.52,), (0.6,), (0.75,)], {"bin": "1s"},
    ),
)  # fmt: skip


def fit_curve(fit: CurveFit, times_ns: Times, end_ns: int, seed: int = 1) -> Fitted | None:
    """The estimate, and its standard error by parametric bootstrap: the spread of the estimates of 12 draws from it.

    (Efron, Tibshirani, An Introduction to the Bootstrap, 1993, 6.5). That spread is itself known to 1/√22 = 21 %. None
    where the series is too short.
    """
    rate_hz = times_ns.size / end_ns * NS_PER_S
    seen = fit.seen(times_ns, end_ns)
    if seen is None:
        return None
    values = _least_squares(fit, seen, fit.starts(rate_hz))
    estimates = zip(fit.coordinates(seen), values, strict=True)
    parameters = [Parameter(one.name, value, None, one.unit) for one, value in estimates]
    scenario = scenario_of(fit.kind, rate_hz, parameters, **fit.more)
    arrivals = arrivals_of(scenario)
    streams = np.random.default_rng(seed).spawn(N_REPEATS)
    drawn = [fit.seen(arrivals.draw(rng, end_ns), end_ns) for rng in streams]
    again = [[math.nan] * len(values) if one is None else _least_squares(fit, one, [values]) for one in drawn]
    errors = np.std(again, axis=0, ddof=1).tolist()
    told = [
        replace(one, stderr=error if error > 0 else None)
        for one, error in zip(parameters, errors, strict=True)
    ]
    return Fitted(fit.name, (Parameter("rate", rate_hz, None, "1/s"), *told), len(told) + 1, scenario)


def _least_squares(fit: CurveFit, seen: Any, starts: Iterable[Sequence[float]]) -> list[float]:
    """The values of the best of the least squares from each start."""
    coordinates = fit.coordinates(seen)
    low, high = np.array([one.bounds for one in coordinates]).T

    def values(at: Floats) -> list[float]:
        return [one.value(x) for one, x in zip(coordinates, at.tolist(), strict=True)]

    found = []
    for start in starts:
        free = [one.free(value) for one, value in zip(coordinates, start, strict=True)]
        inside = np.clip(free, low + _INSIDE, high - _INSIDE)
        found.append(
            optimize.least_squares(
                lambda at: fit.misses(seen, *values(at)),
                inside,
                bounds=(low, high),
                diff_step=1e-5,
                xtol=1e-6,
            )
        )
    return values(min(found, key=lambda one: float(one.cost)).x)
