"""The rate curve that a trace is given back, and its residual on the rescaled clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.fitting.envelope import bin_counts, envelope_bins, fit_envelope, shrunk
from squall.analysis.fitting.fitted import Fitted, arrivals_of
from squall.scenarios.series.burstiness import idc_shifted
from tests.fitted_parameters import parameter

S = 1_000_000_000
BIN_NS = 60 * S
END_NS = 60 * BIN_NS
CURVE = [round(1 + 0.6 * math.sin(2 * math.pi * k / 30), 3) for k in range(60)]


def drawn(residual: dict[str, object], seed: int = 3, rate: str = "4/s") -> NDArray[np.int64]:
    scenario = {"kind": "envelope", "rate": rate, "bin": "60s", "curve": CURVE, "residual": residual}
    return arrivals_of(scenario).draw(np.random.default_rng(seed), END_NS)


def curve_of(found: Fitted) -> NDArray[np.float64]:
    return np.array(found.scenario["curve"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_residual_and_the_curve_of_an_envelope_are_found(seed: int) -> None:
    times = drawn({"kind": "hawkes", "n": 0.4, "beta": 0.6}, seed)
    found = fit_envelope(times, END_NS, BIN_NS, "hawkes")
    for name, truth in (("n", 0.4), ("beta", 0.6)):
        one = parameter(found, name)
        assert one.stderr is not None
        assert abs(one.value - truth) < 3 * one.stderr, one
    # A bin has 240 expected arrivals of IDC 1/(1 - .4)² = 2.8: one level is off by √(2.8/240) = 0.11. Mean square over
    # 60 bins: at most that, and 1 + 3·√(2/60) = 1.55 times as much in one draw of a thousand.
    assert np.mean((curve_of(found) - CURVE) ** 2) < 0.11**2 * 1.55
    assert found.n_parameters == 62


def test_a_gamma_residual_is_found_and_a_poisson_curve_is_not_taken_for_one() -> None:
    gamma = parameter(fit_envelope(drawn({"kind": "gamma", "cv": 1.5}), END_NS, BIN_NS, "gamma"), "cv")
    poisson = parameter(fit_envelope(drawn({"kind": "poisson"}), END_NS, BIN_NS, "gamma"), "cv")
    assert gamma.stderr is not None
    assert poisson.stderr is not None
    assert abs(gamma.value - 1.5) < 3 * gamma.stderr
    assert abs(poisson.value - 1.0) < 3 * poisson.stderr
    # the gaps of a drifting rate, not rescaled, have another cv: that of the curve is in it
    raw = np.diff(drawn({"kind": "poisson"}))
    assert abs(raw.std() / raw.mean() - 1.0) > 3 * poisson.stderr


def test_the_levels_leave_out_the_noise_that_the_residual_will_add() -> None:
    """Flat Poisson: counts of mean m vary by m, all of it the residual's. Over 50 series of 60 bins the variance of the
    drawn counts over the mean is 1 ± √(2/59/50) = 1 ± 0.026; drawn from the counts themselves it is 2.
    """
    rng = np.random.default_rng(5)
    counts = rng.poisson(80, (50, 60)).astype(np.float64)
    again = np.array([rng.poisson(shrunk(row, 1.0)) for row in counts])
    naive = rng.poisson(counts)

    def dispersion(rows: NDArray[np.int64]) -> float:
        return float(np.mean(rows.var(axis=1, ddof=1) / rows.mean(axis=1)))

    # The smoothed spectrum of a flat series lies now above, now below the noise, and only what is below is cut:
    # an excess of a few tenths of the noise stays.
    assert 1 - 3 * 0.026 < dispersion(again) < 1.35
    assert dispersion(naive) > 1.8


def test_a_slow_swing_stays_whole_when_the_noise_goes() -> None:
    swing = 100 + 50 * np.sin(2 * np.pi * np.arange(120) / 60)
    levels = shrunk(np.random.default_rng(2).poisson(swing).astype(np.float64), 1.0)
    # noise of a count: √100 = 10; what is left of it after a low-pass is below half
    assert np.sqrt(np.mean((levels - swing) ** 2)) < 6
    assert np.corrcoef(levels, swing)[0, 1] > 0.98
    assert shrunk(swing, 1e-9) == pytest.approx(swing, abs=1e-3)


def test_draws_have_the_dispersion_of_the_trace_and_without_shrinking_have_more() -> None:
    """At 60 s the drawn counts would vary by their levels' noise too: IDC up by about 1."""
    flat = {
        "kind": "envelope",
        "rate": "1.5/s",
        "bin": "60s",
        "curve": [1.0],
        "residual": {"kind": "poisson"},
    }
    rng = np.random.default_rng(8)
    times = arrivals_of(flat).draw(rng, END_NS)
    shrunk_fit = fit_envelope(times, END_NS, BIN_NS, "poisson")
    counts = bin_counts(times, END_NS, BIN_NS)
    naive = {**shrunk_fit.scenario, "curve": [round(float(c), 4) for c in counts / counts.mean()]}

    def drawn_idc(scenario: object) -> float:
        arrivals = arrivals_of(scenario)  # type: ignore[arg-type]
        found = [idc_shifted(arrivals.draw(rng, END_NS), BIN_NS, 0, END_NS) for _ in range(9)]
        return float(np.median([one for one in found if one is not None]))

    seen = idc_shifted(times, BIN_NS, 0, END_NS)
    assert seen is not None
    assert drawn_idc(naive) > seen + 0.6
    assert abs(drawn_idc(shrunk_fit.scenario) - seen) < 0.4


def test_a_last_bin_that_the_span_cuts_counts_as_if_it_were_whole() -> None:
    times = np.arange(0, 27 * S, S // 10)  # 10 a second
    assert bin_counts(times, 27 * S, 10 * S) == pytest.approx([100, 100, 100])
    assert bin_counts(np.arange(0, 23 * S, S // 10), 23 * S, 10 * S) == pytest.approx([100, 100, 100])


def test_only_bins_with_50_arrivals_and_10_of_them_are_tried() -> None:
    assert envelope_bins(5 * 3600, 3600 * S) == [10 * S, 30 * S, 60 * S, 120 * S, 300 * S]
    assert envelope_bins(3600, 3600 * S) == [60 * S, 120 * S, 300 * S]
    assert envelope_bins(500, 500 * S) == []


def test_every_arrival_of_the_trace_stands_where_its_rate_is_above_0() -> None:
    rng = np.random.default_rng(3)
    crowd = np.sort(np.concatenate([rng.integers(0, 3600 * S, 600), rng.integers(1000 * S, 1060 * S, 6000)]))
    found = fit_envelope(crowd, 3600 * S, BIN_NS, "poisson")
    assert found.log_likelihood is not None
    assert math.isfinite(found.log_likelihood)
    assert curve_of(found).min() > 0
