"""Processes of ours and the driver's handles to them, without Ray: real processes, real sockets."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path

import numpy as np
import psutil
import pytest

import squall.cluster.remote.spawn
from squall.cluster.driver.node_files import FilesHere, FilesThere, files_seen, pieces_of
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import claim, this_place
from squall.cluster.node.spills import NodeFile
from squall.cluster.remote.channel import connect, listen
from squall.cluster.remote.forker import FORKER
from squall.cluster.remote.patience import IN_A_HURRY_S, PATIENCE
from squall.cluster.remote.spawn import Handle, spawn
from squall.scenarios.errors import ClusterError, LostActor, TargetError
from tests.golden.told import HERE, Told

_WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def _the_process_finds_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Handle[Told]]:
    handle = spawn("told", HERE, 2, Told, str(tmp_path))
    yield handle
    handle.end()


def _gone(pid: int) -> None:
    until = time.monotonic() + _WITHIN_S
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.02)
    raise AssertionError(f"{pid} lives on")


def test_answers_errors_and_large_arrays_come_through_and_calls_go_on_side_by_side(
    told: Handle[Told],
) -> None:
    values = np.arange(3_000_000)  # 24 MB: in several pieces
    assert told.call(Told.add, values) == (int(values.sum()), True)
    assert told.call(Told.add, values[::7]) == (int(values[::7].sum()), True)
    with pytest.raises(TargetError, match=r"^not there$"):
        told.call(Told.refuse, True)
    with pytest.raises(ClusterError, match=r"^told on node-0: KeyError: 'not ours'$"):
        told.call(Told.refuse, False)
    with pytest.raises(ClusterError, match="has no attribute 'files'"):
        told.call(NodeAgent.files)  # type: ignore[arg-type]
    waiting = told.begin(Told.wait)
    assert not told.is_done(waiting, 0.05)
    told.call(Told.go)
    assert told.wait(waiting) == "waited"


def test_a_process_belongs_to_nobody_and_ends_with_its_owners_connection(
    told: Handle[Told], tmp_path: Path
) -> None:
    pid = told.pid()
    process = psutil.Process(pid)
    assert pid != os.getpid()
    assert process.ppid() != os.getpid()
    assert os.getsid(pid) != os.getsid(0)
    told.end()
    _gone(pid)
    assert (tmp_path / "abandoned").exists()
    assert told.ended_ns is None, "the driver ended the connection: of its last instants nothing is known"
    with pytest.raises(LostActor, match="was told to end"):
        told.call(Told.go)


def test_a_killed_process_is_found_out_at_once_and_when_is_known(told: Handle[Told]) -> None:
    pid, waiting, begun_ns = told.pid(), told.begin(Told.wait), time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LostActor, match=r"^told on node-0 is lost: its process has ended$"):
        told.wait(waiting)
    assert told.ended_ns is not None
    assert begun_ns < told.ended_ns < time.monotonic_ns()


def test_a_stopped_process_costs_the_time_that_one_gives_it_and_less_after_a_signal(
    told: Handle[Told],
) -> None:
    pid = told.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = told.begin(Told.go)
        with pytest.raises(ClusterError, match=r"did not answer within 0\.1 s"):
            told.wait(waiting, 0.1)
        hurry = threading.Timer(0.2, PATIENCE.hurry)
        hurry.start()
        begun = time.monotonic()
        with pytest.raises(ClusterError, match="did not answer"):
            told.wait(waiting, 10 * _WITHIN_S)
        assert time.monotonic() - begun >= IN_A_HURRY_S
        assert PATIENCE.is_short
    finally:
        PATIENCE.restore()
        told.kill()
    _gone(pid)


def test_a_process_that_says_nothing_any_more_is_waited_for_once_and_answers_when_it_goes_on(
    told: Handle[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.cluster.remote.spawn, "_ASK_AFTER_S", 0.2)
    monkeypatch.setattr(squall.cluster.remote.spawn, "_SILENT_S", 2.0)
    busy = told.begin(Told.wait)
    assert not told.is_done(busy, 4.0), "its calls take their time, but it lives"
    assert not told.is_done(busy, 0.0)
    process = psutil.Process(told.pid())
    process.suspend()
    begun = time.monotonic()
    with pytest.raises(ClusterError, match=r"told on node-0 does not answer any more, for [23] s now"):
        told.wait(told.begin_pid(), _WITHIN_S)
    again = time.monotonic()
    with pytest.raises(ClusterError, match="does not answer any more"):
        told.wait(told.begin_pid(), _WITHIN_S)
    assert time.monotonic() - again < (again - begun) / 2, "once is enough"
    process.resume()
    told.call(Told.go)
    assert told.wait(busy) == "waited"


def test_one_that_cannot_be_made_says_why_to_every_call(tmp_path: Path) -> None:
    handle = spawn("told", HERE, 1, Told, str(tmp_path), "no such luck")
    waiting = [handle.begin(Told.go)]
    with pytest.raises(LostActor, match=r"^told on node-0 is lost: no such luck$"):
        handle.wait(waiting[0])
    with pytest.raises(LostActor, match="no such luck"):
        handle.begin(Told.go)


def test_an_heir_answers_in_the_place_of_a_process_that_died(told: Handle[Told], tmp_path: Path) -> None:
    os.kill(told.pid(), signal.SIGKILL)
    heir = spawn("told", HERE, 1, Told, str(tmp_path))
    told.take_over(heir)
    assert told.call(Told.add, np.ones(2, np.int64)) == (2, True)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take the driver for one of another machine: they listen at the address of their node."""
    monkeypatch.setattr("squall.cluster.remote.launch.network", lambda: "another machine")


@pytest.mark.usefixtures("far")
def test_a_process_of_another_node_answers_at_the_nodes_address_and_its_end_is_seen(
    told: Handle[Told],
) -> None:
    assert told.call(Told.add, np.arange(100_000)) == (4_999_950_000, True)
    (listening,) = (one for one in psutil.Process(told.pid()).net_connections("tcp") if one.raddr)
    assert listening.laddr.ip == "127.0.0.1"
    os.kill(told.pid(), signal.SIGKILL)
    with pytest.raises(LostActor, match="its process has ended"):
        told.call(Told.go)
    assert told.ended_ns is not None


@pytest.mark.usefixtures("far")
def test_files_of_a_node_come_through_its_agent_where_its_folder_is_not_seen_here(tmp_path: Path) -> None:
    agent = spawn("agent", HERE, 2, NodeAgent, "r", "node-0")
    try:
        folder, owner = agent.call(NodeAgent.folder), agent.call(NodeAgent.owner)
        content = os.urandom(9 * 2**20)  # more than a piece
        (Path(folder) / "spill" / "requests-0.arrows").write_bytes(content)
        files = files_seen(folder, owner, "node-0", agent, tmp_path / "copies")
        assert isinstance(files, FilesThere), "nobody has marked it as the driver's to see"
        (file,) = files.list()
        assert file == NodeFile("spill/requests-0.arrows", len(content), "requests")
        files.bring(file)
        assert b"".join(pieces_of(files, file)) == content

        claim(Path(folder), "r", "node-0", str(tmp_path), this_place())
        here = files_seen(folder, agent.call(NodeAgent.owner), "node-0", agent, tmp_path)
        assert isinstance(here, FilesHere)
        assert here.list() == [file]
        assert b"".join(pieces_of(here, file)) == content
        agent.call(NodeAgent.close)
        assert not Path(folder).exists()
    finally:
        agent.end()


_OWNER = """
import sys, time
from tests.golden.told import HERE, Told
from squall.cluster.remote.spawn import spawn
handle = spawn("told", HERE, 1, Told, sys.argv[1])
print(handle.pid(), flush=True)
time.sleep(600)
"""


def test_the_death_of_the_driver_ends_the_process(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
        owner.kill()
        owner.wait()
    _gone(pid)
    assert (tmp_path / "abandoned").exists()


def test_a_stranger_without_the_token_is_sent_away() -> None:
    listener, address = listen("127.0.0.1")
    found: list[BaseException] = []

    def serve() -> None:
        from squall.cluster.remote.channel import Channel

        link, _ = listener.accept()
        try:
            Channel(link, b"right", is_server=True)
        except Exception as error:
            found.append(error)

    serving = threading.Thread(target=serve)
    serving.start()
    with listener, pytest.raises((OSError, EOFError, Exception)):  # AuthenticationError is no OSError
        connect(address, b"wrong", 5.0)
    serving.join(5)
    assert [type(error).__name__ for error in found] == ["AuthenticationError"]


def test_its_owner_comes_to_a_process_past_strangers_that_say_nothing_or_half_a_thing() -> None:
    token = secrets.token_bytes(32)
    contact = FORKER.start("LoadWorker", "a network of its own", "127.0.0.1", token)
    assert isinstance(contact.address, tuple)
    with contextlib.ExitStack() as stack:
        for said in (
            b"",
            b"",
            (200).to_bytes(4, "big") + b"{sha256}",
            os.urandom(4_096),
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            stranger = stack.enter_context(socket.create_connection(contact.address, 5))
            stranger.sendall(said)
        with pytest.raises(AuthenticationError):
            connect(contact.address, b"wrong", 5.0)
        channel = connect(contact.address, token, 5.0)
        channel.close()
        channel.forget()
    _gone(contact.pid)
