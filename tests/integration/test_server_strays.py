"""Nothing of a server is left, not even where its supervisor, or the server itself, is killed under nsys."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from squall.actors.clock import SystemClock
from squall.actors.nsys.tools import find_nsys
from squall.actors.process.supervisor import region_prefix
from squall.cluster.node.node_profiler import NodeProfiler
from squall.cluster.node.server import TritonServer
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.config.loader import scenario_from_mapping
from tests.integration.live_runs import scenario_mapping, wait_until

MEMORY = Path("/dev/shm")


@pytest.mark.single
@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
@pytest.mark.parametrize("victim", ["supervisor", "server"])
def test_nothing_is_left_of_a_killed_server_under_nsys(tmp_path: Path, victim: str) -> None:
    tools = find_nsys(cache_dir())
    assert tools is not None
    scenario = scenario_from_mapping(scenario_mapping(), "test")
    profiler = NodeProfiler(tools, scenario.profile, tmp_path, SystemClock())
    server = TritonServer(
        [scenario.models[0].model], scenario.server, tmp_path, profiler.session, has_gpu=False
    )
    server.start()
    assert [*MEMORY.glob(f"{region_prefix(str(tmp_path))}*")], "the backend takes the prefix"
    pids = server.pids()
    (agent,) = profiler.session.agent_pids()
    if victim == "server":
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    else:
        assert server._process is not None
        for process in psutil.Process(server._process.pid).children():
            process.kill()  # the supervisor, whose parent only waits
    profiler.close()
    server.stop()
    wait_until(lambda: not any(map(psutil.pid_exists, (*pids, agent))), 5.0, "init to reap what was killed")
    assert not [
        *MEMORY.glob(f"{region_prefix(str(tmp_path))}*"),
        *MEMORY.glob(f"quadd-agent-instance-{agent}"),
    ]
