"""Whose port it is: real listeners of this host."""

from __future__ import annotations

import os
import socket

from squall.actors.process.state import listening_pids


def test_the_process_that_listens_on_a_port_is_found_and_one_that_is_connected_to_it_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pids(port) == [os.getpid()]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert listening_pids(client.getsockname()[1]) == []
    assert listening_pids(port) == []
