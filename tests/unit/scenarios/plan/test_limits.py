"""Parameters at and beyond their limits: a plan of the right length, or one line before the memory is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from squall.scenarios.arrivals.kinds import OpenArrivals, OpenPart
from squall.scenarios.arrivals.process import MOST_DRAWN
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.rows import EmpiricalRows, ParetoRows
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.mix import draw_rows
from squall.scenarios.strict_yaml import parse_yaml

S = 1_000_000_000


def section(text: str) -> dict[str, Any]:
    """Keys as a scenario file has them."""
    found: dict[str, Any] = parse_yaml(text, "test")
    return found


POISSON = section("{kind: poisson, rate: 10/s}")


def scenario(arrivals: Any, duration: str = "10s") -> dict[str, Any]:
    phases = [
        {"name": "m", "kind": "measure", "duration": duration, "arrivals": arrivals},
        section("{name: d, kind: drain, duration: 1s}"),
    ]
    return {"name": "x", "seed": 1, "model": {"name": "m"}, "phases": phases}


def planned(arrivals: Any, duration: str = "10s") -> int:
    return len(plan_scenario(scenario_from_mapping(scenario(arrivals, duration), "x")))


def config_of(arrivals: Any) -> OpenArrivals:
    config: OpenArrivals = TypeAdapter(OpenPart).validate_python(arrivals)
    return config


def envelope(**keys: Any) -> dict[str, Any]:
    return {"kind": "envelope", "rate": "10/s", **keys}


@pytest.mark.parametrize("horizon_ns", [1, 10 * S, 2**63 - 1])
def test_a_constant_rate_of_next_to_nothing_has_its_first_arrival(horizon_ns: int) -> None:
    """The second one, at 1e309 ns, is beyond every float, and of 1e-11 Hz at 1e20 ns beyond int64."""
    for rate_hz in (1e-300, 1e-11):
        constant = config_of({"kind": "constant", "rate": f"{rate_hz!r}/s"})
        assert constant.draw(np.random.default_rng(0), horizon_ns).tolist() == [0]


def test_a_draw_that_no_plan_takes_is_refused_before_it_is_made() -> None:
    """With sigma 4 a bin may bring thousands of times the mean."""
    many = f"{MOST_DRAWN * 10}/s"
    for arrivals in (
        section("{kind: fgn, rate: 1e300/s, sigma: 4.0, hurst: 0.9}"),
        {"kind": "poisson", "rate": many},
        {"kind": "constant", "rate": many},
        section("{kind: ticks, rate: 1e-9/s, period: 1ns}"),
    ):
        with pytest.raises(ValueError, match=r"more than|too short for the phase"):
            config_of(arrivals).draw(np.random.default_rng(0), 10 * S)


def test_parts_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.scenarios.arrivals.process.MOST_DRAWN", 1_000)
    parts = config_of({"kind": "superpose", "parts": [section("{kind: poisson, rate: 80/s}")] * 20})
    with pytest.raises(ValueError, match="more than a plan takes"):
        parts.draw(np.random.default_rng(0), 10 * S)


@pytest.mark.parametrize(
    "keys",
    [
        section("{curve: [1, 2], bin: 1ns}"),
        section("{preset: nasa-web, bin: 1ns}"),
        section("{shape: {kind: pulses, factor: 4, width: 1ns, period: 2ns}}"),
        section("{shape: {kind: diurnal, peak: 2, period: 1us}}"),
    ],
)
def test_a_curve_of_billions_of_pieces_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"phases\.m\.arrivals: pieces of the curve are too short"):
        planned(envelope(**keys))


def test_a_looped_trace_and_the_shape_of_one_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.txt").write_text("5\n")
    shape = {"kind": "trace", "file": str(tmp_path / "one.txt"), "loop": True, "length": "1us"}
    with pytest.raises(ScenarioError, match="bins of the shape are too short"):
        planned(envelope(shape={**shape, "bin": "1ns"}))
    monkeypatch.setattr("squall.scenarios.arrivals.process.MOST_DRAWN", 10_000)
    with pytest.raises(ScenarioError, match=r"one\.txt: 10,000,000 arrivals are more than a plan takes"):
        planned(envelope(shape=shape))
    with pytest.raises(ScenarioError, match=r"one\.txt: 10,000,000 arrivals are more than a plan takes"):
        config_of({**shape, "kind": "trace"}).draw(np.random.default_rng(0), 10 * S)


def test_a_part_of_a_concatenation_counts_for_its_own_time() -> None:
    """1e6/s for 1 s in a phase of an hour are 1e6 arrivals, not 3.6e9, which a phase refuses."""
    fast, slow = section("{kind: poisson, rate: 1000/s}"), section("{kind: poisson, rate: 1/s}")
    stretches = [{"duration": "1s", "arrivals": fast}, {"duration": "1s", "arrivals": slow}]
    config = config_of({"kind": "concatenate", "parts": stretches})
    assert config.stated_count(3_600 * S) == pytest.approx(1_000 + 3_599)
    assert config.stated_count(S // 2) == pytest.approx(500)
    both = config_of({"kind": "superpose", "parts": [fast, {"kind": "concatenate", "parts": stretches}]})
    assert both.stated_count(2 * S) == pytest.approx(2_000 + 1_001)
    stretches[0]["arrivals"] = section("{kind: poisson, rate: 100000/s}")
    # 100,000 + 3,599 expected: 6 standard errors are 6 √103,599 = 1,931
    assert planned({"kind": "concatenate", "parts": stretches}, "1h") == pytest.approx(103_599, abs=1_931)
    stretches[0] = {"duration": "2000s", "arrivals": section("{kind: poisson, rate: 100000/s}")}
    with pytest.raises(ScenarioError, match="200,000,000 requests are above"):
        planned({"kind": "concatenate", "parts": stretches}, "1h")


@pytest.mark.parametrize(
    ("arrivals", "problem"),
    [
        (
            section("{kind: hawkes, rate: 5/s, n: 0.5, beta: 1e-10/s}"),
            "beta >= 1e-09 per expected arrival",
        ),
        (envelope(shape=section("{kind: ramp, from: 0, to: 0}")), "0 over the whole horizon"),
        (
            envelope(shape=section("{kind: step, at: 70s, factor: 3}")),
            r"shape\.at: 70s lies behind the phase",
        ),
        (
            envelope(shape=section("{kind: spike, at: 70s, width: 5s, factor: 3}")),
            r"shape\.at: 70s lies behind the phase",
        ),
        (
            section("{kind: fgn, rate: 5/s, hurst: 0.9, sigma: 1, bin: 1ns}"),
            "bins of a log-gaussian rate are too short",
        ),
        (section("{kind: b-model, rate: 5/s, bias: 0.6, bin: 1ns}"), "pieces of a b-model are too short"),
        (
            section("{kind: mmpp, rate: 5/s, peak: 2, base: 0.5, tau: 1ns}"),
            "time constants of an mmpp are too short",
        ),
        (
            section(
                "{kind: on-off, rate: 5/s, on: {kind: exponential, mean: 1ns}, off: {kind: exponential, "
                "mean: 1ns}}"
            ),
            "sojourns of on-off are too short",
        ),
    ],
)
def test_what_only_the_phase_shows_to_be_wrong_is_refused(arrivals: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^phases\.m\.arrivals: .*{problem}"):
        planned(arrivals, "60s")


def test_the_last_bin_of_a_traces_shape_counts_as_if_it_were_whole(tmp_path: Path) -> None:
    """A constant trace under a phase of one and a half bins has a constant rate."""
    file = tmp_path / "even.csv"
    file.write_text("timestamp_ms\n" + "\n".join(str(ms) for ms in range(0, 120_000, 100)))
    process = config_of(envelope(shape={"kind": "trace", "file": str(file), "bin": "60s"}))
    counts = [process.expected_count(second * S, 90 * S) for second in (1, 60, 61, 90)]
    assert counts == pytest.approx([10, 600, 610, 900])


def test_parts_are_drawn_over_their_own_stretch_and_the_last_goes_on() -> None:
    ramp = section("{kind: envelope, rate: 2/s, shape: {kind: ramp, from: 0, to: 1}}")
    stretches = [{"duration": "20s", "arrivals": ramp}, {"duration": "1s", "arrivals": ramp}]
    process = config_of({"kind": "concatenate", "parts": stretches})
    # from 0 to 4/s over 20 s, and again over the 40 s that are left
    counts = [process.expected_count(second * S, 60 * S) for second in (10, 20, 40, 60)]
    assert counts == pytest.approx([10.0, 40.0, 60.0, 120.0])


def test_a_part_past_the_phase_is_not_reached() -> None:
    slow, fast = ({"kind": "poisson", "rate": f"{rate}/s"} for rate in (2, 1_000))
    parts = [{"duration": "40s", "arrivals": arrivals} for arrivals in (slow, slow, fast)]
    process = config_of({"kind": "concatenate", "parts": parts})
    assert process.expected_count(60 * S, 60 * S) == pytest.approx(120.0)
    assert process.draw(np.random.default_rng(0), 60 * S).size < 300


@pytest.mark.parametrize(
    ("arrivals", "fault"),
    [
        *(
            ({"kind": kind, "rate": "1/s", "cv": 1e160}, r"cv: 1e\+160 must be at most 1000000")
            for kind in ("gamma", "weibull", "lognormal", "pareto", "hyperexponential")
        ),
        (envelope(curve=[1, 1e308], bin="1s"), r"curve\[1\]: 1e\+308 must be 0 or lie in 1e-12 to 1e\+12"),
        (envelope(curve=[1e-320], bin="1s"), r"curve\[0\]: .* must be 0 or lie in"),
        (
            envelope(shape=section("{kind: step, at: 5s, factor: 1.0e+300}")),
            r"factor: 1e\+300 must be 0 or lie in",
        ),
        (
            section("{kind: mmpp, rate: 1/s, peak: 1.0e+300, base: 0, tau: 1s}"),
            r"peak: 1e\+300 must be at most",
        ),
    ],
)
def test_a_parameter_beyond_float64_is_refused(arrivals: dict[str, Any], fault: str) -> None:
    with pytest.raises(ScenarioError, match=fault):
        planned(arrivals)


def test_levels_at_their_limits_give_the_count_that_was_asked_for() -> None:
    # 100 expected: 6 standard errors are 60
    assert planned(envelope(curve=[1e-12, 1e12], bin="5s")) == pytest.approx(100, abs=60)


def test_a_file_that_is_nested_too_deep_or_too_wide_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 3_000 + "]" * 3_000)
    with pytest.raises(ScenarioError, match="nested too deep"):
        load_scenario(tmp_path / "deep.yaml")
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    (tmp_path / "wide.yaml").write_text("\n".join(lines))
    with pytest.raises(ScenarioError, match="more than 1,000,000 values"):
        load_scenario(tmp_path / "wide.yaml")


def test_the_bounded_pareto_law_of_a_tiny_index_is_log_uniform() -> None:
    """P(rows = 1) = ln 2 / ln 33 = 0.198 at alpha -> 0; 6 standard errors are 6 √(.198 · .802/100,000) = 0.0076."""
    rows = draw_rows(ParetoRows(kind="pareto", alpha=1e-300, max=32), np.random.default_rng(1), 100_000)
    assert (rows == 1).mean() == pytest.approx(np.log(2) / np.log(33), abs=0.0076)
    assert rows.max() == 32


def test_weights_whose_sum_is_beyond_float64_still_count_against_each_other() -> None:
    law = EmpiricalRows(kind="empirical", values=(1, 2), weights=(1e308, 1e308))
    rows = draw_rows(law, np.random.default_rng(1), 10_000)
    # half of each: 6 standard errors are 6 · 0.5/√10,000 = 0.03
    assert (rows == 1).mean() == pytest.approx(0.5, abs=0.03)


def test_a_batch_of_billions_of_rows_is_a_mistyped_number() -> None:
    mapping = scenario(POISSON)
    mapping["model"]["max_batch_size"] = 2**40
    with pytest.raises(ScenarioError, match=r"max_batch_size: 1099511627776 must be at most 2147483647"):
        scenario_from_mapping(mapping, "x")
    mapping["model"]["max_batch_size"] = 2**31 - 1
    mapping["clients"] = {"rows": {"kind": "zipf", "exponent": 1, "max": 2**31 - 1}}
    with pytest.raises(ScenarioError, match=r"clients\.rows\.max: 2147483647 must be at most 1000000"):
        scenario_from_mapping(mapping, "x")
