"""Two-state Markov-modulated Poisson process by maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.traces.fitted import ABOVE_1, LOG, LOGIT, Coordinate, Excerpt, Fitted
from squall.analysis.traces.maximum import maximise

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
        steps = np.array([[even + odd * half, odd * leave_high], [odd * leave_low, even - odd * half]])
        steps[..., :-1] *= np.array([high, low])[:, None] / rate
        whole, log_scale = _product(steps)
        ends = float(np.array([share, 1 - share]) @ whole.sum(axis=1))
        if not ends > 0:
            return -math.inf
        total += math.log(ends) + log_scale + (mean + delta) * excerpt.length
        total += excerpt.points.size * math.log(rate)
    return total


def _product(steps: Floats) -> tuple[Floats, float]:
    """Product from first to last of matrices of entries >= 0, (2, 2, n), over e^scale; and scale.

    As a tree: pairs are multiplied, then pairs of pairs; each product is divided by its largest entry.
    """
    log_scale = 0.0
    while steps.shape[2] > 1:
        if steps.shape[2] % 2:
            steps = np.concatenate([steps, np.eye(2)[..., None]], axis=2)
        steps = (steps[:, :, None, ::2] * steps[None, :, :, 1::2]).sum(axis=1)
        largest = steps.max(axis=(0, 1))
        largest[largest == 0] = 1.0
        log_scale += float(np.log(largest).sum())
        steps = steps / largest
    return steps[..., 0], log_scale


def fit_mmpp(excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """Rate, peak, base and tau, of points in seconds. `rate_hz` is that of the whole trace.

    The search begins at levels of mean 1 and a given variance v: peak - 1 = √(v(1-P)/P), 1 - base = √(v·P/(1-P)), where
    that is below 1.
    """
    count = sum(s.points.size for s in excerpts)
    seen = count / sum(s.length for s in excerpts)
    longest = max(max(s.length for s in excerpts) * seen / 4, 1.0)  # in mean gaps
    coordinates = (
        Coordinate("rate", LOG, math.exp(-1), math.e, "1/s", seen),
        *levels(),
        Coordinate("tau", LOG, 0.1, longest, "s", 1 / seen),
    )
    starts: list[tuple[float, ...]] = []
    for share, spread, tau in product(_START_SHARES, _START_SPREADS, _START_TAUS):
        above, below = math.sqrt(spread * (1 - share) / share), math.sqrt(spread * share / (1 - share))
        starts += [(seen, 1 + above, 1 - below, tau / seen)] if below < 0.999 else []
    likelihood = partial(log_likelihood, excerpts)
    return maximise(likelihood, coordinates, starts, count, n_tried=2).fitted("mmpp", rate_hz)


def levels() -> tuple[Coordinate, Coordinate]:
    """Peak and base."""
    return (
        Coordinate("peak", ABOVE_1, 1.001, 1 + LARGEST_PEAK),
        Coordinate("base", LOGIT, LEAST_BASE, LARGEST_BASE),
    )
