"""What becomes of a Locust master that dies, hangs or ends, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from squall.actors.locust.locust_master import LocustMaster, MasterAccount
from squall.cluster.driver.locust_crew import Crew
from squall.cluster.driver.locust_master_watch import MasterWatch
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import LostActor, ScenarioError
from tests.locust_pair import settings_of

EARLY, LAST = MasterAccount(version="1"), MasterAccount(version="1", is_whole=True)
GONE = LostActor("Locust master on node-0 is lost: its process has ended")


class _Handle:
    """`answers` by the method's name: a value, an error that `wait` raises, or nothing: never done."""

    name = "Locust master on node-0"

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"stop": None, **answers}
        self.begun: list[str] = []
        self.on_stop: dict[str, Any] = {}

    def begin(self, method: Callable[..., Any], *_: Any) -> str:
        self.begun.append(method.__name__)
        if method is LocustMaster.stop:
            self.answers |= self.on_stop
        return method.__name__

    def is_done(self, reference: str, timeout_s: float = 0.0) -> bool:
        del timeout_s  # nobody waits here
        return reference in self.answers

    def wait(self, reference: str, timeout_s: float = 0.0) -> Any:
        del timeout_s
        found = self.answers[reference]
        if isinstance(found, Exception):
            raise found
        return found


def watched(tmp_path: Path, handle: _Handle) -> tuple[MasterWatch, list[str], list[str]]:
    node = Node("node-0", "", "127.0.0.1", 1, True)
    crew = Crew(cast("Handle[LocustMaster]", handle), node, settings_of(tmp_path), [], [], EARLY)
    losses: list[str] = []
    told: list[str] = []
    watch = MasterWatch(crew, losses, told.append)
    watch.start(7)
    return watch, losses, told


def test_one_that_ends_in_order_says_all_and_is_not_told_to_stop(tmp_path: Path) -> None:
    handle = _Handle(status="", run=None, account=LAST)
    watch, losses, told = watched(tmp_path, handle)
    assert not watch.look()
    assert watch.end() == LAST
    assert (losses, told, handle.begun) == ([], [], ["run", "status", "account"])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (GONE, "its process has ended"),
        (LostActor("the Locust master on node-0 is lost: killed by signal 9"), "killed by signal 9"),
        (LostActor("nobody knows"), "nobody knows"),
    ],
)
def test_one_that_dies_is_one_loss_told_once(tmp_path: Path, error: LostActor, why: str) -> None:
    watch, losses, told = watched(tmp_path, _Handle(status=error, run=error, account=LAST))
    assert (watch.look(), watch.look()) == (True, True)
    watch.end()
    assert losses == told == [f"the Locust master is lost: {why}"]


def test_of_one_whose_supervisor_died_with_it_the_first_account_is_left(tmp_path: Path) -> None:
    watch, losses, _ = watched(tmp_path, _Handle(status="", run=GONE, account=GONE))
    assert watch.end() == EARLY
    assert losses == ["the Locust master is lost: its process has ended"]


def test_one_that_waits_on_is_told_to_stop_and_one_that_does_not_hear_it_is_given_up(tmp_path: Path) -> None:
    handle = _Handle(status="", account=LAST)
    handle.on_stop = {"run": None}
    watch, losses, _ = watched(tmp_path, handle)
    assert watch.end() == LAST
    assert (losses, handle.begun) == ([], ["run", "stop", "account"])
    deaf = _Handle(status="", account=EARLY)
    watch, losses, _ = watched(tmp_path, deaf)
    assert watch.end() == EARLY
    assert losses == ["the Locust master is lost: it did not end"]


def test_one_that_is_busy_is_asked_no_more_until_it_has_answered(tmp_path: Path) -> None:
    handle = _Handle()
    watch, losses, _ = watched(tmp_path, handle)
    assert (watch.look(), watch.look(), losses) == (False, False, [])
    assert handle.begun == ["run", "status"]


def test_stopped_twice_it_is_told_once_and_another_failure_is_a_loss_of_its_own(tmp_path: Path) -> None:
    handle = _Handle(run=ScenarioError("the file left"), account=LAST)
    watch, losses, _ = watched(tmp_path, handle)
    watch.stop()
    watch.stop()
    watch.end()
    assert handle.begun.count("stop") == 1
    assert losses == ["Locust master on node-0: the file left"]
