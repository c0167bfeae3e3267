"""A load that fails entirely: since when, told once, and over as soon as something ends well."""

from __future__ import annotations

import numpy as np

from squall.actors.client_worker import Progress
from squall.cluster.driver.failing import FailingWatch
from squall.cluster.progress import most_frequent

S = 1_000_000_000
NONE = np.empty(0, np.int64)


def standing(n_done: int, n_failed: int, **why: int) -> list[Progress]:
    return [Progress(n_done + 1, n_done, n_failed, 1, NONE, None, why)]


def test_a_load_that_fails_is_told_once_with_its_most_frequent_reason() -> None:
    watch = FailingWatch(60 * S)
    assert watch.look(standing(5, 0), 0) is None
    told = [watch.look(standing(5 + n, n, refused=n, timeout=1), n * S) for n in range(1, 6)]
    assert [one is not None and one.is_new for one in told] == [False, False, True, False, False]
    last = told[-1]
    assert last is not None
    assert (last.for_ns, last.n_failed, last.why) == (5 * S, 5, "refused")
    assert watch.look(standing(11, 5), 6 * S) is None  # one ended well
    again = [watch.look(standing(11 + n, 5 + n, gone=n), (6 + n) * S) for n in range(1, 5)]
    assert [one is not None and one.is_new for one in again] == [False, False, True, False]
    assert again[-1] is not None
    assert again[-1].n_failed == 4


def test_silence_is_no_failure_before_or_after_one() -> None:
    watch = FailingWatch(60 * S)
    assert [watch.look(standing(0, 0), n * S) for n in range(9)] == [None] * 9
    for n in range(9, 30):  # one failure, and nothing ends for 20 s
        assert watch.look(standing(1, 1, timeout=1), n * S) is None
    assert watch.look(standing(2, 2, timeout=2), 30 * S) is None
    third = watch.look(standing(3, 3, timeout=3), 40 * S)
    assert third is not None
    assert (third.for_ns, third.n_failed, third.is_new) == (32 * S, 3, True)
    silent = watch.look(standing(3, 3, timeout=3), 50 * S)
    assert silent is not None
    assert (silent.for_ns, silent.is_new) == (32 * S, False)  # no longer than to the last failure


def test_what_fails_after_the_load_says_nothing_of_it() -> None:
    watch = FailingWatch(5 * S)
    for n in range(1, 20):
        failing = watch.look(standing(n, n, timeout=n), n * S)
        assert (failing is not None) == (3 <= n <= 5)


def test_the_most_frequent_reason_is_that_of_all_workers_together() -> None:
    assert most_frequent([]) is None
    assert most_frequent([*standing(3, 3, a=2, b=1), *standing(3, 3, b=2)]) == "b"
    assert most_frequent(standing(2, 2, b=1, a=1)) == "a"
