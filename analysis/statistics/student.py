"""Quantiles of Student's distribution, without scipy.special, whose import takes a tenth of what an analysis does.

Its upper tail at t with v degrees of freedom is I(x; v/2, 1/2) / 2 with x = v / (v + t²), I being the regularised
incomplete beta function (Abramowitz and Stegun 26.7.1), here by its continued fraction (NIST DLMF 8.17.22).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

_MANY = 30.0
"""Where the series of the ratio of gamma functions holds to the last digits: its next term is below 1e-16."""


_ENOUGH = 5_000.0
"""Where the next term of the expansion about the normal distribution is below 1e-12, for 0.9999 too."""


@functools.cache
def student_quantile(probability: float, degrees: float) -> float:
    """The point below which Student's distribution with `degrees`, whole or not, has `probability`.

    To 1e-12 of itself. Raises ValueError for a probability outside (0.5, 1) and degrees of 0 or less.
    """
    if not (0.5 < probability < 1.0 and degrees > 0.0):
        raise ValueError(f"no quantile {probability:g} of {degrees:g} degrees of freedom")
    if degrees > _ENOUGH:
        return _near_normal(NormalDist().inv_cdf(probability), degrees)
    low, high = 0.0, 1.0
    while _above(high, degrees) > 1.0 - probability:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        if _above(middle, degrees) > 1.0 - probability:
            low = middle
        else:
            high = middle
    return high


def student_tail(t: float, degrees: float) -> float:
    """The probability of more than `t` >= 0, 0 of an infinite one. Raises ValueError for degrees of 0 or less, and a
    `t` below 0."""
    if not (t >= 0.0 and degrees > 0.0):
        raise ValueError(f"no tail of {t:g} with {degrees:g} degrees of freedom")
    if t == 0.0 or math.isinf(t):
        return 0.5 if t == 0.0 else 0.0
    return _above(t, degrees)


def _near_normal(z: float, degrees: float) -> float:
    """The quantile of many degrees whose normal one is `z` (Abramowitz and Stegun 26.7.5)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _above(t: float, degrees: float) -> float:
    """The probability of more than `t` > 0. Of I(x; a, b) and 1 - I(1 - x; b, a) the one that converges is taken."""
    half, part, rest = degrees / 2.0, t * t / (degrees + t * t), degrees / (degrees + t * t)
    log_rest = math.log1p(-part) if part < rest else math.log(rest)
    front = math.exp(math.log(part) / 2.0 + half * log_rest - _log_beta_half(half))
    if part * (degrees + 3.0) < 3.0:
        return 0.5 - front * _fraction(0.5, half, part)
    return front / degrees * _fraction(half, 0.5, rest)


def _fraction(a: float, b: float, x: float) -> float:
    """I(x; a, b) without its factor x^a (1 - x)^b / (a B(a, b))."""
    fraction = ratio = 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    numerator = 1.0
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            ratio = 1.0 / (1.0 + term * ratio)
            numerator = 1.0 + term / numerator
            fraction *= numerator * ratio
        if abs(numerator * ratio - 1.0) < 1e-16:
            break
    return fraction


def _log_beta_half(a: float) -> float:
    """ln B(a, 1/2) = ln(sqrt(pi) gamma(a) / gamma(a + 1/2)); the series: NIST DLMF 5.11.13."""
    if a < _MANY:
        return math.lgamma(0.5) + math.lgamma(a) - math.lgamma(a + 0.5)
    series = 1 / (8 * a) - 1 / (192 * a**3) + 1 / (640 * a**5) - 17 / (14336 * a**7)
    return (math.log(math.pi) - math.log(a)) / 2 + series
