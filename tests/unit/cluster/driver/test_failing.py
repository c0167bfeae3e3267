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
    watch = FailingWatch()
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


def test_silence_is_no_failure_and_failures_before_it_count_on() -> None:
    watch = FailingWatch()
    assert [watch.look(standing(0, 0), n * S) for n in range(9)] == [None] * 9
    assert watch.look(standing(1, 1, timeout=1), 9 * S) is not None
    waited = watch.look(standing(1, 1, timeout=1), 12 * S)
    assert waited is not None
    assert (waited.for_ns, waited.n_failed) == (4 * S, 1)


def test_the_most_frequent_reason_is_that_of_all_workers_together() -> None:
    assert most_frequent([]) is None
    assert most_frequent([*standing(3, 3, a=2, b=1), *standing(3, 3, b=2)]) == "b"
    assert most_frequent(standing(2, 2, b=1, a=1)) == "a"
