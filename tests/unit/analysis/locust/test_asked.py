"""Users asked for: a line from change to change, at the rate that was stated."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.locust.asked import GRACE_NS, asked_mean, asked_users
from squall.analysis.tables.locust import AskedUsers, LocustFacts
from squall.scenarios.units import NS_PER_S
from tests.synthetic_runs import START_NS


def facts(*asked: tuple[float, int, float], ended_s: float | None = None) -> LocustFacts:
    return LocustFacts(
        version="2.47.0", file="f.py", file_sha256="", node="node-0",
        asked=tuple(
            AskedUsers(t_ns=START_NS + round(at_s * NS_PER_S), n_users=n, spawn_rate_hz=rate_hz)
            for at_s, n, rate_hz in asked
        ),
        ended_ns=None if ended_s is None else START_NS + round(ended_s * NS_PER_S),
    )  # fmt: skip


def at(one: LocustFacts, *seconds: float) -> list[float]:
    t_ns = np.array([START_NS + s * NS_PER_S for s in seconds])
    return [round(n, 3) for n in asked_users(one, t_ns).tolist()]


def phase(start_s: float, end_s: float) -> list[RunPhase]:
    a, b = (START_NS + round(s * NS_PER_S) for s in (start_s, end_s))
    return [RunPhase("burst", "measure", a, b)]


def test_users_come_at_their_rate_and_stay() -> None:
    assert at(facts((0, 20, 10.0)), -1, 0, 1, 2, 9) == [0, 0, 10, 20, 20]


def test_a_change_before_the_number_is_reached_starts_from_where_it_is() -> None:
    one = facts((0, 100, 10.0), (5, 20, 30.0), (10, 0, 20.0))
    assert at(one, 5, 6, 7, 10, 10.5, 11, 12) == [50, 20, 20, 20, 10, 0, 0]


def test_what_the_file_itself_ended_asks_for_nobody() -> None:
    assert at(facts((0, 4, 4.0), ended_s=6), 5.9, 6, 7) == [4, 0, 0]


def test_several_changes_at_one_instant_are_a_step_of_the_last() -> None:
    assert at(facts((0, 4, 4.0), (3, 8, 1e9), (3, 6, 1e9)), 2.9, 3.1) == [4, 6]


def test_the_mean_is_that_of_the_line() -> None:
    one = facts((0, 20, 10.0))
    assert asked_mean(one, phase(0, 4)) == pytest.approx(15.0)  # 2 s at 10 on average, 2 s at 20
    assert asked_mean(one, phase(3, 4)) == pytest.approx(20.0)


def test_users_on_their_way_are_not_missed() -> None:
    one = facts((0, 20, 10.0), (10, 0, 10.0))
    assert asked_mean(one, phase(1, 2), GRACE_NS) == pytest.approx(5.0)  # as asked a second before
    assert asked_mean(one, phase(3, 8), GRACE_NS) == pytest.approx(20.0)
    assert asked_mean(one, phase(10, 11), GRACE_NS) == pytest.approx(5.0)  # as asked a second later


def test_nothing_asked_for_and_phases_without_length_have_no_mean() -> None:
    assert asked_mean(facts(), phase(0, 1)) is None
    assert asked_mean(facts((0, 1, 1.0)), []) is None
