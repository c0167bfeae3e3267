"""exp, log, expm1, log1p, powers, sine and cosine of float64 arrays, the same bits on every CPU.

The usual methods (Cody, Waite, Software Manual for the Elementary Functions, 1980; Sun's fdlibm, 1993): a power of two
is split off exactly, ln 2 and 2π are carried in two parts, and on the small rest a series is summed whose first term
left out is below 1e-17 of the result. Errors are below 1 ulp for exp and log, below 2 ulp for the others
(tests/unit/scenarios/exact/test_exact.py holds them to `decimal`), below 2 + |exponent|/4 ulp for a power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import wraps

import numpy as np

from squall.scenarios.arrays import Floats

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
_BERNOULLI = ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6))
_COTH = _constants(
    2 * Fraction(*number) / math.factorial(2 * n) for n, number in enumerate(_BERNOULLI, start=1)
)
# sin x = x - x³/3! + …, cos x = 1 - x²/2 + x⁴/4! - …, |x| <= π/4
_SINE = _constants(Fraction((-1) ** n, math.factorial(2 * n + 1)) for n in range(1, 9))
_COSINE = _constants(Fraction((-1) ** n, math.factorial(2 * n)) for n in range(2, 9))


def blocks(n_rows: int) -> Iterator[slice]:
    """Slices of `BLOCK` that cover `n_rows` in order."""
    for start in range(0, n_rows, BLOCK):
        yield slice(start, min(start + BLOCK, n_rows))


def _in_blocks(function: Callable[[Floats], Floats]) -> Callable[..., Floats]:
    """The function of arrays of any length, (n,); its second argument, `out`, may be the first."""

    @wraps(function)
    def whole(values: Floats, out: Floats | None = None) -> Floats:
        out = np.empty_like(values) if out is None else out
        for rows in blocks(values.size):
            out[rows] = function(values[rows])
        return out

    return whole


@_in_blocks
def log(x: Floats) -> Floats:
    """Natural logarithm of positive normal numbers.

    x = 2^k·(1 + f) with 1 + f from √½ to √2; ln(1 + f) = f - (f²/2 - s·(f²/2 + R(s²))), s = f/(2 + f).
    """
    high, f, rest = _log_parts(x)
    f -= rest
    high += f
    return high


def _log_parts(x: Floats) -> tuple[Floats, Floats, Floats]:
    """k·(ln 2's upper part), f, and the rest; ln x = first + second - third."""
    bits = x.view(np.int64)
    twos = bits - _ROOT_HALF
    twos >>= _MANTISSA_BITS
    k = twos.astype(np.float64)
    twos <<= _MANTISSA_BITS
    np.subtract(bits, twos, out=twos)
    f = twos.view(np.float64)
    f -= 1.0
    s = f + 2.0
    np.divide(f, s, out=s)
    half = f * f
    half *= 0.5
    series = _series(s * s, _ARTANH)
    series += half
    series *= s
    series += k * _LN2_LOW
    half -= series
    k *= _LN2_HIGH
    return k, f, half


@_in_blocks
def log1p(x: Floats) -> Floats:
    """ln(1 + x) of finite x > -1, accurate for small ones: ln w + (x - (w - 1))/w, w the rounded 1 + x."""
    w = x + 1.0
    return log(w) + (x - (w - 1.0)) / w


@_in_blocks
def exp(x: Floats) -> Floats:
    """e^x of finite x; 0 below -708, and above 709 that of 709."""
    n, part = _expm1_parts(x)
    part += 1.0
    twos = n.astype(np.int64)
    twos <<= _MANTISSA_BITS
    whole = part.view(np.int64)
    whole += twos
    if x.min(initial=0.0) < SMALLEST_EXPONENT:
        part[x < SMALLEST_EXPONENT] = 0.0
    return part


@_in_blocks
def expm1(x: Floats) -> Floats:
    """e^x - 1 of finite x, accurate for small ones: 2^n·expm1(r) + (2^n - 1); above 709 that of 709."""
    n, part = _expm1_parts(x)
    twos = n.astype(np.int64)
    twos += 1023
    twos <<= _MANTISSA_BITS
    scale = twos.view(np.float64)
    part *= scale
    scale -= 1.0
    part += scale
    return part


def _expm1_parts(x: Floats) -> tuple[Floats, Floats]:
    """n and e^r - 1, where x = n·ln 2 + r and |r| <= ln(2)/2.

    With D(r) = r·coth(r/2) = 2 + t·P(t), t = r²: e^r = (D + r)/(D - r) = 1 + r + r·c/(2 - c), c = r - t·P(t).
    """
    held = np.clip(x, SMALLEST_EXPONENT, LARGEST_EXPONENT)
    n = held * _PER_LN2
    np.rint(n, out=n)
    held -= n * _LN2_HIGH
    low = n * _LN2_LOW
    r = held - low
    c = _series(r * r, _COTH)
    np.subtract(r, c, out=c)
    r *= c
    np.subtract(2.0, c, out=c)
    r /= c
    r -= low
    r += held
    return n, r


def power(values: Floats, exponent: float, out: Floats | None = None) -> Floats:
    """values^exponent of positive normal numbers, (n,); where it leaves e^±708 as `exp` does."""
    return _in_blocks(lambda block: _power(block, exponent))(values, out)


def _power(x: Floats, exponent: float) -> Floats:
    """exp of exponent·ln x, both carried in two parts (Dekker, Numerische Mathematik 18, 1971)."""
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
    quarter = turns * 4.0
    np.rint(quarter, out=quarter)
    s = turns - quarter * 0.25
    x = s * _TURN
    x += s * _TURN_LOW
    z = x * x
    sine = _series(z, _SINE)
    sine *= x
    sine += x
    half = z * 0.5
    whole = 1.0 - half
    left = 1.0 - whole
    left -= half
    cosine = _series(z, _COSINE)
    cosine *= z
    cosine += left
    cosine += whole
    q = quarter.astype(np.int64)
    is_odd = (q & 1).astype(np.bool_)
    np.copyto(x, cosine)
    np.copyto(cosine, sine, where=is_odd)
    np.copyto(sine, x, where=is_odd)
    cosine *= 1.0 - ((q + 1) & 2)
    sine *= 1.0 - (q & 2)
    return cosine, sine


def _series(z: Floats, coefficients: tuple[Floats, ...]) -> Floats:
    """c1·z + c2·z² + … by Horner's rule."""
    total: Floats = z * coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        np.add(total, coefficient, total)
        np.multiply(total, z, total)
    return total
