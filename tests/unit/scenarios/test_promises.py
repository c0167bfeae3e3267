"""Promises (`promises.yaml`): what is read, written back and refused, and how many late requests each allows."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.promises import Promise, format_promises, parse_promises
from tests.sweep_runs import SCENARIO
from tests.unit.scenarios.refused import assert_says, refused

TABLE = yaml.safe_load(Path(__file__).with_name("promises.yaml").read_text(encoding="utf-8"))
MS = 1_000_000
WARM, BURST, END = SCENARIO["phases"]


def one(key: str, condition: object) -> Promise:
    (promise,) = parse_promises({key: condition}) or ()
    return promise


def scenario(promises: object, users: int | None = None, **changes: Any) -> Scenario:
    burst = {**BURST, "duration": "5s"}
    phases = [WARM, burst, END]
    if users is not None:
        phases = [{**burst, "arrivals": {"kind": "closed", "users": users}}, END]
    return scenario_from_mapping({**SCENARIO, "phases": phases, "promises": promises, **changes}, "held.yaml")


@pytest.mark.parametrize(("key", "condition", "text"), TABLE["read"])
def test_a_promise_is_read_and_written_back(key: str, condition: object, text: str) -> None:
    found = one(key, condition)
    assert found.text == text
    assert parse_promises(format_promises([found])) == (found,)


@pytest.mark.parametrize(("key", "condition", "is_of_each_run"), TABLE["of_each_run"])
def test_each_run_must_keep_what_allows_no_share(key: str, condition: str, is_of_each_run: bool) -> None:
    assert one(key, condition).is_of_each_run == is_of_each_run


def test_promises_are_part_of_the_resolved_scenario_and_its_digest() -> None:
    promised = scenario({"response{phase:burst}": ["p(95)<50", "p(99)<0.2s"], "failures": "rate<1%"})
    mapping = promised.to_mapping()
    assert mapping["promises"] == {
        "response{phase:burst}": ["p(95)<50ms", "p(99)<200ms"],
        "failures": ["rate<0.01"],
    }
    assert "stop_when" not in mapping
    assert scenario_from_mapping(mapping, "again") == promised
    assert "promises" not in scenario(None).to_mapping()
    assert scenario(None).digest() != promised.digest()


@pytest.mark.parametrize("case", refused("promises"))
def test_what_cannot_be_promised_is_one_line(case: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(case["promises"])
    place, _, said = str(error.value).partition("held.yaml: promises: ")
    assert (place, error.value.exit_code) == ("", 2)
    assert_says(said, case)


@pytest.mark.parametrize(("key", "condition", "said"), TABLE["of_a_closed_loop"])
def test_a_closed_loop_promises_nothing_of_a_schedule(key: str, condition: object, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"a closed loop has no schedule and so {said}"):
        scenario({key: condition}, users=2)
    assert scenario({"service": "p(95)<50"}, users=2).promises


def test_a_load_ends_early_by_promises_over_a_known_number_of_requests() -> None:
    with pytest.raises(ScenarioError, match="which a closed loop has not"):
        scenario({"service": "p(95)<50"}, users=2, stop_when="decided")
    with pytest.raises(ScenarioError, match="nothing is promised"):
        scenario(None, stop_when="decided")


def test_of_several_models_a_promise_is_about_one_that_there_is() -> None:
    models = [{"name": "linear_head", "share": 1}, {"name": "attention_head", "share": 1}]
    several: dict[str, Any] = {"model": None, "models": models}
    assert scenario({"response{model:attention_head}": "p(95)<50"}, **several).promises
    with pytest.raises(ScenarioError, match="only linear_head, attention_head"):
        scenario({"response{model:other}": "p(95)<50"}, **several)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.sampled_from([Decimal(text) for text in ("0.1", "0.5", "0.95", "0.999")]),
    st.integers(1, 40),
    st.sampled_from(["<", "<="]),
)
def test_a_quantile_keeps_its_limit_exactly_where_no_more_are_late_than_allowed(
    times: list[int], q: Decimal, limit: int, sign: str
) -> None:
    promise = one("response", f"p({100 * q}){sign}{limit}ns")
    late_from_ns = promise.late_from_ns
    assert late_from_ns is not None
    n_late = sum(value >= late_from_ns for value in times)
    value = np.sort(times)[math.ceil(q * len(times)) - 1]  # nearest rank
    is_kept = value < limit if sign == "<" else value <= limit
    assert (n_late <= promise.n_allowed(len(times))) == is_kept


@given(st.integers(1, 2_000), st.integers(0, 1_000), st.sampled_from(["<", "<="]))
def test_a_rate_is_kept_exactly_where_no_more_failed_than_allowed(n: int, permille: int, sign: str) -> None:
    if permille in (0, 1_000):
        permille = 500
    allowed = one("failures", f"rate{sign}{permille / 1000}").n_allowed(n)
    kept = [k for k in range(n + 1) if (1000 * k < permille * n if sign == "<" else 1000 * k <= permille * n)]
    assert allowed == (kept[-1] if kept else -1)
    good = one("goodput{within:1s}", f"rate{sign.replace('<', '>')}{(1000 - permille) / 1000}")
    assert good.n_allowed(n) == allowed


def test_the_longest_time_and_a_count_allow_what_they_say() -> None:
    assert [one("response", "max<50").n_allowed(n) for n in (1, 1_000)] == [0, 0]
    assert one("failures", "count<5").n_allowed(1_000) == 4
    assert one("failures", "count<=5").n_allowed(1_000) == 5
    assert one("response", "p(95)<50").late_from_ns == 50 * MS
    assert one("response", "p(95)<=50").late_from_ns == 50 * MS + 1
    assert one("goodput{within:50}", "rate>0.9").late_from_ns == 50 * MS + 1


def test_what_ends_the_load_is_read_and_written_back() -> None:
    told = {"threshold": "p(95)<50ms", "at": "300/s", "abortOnFail": True, "delayAbortEval": "2s"}
    found = one("response", told)
    assert (found.aborts_on_fail, found.delay_ns) == (True, 2_000 * MS)
    assert format_promises([found]) == {"response": [told]}
    assert one("response", {**told, "delayAbortEval": 500}).delay_ns == 500 * MS
