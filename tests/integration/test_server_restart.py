"""A server that is started again: same ports, new processes, one log, batch records that go on."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from squall.actors.nsys.session import NsysSession, find_nsys
from squall.scenarios.config.profile import ProfileConfig
from tests.integration.live_runs import wait_until
from tests.integration.serving import Array, answer, records, serving

X: Array = np.ones((3, 16), np.float32)
SERVER = ["triton_python_b", "tritonserver"]


def names_of(pids: list[int]) -> list[str]:
    return sorted(psutil.Process(pid).name()[:15] for pid in pids)


@pytest.mark.beside
def test_a_server_that_was_killed_starts_again_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, endpoint):
        before, expected = server.pids(), answer(endpoint, X)
        assert names_of(before) == SERVER
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(psutil.pid_exists, before)), 5.0, "the end of the server")
        again = server.restart()
        assert again == endpoint
        assert names_of(server.pids()) == SERVER
        assert not set(server.pids()) & set(before)
        np.testing.assert_array_equal(answer(again, X), expected)
    (lines,) = records(server).values()
    assert [line.get("b") for line in lines] == [None, 0, None, 1]
    assert lines[0]["pid"] != lines[2]["pid"]
    assert server.log.read_text().count("Started HTTPService") == 2
    assert server.traces == []


@pytest.mark.slow
@pytest.mark.single
def test_a_server_starts_again_in_an_nsys_session_which_records_its_batches(tmp_path: Path) -> None:
    tools = find_nsys()
    if tools is None:
        pytest.skip("nsys is not installed")
    with serving(tmp_path) as (server, endpoint):
        answer(endpoint, X)
        session = NsysSession(tools, f"squall-test-{os.getpid()}", tmp_path / "nsys", ProfileConfig())
        try:
            assert server.restart(session) == endpoint
            assert names_of(server.pids()) == SERVER
            answer(endpoint, X)
            session.start("again")
            for _ in range(3):
                answer(endpoint, X)
            session.stop()
            report = session.report("again")
        finally:
            session.shutdown()
    (lines,) = records(server).values()
    assert [line.get("b") for line in lines] == [None, 0, None, 1, 2, 3, 4]
    if not has_nvtx_library():
        pytest.skip("the session was tested without ranges: the package nvidia-nvtx is not installed")
    found = [text.split("|") for text in ranges_in(tools.nsys, report)]
    assert [parts[:4] for parts in found] == [["squall", "seqlen_head_0_0", "cpu", str(i)] for i in (2, 3, 4)]
    for parts, line in zip(found, lines[4:], strict=True):
        assert line["s"] <= int(parts[4]) < line["e"]


def has_nvtx_library() -> bool:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return any(any(Path(place).glob("*/lib/libnvtx3interop.so*")) for place in places)


def ranges_in(nsys: Path, report: Path) -> list[str]:
    """Texts of our ranges in a report, by start."""
    export = report.with_suffix(".sqlite")
    command = [str(nsys), "export", "--type=sqlite", "-f", "true", "-o", str(export), str(report)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    query = (
        "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE coalesce(text, value) LIKE 'squall|%' ORDER BY start"
    )
    with contextlib.closing(sqlite3.connect(export)) as data:
        return [text for (text,) in data.execute(query)]


@pytest.mark.beside
def test_a_port_that_another_has_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, before):
        server.stop()
        held = socket.create_server(("127.0.0.1", before.grpc_port))

        def give_back() -> None:
            with contextlib.closing(held):
                wait_until(
                    lambda: "already in use" in server.log.read_text(errors="replace"), 60, "a refusal"
                )

        with ThreadPoolExecutor(1) as pool:
            refused = pool.submit(give_back)
            assert server.restart() == before
            refused.result()
