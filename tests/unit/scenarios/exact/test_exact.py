"""Functions of the same bits on every CPU: their error against `decimal`, their edges, and the bits themselves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.arrays import Floats
from squall.scenarios.arrivals.varying import stationary_shares
from squall.scenarios.exact import arrays, scalars
from squall.scenarios.exact.fourier import fourier

Exactly = Callable[[Decimal], Decimal]

PRECISE = Context(prec=60)
TURN = Decimal("6.28318530717958647692528676655900576839433879875021164194989")


def uniform(low: float, high: float, count: int = 1_500) -> Floats:
    return np.random.default_rng(20261122).uniform(low, high, count)


def worst_ulp(found: Floats, values: Floats, exactly: Exactly) -> float:
    """Largest error in units of the last digit of the right result."""
    worst = 0.0
    for value, result in zip(values.tolist(), found.tolist(), strict=True):
        right = exactly(Decimal(value))
        worst = max(worst, abs(float((Decimal(result) - right) / Decimal(math.ulp(float(right))))))
    return worst


def cosine(x: Decimal) -> Decimal:
    """By its Taylor series."""
    with localcontext(PRECISE):
        term = total = Decimal(1)
        for n in range(1, 60):
            term *= -x * x / (2 * n * (2 * n - 1))
            total += term
        return total


def power_of(exponent: float) -> tuple[Callable[[Floats], Floats], Exactly]:
    return (
        lambda values: arrays.power(values, exponent),
        lambda x: PRECISE.exp(PRECISE.multiply(PRECISE.ln(x), Decimal(exponent))),
    )


SMALL = np.concatenate([uniform(-1e-9, 1e-9, 200), uniform(-1e-3, 1e-3, 200), np.array([1e-300, -1e-17])])
FUNCTIONS: dict[str, tuple[Callable[[Floats], Floats], Exactly, Floats, float]] = {
    "log": (
        arrays.log,
        PRECISE.ln,
        np.concatenate([uniform(2.0**-53, 1), uniform(0.7, 1.42), 1 + SMALL[:400], np.exp(uniform(-700, 700))]),
        1.0,
    ),
    "exp": (arrays.exp, PRECISE.exp, np.concatenate([uniform(-708, 709), uniform(-1, 1), uniform(-40, 0)]), 1.0),
    "log1p": (
        arrays.log1p,
        lambda x: x if abs(x) < 1e-40 else PRECISE.ln(PRECISE.add(1, x)),
        np.concatenate([uniform(-0.999, 4), SMALL]),
        2.0,
    ),
    "expm1": (
        arrays.expm1,
        lambda x: x if abs(x) < 1e-40 else PRECISE.subtract(PRECISE.exp(x), 1),
        np.concatenate([uniform(-40, 40), uniform(-1, 1), SMALL]),
        2.0,
    ),
    "cosine": (
        lambda turns: arrays.cos_sin(turns)[0],
        lambda u: cosine(PRECISE.multiply(u, TURN)),
        np.concatenate([uniform(-2, 2), uniform(0, 0.3)]),
        2.0,
    ),
    "sine": (
        lambda turns: arrays.cos_sin(turns)[1],
        lambda u: cosine(PRECISE.multiply(PRECISE.subtract(u, Decimal("0.25")), TURN)),
        np.concatenate([uniform(-2, 2), uniform(0, 0.3)]),
        2.0,
    ),
    **{
        f"power {exponent}": (*power_of(exponent), np.concatenate([np.arange(1.0, 999.0), uniform(0.01, 3)]), bound)
        for exponent, bound in ((0.5, 2.2), (1.96, 2.5), (-0.04, 2.1), (-1.1, 2.3), (6.1, 3.6), (-20.0, 7.0))
    },
}  # fmt: skip


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_its_bound(name: str, step: int) -> None:
    """Of the values each, or every fourth: exact ones are slow."""
    function, exactly, values, bound = FUNCTIONS[name]
    values = values[::step].copy()
    with np.errstate(all="raise", under="ignore"):  # of squares of what is next to 0
        assert worst_ulp(function(values), values, exactly) <= bound


def test_the_check_of_the_error_sees_one_digit() -> None:
    values = uniform(0.1, 1)
    off = np.nextafter(np.nextafter(arrays.log(values), 1), 1)
    assert worst_ulp(off, values, PRECISE.ln) > 1.0


def test_functions_are_exact_where_the_result_is() -> None:
    assert arrays.log(np.array([1.0])).tolist() == [0.0]
    assert arrays.exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    assert arrays.expm1(np.array([0.0])).tolist() == [0.0]
    assert arrays.power(np.array([1.0, 2.0, 9.0]), 2.0).tolist() == [1.0, 4.0, 81.0]
    assert arrays.power(np.array([1.0, 7.5]), 0.0).tolist() == [1.0, 1.0]
    quarters = np.arange(-4, 5) / 4
    cosines, sines = arrays.cos_sin(quarters)
    assert cosines.tolist() == [1, 0, -1, 0, 1, 0, -1, 0, 1]
    assert sines.tolist() == [0, 1, 0, -1, 0, 1, 0, -1, 0]


def test_exponentials_beyond_their_range_are_0_and_that_of_709() -> None:
    largest = float(arrays.exp(np.array([709.0]))[0])
    assert largest == pytest.approx(8.2e307, rel=0.01)
    beyond = np.array([-1e300, -800.0, -708.1, 709.5, 1e300])
    assert arrays.exp(beyond).tolist() == [0.0, 0.0, 0.0, largest, largest]
    assert arrays.expm1(np.array([-1e300, -800.0, 1e300])).tolist() == [-1.0, -1.0, largest]
    smallest = float(arrays.exp(np.array([-708.0]))[0])
    assert smallest > np.finfo(np.float64).tiny  # nothing between is subnormal


@given(st.lists(st.floats(2.0**-53, 1e300), min_size=2, max_size=40))
def test_the_logarithm_and_the_root_rise(values: list[float]) -> None:
    rising = np.sort(np.array(values))
    assert (np.diff(arrays.log(rising)) >= 0).all()
    # to within the two units that each may be off
    roots = arrays.power(rising, 0.5)
    assert (roots[1:] >= roots[:-1] * (1 - 2.0**-51)).all()


@pytest.mark.parametrize("name", ["log", "exp", "log1p", "expm1", "sine", "power 1.96"])
def test_a_result_does_not_depend_on_its_block_its_place_or_the_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, _, values, _ = FUNCTIONS[name]
    whole, kept = function(values), values.copy()
    assert np.array_equal(values, kept)
    assert np.array_equal(function(values[7:]), whole[7:])
    monkeypatch.setattr(arrays, "BLOCK", 5)
    assert np.array_equal(function(values), whole)
    assert function(np.empty(0)).size == 0


def test_the_bits_are_those_of_any_machine() -> None:
    """Of arguments made of whole numbers, so that no library has a part in them."""
    values = np.arange(1, 40_001, dtype=np.float64) / 2**12
    found = [
        arrays.log(values),
        arrays.exp(-values),
        arrays.expm1(values - 5),
        arrays.log1p(values),
        *arrays.cos_sin(values),
    ]
    found += [arrays.power(values, exponent) for exponent in (0.3, -1.7)]
    found += fourier(values[: 2**12], values[2**12 : 2**13])
    found += [
        np.array([f(x) for x in values[:50].tolist()]) for f in (scalars.log, scalars.log1p, scalars.gamma)
    ]
    digest = hashlib.sha256(b"".join(array.astype("<f8").tobytes() for array in found)).hexdigest()
    assert digest == "d60299e41b483cb152c3537e28b84f005eac910b22f39aa4fe3bc0e9cc59c97c"


# --- scalars ------------------------------------------------------------------------------------------------------


def test_scalars_are_rounded_once() -> None:
    for x in uniform(0.01, 30, 60).tolist():
        assert scalars.log(x) == float(PRECISE.ln(Decimal(x)))
        assert scalars.log1p(x) == float(PRECISE.ln(Decimal(x) + 1))
        assert scalars.expm1(-x) == float(PRECISE.subtract(PRECISE.exp(Decimal(-x)), 1))
        assert scalars.power(x, 2.0) == float(Decimal(x) * Decimal(x))
    assert scalars.expm1(1e-300) == scalars.log1p(1e-300) == 1e-300
    assert scalars.expm1(1e-15) == pytest.approx(1e-15 + 5e-31, rel=1e-16)


def test_the_gamma_function_is_that_of_its_known_values() -> None:
    for n in range(1, 25):
        assert scalars.gamma(float(n)) == float(math.factorial(n - 1))
    assert scalars.gamma(0.5) == pytest.approx(math.sqrt(math.pi), rel=1e-15)
    for x in uniform(1, 14, 40).tolist():
        assert scalars.gamma(x) == pytest.approx(math.gamma(x), rel=1e-14)


# --- the transform ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4, 8, 32, 64, 2**13])
def test_a_transform_is_that_of_numpy(n: int) -> None:
    re, im = np.random.default_rng(n).random((2, n))
    found = fourier(re, im)
    # rounding grows like ε·√(n)·log2(n) of numbers of 1, at most 2e-16 · 91 · 13
    assert np.abs(found[0] + 1j * found[1] - np.fft.fft(re + 1j * im)).max() < 2.4e-13


def test_a_length_that_is_no_power_of_two_is_refused() -> None:
    for length in (0, 3, 12):
        with pytest.raises(ValueError, match="a power of two of numbers"):
            fourier(np.zeros(length), np.zeros(length))


# --- the stationary law -------------------------------------------------------------------------------------------


def test_the_stationary_law_of_a_chain_is_the_one_that_it_keeps() -> None:
    rng = np.random.default_rng(4)
    for n_states in (2, 3, 7, 16):
        jumps = rng.random((n_states, n_states)) ** 6
        np.fill_diagonal(jumps, 0.0)
        jumps /= jumps.sum(axis=1, keepdims=True)
        shares = stationary_shares(jumps.tolist())
        assert shares @ jumps == pytest.approx(shares, rel=1e-12)


def test_states_that_are_left_for_ever_have_no_share() -> None:
    for jumps, shares in (
        ([[0, 0.5, 0.5], [0, 0, 1.0], [0, 1.0, 0]], [0.0, 1.0, 1.0]),
        ([[0, 1.0], [1.0, 0]], [1.0, 1.0]),
        # a weight as small as this counts: no rank has to be told from rounding
        ([[0, 1.0], [2.0**-100, 0]], [1.0, 2.0**100]),
    ):
        assert stationary_shares(jumps).tolist() == shares
