"""Arrival processes in time: exact where they are fixed, right on average where they are random."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from scenarios.arrivals import Arrivals, Constant, Gamma, Poisson, build_arrivals
from scenarios.envelope import Envelope
from scenarios.load import ArrivalsConfig
from scenarios.presets import PRESETS
from scenarios.processes import UnitGamma, UnitHawkes, UnitPoisson
from scenarios.trace import Trace

S = 1_000_000_000
SIGMAS = 4.0


def build(horizon_ns: int = 60 * S, **config: object) -> Arrivals:
    adapter: TypeAdapter[ArrivalsConfig] = TypeAdapter(ArrivalsConfig)
    return build_arrivals(adapter.validate_python(config), horizon_ns)


def test_constant_arrivals_are_exact() -> None:
    offsets = Constant(200.0).offsets_ns(np.random.default_rng(0), S)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [5_000_000 * i for i in range(200)]


def test_constant_arrivals_of_a_third_of_a_second_are_floored() -> None:
    offsets = Constant(3.0).offsets_ns(np.random.default_rng(0), S + 1)
    assert offsets.tolist() == [0, 333_333_333, 666_666_666, 1_000_000_000]


def test_constant_arrivals_do_not_drift_over_a_day() -> None:
    offsets = Constant(7.0).offsets_ns(np.random.default_rng(0), 86_400 * S)
    assert offsets.size == 7 * 86_400
    exact = [i * S // 7 for i in range(offsets.size - 1_000, offsets.size)]
    assert np.abs(offsets[-1_000:] - np.array(exact)).max() <= 1


@given(
    st.sampled_from(
        [
            Constant(40.0),
            Poisson(40.0),
            Gamma(40.0, 2.5),
            Envelope(40.0, (0.0, 1.0, 3.0), S // 3, UnitHawkes(0.5, 1.0), 2 * S),
        ]
    ),
    st.integers(0, 2**64),
    st.integers(1, 5 * S),
)
@settings(max_examples=100, deadline=None)
def test_offsets_are_sorted_int64_inside_the_horizon(arrivals: Arrivals, seed: int, horizon_ns: int) -> None:
    offsets = arrivals.offsets_ns(np.random.default_rng(seed), horizon_ns)
    assert offsets.dtype == np.int64
    assert (np.diff(offsets) >= 0).all()
    assert offsets.size == 0 or (offsets[0] >= 0 and offsets[-1] < horizon_ns)


@pytest.mark.parametrize(
    ("arrivals", "count_idc"),
    [(Poisson(500.0), 1.0), (Gamma(500.0, 2.0), 4.0)],
)
def test_the_mean_rate_is_the_rate(arrivals: Arrivals, count_idc: float) -> None:
    horizon_ns = 200 * S
    expected = arrivals.expected_count(horizon_ns)
    assert expected == 500.0 * 200
    count = arrivals.offsets_ns(np.random.default_rng(3), horizon_ns).size
    assert abs(count - expected) < SIGMAS * math.sqrt(expected * count_idc)


def test_poisson_arrivals_are_uniform_over_the_horizon() -> None:
    offsets = Poisson(1000.0).offsets_ns(np.random.default_rng(5), 100 * S)
    uniform = (offsets + 0.5) / (100 * S)
    # Kolmogorov-Smirnov: D above 2.23/sqrt(n) has probability 2 exp(-2 · 2.23²) = 1e-4
    ranks = np.arange(1, offsets.size + 1) / offsets.size
    assert np.abs(ranks - uniform).max() < 2.23 / math.sqrt(offsets.size)


@pytest.mark.parametrize("arrivals", [Constant(25.0), Poisson(25.0), Gamma(25.0, 0.7)])
def test_the_rate_of_a_stationary_process_is_the_same_everywhere(arrivals: Arrivals) -> None:
    assert arrivals.rate_hz(np.array([0, 7, 10 * S])).tolist() == [25.0, 25.0, 25.0]
    assert arrivals.expected_count(0) == 0
    assert arrivals.expected_count(S // 5) == 5.0


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_refused(rate_hz: float) -> None:
    for process in (Constant, Poisson):
        with pytest.raises(ValueError, match="a rate is finite and above 0"):
            process(rate_hz)


def test_each_kind_of_config_builds_its_process(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("0\n1\n")
    assert build(kind="constant", rate="5/s") == Constant(5.0)
    assert build(kind="poisson", rate="5/s") == Poisson(5.0)
    assert build(kind="gamma", rate="5/s", cv=2) == Gamma(5.0, 2.0)
    assert build(kind="gamma", rate="5/s", burstiness=0.25) == Gamma(5.0, 2.0)
    spread = build(kind="trace", file=str(file), quantum="spread", quantum_width="1s")
    assert isinstance(spread, Trace)
    assert (spread.recorded_ns.tolist(), spread.quantum_width_ns) == ([0, S], S)


def test_a_curve_builds_an_envelope_with_the_residual_given_else_poisson() -> None:
    built = build(kind="envelope", rate="5/s", curve=[1, 2], bin="30s")
    assert built == Envelope(5.0, (1.0, 2.0), 30 * S, UnitPoisson(), 60 * S)
    built = build(kind="envelope", rate="5/s", curve=[1], bin="1s", residual={"kind": "gamma", "cv": 1.5})
    assert built == Envelope(5.0, (1.0,), S, UnitGamma(1.5), 60 * S)


def test_a_preset_gives_curve_bin_and_residual_and_yields_to_what_the_scenario_says() -> None:
    preset = PRESETS["nasa-web"]
    built = build(kind="envelope", rate="5/s", preset="nasa-web")
    assert built == Envelope(5.0, preset.curve, 60 * S, UnitHawkes(0.29, 2.2), 60 * S)
    residual = {"kind": "hawkes", "n": 0.5, "beta": 1}
    built = build(kind="envelope", rate="5/s", preset="nasa-web", bin="1s", residual=residual)
    assert built == Envelope(5.0, preset.curve, S, UnitHawkes(0.5, 1.0), 60 * S)
