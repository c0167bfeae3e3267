"""A server that squall starts is as one that is deployed, whatever the process is that starts it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from squall.actors.process.state import states_of, what_is_unusual
from tests.integration.serving import server_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="niceness can only be given back by root")


@pytest.mark.beside
@needs_root
def test_triton_and_its_stubs_inherit_neither_niceness_nor_policy_nor_the_first_place_among_victims(
    tmp_path: Path,
) -> None:
    core = min(os.sched_getaffinity(0))
    server = server_of(tmp_path, cores=(core,))
    oom, found = Path("/proc/self/oom_score_adj"), list[dict[str, Any]]()
    cores: list[set[int]] = []
    before = oom.read_text()

    def start_from_a_thread_of_low_rank() -> None:
        """Niceness and policy are a thread's on Linux, so that this one alone has them and the server inherits them."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        oom.write_text("1000")
        try:
            server.start()
            found.extend(states_of(server.pids()))
            cores.extend(os.sched_getaffinity(pid) for pid in server.pids())
        finally:
            oom.write_text(before)
            server.stop()

    thread = threading.Thread(target=start_from_a_thread_of_low_rank)
    thread.start()
    thread.join()
    assert any(one["name"] == "tritonserver" for one in found)
    assert any(one["name"].startswith("triton_python") for one in found)
    assert what_is_unusual(found, 0) == []
    assert {one["niceness"] for one in found} == {0}
    assert all(one == {core} for one in cores), "it was kept off the senders' cores"
