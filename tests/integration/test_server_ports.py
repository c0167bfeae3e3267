"""A server that another squall started meanwhile is not taken for ours, though it answers on the port that ours was
given and serves a model of the same name."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

import squall.cluster.node.server
from squall.actors.process.state import listening_pids
from squall.cluster.node.server import Ports, free_ports
from squall.scenarios.config.servers import ServerConfig
from tests.integration.serving import server_of, serving


@pytest.mark.beside
def test_another_server_on_the_port_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "other") as (other, taken):
        free = free_ports(ServerConfig())
        port = int(taken.url.rpartition(":")[2])
        given = [Ports(port, free.grpc, free.metrics), free]
        monkeypatch.setattr(squall.cluster.node.server, "free_ports", lambda *_: given.pop(0))
        server = server_of(tmp_path / "own")
        try:
            endpoint = server.start()
            assert endpoint.url.endswith(f":{free.http}")
            assert set(listening_pids(free.http)) <= set(server.pids())
        finally:
            server.stop()
        assert all(map(psutil.pid_exists, other.pids()))
