"""What Ray answers where it is asked to start a process; Ray itself is a fake that has no `get`."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from squall.cluster.placement import Node
from squall.cluster.remote import launch
from squall.cluster.remote.forker import Contact
from squall.cluster.remote.launch import Launchers
from squall.scenarios.errors import ClusterError

FAR = Node("node-1", "ray-id", "10.0.0.2", 0, is_driver=False)


class RayError(Exception):
    """Any of Ray's own."""


class RayTaskError(RayError):
    """What the actor raised: `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Future[Contact]:
    """What the launcher of any node will answer. A thread waits for it outside Ray's library, which may be left."""
    answer: Future[Contact] = Future()

    class FakeRay(ModuleType):
        exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

        def remote(self, _cls: type) -> Any:
            start = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: answer))
            actor = SimpleNamespace(remote=lambda: SimpleNamespace(start=start))
            return SimpleNamespace(options=lambda **_: actor)

    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", FakeRay("ray"))
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)
    return answer


def test_a_process_is_where_the_launcher_says(answer: Future[Contact]) -> None:
    answer.set_result(Contact(("10.0.0.2", 7), 11))
    assert Launchers().start("NodeAgent", FAR, b"token") == Contact(("10.0.0.2", 7), 11)


def test_a_launcher_that_died_since_is_made_again(answer: Future[Contact]) -> None:
    died, launchers = Future[Contact](), Launchers()
    died.set_exception(RayError("The actor died."))
    start = SimpleNamespace(remote=lambda *_: SimpleNamespace(future=lambda: died))
    launchers._actors[FAR.ray_id] = SimpleNamespace(start=start)
    answer.set_result(Contact(("10.0.0.2", 7), 11))
    assert launchers.start("NodeAgent", FAR, b"token") == Contact(("10.0.0.2", 7), 11)


def test_a_launcher_that_does_not_answer_is_given_up(
    answer: Future[Contact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_RAY_TIMEOUT_S", 0.01)
    with pytest.raises(ClusterError, match=r"^Ray started nothing on node-1 within 0\.01 s$"):
        Launchers().start("NodeAgent", FAR, b"token")
    assert not answer.done()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RayTaskError(ClusterError("NodeAgent ended at its start")), "NodeAgent ended at its start"),
        (RayTaskError(TimeoutError("slow")), "slow"),
        (RayError("The actor died.\nmore"), "Ray on node-1: The actor died."),
    ],
)
def test_what_goes_wrong_is_one_line(answer: Future[Contact], error: Exception, words: str) -> None:
    answer.set_exception(error)
    with pytest.raises(ClusterError) as caught:
        Launchers().start("NodeAgent", FAR, b"token")
    assert str(caught.value) == words
