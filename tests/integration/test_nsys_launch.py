"""An nsys that answers and does not launch: a run with `auto` goes on without it, one that requires it does not."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.collected import NsysFacts
from squall.cluster.node.agent import NodeAgent
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, TargetError
from tests.integration.live_runs import scenario_mapping

pytestmark = pytest.mark.beside

_ANSWERS = """#!/bin/sh
[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2024.1.1.1" && exit 0
[ "$1" = launch ] && [ "$2" != --help ] && echo "cannot create the agent" && exit 7
exit 0
"""

_FAILS_ONCE = """#!/bin/sh
[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2024.1.1.1" && exit 0
[ "$1" = launch ] && [ "$2" != --help ] || exit 0
shift
while [ "${1#--}" != "$1" ]; do shift; done
[ -e "$0.failed" ] && exec "$@"
: > "$0.failed"
"""
_LOSES_ITS_AGENT = """echo "Connection to the Agent lost."
exec sleep 600
"""
_HEARS_NO_MORE = """echo "End of file"
exec sleep 600
"""
_HAS_NO_ENDPOINT = """echo '[QuadDCommon::tag_message*] = Local Endpoint is not available.'
exec sleep 600
"""
_FINDS_NO_SEMAPHORE = """echo '[QuadDCommon::tag_errno_text*] = No such file or directory
[boost::errinfo_api_function_*] = sem_open'
exit 1
"""


def _scenario(**profile: Any) -> Scenario:
    return scenario_from_mapping(scenario_mapping(profile={"nvml": "off", **profile}), "test")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    nsys = tmp_path / "nsys"
    nsys.write_text(_ANSWERS)
    nsys.chmod(0o755)
    monkeypatch.setenv("SQUALL_NSYS", str(nsys))
    agent = NodeAgent("r", "node-0")
    yield agent
    agent.close()


def test_a_server_that_nsys_does_not_launch_is_started_without_it(agent: NodeAgent) -> None:
    endpoint = agent.start_server(_scenario(), with_nsys=True)
    assert endpoint.server_version
    reason = agent.why_without_nsys()
    assert reason is not None
    assert "cannot create the agent" in reason
    assert agent.profiler_facts() == NsysFacts()
    assert agent.heartbeat() == []


@pytest.mark.parametrize(
    "failure",
    [_LOSES_ITS_AGENT, _HEARS_NO_MORE, _HAS_NO_ENDPOINT, _FINDS_NO_SEMAPHORE],
    ids=["agent", "connection", "endpoint", "semaphore"],
)
def test_a_launch_that_failed_within_nsys_is_made_once_more_at_once(agent: NodeAgent, failure: str) -> None:
    Path(os.environ["SQUALL_NSYS"]).write_text(_FAILS_ONCE + failure)
    assert agent.start_server(_scenario(nsys="required"), with_nsys=True).server_version
    Path(f"{os.environ['SQUALL_NSYS']}.failed").unlink()
    agent.restart_server()
    assert agent.why_without_nsys() is None


def test_a_required_nsys_that_does_not_launch_ends_the_run(agent: NodeAgent) -> None:
    with pytest.raises(ClusterError, match=r"nsys is required.*cannot create the agent"):
        agent.start_server(_scenario(nsys="required"), with_nsys=True)


def test_a_port_that_is_taken_is_still_said_so(agent: NodeAgent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mapping = scenario_mapping(profile={"nvml": "off"}, server={"http_port": port})
        with pytest.raises(TargetError, match=f"port {port}"):
            agent.start_server(scenario_from_mapping(mapping, "test"), with_nsys=True)
