"""What a local Ray is told by the environment, and the nodes without one; Ray itself is a fake that notes what it was
started with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from squall.cluster.placement import Node
from squall.cluster.remote import session
from squall.cluster.remote.forker import FORKER
from squall.cluster.remote.session import LOCAL, LOCAL_SETTINGS, Session, session_at, shared_sessions


class FakeWatch:
    """No process."""

    def __init__(self, folder: Path) -> None:
        assert folder.is_dir()

    def dismiss(self) -> None:
        return


class FakeRay(ModuleType):
    """Notes the environment at each start."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.started_with: dict[str, str] = {}
        self.options: dict[str, Any] = {}
        self.n_joined = 0

    def init(self, **options: Any) -> None:
        self.n_joined += 1
        self.started_with = dict(os.environ)
        self.options = options

    def shutdown(self) -> None:
        return


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(session, "RayWatch", FakeWatch)
    for name in ("begin", "end"):
        monkeypatch.setattr(FORKER, name, lambda: None)
    for name in (
        "RAY_IGNORE_UNHANDLED_ERRORS",
        "RAY_USAGE_STATS_ENABLED",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "RAY_DEDUP_LOGS",
    ):
        monkeypatch.setenv(name, "0")  # what a session leaves there goes with the test
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return fake


def test_a_local_ray_gives_niceness_0_and_ends_nothing_by_itself(ray: FakeRay) -> None:
    with Session(LOCAL):
        pass
    assert LOCAL_SETTINGS.items() <= ray.started_with.items()
    assert ray.started_with["RAY_worker_niceness"] == "0"
    assert ray.started_with["RAY_memory_monitor_refresh_ms"] == "0"
    assert not set(LOCAL_SETTINGS) & set(os.environ), "they are this session's alone"


def test_what_the_environment_says_of_them_stays(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "3")
    with Session(LOCAL):
        pass
    assert ray.started_with["RAY_worker_niceness"] == "3"
    assert ray.started_with["RAY_memory_monitor_refresh_ms"] == "0"
    assert ("RAY_worker_niceness", "3") in os.environ.items()


def test_a_ray_that_is_joined_is_as_it_was_started(ray: FakeRay) -> None:
    with Session("auto"):
        pass
    assert not set(LOCAL_SETTINGS) & set(ray.started_with)


@pytest.mark.parametrize(
    ("visible", "n_gpus"), [(None, 3), ("", 0), ("1", 1), ("GPU-a, GPU-b", 2), ("0,1,2,3", 3)]
)
def test_without_ray_the_node_is_this_machine_with_the_gpus_that_one_may_use(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, visible: str | None, n_gpus: int
) -> None:
    monkeypatch.setattr(session, "gpu_identities", lambda: [(f"GPU-{name}", "H200") for name in "abc"])
    monkeypatch.setattr(session, "_own_address", lambda: "10.0.0.1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with Session(None) as found:
        (node,) = found.nodes()
    assert node == Node("node-0", "", "10.0.0.1", n_gpus, is_driver=True)
    assert ray.options == {}, "no Ray was started or joined"


def test_runs_of_a_command_share_a_session_and_one_that_failed_leaves_it(ray: FakeRay) -> None:
    told: list[str] = []

    def run() -> None:
        with session_at("auto", told.append, told.append):
            pass

    run()
    run()
    assert (ray.n_joined, told) == (2, ["joining Ray at auto"] * 2), "outside each has its own"
    with shared_sessions():
        run()
        with shared_sessions():  # a command within a command
            run()
        run()
        assert ray.n_joined == 3
        with pytest.raises(RuntimeError), session_at("auto", told.append, told.append):
            raise RuntimeError
        run()
        assert ray.n_joined == 4
    run()
    assert (ray.n_joined, len(told)) == (5, 5)
