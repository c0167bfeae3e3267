"""The speed of a phase: one schedule, compressed or stretched in time, in whole ns."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.plan import deal
from squall.scenarios.plan.rates import factor_of, mean_rate_hz, scaled_scenario
from tests.many_examples import examples
from tests.merged_plans import merge
from tests.unit.scenarios.plan.test_plan import S, of_trace, planned, scenario

RATIOS = st.fractions(min_value=Fraction(1, 1_000), max_value=1_000, max_denominator=10**6)


def at_speed(speed: object, *phases: int, seed: int = 0) -> Scenario:
    """The scenario with that speed in some of its phases."""
    return scenario({index: {"speed": speed} for index in phases}, seed)


@given(RATIOS, st.integers(0, 2**32), st.integers(1, 40))
@examples(40)
def test_every_instant_is_divided_and_floored_and_nothing_else_changes(
    speed: Fraction, seed: int, n_workers: int
) -> None:
    plan, fast = planned(seed=seed), plan_scenario(at_speed(str(speed), 0, 1, 2, seed=seed))
    for name in ("seq", "phase", "rows", "variant"):
        assert getattr(fast, name).tobytes() == getattr(plan, name).tobytes()
    for index in range(3):
        own = plan.phase == index
        drawn = (plan.offset_ns[own] - plan.spans[index].start_ns).tolist()
        start_ns, end_ns = fast.spans[index].start_ns, fast.spans[index].end_ns
        assert (fast.offset_ns[own] - start_ns).tolist() == [int(one / speed) for one in drawn]
        assert end_ns - start_ns == -int(-(plan.spans[index].end_ns - plan.spans[index].start_ns) // speed)
        assert (fast.offset_ns[own] < end_ns).all()
    assert fast.spans[3].end_ns - fast.spans[3].start_ns == S  # a drain is as long as it is
    assert merge(deal(fast, n_workers)).sha256() == fast.sha256()


def test_a_speed_is_in_the_digest_and_a_speed_of_one_is_none() -> None:
    assert plan_scenario(at_speed("3/2", 1)).sha256() != plan_scenario(scenario()).sha256()
    assert at_speed("3/2", 1).digest() != scenario().digest()
    for one in (1, "1", "2/2", 1.0):
        assert at_speed(one, 0, 1, 2).digest() == scenario().digest()
    fast = at_speed(0.25, 1)
    assert scenario_from_mapping(fast.to_mapping(), "test") == fast
    assert fast.to_mapping()["phases"][1]["speed"] == "1/4"


def test_a_trace_is_compressed_behind_its_own_operations(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("100\n100.5\n103\n")
    plan = planned({1: {"speed": 3, **of_trace(tmp_path / "trace.txt", time_scale="1/2")}})
    own = plan.offset_ns[plan.phase == 1] - plan.spans[1].start_ns
    assert own.tolist() == [0, S // 12, S // 2]


def test_the_mean_rate_grows_with_the_speed() -> None:
    slow = mean_rate_hz(scenario())
    assert slow == pytest.approx((2 * 50 + 3 * 60) / 5, rel=1e-6)
    assert mean_rate_hz(at_speed("5/2", 1, 2)) == pytest.approx(2.5 * slow, rel=1e-9)
    plan = plan_scenario(at_speed("5/2", 1, 2))
    n = int(np.isin(plan.phase, (1, 2)).sum())
    # 280 expected; a Poisson count: 5 standard errors
    assert abs(n - 280) < 5 * 280**0.5


@pytest.mark.parametrize(
    ("index", "speed", "told"),
    [
        (3, 2, "a drain has no schedule"),
        (1, 0, "'0' must be above 0|0 must be above 0"),
        (1, "fast", "is not a ratio"),
        (1, "1e-12", "must be above 0, with numerator and denominator"),
    ],
)
def test_a_speed_that_cannot_be_is_one_line(index: int, speed: object, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        at_speed(speed, index)


def test_a_closed_loop_has_no_speed_and_no_rate() -> None:
    users: dict[str, Any] = {"arrivals": {"kind": "closed", "users": 3}}
    closed = scenario(dict.fromkeys(range(3), users))
    with pytest.raises(ValueError, match="closed-loop: it has no rate"):
        mean_rate_hz(closed)
    with pytest.raises(ScenarioError, match="a closed loop has no schedule"):
        scenario(dict.fromkeys(range(3), users | {"speed": 2}))
    with pytest.raises(ScenarioError, match="no rate that could be scaled"):
        scaled_scenario(closed, Fraction(2), "time")


def test_a_scenario_is_scaled_by_time_or_by_its_rates() -> None:
    base, factor = scenario(), factor_of(1.4142135623)
    assert factor == Fraction("1.41421")
    fast, high = scaled_scenario(base, factor, "time"), scaled_scenario(base, factor, "amplitude")
    for one in (fast, high):
        assert mean_rate_hz(one) == pytest.approx(1.41421 * mean_rate_hz(base), rel=1e-6)
    assert len(plan_scenario(fast)) == len(plan_scenario(base))
    assert [phase.duration_ns for phase in high.phases] == [phase.duration_ns for phase in base.phases]
    assert fast.phases[2].duration_ns == -int(-3 * S // factor)
    assert scaled_scenario(scaled_scenario(base, Fraction(2), "time"), Fraction(1, 2), "time") == base


def test_rates_of_parts_are_scaled_and_those_of_a_trace_are_not(tmp_path: Path) -> None:
    poisson = {"kind": "poisson", "rate": "10/s"}
    part = {"duration": "1s", "arrivals": poisson}
    base = scenario({
        1: {"arrivals": {"kind": "superpose", "parts": [poisson, poisson]}},
        2: {"arrivals": {"kind": "concatenate", "parts": [part, part]}},
    })  # fmt: skip
    high = scaled_scenario(base, Fraction(3), "amplitude").to_mapping()
    assert [part["rate"] for part in high["phases"][1]["arrivals"]["parts"]] == ["30/s", "30/s"]
    assert [part["arrivals"]["rate"] for part in high["phases"][2]["arrivals"]["parts"]] == ["30/s", "30/s"]
    with pytest.raises(ScenarioError, match="use --scale time"):
        scaled_scenario(scenario({1: of_trace(tmp_path / "trace.txt")}), Fraction(3), "amplitude")
