"""What the workers say of themselves after the load, and steps that wait for several nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from squall.actors.client_worker import Account, ClientWorker
from squall.analysis.storage.deployed import WorkerFacts
from squall.cluster.driver.client_workers import Worker
from squall.cluster.driver.side_by_side import as_they_end, side_by_side
from squall.cluster.driver.worker_answers import answers_of, with_accounts
from squall.cluster.placement import Node
from squall.scenarios.errors import ClusterError, LostActor
from squall.scenarios.records import SenderScheduling

NODE = Node("node-0", "ray-id", "127.0.0.1", 0, True)
PLAIN = SenderScheduling(policy="SCHED_OTHER", realtime_priority=0, niceness=0, cores=(0, 1))


class _Handle:
    def __init__(self, name: str, answer: Account | Exception) -> None:
        self.name = name
        self._answer = answer
        self.asked: list[str] = []

    def begin(self, method: Callable[..., Any]) -> str:
        if isinstance(self._answer, LostActor):
            raise self._answer
        self.asked.append(method.__name__)
        return method.__name__

    def wait(self, _: str, __: float) -> Account:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def _worker(number: int, answer: Account | Exception, is_lost: bool = False) -> Worker:
    return Worker(cast(Any, _Handle(f"worker {number}", answer)), NODE, 1, is_lost=is_lost)


def test_every_worker_is_asked_once_and_its_facts_stand_at_its_number() -> None:
    workers = [
        _worker(0, LostActor("worker 0 is lost")),
        _worker(1, Account(PLAIN, 2, 1_500_000_000, -20_000_000)),
        _worker(2, ClusterError("worker 2 did not answer")),
        _worker(3, Account(PLAIN, 0, 0, 4_000)),
        _worker(4, Account(PLAIN, 9, 9, 9), is_lost=True),
    ]
    troubles: list[str] = []
    answers = answers_of(workers, ClientWorker.account, troubles)
    assert troubles == ["account: worker 2 did not answer"]
    assert [cast(Any, worker.handle).asked for worker in workers] == [
        [],
        ["account"],
        ["account"],
        ["account"],
        [],
    ]
    facts, told = with_accounts([WorkerFacts(worker=n, node="node-0") for n in range(5)], workers, answers)
    assert [(one.worker, one.n_demotions, one.ready_before_ns) for one in facts] == [
        (0, None, None), (1, 2, -20_000_000), (2, None, None), (3, 0, 4_000), (4, None, None),
    ]  # fmt: skip
    assert [line.split(" used")[0].split(" began")[0] for line in told] == ["worker 1", "worker 1"]
    assert told[0].endswith("for 1.5 s")
    assert told[1] == "worker 1 began 0.020 s after the agreed instant"


def test_steps_run_side_by_side_and_one_that_fails_is_raised_when_all_have_ended() -> None:
    both, done = threading.Barrier(2, timeout=30), []

    def step(number: int) -> None:
        both.wait()  # passes only where the other runs at the same time
        done.append(number)
        if number:
            raise ClusterError("the second")

    with pytest.raises(ClusterError, match="the second"):
        side_by_side([lambda: step(0), lambda: step(1)])
    assert sorted(done) == [0, 1]
    side_by_side([])


def test_what_has_ended_is_given_while_another_step_goes_on() -> None:
    heard = threading.Event()
    found = []
    for name in as_they_end({"slow": lambda: _heard(heard), "quick": lambda: None}):
        found.append(name)
        heard.set()  # the slow one ends only after the quick one was given
    assert found == ["quick", "slow"]
    assert list(as_they_end({})) == []


def _heard(told: threading.Event) -> None:
    assert told.wait(30)
