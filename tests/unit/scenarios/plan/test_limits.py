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
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.strict_yaml import parse_yaml

S = 1_000_000_000


def section(text: str) -> dict[str, Any]:
    """Keys as a scenario file has them."""
    found: dict[str, Any] = parse_yaml(text, "test")
    return found


POISSON = section("{kind: poisson, rate: 10/s}")
TOO_SHORT = "pieces of the curve are too short"


def scenario(arrivals: Any, duration: str = "10s") -> dict[str, Any]:
    mapping = section(
        "{name: x, seed: 1, model: {name: m}, phases: [{name: m, kind: measure}, {name: d, kind: drain, duration: 1s}]}"
    )
    mapping["phases"][0] |= {"duration": duration, "arrivals": arrivals}
    return mapping


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
        ("{kind: hawkes, rate: 5/s, n: 0.5, beta: 1e-10/s}", "beta >= 1e-09 per expected arrival"),
        ("{kind: envelope, rate: 10/s, shape: {kind: ramp, from: 0, to: 0}}", "0 over the whole horizon"),
        (
            "{kind: envelope, rate: 10/s, shape: {kind: step, at: 70s, factor: 3}}",
            r"shape\.at: 70s lies behind the phase",
        ),
        (
            "{kind: envelope, rate: 10/s, shape: {kind: spike, at: 70s, width: 5s, factor: 3}}",
            r"shape\.at: 70s lies behind the phase",
        ),
        ("{kind: envelope, rate: 10/s, curve: [1, 2], bin: 1ns}", TOO_SHORT),
        ("{kind: envelope, rate: 10/s, preset: nasa-web, bin: 1ns}", TOO_SHORT),
        (
            "{kind: envelope, rate: 10/s, shape: {kind: pulses, factor: 4, width: 1ns, period: 2ns}}",
            TOO_SHORT,
        ),
        ("{kind: envelope, rate: 10/s, shape: {kind: diurnal, peak: 2, period: 1us}}", TOO_SHORT),
        (
            "{kind: fgn, rate: 5/s, hurst: 0.9, sigma: 1, bin: 1ns}",
            "bins of a log-gaussian rate are too short",
        ),
        ("{kind: b-model, rate: 5/s, bias: 0.6, bin: 1ns}", "pieces of a b-model are too short"),
        (
            "{kind: mmpp, rate: 5/s, peak: 2, base: 0.5, tau: 1ns}",
            "time constants of an mmpp are too short",
        ),
        (
            "{kind: on-off, rate: 5/s, on: {kind: exponential, mean: 1ns}, off: {kind: exponential, mean: 1ns}}",
            "sojourns of on-off are too short",
        ),
    ],
)
def test_what_only_the_phase_shows_to_be_wrong_is_refused(arrivals: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^phases\.m\.arrivals: .*{problem}"):
        planned(section(arrivals), "60s")


@pytest.mark.parametrize(
    ("arrivals", "counts"),
    [
        # the last bin of a trace's shape counts as if it were whole: a constant trace has a constant rate
        ("{kind: envelope, rate: 10/s, shape: {kind: trace, file: FILE, bin: 60s}}", [10, 600, 610, 900]),
        # parts are drawn over their own stretch and the last goes on: from 0 to 4/s over 20 s, again over the 70 s left
        (
            "{kind: concatenate, parts: [{duration: 20s, arrivals: RAMP}, {duration: 1s, arrivals: RAMP}]}",
            [0.1, 40 + 40**2 * 4 / 70 / 2, 40 + 41**2 * 4 / 70 / 2, 180],
        ),
        # a part past the phase is not reached
        (
            "{kind: concatenate, parts: [{duration: 40s, arrivals: SLOW}, {duration: 60s, arrivals: SLOW},"
            " {duration: 9s, arrivals: {kind: poisson, rate: 1000/s}}]}",
            [2, 120, 122, 180],
        ),
    ],
)
def test_arrivals_expected_after_1_60_61_and_90_s_of_90(
    tmp_path: Path, arrivals: str, counts: list[float]
) -> None:
    file = tmp_path / "even.csv"
    file.write_text("timestamp_ms\n" + "\n".join(str(ms) for ms in range(0, 120_000, 100)))
    for name, text in {
        "FILE": str(file),
        "RAMP": "{kind: envelope, rate: 2/s, shape: {kind: ramp, from: 0, to: 1}}",
        "SLOW": "{kind: poisson, rate: 2/s}",
    }.items():
        arrivals = arrivals.replace(name, text)
    process = config_of(section(arrivals))
    assert [process.expected_count(second * S, 90 * S) for second in (1, 60, 61, 90)] == pytest.approx(counts)
    drawn = process.draw(np.random.default_rng(0), 90 * S)
    assert drawn.size == pytest.approx(counts[-1], abs=6 * counts[-1] ** 0.5)


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


def test_a_batch_of_billions_of_rows_is_a_mistyped_number() -> None:
    mapping = scenario(POISSON)
    mapping["model"]["max_batch_size"] = 2**40
    with pytest.raises(ScenarioError, match=r"max_batch_size: 1099511627776 must be at most 2147483647"):
        scenario_from_mapping(mapping, "x")
    mapping["model"]["max_batch_size"] = 2**31 - 1
    mapping["clients"] = {"rows": {"kind": "zipf", "exponent": 1, "max": 2**31 - 1}}
    with pytest.raises(ScenarioError, match=r"clients\.rows\.max: 2147483647 must be at most 1000000"):
        scenario_from_mapping(mapping, "x")
