"""What users do with their time, on a clock that the test moves."""

from __future__ import annotations

import pytest

from squall.actors.locust.user_watch import UserCounts, UserWatch

MS = 1_000_000
LATE_NS = 10 * MS


class Hub:
    """A clock, and which greenlet runs."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.running: object = "hub"
        self.oversleep_ns = 0
        self.kills = False

    def sleep(self, seconds: float = 0) -> str:
        self.now_ns += round(seconds * 1e9) + self.oversleep_ns
        if self.kills:
            raise SystemExit
        return "slept"


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def watch(hub: Hub) -> UserWatch:
    return UserWatch(LATE_NS, lambda: hub.running, lambda: hub.now_ns)


def test_time_of_a_user_is_think_late_and_the_rest(hub: Hub, watch: UserWatch) -> None:
    sleep = watch.sleeping(hub.sleep)
    hub.running = "one"
    with watch.present():
        hub.now_ns += 5 * MS  # a task
        hub.oversleep_ns = 3 * MS
        assert sleep(0.1) == "slept"
        hub.oversleep_ns = 20 * MS
        sleep(0.05)
        hub.now_ns += 2 * MS
    found = watch.counts(hub.now_ns)
    assert found == UserCounts(
        present_ns=180 * MS, think_ns=150 * MS, overslept_ns=23 * MS, n_wakes=2, n_late_wakes=1, n_started=1
    )
    assert watch.take_late_max() == 20 * MS
    assert watch.take_late_max() == 0


def test_who_sleeps_now_counts_up_to_now(hub: Hub, watch: UserWatch) -> None:
    seen: list[UserCounts] = []

    def sleep(_: float) -> None:
        for step_ms in (40, 40, 40):
            hub.now_ns += step_ms * MS
            seen.append(watch.counts(hub.now_ns))

    hub.running = "one"
    with watch.present():
        watch.sleeping(sleep)(0.1)
    assert [one.think_ns // MS for one in seen] == [40, 80, 100]
    assert [one.overslept_ns // MS for one in seen] == [0, 0, 20]
    assert [one.n_thinking for one in seen] == [1, 1, 1]
    after = watch.counts(hub.now_ns)
    assert (after.n_users, after.n_thinking, after.think_ns, after.present_ns) == (0, 0, 100 * MS, 120 * MS)


def test_others_may_sleep_and_count_nowhere(hub: Hub, watch: UserWatch) -> None:
    watch.sleeping(hub.sleep)(1.0)
    assert watch.counts(hub.now_ns) == UserCounts()


def test_a_user_that_an_exception_ends_has_died_and_the_first_says_why(hub: Hub, watch: UserWatch) -> None:
    for name, why in (("one", "no login"), ("two", "later")):
        hub.running = name
        with pytest.raises(RuntimeError), watch.present():
            raise RuntimeError(why)
    found = watch.counts(hub.now_ns)
    assert (found.n_died, found.n_started, found.n_users) == (2, 2, 0)
    assert watch.first_death == "RuntimeError: no login"


def test_a_user_stopped_within_a_task_is_cut_and_one_stopped_asleep_is_not(
    hub: Hub, watch: UserWatch
) -> None:
    hub.running = "in a request"
    with watch.present():
        watch.note_cut()
        watch.note_cut()  # a nested task set tells it again
    hub.running, hub.kills = "asleep", True
    with watch.present():
        with pytest.raises(SystemExit):
            watch.sleeping(hub.sleep)(5)
        watch.note_cut()
    assert watch.counts(hub.now_ns).n_cut == 1
    assert watch.counts(hub.now_ns).n_died == 0
