"""What a local Ray is told by the environment; Ray itself is a fake that notes what it was started with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from squall.cluster.remote import session
from squall.cluster.remote.session import LOCAL_SETTINGS, Session


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

    def init(self, **options: Any) -> None:
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
    with Session(None):
        pass
    assert LOCAL_SETTINGS.items() <= ray.started_with.items()
    assert ray.started_with["RAY_worker_niceness"] == "0"
    assert ray.started_with["RAY_memory_monitor_refresh_ms"] == "0"
    assert not set(LOCAL_SETTINGS) & set(os.environ), "they are this session's alone"


@pytest.mark.parametrize(("has_tasks", "n_cpus"), [(False, 1), (True, None)])
def test_a_local_ray_knows_of_one_core_unless_tasks_take_them(
    ray: FakeRay, has_tasks: bool, n_cpus: int | None
) -> None:
    with Session(None, has_tasks=has_tasks):
        pass
    assert ray.options["num_cpus"] == n_cpus


def test_what_the_environment_says_of_them_stays(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "3")
    with Session(None):
        pass
    assert ray.started_with["RAY_worker_niceness"] == "3"
    assert ray.started_with["RAY_memory_monitor_refresh_ms"] == "0"
    assert ("RAY_worker_niceness", "3") in os.environ.items()


def test_a_ray_that_is_joined_is_as_it_was_started(ray: FakeRay) -> None:
    with Session("auto"):
        pass
    assert not set(LOCAL_SETTINGS) & set(ray.started_with)
