"""Two-state Markov-modulated Poisson process by maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.fitting.fitted import (
    Excerpt,
    Fitted,
    Parameter,
    logistic,
    logit,
    rate_text,
    rounded,
    time_text,
)
from squall.analysis.fitting.maximum import maximise

LEAST_BASE, LARGEST_BASE = 1e-4, 0.999
LARGEST_PEAK = 1e3
_START_SHARES = (0.05, 0.3, 0.8)
_START_SPREADS = (0.03, 0.3, 2.0)  # variance of the level
_START_TAUS = (10.0, 100.0, 1000.0)  # in mean gaps


def log_likelihood(excerpts: Sequence[Excerpt], rate: float, peak: float, base: float, tau: float) -> float:
    """ln π (Π e^(D0·gap_i) L) e^(D0·rest) 1, D0 = Q - L (Fischer, Meier-Hellstern, Performance Evaluation 18, 1993).

    L has the rates rate·peak and rate·base, Q the jumps out of the high state at (1 - P)/tau and out of the low one
    at P/tau, P = (1 - base)/(peak - base) the share of the high state; π = (P, 1 - P). With s = tr D0/2 and
    δ² = s² - det D0, e^(D0 t) = e^((s+δ)t) ((1 + E)/2 + (1 - E)/(2δ)·(D0 - s)), E = e^(-2δt).
    """
    share = (1 - base) / (peak - base)
    high, low = rate * peak, rate * base
    leave_high, leave_low = (1 - share) / tau, share / tau
    half = ((-leave_high - high) - (-leave_low - low)) / 2  # D0[0,0] - s
    mean = (-leave_high - high - leave_low - low) / 2
    delta = math.sqrt(half**2 + leave_high * leave_low)
    total = 0.0
    for excerpt in excerpts:
        gaps = np.diff(excerpt.points, prepend=0.0, append=excerpt.length)
        fade = np.exp(-2 * delta * gaps)
        even, odd = (1 + fade) / 2, (1 - fade) / (2 * delta)
        entries = (even + odd * half, odd * leave_high, odd * leave_low, even - odd * half)
        for entry, out in zip(entries, (high, low, high, low), strict=True):
            entry[:-1] *= out / rate
        (a, b, c, d), log_scale = _product(entries)
        ends = share * (a + b) + (1 - share) * (c + d)
        if not ends > 0:
            return -math.inf
        total += math.log(ends) + log_scale + (mean + delta) * excerpt.length
        total += excerpt.points.size * math.log(rate)
    return total


def _product(
    entries: tuple[Floats, Floats, Floats, Floats],
) -> tuple[tuple[float, float, float, float], float]:
    """Product from first to last of (n,) matrices [[a, b], [c, d]] of entries >= 0, over e^scale; and scale.

    As a tree: pairs are multiplied, then pairs of pairs; each product is divided by its largest entry.
    """
    a, b, c, d = entries
    log_scale = 0.0
    while a.size > 1:
        if a.size % 2:
            a, d = np.append(a, 1.0), np.append(d, 1.0)
            b, c = np.append(b, 0.0), np.append(c, 0.0)
        a0, b0, c0, d0 = a[::2], b[::2], c[::2], d[::2]
        a1, b1, c1, d1 = a[1::2], b[1::2], c[1::2], d[1::2]
        a, b, c, d = a0 * a1 + b0 * c1, a0 * b1 + b0 * d1, c0 * a1 + d0 * c1, c0 * b1 + d0 * d1
        largest = np.maximum(np.maximum(a, b), np.maximum(c, d))
        largest[largest == 0] = 1.0
        log_scale += float(np.log(largest).sum())
        for entry in (a, b, c, d):
            entry /= largest
    return (float(a[0]), float(b[0]), float(c[0]), float(d[0])), log_scale


def fit_mmpp(excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """Peak, base, tau and the rate, of points in seconds. `rate_hz` is that of the whole trace.

    Coordinates are ln(rate), ln(peak - 1), logit(base) and ln(tau), in mean gaps.
    """
    count = sum(s.points.size for s in excerpts)
    seen = count / sum(s.length for s in excerpts)
    span = max(s.length for s in excerpts) * seen

    def value(at: Floats) -> float:
        base = logistic(at[2])
        return log_likelihood(
            excerpts, seen * math.exp(at[0]), 1 + math.exp(at[1]), base, math.exp(at[3]) / seen
        )

    bounds = [(-1.0, 1.0), (math.log(1e-3), math.log(LARGEST_PEAK)), (logit(LEAST_BASE), logit(LARGEST_BASE))]
    bounds.append((math.log(0.1), math.log(max(span / 4, 1.0))))
    found = maximise(value, _starts(), bounds, count, n_tried=2)
    rate, peak = seen * math.exp(found.at[0]), 1 + math.exp(found.at[1])
    base, tau = logistic(found.at[2]), math.exp(found.at[3]) / seen
    return Fitted(
        "mmpp",
        (
            Parameter("rate", rate, found.stderr((rate, 0, 0, 0)), "1/s"),
            Parameter("peak", peak, found.stderr((0, peak - 1, 0, 0))),
            Parameter("base", base, found.stderr((0, 0, base * (1 - base), 0))),
            Parameter("tau", tau, found.stderr((0, 0, 0, tau)), "s"),
        ),
        4,
        {
            "kind": "mmpp",
            "rate": rate_text(rate_hz),
            "peak": rounded(peak),
            "base": rounded(base),
            "tau": time_text(tau),
        },
        found.likelihood,
        count,
        found.failure,
    )


def _starts() -> list[Floats]:
    """Levels of mean 1 and a given variance v: peak - 1 = √(v(1-P)/P), 1 - base = √(v·P/(1-P)), where below 1."""
    found = []
    for share in _START_SHARES:
        for spread in _START_SPREADS:
            above, below = math.sqrt(spread * (1 - share) / share), math.sqrt(spread * share / (1 - share))
            if below < 0.999:
                found += [
                    np.array([0.0, math.log(above), logit(1 - below), math.log(t)]) for t in _START_TAUS
                ]
    return found
