"""The envelope: an exact mean, the shape of its curve, and the residual that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scenarios.burstiness import gap_c2
from scenarios.envelope import Envelope
from scenarios.processes import UnitGamma, UnitPoisson

S = 1_000_000_000
SIGMAS = 4.0

curves = st.lists(st.floats(0.01, 100) | st.just(0.0), min_size=1, max_size=20).map(tuple)


@given(curves, st.floats(0.1, 1e5), st.integers(1, 100 * S), st.integers(1, 100 * S))
def test_the_expected_count_over_the_horizon_is_rate_times_horizon(
    curve: tuple[float, ...], rate_hz: float, bin_ns: int, horizon_ns: int
) -> None:
    assume(any(curve[: math.ceil(horizon_ns / bin_ns)]))
    envelope = Envelope(rate_hz, curve, bin_ns, UnitPoisson(), horizon_ns)
    assert envelope.expected_count(horizon_ns) == rate_hz * (horizon_ns / S)
    assert envelope.expected_count(horizon_ns - 1) <= envelope.expected_count(horizon_ns) * (1 + 1e-12)
    assert envelope.expected_count(0) == 0


@given(curves, st.integers(1, 50), st.integers(1, 3))
def test_the_expected_count_is_the_integral_of_the_rate(
    curve: tuple[float, ...], horizon_bins: int, passes: int
) -> None:
    assume(any(curve[:horizon_bins]))
    bin_ns = 250_000_000
    envelope = Envelope(20.0, curve, bin_ns, UnitPoisson(), horizon_bins * bin_ns)
    bins = passes * len(curve)
    rates = envelope.rate_hz(np.arange(bins) * bin_ns + bin_ns // 2)
    assert envelope.expected_count(bins * bin_ns) == pytest.approx(rates.sum() * bin_ns / S, rel=1e-9)


def test_a_longer_horizon_repeats_the_curve_and_a_shorter_one_cuts_it() -> None:
    t_ns = np.arange(6) * S
    longer = Envelope(2.0, (1.0, 3.0), S, UnitPoisson(), 6 * S)
    assert longer.rate_hz(t_ns) == pytest.approx([1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    shorter = Envelope(2.0, (1.0, 3.0, 100.0), S, UnitPoisson(), 2 * S)
    assert shorter.rate_hz(t_ns[:2]) == pytest.approx([1.0, 3.0])


def test_counts_follow_the_curve_and_bins_of_rate_0_stay_empty() -> None:
    curve = (0.0, 1.0, 4.0, 0.0, 2.0, 0.0)
    passes = 10
    horizon_ns = passes * len(curve) * S
    envelope = Envelope(1_000.0, curve, S, UnitPoisson(), horizon_ns)
    offsets = envelope.offsets_ns(np.random.default_rng(11), horizon_ns)
    counts = np.bincount(offsets // S % len(curve), minlength=len(curve))
    expected = np.array(curve) / np.mean(curve) * 1_000 * passes
    assert counts[expected == 0].tolist() == [0, 0, 0]
    assert (np.abs(counts - expected) <= SIGMAS * np.sqrt(expected)).all()  # Poisson: variance = mean


def test_rescaling_gives_back_the_residual() -> None:
    cv = 1.3
    envelope = Envelope(100.0, (1.0, 5.0, 0.5), 7 * S, UnitGamma(cv), 100 * S)
    offsets = envelope.offsets_ns(np.random.default_rng(12), 100 * S)
    rescaled = np.array([envelope.expected_count(int(t)) for t in offsets])
    # relative standard error of c2 of n Gamma gaps sqrt((2 + 2c2)/n), as in test_processes
    tolerance = SIGMAS * math.sqrt((2 + 2 * cv**2) / offsets.size)
    assert gap_c2((rescaled * 1e9).astype(np.int64)) == pytest.approx(cv**2, rel=tolerance)
    gaps = np.diff(rescaled)
    lag_1 = np.corrcoef(gaps[1:], gaps[:-1])[0, 1]
    assert abs(lag_1) < SIGMAS / math.sqrt(gaps.size)  # renewal: gaps are independent


@pytest.mark.parametrize("curve", [(), (-1.0, 2.0), (math.nan,), (math.inf, 1.0)])
def test_a_curve_that_is_none_is_refused(curve: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="the curve needs at least one relative rate"):
        Envelope(1.0, curve, S, UnitPoisson(), S)


def test_a_curve_that_is_0_over_the_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match="the curve is 0 over the whole horizon"):
        Envelope(1.0, (0.0, 0.0, 1.0), S, UnitPoisson(), 2 * S)


@pytest.mark.parametrize(("rate_hz", "bin_ns", "horizon_ns"), [(0.0, 1, 1), (1.0, 0, 1), (1.0, 1, 0)])
def test_an_envelope_without_rate_bin_or_horizon_is_refused(
    rate_hz: float, bin_ns: int, horizon_ns: int
) -> None:
    with pytest.raises(ValueError, match="needs a rate, a bin and a horizon above 0"):
        Envelope(rate_hz, (1.0,), bin_ns, UnitPoisson(), horizon_ns)
