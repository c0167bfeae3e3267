"""Promises: what is read, written back and refused, and how many late requests each allows."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.promises.fitting import refuse_strangers
from squall.scenarios.promises.grammar import format_promises, parse_promises
from squall.scenarios.promises.promise import Promise

MS = 1_000_000


def one(key: str, condition: object) -> Promise:
    found = parse_promises({key: condition})
    assert found is not None
    (promise,) = found
    return promise


def scenario(promises: object, **changes: Any) -> Scenario:
    poisson = {"kind": "poisson", "rate": "200/s"}
    mapping: dict[str, Any] = {
        "name": "held",
        "seed": 1,
        "model": {"name": "linear_head"},
        "phases": [
            {"name": "warm", "kind": "warmup", "duration": "1s", "arrivals": poisson},
            {"name": "burst", "kind": "measure", "duration": "5s", "arrivals": poisson},
            {"name": "end", "kind": "drain", "duration": "1s"},
        ],
        "promises": promises,
    }
    return scenario_from_mapping({**mapping, **changes}, "held.yaml")


@pytest.mark.parametrize(
    ("key", "condition", "text"),
    [
        ("response", "p(95)<50", "response p(95)<50ms"),
        ("response", "p(99.90) < 1.5s", "response p(99.9)<1500ms"),
        ("response{phase:burst}", "med<=10ms", "response{phase:burst} p(50)<=10ms"),
        ("service{ server:server-0 , phase:a }", "max<1s", "service{phase:a,server:server-0} max<1s"),
        ("response", "p(95)<6500us", "response p(95)<6.5ms"),
        ("send_lag", "p(99)<500us", "send_lag p(99)<500us"),
        ("first_response{phase:a}", "p(95)<200ms", "first_response{phase:a} p(95)<200ms"),
        ("gap", "p(95)<=200", "gap p(95)<=200ms"),
        ("mean_gap{window:1s}", "max<1s", "mean_gap{window:1s} max<1s"),
        ("failures", "rate<0.1%", "failures rate<0.001"),
        ("failures{burst:each}", "count<=5", "failures{burst:each} count<=5"),
        ("goodput{within:100}", "rate>=0.990", "goodput{within:100ms} rate>=0.99"),
        ("response{window:10s}", "p(90)<80ms", "response{window:10s} p(90)<80ms"),
        (
            "response{gpu:GPU-1,model:m}",
            {"threshold": "p(95)<50ms", "at": "300/s"},
            "response{model:m,gpu:GPU-1} p(95)<50ms at 300/s",
        ),
    ],
)
def test_a_promise_is_read_and_written_back(key: str, condition: object, text: str) -> None:
    found = one(key, condition)
    assert found.text == text
    assert parse_promises(format_promises([found])) == (found,)


@pytest.mark.parametrize(
    ("key", "condition", "is_of_each_run"),
    [
        ("failures", "rate<=0", True), ("failures", "rate<=0.1%", False), ("failures", "rate<1", False),
        ("goodput{within:1s}", "rate>=1", True), ("goodput{within:1s}", "rate>0", False),
        ("response", "p(95)<1s", False), ("response", "max<1s", True), ("failures", "count<9", True),
    ],
)  # fmt: skip
def test_each_run_must_keep_what_allows_no_share(key: str, condition: str, is_of_each_run: bool) -> None:
    assert one(key, condition).is_of_each_run == is_of_each_run


def test_promises_are_part_of_the_resolved_scenario_and_its_digest() -> None:
    promised = scenario({"response{phase:burst}": ["p(95)<50", "p(99)<0.2s"], "failures": "rate<1%"})
    mapping = promised.to_mapping()
    assert mapping["promises"] == {
        "response{phase:burst}": ["p(95)<50ms", "p(99)<200ms"],
        "failures": ["rate<0.01"],
    }
    assert scenario_from_mapping(mapping, "again") == promised
    assert "promises" not in scenario(None).to_mapping()
    assert scenario(None).digest() != promised.digest()


@pytest.mark.parametrize(
    ("promises", "words"),
    [
        ({"latency": "p(95)<50"}, "latency: unknown metric 'latency'"),
        ({"respnse": "p(95)<50"}, "did you mean 'response'?"),
        ({"response{pase:burst}": "p(95)<50"}, "unknown tag 'pase', did you mean 'phase'?"),
        ({"response{phase:warm}": "p(95)<50"}, "no measured phase 'warm', there is burst"),
        ({"response{server:server-1}": "p(95)<50"}, "no server 'server-1', there is server-0"),
        ({"response{model:other}": "p(95)<50"}, "the model under load is 'linear_head'"),
        ({"response{burst:some}": "p(95)<50"}, "unknown burst 'some'"),
        ({"response{window:6s}": "p(95)<50"}, "a window of 6s is longer than a phase of 5s"),
        ({"response{phase:burst,phase:burst}": "p(95)<50"}, "tag phase stands twice"),
        ({"response": "p(95)<50/s"}, "unknown unit of time '/s'"),
        ({"response": "p(95)<5%"}, "unknown unit of time '%'"),
        ({"failures": "rate<5ms"}, "'5ms' is of another unit"),
        ({"failures": "count<1%"}, "'1%' is of another unit"),
        ({"failures": "count<1.5"}, "is not a whole number"),
        ({"response": "p(95)>50"}, "response is promised with < or <="),
        ({"response": "p(95)==50"}, "response is promised with < or <="),
        ({"response": "avg<50"}, "avg is not judged"),
        ({"response": "rate<0.1"}, "unknown statistic of response 'rate'"),
        ({"response": "p(100)<50"}, "between 0 and 100"),
        ({"response": "p<50"}, "p takes a percentage"),
        ({"response": "max<0"}, "no run can keep it"),
        ({"failures": "rate<0"}, "no run can keep it"),
        ({"failures": "rate<=1"}, "every run keeps it"),
        ({"failures": "rate<1.5"}, "a rate is a share"),
        ({"goodput": "rate>0.9"}, "goodput{within:100ms}"),
        ({"goodput{within:1s}": "rate>1"}, "no run can keep it"),
        ({"response{within:1s}": "p(95)<50"}, "tag within is of goodput"),
        ({"response": ["p(95)<50", "p(95)<60"]}, "two limits of one figure"),
        ({"response": "p(95)<50", "response{}": "p(95)<60"}, "is not a tag"),
        ({"response": ["p(95)<50", "p(99)<40"]}, "p(99)<40ms contradicts p(95)<50ms"),
        ({"response": ["p(95)<50", "max<40"]}, "max<40ms contradicts p(95)<50ms"),
        ({"response": {"threshold": "p(95)<50", "at": 300}}, "at: 300 has no unit"),
        ({"response": {"threshold": "p(95)<50", "abortonfail": True}}, "unknown key 'abortonfail'"),
        ({"response": {"threshold": "p(95)<50", "abortOnFail": "yes"}}, "abortOnFail is true or false"),
        ({"response": {"threshold": "p(95)<50", "delayAbortEval": "1s"}}, "is for abortOnFail: true"),
        ({"response{window:1s}": {"threshold": "p(95)<50", "abortOnFail": True}}, "not by model, gpu, burst or window"),
        ({"response{model:m}": {"threshold": "p(95)<50", "abortOnFail": True}}, "not by model, gpu, burst or window"),
        ({"response{burst:in}": {"threshold": "p(95)<50", "at": "300/s"}}, "load of whole phases"),
        ({"response": []}, "has no condition"),
        ({"response": 50}, "50 is not a condition"),
        ({}, "promises nothing"),
        ("p(95)<50", "is not a mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_promised_is_one_line(promises: object, words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(promises)
    text = str(error.value)
    assert words in text
    assert text.startswith("held.yaml: promises: ")
    assert "\n" not in text
    assert error.value.exit_code == 2


@pytest.mark.parametrize("key", ["response", "send_lag", "failures{burst:in}"])
def test_a_closed_loop_promises_no_times_of_a_schedule(key: str) -> None:
    closed = {"kind": "closed", "users": 2}
    phases = [
        {"name": "main", "kind": "measure", "duration": "5s", "arrivals": closed},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    condition = "rate<0.1" if key.startswith("failures") else "p(95)<50"
    with pytest.raises(ScenarioError, match="a closed loop has no schedule"):
        scenario({key: condition}, phases=phases)
    assert scenario({"service": "p(95)<50"}, phases=phases).promises


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
    assert (found.aborts_on_fail, found.delay_ns) == (True, 2 * 1_000 * MS)
    assert format_promises([found]) == {"response": [told]}
    assert (
        one("response", {"threshold": "p(95)<50", "abortOnFail": True, "delayAbortEval": 500}).delay_ns
        == 500 * MS
    )


def test_the_digest_of_a_scenario_that_ends_nothing_has_no_trace_of_it() -> None:
    mapping = scenario({"response": "p(95)<50ms"}).to_mapping()
    assert "stop_when" not in mapping
    assert mapping["promises"] == {"response": ["p(95)<50ms"]}


def test_a_load_without_a_known_number_of_requests_is_not_ended() -> None:
    users = [
        {"name": "m", "kind": "measure", "duration": "5s", "arrivals": {"kind": "closed", "users": 2}},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    aborting = {"service": {"threshold": "p(95)<50", "abortOnFail": True}}
    with pytest.raises(ScenarioError, match="number of requests"):
        scenario(aborting, phases=users)
    with pytest.raises(ScenarioError, match="a closed loop has no known number"):
        scenario({"service": "p(95)<50"}, phases=users, stop_when="decided")
    with pytest.raises(ScenarioError, match="nothing is promised"):
        scenario(None, stop_when="decided")


def test_of_several_models_a_promise_is_about_one_that_there_is() -> None:
    promises = parse_promises({"response{model:b}": "p(95)<50"}) or ()
    refuse_strangers(promises, {"burst": 10**9}, None, ["a", "b"], is_closed=False)
    with pytest.raises(ValueError, match="the models under load are 'a', 'c'"):
        refuse_strangers(promises, {"burst": 10**9}, None, ["a", "c"], is_closed=False)
