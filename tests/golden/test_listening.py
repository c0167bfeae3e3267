"""Whose port it is: real listeners of this host."""

from __future__ import annotations

import socket
import subprocess
import sys

from squall.actors.process.state import listening_pids

_LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_the_process_that_listens_on_a_port_is_found_and_one_that_is_connected_to_it_is_not() -> None:
    listener = subprocess.Popen(
        [sys.executable, "-c", _LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with listener:
        assert listener.stdout is not None
        port = int(listener.stdout.readline())
        assert listening_pids(port) == [listener.pid]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert listening_pids(client.getsockname()[1]) == []
        assert listener.stdin is not None
        listener.stdin.close()
        listener.wait(30)
    assert listening_pids(port) == []
