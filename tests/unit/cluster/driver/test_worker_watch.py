"""What becomes of a worker that does not answer, or is gone, while the others send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from squall.actors.client_worker import ClientWorker, Progress, Standing
from squall.cluster.driver.client_workers import Worker
from squall.cluster.driver.worker_watch import WorkerWatch
from squall.cluster.placement import Node
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import LostActor, ScenarioError, StoreError

STATE = Progress(9, 7, 0, 2, np.array([5], np.int64))
GONE = LostActor("worker is lost: its process has ended")


class _Handle:
    """`answers` by the method's name: a value, an error that `wait` raises, or nothing: never done."""

    def __init__(self, name: str, answers: Mapping[str, Any], is_gone: bool = False) -> None:
        self.name, self.answers, self.is_gone = name, answers, is_gone
        self.begun: list[str] = []
        self.waited: list[str] = []
        self.is_killed = False

    def begin(self, method: Callable[..., Any]) -> str:
        if self.is_gone:
            raise GONE
        self.begun.append(method.__name__)
        return method.__name__

    def is_done(self, reference: str, timeout_s: float = 0.0) -> bool:
        del timeout_s  # nobody waits here
        self.waited.append(reference)
        return reference in self.answers

    def wait(self, reference: str) -> Any:
        found = self.answers[reference]
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self) -> None:
        self.is_killed = True


def watched(*handles: _Handle) -> tuple[WorkerWatch, list[Worker], list[str]]:
    node = Node("node-0", "", "127.0.0.1", 1, True)
    workers = [
        Worker(cast(Handle[ClientWorker], one), node, 10, running=cast(Future[None], "run"))
        for one in handles
    ]
    losses: list[str] = []
    return WorkerWatch(workers, losses, Screen()), workers, losses


def test_the_state_of_a_worker_that_is_lost_is_its_last_with_nothing_in_flight() -> None:
    handle = _Handle("worker 0", {"status": Standing(STATE)})
    watch, (worker,), losses = watched(handle)
    assert watch.poll() == [STATE]
    handle.answers = {"status": GONE}
    (last,) = watch.poll()
    assert (last.n_sent, last.n_in_flight, last.recent_response_ns.size) == (9, 0, 0)
    assert (worker.is_lost, losses, watch.is_done) == (True, [str(GONE)], True)
    watch.poll()
    assert losses == [str(GONE)], "told once"


def test_a_worker_whose_process_is_gone_before_it_is_asked_is_lost_too() -> None:
    watch, workers, losses = watched(
        _Handle("worker 0", {}, is_gone=True), _Handle("worker 1", {"run": None})
    )
    watch.poll()
    assert [worker.is_lost for worker in workers] == [True, False]
    assert (losses, watch.is_done) == (["worker 0 is lost: its process has ended"], True)


def test_one_that_is_too_busy_to_answer_is_asked_no_more_until_it_has() -> None:
    handle = _Handle("worker 0", {})
    watch, _, losses = watched(handle)
    assert (watch.poll(), watch.poll(), handle.begun, losses) == ([], [], ["status"], [])


def test_a_disk_that_takes_no_records_ends_the_load() -> None:
    watch, _, _ = watched(_Handle("worker 0", {"status": Standing(STATE, "no space left on device")}))
    with pytest.raises(StoreError, match="worker 0 cannot write its records: no space left"):
        watch.poll()


def test_at_the_end_one_that_stops_is_kept_and_one_that_does_not_is_given_up() -> None:
    stops, hangs = _Handle("worker 0", {"run": None}), _Handle("worker 1", {})
    watch, workers, losses = watched(stops, hangs)
    watch.stop()
    assert (stops.begun, hangs.begun) == (["stop"], ["stop"])
    assert [(one.is_killed, worker.is_lost) for one, worker in zip((stops, hangs), workers, strict=True)] == [
        (False, False), (True, True)
    ]  # fmt: skip
    assert losses == ["worker 1 did not stop and was given up"]


def test_long_after_the_end_one_that_runs_is_told_and_one_that_does_not_hear_it_is_lost() -> None:
    hangs = _Handle("worker 0", {})
    watch, (worker,), losses = watched(hangs)
    watch.give_up()
    assert (hangs.begun, hangs.is_killed, worker.is_lost) == (["stop"], True, True)
    assert losses == ["worker 0 did not end within 30 s of the run's end"]


def test_what_nobody_can_run_ends_the_run_with_its_own_words() -> None:
    watch, _, losses = watched(_Handle("worker 0", {"status": ScenarioError("shop.py: every user died")}))
    with pytest.raises(ScenarioError, match=r"^shop\.py: every user died$"):
        watch.poll()
    assert losses == []


def test_a_worker_that_never_ran_does_not_run() -> None:
    watch, (worker,), _ = watched(_Handle("worker 0", {}))
    assert not watch.is_done
    worker.running = None
    assert watch.is_done


def test_the_files_of_a_lost_worker_are_waited_for_where_its_own_process_lives() -> None:
    handle = _Handle("worker 0", {"status": GONE})
    watch, _, _ = watched(handle)
    watch.wait_for_files(5.0)
    assert handle.waited == [], "it is not lost"
    watch.poll()
    handle.waited.clear()
    watch.wait_for_files(5.0)
    assert handle.waited == ["run"]
