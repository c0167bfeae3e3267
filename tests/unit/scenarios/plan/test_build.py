"""From the configuration of arrivals to the process: each key reaches the parameter that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from squall.scenarios.arrivals.gaps import (
    GammaGaps,
    HyperexponentialGaps,
    LognormalGaps,
    LomaxGaps,
    WeibullGaps,
    weibull_c2,
)
from squall.scenarios.arrivals.presets import CLIENT_PRESETS, PRESETS
from squall.scenarios.arrivals.process import (
    Arrivals,
    Clients,
    Concatenation,
    Constant,
    Modulated,
    Stationary,
    Superposition,
    Ticks,
)
from squall.scenarios.arrivals.random_paths import BModelPath, LogGaussianPath, MarkovPath, OnOffPath, Sojourn
from squall.scenarios.arrivals.rate_paths import FixedPath, diurnal, piecewise, pulses, steps
from squall.scenarios.arrivals.unit import UnitHawkes, UnitPoisson, UnitProcess, UnitRenewal
from squall.scenarios.config.arrivals import OpenPart, expected_count
from squall.scenarios.config.residuals import ResidualConfig
from squall.scenarios.plan.build import build_arrivals, build_unit
from squall.scenarios.plan.replay import TraceReplay

S = 1_000_000_000
HORIZON = 60 * S
NASA = PRESETS["nasa-web"]


def build(horizon_ns: int = HORIZON, **config: Any) -> Arrivals:
    return build_arrivals(TypeAdapter(OpenPart).validate_python({"rate": "5/s", **config}), horizon_ns)


def path_of(**config: Any) -> Any:
    built = build(**config)
    assert isinstance(built, Modulated)
    assert built.rate_hz_mean == 5.0
    return built.path


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "constant"}, Constant(5.0)),
        ({"kind": "poisson"}, Stationary(5.0, UnitPoisson())),
        ({"kind": "gamma", "cv": 2}, Stationary(5.0, UnitRenewal(GammaGaps(2.0)))),
        ({"kind": "gamma", "burstiness": 0.25}, Stationary(5.0, UnitRenewal(GammaGaps(2.0)))),
        ({"kind": "weibull", "shape": 0.5}, Stationary(5.0, UnitRenewal(WeibullGaps(0.5)))),
        ({"kind": "lognormal", "cv": 1.5}, Stationary(5.0, UnitRenewal(LognormalGaps(1.5)))),
        ({"kind": "pareto", "alpha": 1.5}, Stationary(5.0, UnitRenewal(LomaxGaps(1.5)))),
        ({"kind": "pareto", "cv": 2}, Stationary(5.0, UnitRenewal(LomaxGaps(8 / 3)))),
        ({"kind": "hyperexponential", "cv": 2}, Stationary(5.0, UnitRenewal(HyperexponentialGaps(2.0)))),
        # beta of a unit process is per expected arrival: 2/s at 5 arrivals a second
        ({"kind": "hawkes", "n": 0.5, "beta": "2/s"}, Stationary(5.0, UnitHawkes(0.5, 0.4))),
        (
            {"kind": "hawkes", "preset": "nasa-web"},
            Stationary(5.0, UnitHawkes(NASA.hawkes.n, NASA.hawkes.beta_hz / 5)),
        ),
        (
            {"kind": "mmpp", "peak": 3.0, "base": 0.5, "tau": "4s"},
            Modulated(5.0, MarkovPath.two_state(3.0, 0.5, 4.0 * S), UnitPoisson()),
        ),
        (
            {"kind": "mmpp", "states": [{"level": 3, "stay": "5s"}, {"level": 0.5, "stay": "20s"}]},
            Modulated(
                5.0, MarkovPath((3.0, 0.5), (5.0 * S, 20.0 * S), ((0.0, 1.0), (1.0, 0.0))), UnitPoisson()
            ),
        ),
        (
            {
                "kind": "mmpp",
                "states": [
                    {"level": 3, "stay": "5s"},
                    {"level": 1, "stay": "20s"},
                    {"level": 0, "stay": "1s"},
                ],
                "jumps": [[0, 0.5, 0.5], [1, 0, 0], [0.25, 0.75, 0]],
            },
            Modulated(
                5.0,
                MarkovPath(
                    (3.0, 1.0, 0.0), (5.0 * S, 20.0 * S, 1.0 * S), ((0, 0.5, 0.5), (1, 0, 0), (0.25, 0.75, 0))
                ),
                UnitPoisson(),
            ),
        ),
        ({"kind": "mmpp", "preset": "nasa-web"}, Modulated(5.0, NASA.mmpp, UnitPoisson())),
        (
            {
                "kind": "on-off",
                "sources": 7,
                "on": {"kind": "pareto", "mean": "1s", "alpha": 1.4},
                "off": {"kind": "exponential", "mean": "3s"},
            },
            Modulated(5.0, OnOffPath(Sojourn(1.0 * S, 1.4), Sojourn(3.0 * S), 7), UnitPoisson()),
        ),
        (
            {"kind": "fgn", "hurst": 0.9, "sigma": 0.5},
            Modulated(5.0, LogGaussianPath("fgn", 0.5, S, hurst=0.9), UnitPoisson()),
        ),
        (
            {"kind": "fgn", "preset": "nasa-web", "bin": "2s"},
            Modulated(
                5.0, LogGaussianPath("fgn", NASA.fgn.sigma, 2 * S, hurst=NASA.fgn.hurst), UnitPoisson()
            ),
        ),
        (
            {"kind": "b-model", "bias": 0.7, "bin": "2s"},
            Modulated(5.0, BModelPath(0.7, 2 * S, HORIZON), UnitPoisson()),
        ),
        (
            {"kind": "b-model", "preset": "nasa-web"},
            Modulated(5.0, BModelPath(NASA.b_model_bias, S, HORIZON), UnitPoisson()),
        ),
        ({"kind": "clients", "clients": 9, "zipf": 1.2, "cv": 2.0}, Clients(5.0, 9, 1.2, 2.0, 0.0)),
        (
            {"kind": "clients", "clients": 9, "zipf": 1.2, "cv": 2.0, "cv_sigma": 0.5},
            Clients(5.0, 9, 1.2, 2.0, 0.5),
        ),
        ({"kind": "ticks", "period": "3s"}, Ticks(5.0, 3 * S)),
        (
            {
                "kind": "envelope",
                "shape": {"kind": "log-ar1", "sigma": 0.5, "tau": "30s", "bin": "2s"},
                "residual": {"kind": "gamma", "cv": 1.2},
            },
            Modulated(5.0, LogGaussianPath("ar1", 0.5, 2 * S, tau_ns=30.0 * S), UnitRenewal(GammaGaps(1.2))),
        ),
        (
            {"kind": "envelope", "shape": {"kind": "fgn", "sigma": 0.5, "hurst": 0.8, "bin": "2s"}},
            Modulated(5.0, LogGaussianPath("fgn", 0.5, 2 * S, hurst=0.8), UnitPoisson()),
        ),
    ],
)
def test_each_kind_of_config_builds_its_process(config: dict[str, Any], expected: Arrivals) -> None:
    assert build(**config) == expected


def test_a_weibull_of_a_cv_has_that_cv() -> None:
    built = build(kind="weibull", cv=2)
    assert isinstance(built, Stationary)
    assert isinstance(built.unit, UnitRenewal)
    assert isinstance(built.unit.law, WeibullGaps)
    assert weibull_c2(built.unit.law.shape) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"curve": [1, 2], "bin": "30s"}, steps((1.0, 2.0), 30 * S, HORIZON)),
        ({"preset": "nasa-web"}, steps(PRESETS["nasa-web"].curve, 60 * S, HORIZON)),
        ({"preset": "nasa-web", "bin": "1s"}, steps(PRESETS["nasa-web"].curve, S, HORIZON)),
        (
            {"shape": {"kind": "piecewise", "points": [{"at": "3s", "level": 1}, {"at": "9s", "level": 2}]}},
            piecewise(((3 * S, 1.0), (9 * S, 2.0)), HORIZON),
        ),
        (
            {"shape": {"kind": "ramp", "from": 1, "to": 3, "over": "20s"}},
            piecewise(((0, 1.0), (20 * S, 3.0)), HORIZON),
        ),
        ({"shape": {"kind": "ramp", "from": 1, "to": 3}}, piecewise(((0, 1.0), (HORIZON, 3.0)), HORIZON)),
        (
            {"shape": {"kind": "step", "at": "20s", "factor": 3}},
            piecewise(((0, 1.0), (20 * S, 1.0), (20 * S, 3.0)), HORIZON),
        ),
        (
            {"shape": {"kind": "step", "at": "0s", "factor": 3}},
            piecewise(((0, 1.0),), HORIZON),
        ),
        (
            {"shape": {"kind": "spike", "at": "20s", "width": "5s", "factor": 3}},
            piecewise(((20 * S, 1.0), (20 * S, 3.0), (25 * S, 3.0), (25 * S, 1.0)), HORIZON),
        ),
        (
            {"shape": {"kind": "pulses", "factor": 3, "width": "2s", "period": "7s"}},
            pulses(3.0, 2 * S, 7 * S, HORIZON),
        ),
        (
            {"shape": {"kind": "diurnal", "peak": 1.5, "peak_at": "9s", "period": "30s"}},
            diurnal(1.5, 9 * S, 30 * S, HORIZON),
        ),
    ],
)
def test_each_shape_builds_its_path(config: dict[str, Any], expected: FixedPath) -> None:
    path = path_of(kind="envelope", **config)
    assert isinstance(path, FixedPath)
    t_ns = np.arange(0, HORIZON, 250_000_007)
    assert path.level(t_ns) == pytest.approx(expected.level(t_ns), rel=1e-12)
    assert path.area_ns(HORIZON) == HORIZON


@pytest.mark.parametrize("kind", ["step", "spike"])
def test_a_shape_that_begins_behind_the_phase_is_refused(kind: str) -> None:
    shape = {"kind": kind, "at": "70s", "factor": 3, **({"width": "5s"} if kind == "spike" else {})}
    with pytest.raises(ValueError, match=r"shape\.at: 70s lies behind the phase"):
        path_of(kind="envelope", shape=shape)


def test_the_last_bin_of_a_traces_shape_counts_as_if_it_were_whole(tmp_path: Path) -> None:
    """A constant trace under a phase of one and a half bins has a constant rate."""
    file = tmp_path / "even.csv"
    file.write_text("timestamp_ms\n" + "\n".join(str(ms) for ms in range(0, 120_000, 100)))
    shape = {"kind": "trace", "file": str(file), "bin": "60s"}
    built = build(kind="envelope", shape=shape, horizon_ns=90 * S)
    assert isinstance(built, Modulated)
    assert built.path.level(np.array([0, 59 * S, 61 * S, 89 * S])) == pytest.approx([1, 1, 1, 1])


def test_the_residual_is_that_of_the_config_else_of_the_preset_else_poisson() -> None:
    def residual(**keys: Any) -> UnitProcess:
        built = build(kind="envelope", **keys)
        assert isinstance(built, Modulated)
        return built.residual

    own = {"kind": "hawkes", "n": 0.5, "beta": 1}
    assert residual(preset="nasa-web") == NASA.residual
    assert residual(preset="nasa-web", residual=own) == UnitHawkes(0.5, 1.0)
    assert residual(curve=[1], bin="1s") == UnitPoisson()
    assert residual(curve=[1], bin="1s", residual=own) == UnitHawkes(0.5, 1.0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "poisson"}, UnitPoisson()),
        ({"kind": "gamma", "cv": 0.5}, UnitRenewal(GammaGaps(0.5))),
        ({"kind": "weibull", "shape": 0.7}, UnitRenewal(WeibullGaps(0.7))),
        ({"kind": "lognormal", "cv": 0.5}, UnitRenewal(LognormalGaps(0.5))),
        ({"kind": "pareto", "alpha": 2.5}, UnitRenewal(LomaxGaps(2.5))),
        ({"kind": "hyperexponential", "cv": 3}, UnitRenewal(HyperexponentialGaps(3.0))),
        ({"kind": "hawkes", "n": 0.5, "beta": 0.2}, UnitHawkes(0.5, 0.2)),
    ],
)
def test_each_residual_builds_its_process(config: dict[str, Any], expected: UnitProcess) -> None:
    parsed: Any = TypeAdapter(ResidualConfig).validate_python(config)
    assert build_unit(parsed) == expected


def test_parts_are_built_for_their_own_stretch() -> None:
    ramp = {"kind": "envelope", "rate": "2/s", "shape": {"kind": "ramp", "from": 0, "to": 1}}
    stretches = [{"duration": "20s", "arrivals": ramp}, {"duration": "1s", "arrivals": ramp}]
    config = {"kind": "concatenate", "parts": stretches}
    built = build_arrivals(TypeAdapter(OpenPart).validate_python(config), HORIZON)
    assert isinstance(built, Concatenation)
    # from 0 to 4/s over 20 s, and again over the 40 s that are left: the last one goes on
    assert built.rate_hz(np.array([0, 10 * S, 20 * S, 40 * S])) == pytest.approx([0.0, 2.0, 0.0, 2.0])
    assert built.expected_count(HORIZON) == pytest.approx(120.0)


def test_a_part_past_the_phase_is_not_reached() -> None:
    poisson = {"kind": "poisson", "rate": "2/s"}
    config = {
        "kind": "concatenate",
        "parts": [
            {"duration": "40s", "arrivals": poisson},
            {"duration": "40s", "arrivals": poisson},
            {"duration": "40s", "arrivals": {"kind": "poisson", "rate": "1000/s"}},
        ],
    }
    built = build_arrivals(TypeAdapter(OpenPart).validate_python(config), HORIZON)
    assert built.expected_count(HORIZON) == pytest.approx(120.0)
    assert built.offsets_ns(np.random.default_rng(0), HORIZON).size < 300


def test_superposed_parts_may_be_superpositions() -> None:
    poisson = {"kind": "poisson", "rate": "2/s"}
    config = {"kind": "superpose", "parts": [poisson, {"kind": "superpose", "parts": [poisson, poisson]}]}
    parsed = TypeAdapter(OpenPart).validate_python(config)
    one = Stationary(2.0, UnitPoisson())
    assert build_arrivals(parsed, HORIZON) == Superposition((one, Superposition((one, one))))
    assert expected_count(parsed, HORIZON) == pytest.approx(6.0 * HORIZON / S)


def test_a_trace_is_replayed_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("0\n1\n2.5\n")
    config = {"kind": "trace", "file": str(file), "unit": "s"}
    built = build_arrivals(TypeAdapter(OpenPart).validate_python(config), HORIZON)
    assert isinstance(built, TraceReplay)
    assert built.offsets_ns(np.random.default_rng(0), HORIZON).tolist() == [0, S, 2_500_000_000]


def test_the_clients_of_a_preset_are_those_of_the_table() -> None:
    for name, preset in CLIENT_PRESETS.items():
        built = build(kind="clients", preset=name)
        assert built == Clients(5.0, preset.n_clients, preset.zipf, preset.cv, preset.cv_sigma)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"kind": "hawkes", "n": 0.5, "beta": "1e-10/s"}, "beta >= 1e-09 per expected arrival"),
        ({"kind": "envelope", "shape": {"kind": "ramp", "from": 0, "to": 0}}, "0 over the whole horizon"),
        (
            {"kind": "fgn", "hurst": 0.9, "sigma": 1, "bin": "1ns"},
            "bins of a log-gaussian rate are too short",
        ),
        ({"kind": "b-model", "bias": 0.6, "bin": "1ns"}, "pieces of a b-model are too short"),
        ({"kind": "mmpp", "peak": 2, "base": 0.5, "tau": "1ns"}, "time constants of an mmpp are too short"),
    ],
)
def test_what_only_the_phase_shows_to_be_wrong_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        build(**config).offsets_ns(np.random.default_rng(0), HORIZON)
