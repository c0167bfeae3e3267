"""The watch of workers under leases: when one is given up, and who gets what it had."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import numpy as np

from squall.actors.client_worker import ClientWorker, Progress, Standing
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.tables.deployed import RedealFacts
from squall.cluster.driver.client_workers import Worker
from squall.cluster.driver.redealing.redealer import Redealer
from squall.cluster.driver.worker_watch import WorkerWatch
from squall.cluster.placement import Node
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, LostActor
from squall.scenarios.plan.plan import PhaseSpan, Plan

S = 1_000_000_000
START_NS = 50 * S
STANDING = Standing(Progress(9, 7, 0, 2, np.array([5], np.int64)))


class _Handle:
    """Answers `renew` with `standing`, or not at all where that is None; is never done with its run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.standing: Standing | None = STANDING
        self.ended_ns: int | None = None
        self.is_killed = False
        self.begun: list[tuple[Any, ...]] = []
        self.why_not: Exception | None = None

    def begin(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self.ended_ns is not None:
            raise LostActor(f"{self.name} is lost: its process has ended")
        self.begun.append((method.__name__, *arguments))
        if method is ClientWorker.take_over:
            done: Future[None] = Future()
            if self.why_not is None:
                done.set_result(None)
            else:
                done.set_exception(self.why_not)
            return done
        return method.__name__

    def is_done(self, reference: Any, timeout_s: float = 0.0) -> bool:
        del timeout_s  # nobody waits here
        return reference == "renew" and self.standing is not None

    def wait(self, reference: Any) -> Any:
        assert reference == "renew"
        return self.standing

    def kill(self) -> None:
        self.is_killed = True

    def ends_of_leases(self) -> list[int]:
        """After the start, in s."""
        return [(call[1] - START_NS) // S for call in self.begun if call[0] == "renew"]

    def taken(self) -> list[tuple[int, int]]:
        """How many arrivals it was given, and of which redeal."""
        return [(len(call[1]), call[2]) for call in self.begun if call[0] == "take_over"]


class Watched:
    """Three workers on a node whose clock is the driver's, 100 arrivals a second for 30 s, leases of 5 s."""

    def __init__(self) -> None:
        seq = np.arange(3_000, dtype=np.int64)
        plan = Plan(
            seq=seq, offset_ns=seq * (S // 100), phase=np.zeros(3_000, np.uint8), rows=np.ones(3_000, np.int32),
            variant=np.zeros(3_000, np.uint8), spans=(PhaseSpan("m", "measure", 0, 31 * S),),
        )  # fmt: skip
        self.now_ns = START_NS
        node = Node("node-0", "", "127.0.0.1", 1, True)
        self.handles = [_Handle(f"worker {i}") for i in range(3)]
        self.workers = [Worker(cast(Handle[ClientWorker], one), node, 1_000) for one in self.handles]
        self.losses: list[str] = []
        self.told: list[RedealFacts] = []
        clocks = {"node-0": ClockTrack.constant(0, 1_000)}
        redealer = Redealer(plan, 3, 5 * S, lambda: clocks, 0, lambda: self.now_ns)
        redealer.begin(START_NS, {"node-0": START_NS})
        self.watch = WorkerWatch(self.workers, self.losses, Screen())
        self.watch.redeal_with(redealer, self.told.append)
        self.watch.start({"node-0": START_NS})

    def poll_at(self, *seconds: float) -> None:
        for second in seconds:
            self.now_ns = START_NS + round(second * S)
            self.watch.poll()


def test_each_poll_renews_the_leases_of_those_who_answer() -> None:
    run = Watched()
    assert [handle.begun for handle in run.handles] == [[("run", START_NS, START_NS + 5 * S)]] * 3
    run.poll_at(1, 2)
    run.handles[1].standing = None
    run.poll_at(3, 4, 5, 6)
    assert run.handles[0].ends_of_leases() == [6, 7, 8, 9, 10, 11]
    assert run.handles[1].ends_of_leases() == [6, 7, 8], "it has not answered the third"
    assert run.losses == []


def test_one_that_is_silent_is_lost_when_its_last_lease_is_surely_over_and_not_before() -> None:
    run = Watched()
    run.handles[1].standing = None
    run.poll_at(1, 3, 5.9, 6)
    assert (run.handles[1].is_killed, run.losses, run.told) == (False, [], [])
    run.poll_at(6.5)
    assert run.handles[1].is_killed
    assert run.losses == ["worker 1 is lost: it did not renew its lease"]
    (facts,) = run.told
    assert (facts.worker, facts.takers, facts.lost_ns) == (1, (0, 2), 6 * S + 1_000)
    assert facts.from_ns > 8.5 * S
    given = [handle.taken() for handle in run.handles]
    assert [number for of_one in given for _, number in of_one] == [1, 1]
    assert given[1] == []
    assert sum(n for of_one in given for n, _ in of_one) == facts.n_arrivals > 700
    run.poll_at(7, 8)
    assert len(run.told) == 1


def test_what_a_worker_had_whose_process_ended_is_dealt_at_once() -> None:
    run = Watched()
    run.poll_at(1)
    run.handles[2].ended_ns = START_NS + round(1.7 * S)
    run.poll_at(2)
    (facts,) = run.told
    assert (facts.worker, facts.takers, facts.lost_ns) == (2, (0, 1), round(1.7 * S))
    assert facts.from_ns < 4.1 * S


def test_a_worker_that_says_that_its_lease_ran_out_is_lost_as_it_says_so() -> None:
    run = Watched()
    run.handles[0].standing = Standing(STANDING.progress, has_lapsed=True)
    run.poll_at(9)
    assert run.losses == ["worker 0 is lost: its lease ran out"]
    (facts,) = run.told
    assert (facts.worker, facts.takers, facts.lost_ns) == (0, (1, 2), 9 * S)
    assert not run.handles[0].is_killed, "its rows are still to be had"


def test_a_taker_that_is_lost_in_turn_leaves_all_to_the_last() -> None:
    run = Watched()
    run.handles[1].ended_ns = START_NS
    run.poll_at(1)
    run.handles[0].ended_ns = START_NS + 5 * S
    run.poll_at(6)
    assert [(one.worker, one.takers) for one in run.told] == [(1, (0, 2)), (0, (2,))]
    (first, second) = run.handles[2].taken()
    assert (first[1], second[1]) == (1, 2)
    assert second[0] > 1_000, "its own, and half of the other's"
    run.handles[2].ended_ns = START_NS + 8 * S
    run.poll_at(9)
    assert len(run.told) == 2, "nobody is left"


def test_a_taker_that_cannot_take_over_is_told_as_a_loss() -> None:
    run = Watched()
    run.handles[0].why_not = ClusterError("no connection")
    run.handles[1].ended_ns = START_NS
    run.poll_at(1)
    assert run.losses[1:] == ["worker 0 took over no arrivals: no connection"]


def test_what_ended_a_part_before_its_time_is_told_once() -> None:
    run = Watched()
    run.handles[0].standing = Standing(STANDING.progress, taken_errors=("worker 0: boom",))
    run.poll_at(1, 2)
    assert run.losses == ["worker 0: boom"]
