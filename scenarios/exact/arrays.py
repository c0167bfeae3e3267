"""exp, log, expm1, log1p, powers, sine and cosine of float64 arrays, the same bits on every CPU.

The usual methods (Cody, Waite, Software Manual for the Elementary Functions, 1980; Sun's fdlibm, 1993): a power of two
is split off exactly, ln 2 and 2π are carried in two parts, and on the small rest a series is summed whose first term
left out is below 1e-17 of the result. Errors are below 1 ulp for exp and log, below 2 ulp for the others
(tests/unit/scenarios/exact/test_exact.py holds them to `decimal`), below 2 + |exponent|/4 ulp for a power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import wraps

import numpy as np

from squall.scenarios.arrays import Floats, Int64s, pieces
from squall.scenarios.exact.scalars import BERNOULLI

BLOCK = 1 << 13
"""Numbers at a time, so that what is between stays in the cache; results do not depend on it."""

LARGEST_EXPONENT = 709.0
"""exp and expm1 of more are those of 709, 8e307."""
SMALLEST_EXPONENT = -708.0
"""exp of less is 0, so that no result is subnormal: some processes flush those to 0."""

_LN2_HIGH = float.fromhex(
    "0x1.62e42fee00000p-1"
)  # the upper 33 bits of ln 2: its product with 1,024 is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # ln 2 less those
_PER_LN2 = float.fromhex("0x1.71547652b82fep+0")  # 1/ln 2
_TURN = float.fromhex("0x1.921fb54442d18p+2")  # 2π
_TURN_LOW = float.fromhex("0x1.1a62633145c07p-52")  # 2π less that
_SPLIT = 134_217_729.0  # 2²⁷ + 1: Veltkamp's constant halves a number of 53 bits
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of √½
_MANTISSA_BITS = 52


def _constants(terms: Iterable[Fraction | float]) -> tuple[Floats, ...]:
    """Coefficients of a series as arrays, (): NumPy makes one of a float each time it is used, a third of the time that
    the series of 200 numbers takes (NumPy 2, 2026-11-23)."""
    return tuple(np.array(float(term)) for term in terms)


# 2·artanh(s)/s - 2 = Σ 2·zⁿ/(2n + 1), z = s² <= 0.02944
_ARTANH = _constants(2 / (2 * n + 1) for n in range(1, 11))
# r·coth(r/2) - 2 = Σ 2·B(2n)·tⁿ/(2n)!, t = r² <= 0.1201, by the Bernoulli numbers B2 … B14
_COTH = _constants(
    2 * Fraction(*number) / math.factorial(2 * n) for n, number in enumerate(BERNOULLI[:7], start=1)
)
# sin x = x - x³/3! + …, cos x = 1 - x²/2 + x⁴/4! - …, |x| <= π/4
_SINE = _constants(Fraction((-1) ** n, math.factorial(2 * n + 1)) for n in range(1, 9))
_COSINE = _constants(Fraction((-1) ** n, math.factorial(2 * n)) for n in range(2, 9))


def _in_blocks(function: Callable[..., Floats]) -> Callable[..., Floats]:
    """The function of arrays of any length, (n,)."""

    @wraps(function)
    def whole(values: Floats, *parameters: float) -> Floats:
        found = np.empty_like(values)
        for rows in pieces(values.size, BLOCK):
            found[rows] = function(values[rows], *parameters)
        return found

    return whole


@_in_blocks
def log(x: Floats) -> Floats:
    """Natural logarithm of positive normal numbers.

    x = 2^k·(1 + f) with 1 + f from √½ to √2; ln(1 + f) = f - (f²/2 - s·(f²/2 + R(s²))), s = f/(2 + f).
    """
    high, f, rest = _log_parts(x)
    return high + (f - rest)


def _log_parts(x: Floats) -> tuple[Floats, Floats, Floats]:
    """k·(ln 2's upper part), f, and the rest; ln x = first + second - third."""
    bits = x.view(np.int64)
    twos = (bits - _ROOT_HALF) >> _MANTISSA_BITS
    k = twos.astype(np.float64)
    f = (bits - (twos << _MANTISSA_BITS)).view(np.float64) - 1.0
    s = f / (f + 2.0)
    half = f * f * 0.5
    series = (_series(s * s, _ARTANH) + half) * s + k * _LN2_LOW
    return k * _LN2_HIGH, f, half - series


@_in_blocks
def log1p(x: Floats) -> Floats:
    """ln(1 + x) of finite x > -1, accurate for small ones: ln w + (x - (w - 1))/w, w the rounded 1 + x."""
    w = x + 1.0
    return log(w) + (x - (w - 1.0)) / w


@_in_blocks
def exp(x: Floats) -> Floats:
    """e^x of finite x; 0 below -708, and above 709 that of 709."""
    n, part = _expm1_parts(x)
    bits = (part + 1.0).view(np.int64) + (n << _MANTISSA_BITS)
    return np.where(x < SMALLEST_EXPONENT, 0.0, bits.view(np.float64))


@_in_blocks
def expm1(x: Floats) -> Floats:
    """e^x - 1 of finite x, accurate for small ones: 2^n·expm1(r) + (2^n - 1); above 709 that of 709."""
    n, part = _expm1_parts(x)
    scale = ((n + 1023) << _MANTISSA_BITS).view(np.float64)
    return part * scale + (scale - 1.0)


def _expm1_parts(x: Floats) -> tuple[Int64s, Floats]:
    """n and e^r - 1, where x = n·ln 2 + r and |r| <= ln(2)/2.

    With D(r) = r·coth(r/2) = 2 + t·P(t), t = r²: e^r = (D + r)/(D - r) = 1 + r + r·c/(2 - c), c = r - t·P(t).
    """
    held = np.clip(x, SMALLEST_EXPONENT, LARGEST_EXPONENT)
    n = np.rint(held * _PER_LN2)
    high, low = held - n * _LN2_HIGH, n * _LN2_LOW
    r = high - low
    c = r - _series(r * r, _COTH)
    return n.astype(np.int64), r * c / (2.0 - c) - low + high


@_in_blocks
def power(x: Floats, exponent: float) -> Floats:
    """x^exponent of positive normal numbers, (n,); where it leaves e^±708 as `exp` does.

    exp of exponent·ln x, both carried in two parts (Dekker, Numerische Mathematik 18, 1971).
    """
    k, f, rest = _log_parts(x)
    whole = k + f
    back = whole - k  # Knuth's exact sum of k and f
    left = (k - (whole - back)) + (f - back)
    log_high = whole - rest
    log_low = ((whole - log_high) - rest) + left
    split = log_high * _SPLIT
    upper = split - (split - log_high)
    lower = log_high - upper
    scaled = exponent * _SPLIT
    large = scaled - (scaled - exponent)
    small = exponent - large
    product = log_high * exponent
    error = ((upper * large - product) + upper * small + lower * large) + lower * small
    found = exp(product)
    return found + found * (error + log_low * exponent)


def cos_sin(turns: Floats) -> tuple[Floats, Floats]:
    """Cosine and sine of 2π·turns, (n,) each, of |turns| up to 2²⁰; exact at quarters.

    By quarters: turns = q/4 + s exactly, |s| <= 1/8.
    """
    quarter = np.rint(turns * 4.0)
    s = turns - quarter * 0.25
    x = s * _TURN + s * _TURN_LOW
    z = x * x
    sine = _series(z, _SINE) * x + x
    half = z * 0.5
    whole = 1.0 - half
    cosine = _series(z, _COSINE) * z + (1.0 - whole - half) + whole
    q = quarter.astype(np.int64)
    is_odd = q % 2 == 1
    cosines = np.where(is_odd, sine, cosine) * (1.0 - ((q + 1) & 2))
    return cosines, np.where(is_odd, cosine, sine) * (1.0 - (q & 2))


def _series(z: Floats, coefficients: tuple[Floats, ...]) -> Floats:
    """c1·z + c2·z² + … by Horner's rule."""
    total: Floats = z * coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        np.add(total, coefficient, total)
        np.multiply(total, z, total)
    return total
