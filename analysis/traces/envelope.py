"""A trace's own rate curve times a residual that is fitted on the rescaled clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from squall.analysis.arrays import Floats
from squall.analysis.traces.dispersion_formulas import hawkes_idc
from squall.analysis.traces.fitted import Excerpt, Fitted, Parameter, parted, scenario_of, spans_of
from squall.analysis.traces.hawkes import fit_unit_hawkes
from squall.analysis.traces.maximum import Maximum
from squall.analysis.traces.renewal import fit_unit_gamma
from squall.scenarios.arrivals.curve import FixedPath, steps
from squall.scenarios.units import NS_PER_S, format_duration

BINS_S = (10, 30, 60, 120, 300)
LEAST_PER_BIN = 50
LEAST_BINS = 10
N_PASSES = 3
CURVE_DIGITS = 3
_SMOOTHING = 1.4
_LEAST_SHARE = 0.1  # of a bin's count that its level keeps, so that no arrival stands where the rate is 0

ResidualKind = Literal["poisson", "gamma", "hawkes"]


def envelope_bins(n: int, end_ns: int) -> list[int]:
    """Widths in ns of 10 to 300 s that leave 10 bins or more, of 50 arrivals or more on average."""
    widths = [seconds * NS_PER_S for seconds in BINS_S]
    return [w for w in widths if end_ns / w >= LEAST_BINS and n * w / end_ns >= LEAST_PER_BIN]


def fit_envelope(times_ns: NDArray[np.int64], end_ns: int, bin_ns: int, kind: ResidualKind) -> Fitted:
    """The curve in bins of `bin_ns` and the residual.

    The curve takes a part of the residual's clusters for its own: n comes out low, by about half a standard error in
    60 bins of 240 arrivals.

    How much of the counts' variance is noise of the residual depends on the residual, which is fitted on the clock of
    the curve without that noise: three passes, from Poisson on.
    """
    rate_hz = times_ns.size / end_ns * NS_PER_S
    counts = bin_counts(times_ns, end_ns, bin_ns)
    mean = float(counts.mean())
    residual = Maximum((), None, 0)
    for _ in range(1 if kind == "poisson" else N_PASSES):
        path = steps(shrunk(counts, _dispersion(kind, residual, mean), 1.0), bin_ns, end_ns)
        residual = _residual(kind, unit_excerpts(times_ns, end_ns, path, rate_hz), residual)
    levels = shrunk(counts, _dispersion(kind, residual, mean))
    path = steps(levels, bin_ns, end_ns)
    spans = spans_of(times_ns, end_ns)
    n_fitted = sum(s.last - s.first for s in spans)
    log_rates = n_fitted * math.log(rate_hz)
    log_rates += sum(float(np.log(path.level(times_ns[s.first : s.last])).sum()) for s in spans)
    curve = [float(f"{level:.{CURVE_DIGITS}g}") for level in (levels / levels.mean()).tolist()]
    section = {"kind": kind, **{one.name: one.stated for one in residual.parameters}}
    return Fitted(
        f"env-{bin_ns // NS_PER_S}s-{kind}",
        (Parameter("rate", rate_hz, None, "1/s"), *residual.parameters),
        levels.size + len(residual.parameters),
        scenario_of("envelope", rate_hz, (), bin=format_duration(bin_ns), curve=curve, residual=section),
        None if residual.log_likelihood is None else residual.log_likelihood + log_rates,
        n_fitted,
        residual.failure,
    )


def _residual(kind: ResidualKind, excerpts: Sequence[Excerpt], near: Maximum) -> Maximum:
    """By maximum likelihood, given its rate of 1; from `near` on, that of the pass before."""
    match kind:
        case "gamma":
            return fit_unit_gamma(excerpts)
        case "hawkes":
            return fit_unit_hawkes(excerpts, tuple(one.value for one in near.parameters))
        case _:
            return Maximum((), -sum(excerpt.length for excerpt in excerpts), 0)


def _dispersion(kind: ResidualKind, residual: Maximum, width: float) -> float:
    """Index of dispersion of its counts over `width` expected arrivals, of a renewal process the limit c2; 1 of Poisson
    and before anything is fitted."""
    values = [one.value for one in residual.parameters]
    if kind == "gamma" and values:
        return values[0] ** 2
    if kind == "hawkes" and values:
        n, beta = values
        return float(hawkes_idc(n, beta, np.array([width]))[0])
    return 1.0


def bin_counts(times_ns: NDArray[np.int64], end_ns: int, bin_ns: int) -> Floats:
    """Arrivals per bin, (m,) float64; a last bin that the span cuts is counted as if it were whole.

    Less than half of a bin says little: its rate is then that of it and the one before together.
    """
    counts = np.bincount(times_ns // bin_ns, minlength=-(-end_ns // bin_ns)).astype(np.float64)
    share = end_ns / bin_ns - (counts.size - 1)
    if share < 0.5 and counts.size > 1:
        counts[-2:] = counts[-2:].sum() / (1 + share)
    else:
        counts[-1] /= share
    return counts


def shrunk(counts: Floats, dispersion: float, power: float = 0.5) -> Floats:
    """Expected counts whose draws vary as `counts` do, (m,) each.

    The counts n_j are expected ones Λ_j plus noise of the residual, nearly independent from bin to bin, of variance
    R = dispersion·mean. Drawn from Λ_j = n_j, they would have that noise twice. Of their spectrum S(f) the part
    S(f) - R is that of Λ, so that the deviations of n_j from the mean, as a cosine transform, are each multiplied by
    √(max(0, S - R)/S): a draw has S(f) - R from the levels and R from the residual. Slow swings, S >> R, stay as they
    are, and the noise between neighbours goes. S(f_k) is the mean of the squared transform over k/1.4 - 1 … 1.4 k + 1.
    Each level stays at a tenth of its count or more.

    With a `power` of 1 in place of the root they are as near to the true ones as can be, of least mean square error
    (Wiener, 1949): the clock on which a residual is fitted, since those above would take more of its clusters for
    swings of the rate. Draws from these levels would vary too little.
    """
    mean = float(counts.mean())
    transform = fft.dct(counts - mean, norm="ortho")
    spectrum = _smoothed(transform**2)
    share = np.maximum(0.0, spectrum - dispersion * mean) / np.maximum(spectrum, np.finfo(np.float64).tiny)
    found = mean + fft.idct(transform * share**power, norm="ortho")
    levels: Floats = np.maximum(found, _LEAST_SHARE * counts)
    return levels


def _smoothed(power: Floats) -> Floats:
    """Means over neighbours in frequency; the first entry, the mean's own, is left out."""
    sums = np.concatenate([[0.0], np.cumsum(power[1:])])
    k = np.arange(power.size)
    low = np.clip(np.floor(k / _SMOOTHING - 1), 0, power.size - 2).astype(np.int64)
    high = np.clip(np.ceil(k * _SMOOTHING + 1), 1, power.size - 1).astype(np.int64)
    smoothed: Floats = (sums[high] - sums[low]) / (high - low)
    return smoothed


def unit_excerpts(
    times_ns: NDArray[np.int64], end_ns: int, path: FixedPath, rate_hz: float
) -> tuple[Excerpt, ...]:
    """The points u_i = Λ(t_i) of a series, or of 8 excerpts of it, that each begin anew at 0."""
    curve = path.curve(end_ns)
    edges, expected = curve.edges_ns, curve.cum * (rate_hz / NS_PER_S)

    def clock(t_ns: Floats) -> Floats:
        return np.interp(t_ns, edges, expected)

    found = []
    for span in spans_of(times_ns, end_ns):
        begin, end = clock(np.array([span.start_ns, span.end_ns], np.float64))
        points = clock(parted(times_ns[span.first : span.last])) - begin
        found.append(Excerpt(points, float(end - begin)))
    return tuple(found)
