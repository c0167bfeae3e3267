"""What golden tests of the engine and of the libraries for servers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from squall.actors.load.lane import IS_BUILT
from tests.kernel_hosts import Built, built
from tests.reporting import ReportingServer, reporting_server

_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)

_needs_lane = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)

# a mixture of all of it runs both ways in test_lane.py
_slow_where_built = [pytest.mark.slow] if IS_BUILT else []


@pytest.fixture(
    params=[pytest.param("lane", marks=_needs_lane), pytest.param("python", marks=_slow_where_built)]
)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a worker sends: through the C lane, or all in Python."""
    if request.param == "python":
        monkeypatch.setattr("squall.actors.load.worker.IS_BUILT", False)
    return str(request.param)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> ReportingServer:
    """Tells the batch library whatever a test's script says."""
    return reporting_server(tmp_path_factory.mktemp("server"))


@pytest.fixture(autouse=True)
def _own_niceness() -> Iterator[None]:
    """A worker in this process raises its niceness; what comes after, and what it starts, must not inherit that."""
    yield
    for tid in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            if os.getpriority(os.PRIO_PROCESS, tid) < _NICENESS:
                os.setpriority(os.PRIO_PROCESS, tid, _NICENESS)


@pytest.fixture(scope="session")
def kernel_build(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The kernel library, a CUPTI of known behaviour, and a process for both."""
    return built(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def kernel_rings(tmp_path: Path) -> Path:
    """A folder for rings."""
    folder = tmp_path / "rings"
    folder.mkdir()
    return folder
