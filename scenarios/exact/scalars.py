"""Functions of one number, computed in `decimal` to 30 digits or more and rounded once: the same bits on every CPU.

`decimal` computes in whole numbers, and its ln and exp are correctly rounded (General Decimal Arithmetic
specification). For what a law needs once; arrays have `squall.scenarios.exact.arrays`, a thousand times as fast.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache

_DIGITS = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN)
_TINY = 1e-18  # the square of what is less is below the last digit of it
_HALF_LN_TURN = Decimal("0.91893853320467274178032973640561763986139747363778")  # ln(2π)/2
_STIRLING_FROM = 30
BERNOULLI = (
    (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43_867, 798), (-174_611, 330),
)  # fmt: skip
"""Numerators and denominators of the Bernoulli numbers B2, B4 … B20."""
_STIRLING = tuple(
    Decimal(above) / (below * 2 * n * (2 * n - 1)) for n, (above, below) in enumerate(BERNOULLI, 1)
)


@lru_cache(maxsize=4096)
def log(x: float) -> float:
    """Natural logarithm of x > 0."""
    return float(_DIGITS.ln(Decimal(x)))


@lru_cache(maxsize=4096)
def log1p(x: float) -> float:
    """ln(1 + x), x > -1."""
    return x if abs(x) < _TINY else float(_DIGITS.ln(_DIGITS.add(1, Decimal(x))))


def expm1(x: float) -> float:
    """e^x - 1."""
    return x if abs(x) < _TINY else float(_DIGITS.subtract(_DIGITS.exp(Decimal(x)), 1))


@lru_cache(maxsize=4096)
def power(x: float, exponent: float) -> float:
    """x^exponent of x > 0; 0 of 0 and an exponent above 0."""
    with localcontext(_DIGITS):
        return float((Decimal(x).ln() * Decimal(exponent)).exp())


@lru_cache(maxsize=4096)
def gamma(x: float) -> float:
    """Γ(x), x > 0, by Stirling's series beyond 30 (Abramowitz, Stegun, 6.1.40) and Γ(x) = Γ(x + 1)/x."""
    with localcontext(_DIGITS):
        y, product = Decimal(x), Decimal(1)
        while y < _STIRLING_FROM:
            product *= y
            y += 1
        series = sum(c / y ** (2 * n + 1) for n, c in enumerate(_STIRLING))
        return float(((y - Decimal("0.5")) * y.ln() - y + _HALF_LN_TURN + series).exp() / product)


def lognormal_parameters(mean: float, cv: float) -> tuple[float, float]:
    """(mu, sigma) of the logarithm of a lognormal of that mean and cv.

    sigma² = ln(1 + cv²) and mu = ln(mean) - sigma²/2, from the moments exp(mu + sigma²/2) and exp(sigma²) - 1.
    """
    variance = log1p(cv * cv)
    return log(mean) - variance / 2, math.sqrt(variance)
