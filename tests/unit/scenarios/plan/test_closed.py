"""Closed loop: what each user does is seeded, the same for any number of workers, and dealt without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.closed import ClosedPlan, Step, deal_closed, request_id
from squall.scenarios.plan.drafting import plan_closed, plan_scenario
from squall.scenarios.plan.plan import PhaseSpan, kinds_of
from squall.scenarios.strict_yaml import parse_yaml
from tests.many_examples import examples

S = 1_000_000_000
MS = 1_000_000
SCENARIO = """
name: test
seed: 0
model: {name: head}
clients: {rows: {kind: uniform, low: 1, high: 9}}
phases:
- {name: warm, kind: warmup, duration: 2s, arrivals: {kind: closed, users: 4, ramp: 1s}}
- name: main
  kind: measure
  duration: 2s
  arrivals: {kind: closed, users: 10, think: {kind: exponential, mean: 40ms}, ramp: 500ms}
- name: again
  kind: measure
  duration: 2s
  arrivals: {kind: closed, users: 10, think: {kind: exponential, mean: 40ms}}
- {name: drain, kind: drain, duration: 1s}
"""


def scenario(main: Mapping[str, Any] | None = None, seed: int = 0, **clients: Any) -> Scenario:
    """`SCENARIO` with other arrivals in `main`, another seed, and other keys of its clients."""
    mapping: Any = parse_yaml(SCENARIO, "test") | {"seed": seed}
    mapping["clients"] |= clients
    mapping["phases"][1]["arrivals"] |= main or {}
    return scenario_from_mapping(mapping, "test")


def planned(main: Mapping[str, Any] | None = None, seed: int = 0, **clients: Any) -> ClosedPlan:
    return plan_closed(scenario(main, seed, **clients))


def kinds(plan: ClosedPlan) -> set[tuple[int, int]]:
    """Every (rows, variant) that is prepared before the start."""
    return set(zip(*(column.tolist() for column in kinds_of(plan.kind_codes())), strict=True))


def first(plan: ClosedPlan, user: int, phase: int, n: int = 200) -> list[Step]:
    return list(islice(plan.steps(user, phase), n))


def column(name: str, plan: ClosedPlan, user: int = 5, phase: int = 1) -> list[int]:
    return [getattr(step, name) for step in first(plan, user, phase)]


def test_a_plan_has_the_users_of_its_largest_phase_who_begin_evenly_over_the_ramp() -> None:
    plan = planned()
    assert (plan.n_users, len(plan), plan.users.tolist()) == (10, 10, list(range(10)))
    assert plan.spans[1] == PhaseSpan("main", "measure", 2 * S, 4 * S)
    assert [phase and phase.n_users for phase in plan.phases] == [4, 10, 10, None]
    assert [plan.first_at_ns(user, 0) for user in range(5)] == [0, S // 4, S // 2, 3 * S // 4, None]
    assert [plan.first_at_ns(user, 1) for user in (0, 1, 9)] == [2 * S, 2 * S + 50 * MS, 2 * S + 450 * MS]
    assert {plan.first_at_ns(user, 2) for user in range(10)} == {4 * S}
    assert plan.first_at_ns(0, 3) is None


@given(st.integers(1, 13), st.integers(0, 2**64))
@examples(30)
def test_the_parts_are_the_plan_and_each_user_does_the_same_in_any_of_them(n_workers: int, seed: int) -> None:
    plan = planned(seed=seed)
    parts = deal_closed(plan, n_workers)
    assert sorted(user for part in parts for user in part.users.tolist()) == plan.users.tolist()
    for worker, part in enumerate(parts):
        assert set((part.users % n_workers).tolist()) <= {worker}
        assert (np.diff(part.users) > 0).all()
        assert len(part.sha256()) == 64  # also of one without users
        assert replace(part, users=plan.users).sha256() == plan.sha256()
        for user in part.users.tolist()[:2]:
            assert first(part, user, 1, 70) == first(plan, user, 1, 70)
            assert part.first_at_ns(user, 1) == plan.first_at_ns(user, 1)


@given(
    st.integers(1, 1000),
    st.sets(st.tuples(st.integers(0, 999), st.integers(0, 10**6)), max_size=50),
)
def test_ids_are_unique_and_tell_user_and_index(n_users: int, sent: set[tuple[int, int]]) -> None:
    sent = {(user % n_users, index) for user, index in sent}
    ids = {request_id(n_users, user, index): (user, index) for user, index in sent}
    assert len(ids) == len(sent)
    assert all((number % n_users, number // n_users) == pair for number, pair in ids.items())


def test_think_times_have_their_mean_and_nobody_thinks_before_the_first_request() -> None:
    plan = planned()
    assert {step.think_ns for step in first(plan, 3, 0)} == {0}
    steps = [first(plan, user, 1, 2_001) for user in plan.users.tolist()]
    assert {own[0].think_ns for own in (*steps, first(plan, 3, 2))} == {0}
    thinks = [step.think_ns for own in steps for step in own[1:]]
    assert min(thinks) > 0
    # Exponential: standard deviation = mean, so the standard error of n = 20,000 is 40 ms / sqrt(n) = 0.28 ms.
    assert abs(np.mean(thinks) - 40 * MS) < 4 * 40 * MS / math.sqrt(len(thinks))


@pytest.mark.parametrize(
    ("rows", "possible", "n_variants"),
    [
        ({"kind": "uniform", "low": 1, "high": 9}, range(1, 10), 4),
        ({"kind": "constant", "value": 3}, [3], 300),
        ({"kind": "uniform", "low": 2, "high": 4}, [2, 3, 4], 1),
        ({"kind": "lognormal", "mean": 2, "cv": 1, "max": 3}, [1, 2, 3], 1),
        ({"kind": "pareto", "alpha": 1, "min": 2, "max": 3}, [2, 3], 1),
    ],
)
def test_rows_and_variants_are_those_that_can_be_and_all_of_them_occur(
    rows: dict[str, Any], possible: list[int], n_variants: int
) -> None:
    plan = planned(rows=rows, payload_variants=n_variants)
    expected = {(value, variant) for value in possible for variant in range(n_variants)}
    assert kinds(plan) == expected
    assert {(step.rows, step.variant) for step in first(plan, 0, 1, 4_000)} == expected


def test_users_phases_and_seeds_have_streams_of_their_own_and_a_change_to_one_moves_no_other() -> None:
    plan, other_seed = planned(), planned(seed=1)
    other_rows = planned(rows={"kind": "constant", "value": 2})
    for name in ("think_ns", "rows", "variant"):
        own = [column(name, plan, *place) for place in ((0, 1), (1, 1), (0, 2))]
        assert len({*map(tuple, own), tuple(column(name, other_seed, 0, 1))}) == 4
        assert (column(name, plan) == column(name, other_rows)) == (name != "rows")
    assert first(planned({"users": 50}), 5, 1) == first(plan, 5, 1)


def test_the_digest_sees_users_phases_think_rows_variants_and_seed() -> None:
    plan = planned()
    others = [
        planned(seed=1),
        planned(payload_variants=5),
        planned(rows={"kind": "constant", "value": 2}),
        planned({"think": {"kind": "exponential", "mean": "41ms"}}),
        *deal_closed(plan, 2),
    ]
    assert len({plan.sha256(), *(other.sha256() for other in others)}) == 7
    assert planned().sha256() == plan.sha256()


def test_a_user_that_a_phase_does_not_have_does_nothing_there() -> None:
    assert [first(planned(), user, phase) for user, phase in ((4, 0), (0, 3), (10, 1))] == [[], [], []]


def test_a_scenario_is_closed_or_open_and_each_plan_refuses_the_other() -> None:
    mapping: Any = parse_yaml(SCENARIO, "test")
    mapping["phases"][1]["arrivals"] = poisson = {"kind": "poisson", "rate": "5/s"}
    with pytest.raises(ScenarioError, match=r"^s\.yaml: phases: 'warm' is closed-loop and 'main' is not"):
        scenario_from_mapping(mapping, "s.yaml")
    for phase in mapping["phases"][:-1]:
        phase["arrivals"] = poisson
    opened = scenario_from_mapping(mapping, "test")
    assert [scenario().is_closed, opened.is_closed] == [True, False]
    with pytest.raises(ValueError, match="empty"):
        plan_closed(opened)
    with pytest.raises(ValueError, match="'warm' is closed-loop: it has no schedule"):
        plan_scenario(scenario())


def test_a_phase_may_have_rows_of_its_own_and_a_file_is_read_once_for_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("timestamp_s,tokens\n0,100\n1,350\n2,350\n")
    mapping: Any = parse_yaml(SCENARIO, "test")
    sizes = {"kind": "empirical", "file": str(file), "size": "tokens", "per_row": 100, "max": 8}
    mapping["phases"][1]["rows"] = sizes
    plan = plan_closed(scenario_from_mapping(mapping, "test"))
    file.unlink()  # a worker has no such file
    assert set(column("rows", plan)) == {1, 4}
    assert set(column("rows", plan, phase=2)) == set(range(1, 10))
    assert {rows for rows, _ in kinds(plan)} == set(range(1, 10))
