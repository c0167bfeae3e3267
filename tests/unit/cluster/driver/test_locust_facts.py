"""What the manifest says of Locust: before the load, after it, and where parts of it were lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from squall.actors.locust.locust_master import MasterAccount
from squall.actors.locust.locust_worker import LocustWorker
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.locust import AskedUsers, LocustEntry
from squall.cluster.driver.locust_facts import Ended, ended_workers, first_facts, last_facts, last_users
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, LostActor
from tests.locust_pair import settings_of

AHEAD_NS = 1_000
ENTRY = LocustEntry(method="GET", name="/", n_requests=7, n_failures=1, total_ms=3.5)
ACCOUNT = MasterAccount(
    "2.47.0", ("Shopper",), "Stages", (AskedUsers(t_ns=50, n_users=5, spawn_rate_hz=2.0),), 90, (ENTRY,), (), (),
    (0, 2), True, {"shop_stats.csv": b"x"},
)  # fmt: skip


def clock() -> ClockTrack:
    """Of a node whose clock is `AHEAD_NS` behind the run's."""
    at_ns = np.array([0, 10**6], np.int64)
    return ClockTrack(at_ns, np.full(2, AHEAD_NS, np.int64), np.zeros(2, np.int64))


def test_before_the_load_the_run_is_not_whole_and_says_what_will_be_run(tmp_path: Path) -> None:
    facts = first_facts(settings_of(tmp_path), MasterAccount())
    assert (facts.file, facts.node, facts.is_whole, facts.host) == ("shop.py", "node-0", False, "")
    assert facts.file_sha256 == settings_of(tmp_path).files.sha256()
    assert facts.version, "of the one that is installed here, where the master has said none"


def test_after_it_instants_are_of_the_run_clock_and_workers_stand_by_number(tmp_path: Path) -> None:
    workers = [Ended((7, 1, 0)), Ended(None, 40), Ended((3, 0, 2))]
    facts = last_facts(settings_of(tmp_path), ACCOUNT, clock(), workers)
    assert [one.t_ns for one in facts.asked] == [50 + AHEAD_NS]
    assert (facts.ended_ns, facts.shape, facts.version) == (90 + AHEAD_NS, "Stages", "2.47.0")
    assert [
        (one.worker, one.n_requests, one.n_failures, one.has_reported, one.n_users_lost) for one in facts.workers
    ] == [(0, 7, 1, True, 0), (1, None, None, False, 40), (2, 3, 0, True, 0)]  # fmt: skip
    assert (facts.entries, facts.is_whole, facts.files, facts.exit_code) == ((ENTRY,), True, (), 2)


class _Handle:
    """Answers by the method's name, or is gone."""

    def __init__(self, counted: object = None, n_users: object = None, is_gone: bool = False) -> None:
        self.answers = {"counted": counted, "n_users": n_users}
        self.is_gone = is_gone

    def begin(self, method: Callable[..., Any]) -> Future[Any]:
        if self.is_gone:
            raise LostActor("it is lost")
        return cast("Future[Any]", method.__name__)

    def wait(self, reference: str, _: float) -> Any:
        found = self.answers[reference]
        if isinstance(found, Exception):
            raise found
        return found


def test_of_a_lost_worker_its_users_are_known_where_its_supervisor_lives() -> None:
    handles = [
        _Handle((9, 0, 0), 4),
        _Handle(None, 6),
        _Handle(is_gone=True),
        _Handle(ClusterError("no answer"), 5),
    ]
    found = ended_workers(cast("list[Handle[LocustWorker]]", handles), [False, True, True, False])
    assert found == [Ended((9, 0, 0)), Ended(None, 6), Ended(None, None), Ended()]


def test_users_that_nobody_can_be_asked_about_are_those_of_the_last_row() -> None:
    samples = pa.table({"worker": [1, 0, 1, 1], "t_ns": [30, 40, 10, 20], "n_users": [4, 9, 2, 3]})
    assert last_users(samples) == {0: 9, 1: 4}
    assert last_users(samples.slice(0, 0)) == {}
