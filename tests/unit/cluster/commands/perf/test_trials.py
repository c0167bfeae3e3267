"""How long the runs of a level are, and what is cut from them."""

from __future__ import annotations

import shlex
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.commands.perf.asked import Asked, asked_of
from squall.cluster.commands.perf.flags import parse
from squall.cluster.commands.perf.mapping import Load
from squall.cluster.commands.perf.trials import Seen, cut, next_load
from squall.scenarios.units import NS_PER_S
from tests.unit.analysis.studies.rows import evenly

S = NS_PER_S


def asked(line: str) -> Asked:
    return asked_of(parse(["-m", "a", *shlex.split(line)]))


def loads(line: str, hz: float | None, *before: Seen) -> Load | None:
    return next_load(asked(line), Fraction(1), hz, before)


def test_a_steady_level_takes_three_windows_and_a_restless_one_what_is_left() -> None:
    assert loads("-p 2000", None) == Load(Fraction(1), S, 6 * S)
    again = loads("-p 2000", None, Seen(3, 10.0))
    assert again == Load(Fraction(1), S, 14 * S)
    assert loads("-p 2000", None, Seen(3, 10.0), Seen(7, 10.0)) is None


@given(trials=st.integers(1, 40), ms=st.integers(400, 4_000))
def test_no_level_has_more_windows_than_max_trials(trials: int, ms: int) -> None:
    before: list[Seen] = []
    while (load := next_load(asked(f"-r {trials} -p {ms}"), Fraction(1), None, before)) is not None:
        before.append(Seen(load.measured_ns // (ms * 1_000_000), 5.0))
    n = sum(one.n_windows for one in before)
    assert n <= max(trials, -(-1_000 // ms))  # a phase is a second at least
    assert trials - n < 3


def test_of_many_trials_each_run_has_twice_as_many() -> None:
    before: list[Seen] = []
    while (load := next_load(asked("-r 100 -p 1000"), Fraction(1), None, before)) is not None:
        before.append(Seen(load.measured_ns // S, 10.0))
    assert [one.n_windows for one in before] == [3, 7, 21, 69]


def test_a_run_that_was_invalid_is_made_once_more_and_not_more_often() -> None:
    invalid = Seen(3, 10.0, is_stable=True)
    assert loads("-p 2000", None, invalid) == Load(Fraction(1), S, 6 * S)
    assert loads("-p 2000", None, invalid, invalid) is None
    assert loads("-p 2000", None, invalid, Seen(3, 10.0)) == Load(Fraction(1), S, 14 * S)
    assert (
        loads("--request-count 9", None, Seen(1, 10.0, is_stable=True), Seen(1, 10.0, is_stable=True)) is None
    )


def test_a_level_over_the_threshold_is_not_tried_again() -> None:
    assert loads("-l 5", None, Seen(3, 10.0, is_over=True)) is None


def test_windows_of_requests_are_as_long_as_the_rate_needs() -> None:
    line = "--measurement-mode count_windows --measurement-request-count 100"
    assert loads(line, None) == Load(Fraction(1), S, 3 * S)
    assert loads(line, 10.0) == Load(Fraction(1), S, 39 * S)  # 1.25 times 10 s, in whole seconds, three times
    assert loads(line, None, Seen(1, 20.0)) == Load(Fraction(1), S, 21 * S)
    assert loads(line, None, Seen(3, 200.0)) == Load(Fraction(1), S, 7 * S)


def test_a_number_of_requests_is_looked_for_longer_each_time() -> None:
    line = "--request-count 100"
    assert loads(line, 10.0) == Load(Fraction(1), S, 14 * S)
    lengths = []
    before: list[Seen] = []
    while (load := next_load(asked(line), Fraction(1), None, before)) is not None:
        lengths.append(load.measured_ns // S)
        before.append(Seen(0, 10.0))
    assert lengths == [2, 14, 28, 56]


def test_a_warm_up_of_requests_has_room_for_them() -> None:
    load = loads("--warmup-request-count 50 -p 1000", 10.0)
    assert load == Load(Fraction(1), round(6.25 * S), 4 * S)


def test_windows_begin_when_the_warm_up_has_ended_and_follow_one_another() -> None:
    requests = evenly(100, 10.0)  # one each 100 ms, from 0 on
    found = cut(asked("--warmup-request-count 25 -p 1000"), requests, 2 * S, 10 * S)
    assert found[0].start_ns == requests.done_ns[24] + 1
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert cut(asked("--warmup-request-count 101 -p 1000"), requests, 2 * S, 10 * S) == []
    plain = cut(asked("-p 1000 -r 4"), requests, 2 * S, 10 * S)
    assert [one.start_ns for one in plain] == [2 * S, 3 * S, 4 * S, 5 * S]


@pytest.mark.parametrize("n", [1, 10, 79])
def test_a_number_of_requests_is_counted_from_the_first_that_is_sent(n: int) -> None:
    requests = evenly(100, 10.0)
    (window,) = cut(asked(f"--request-count {n}"), requests, 2 * S, 10 * S)
    assert len(window.requests) == n
    assert window.start_ns == min(requests.sent_ns[requests.sent_ns >= 2 * S])
