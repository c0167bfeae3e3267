"""The rate curve that a trace is given back, and its residual on the rescaled clock."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.traces.envelope import bin_counts, envelope_bins, fit_envelope, shrunk
from squall.analysis.traces.fitted import Fitted, arrivals_of
from squall.scenarios.series.burstiness import idc_shifted
from tests.fitted_parameters import parameter
from tests.known import known

S = 1_000_000_000
BIN_NS = 60 * S
END_NS = 60 * BIN_NS
CURVE = [round(1 + 0.6 * math.sin(2 * math.pi * k / 30), 3) for k in range(60)]


def drawn(residual: dict[str, object], seed: int = 3) -> NDArray[np.int64]:
    scenario = {"kind": "envelope", "rate": "4/s", "bin": "60s", "curve": CURVE, "residual": residual}
    return arrivals_of(scenario).draw(np.random.default_rng(seed), END_NS)


def curve_of(found: Fitted) -> NDArray[np.float64]:
    return np.array(found.scenario["curve"])


def is_near(found: Fitted, **truth: float) -> bool:
    """Whether each parameter is within three of its standard errors."""
    estimates = [(parameter(found, name), true) for name, true in truth.items()]
    return all(abs(one.value - true) < 3 * known(one.stderr) for one, true in estimates)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_residual_and_the_curve_of_an_envelope_are_found(seed: int) -> None:
    found = fit_envelope(drawn({"kind": "hawkes", "n": 0.4, "beta": 0.6}, seed), END_NS, BIN_NS, "hawkes")
    assert is_near(found, n=0.4, beta=0.6)
    # A bin has 240 expected arrivals of IDC 1/(1 - .4)² = 2.8: one level is off by √(2.8/240) = 0.11. Mean square over
    # 60 bins: at most that, and 1 + 3·√(2/60) = 1.55 times as much in one draw of a thousand.
    assert np.mean((curve_of(found) - CURVE) ** 2) < 0.11**2 * 1.55
    assert found.n_parameters == 62


def test_a_gamma_residual_is_found_and_a_poisson_curve_is_not_taken_for_one() -> None:
    assert is_near(fit_envelope(drawn({"kind": "gamma", "cv": 1.5}), END_NS, BIN_NS, "gamma"), cv=1.5)
    poisson = drawn({"kind": "poisson"})
    found = fit_envelope(poisson, END_NS, BIN_NS, "gamma")
    assert is_near(found, cv=1.0)
    # the gaps of a drifting rate, not rescaled, have another cv: that of the curve is in it
    raw = np.diff(poisson)
    assert abs(raw.std() / raw.mean() - 1.0) > 3 * known(parameter(found, "cv").stderr)


def test_the_levels_leave_out_the_noise_that_the_residual_will_add() -> None:
    """Flat Poisson: counts of mean m vary by m, all of it the residual's. Over 50 series of 60 bins the variance of the
    drawn counts over the mean is 1 ± √(2/59/50) = 1 ± 0.026; drawn from the counts themselves it is 2.
    """
    rng = np.random.default_rng(5)
    levels = np.array([shrunk(row, 1.0) for row in rng.poisson(80, (50, 60)).astype(np.float64)])
    again = rng.poisson(levels)
    # The smoothed spectrum of a flat series lies now above, now below the noise, and only what is below is cut:
    # an excess of a few tenths of the noise stays.
    assert 1 - 3 * 0.026 < np.mean(again.var(axis=1, ddof=1) / again.mean(axis=1)) < 1.35


def test_a_slow_swing_stays_whole_when_the_noise_goes() -> None:
    swing = 100 + 50 * np.sin(2 * np.pi * np.arange(120) / 60)
    levels = shrunk(np.random.default_rng(2).poisson(swing).astype(np.float64), 1.0)
    # noise of a count: √100 = 10; what is left of it after a low-pass is below half
    assert np.sqrt(np.mean((levels - swing) ** 2)) < 6
    assert np.corrcoef(levels, swing)[0, 1] > 0.98
    assert shrunk(swing, 1e-9) == pytest.approx(swing, abs=1e-3)


def test_draws_have_the_dispersion_of_the_trace_and_without_shrinking_have_more() -> None:
    """At 60 s the drawn counts would vary by their levels' noise too: IDC up by about 1."""
    rng = np.random.default_rng(8)
    times = arrivals_of({"kind": "poisson", "rate": "1.5/s"}).draw(rng, END_NS)
    fit = fit_envelope(times, END_NS, BIN_NS, "poisson").scenario
    counts = bin_counts(times, END_NS, BIN_NS)
    naive = {**fit, "curve": [round(float(c), 4) for c in counts / counts.mean()]}

    def drawn_idc(scenario: Any) -> float:
        draws = [arrivals_of(scenario).draw(rng, END_NS) for _ in range(9)]
        return float(np.median([known(idc_shifted(one, BIN_NS, 0, END_NS)) for one in draws]))

    seen = known(idc_shifted(times, BIN_NS, 0, END_NS))
    assert drawn_idc(naive) > seen + 0.6
    assert abs(drawn_idc(fit) - seen) < 0.4


@pytest.mark.parametrize("seconds", [27, 23])
def test_a_last_bin_that_the_span_cuts_counts_as_if_it_were_whole(seconds: int) -> None:
    times = np.arange(0, seconds * S, S // 10)  # 10 a second
    assert bin_counts(times, seconds * S, 10 * S) == pytest.approx([100, 100, 100])


@pytest.mark.parametrize(
    ("n", "bins_s"), [(18_000, [10, 30, 60, 120, 300]), (3_600, [60, 120, 300]), (500, [])]
)
def test_only_bins_with_50_arrivals_and_10_of_them_are_tried(n: int, bins_s: list[int]) -> None:
    assert envelope_bins(n, (500 if n == 500 else 3_600) * S) == [one * S for one in bins_s]


def test_every_arrival_of_the_trace_stands_where_its_rate_is_above_0() -> None:
    rng = np.random.default_rng(3)
    crowd = np.sort(np.concatenate([rng.integers(0, 3600 * S, 600), rng.integers(1000 * S, 1060 * S, 6000)]))
    found = fit_envelope(crowd, 3600 * S, BIN_NS, "poisson")
    assert math.isfinite(known(found.log_likelihood))
    assert curve_of(found).min() > 0
