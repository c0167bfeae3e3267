"""Processes that are forked: whose they are, what they have of who asked, and what becomes of a forker that dies."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from squall.cluster.remote.channel import connect, network
from squall.cluster.remote.forker import Contact, Forker
from squall.cluster.remote.spawn import spawn
from squall.scenarios.errors import ClusterError
from tests.golden.told import HERE, Told
from tests.integration.live_runs import wait_until

_WITHIN_S = 30.0


@pytest.fixture
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.end()


def _started(forker: Forker) -> Contact:
    """A process whose owner came and left at once."""
    token = secrets.token_bytes(32)
    contact = forker.start("NodeAgent", network(), "127.0.0.1", token)
    assert psutil.Process(contact.pid).status() != psutil.STATUS_ZOMBIE
    channel = connect(contact.address, token, 5.0)
    channel.close()
    channel.forget()
    return contact


def _forker_of(forker: Forker) -> psutil.Process:
    assert forker._process is not None
    return psutil.Process(forker._process.pid)


def test_what_is_forked_is_nobodys_child_and_ps_shows_what_it_is(tmp_path: Path) -> None:
    told = spawn("told", HERE, 2, Told, str(tmp_path))
    process = psutil.Process(told.pid())
    try:
        assert " ".join(process.cmdline()) == "python -P -m squall.cluster.remote.served Told"
        assert os.getsid(process.pid) == process.pid, "a session of its own"
        own = psutil.Process()
        assert process not in own.children(recursive=True)
    finally:
        told.end()
    wait_until(lambda: not process.is_running(), _WITHIN_S, "its end")


def test_it_has_environment_and_folder_of_who_asks_now(
    forker: Forker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forker.begin()
    monkeypatch.setenv("SQUALL_TOLD_LATE", "yes")
    monkeypatch.chdir(tmp_path)
    token = secrets.token_bytes(32)
    contact = forker.start("NodeAgent", network(), "127.0.0.1", token)
    assert psutil.Process(contact.pid).cwd() == str(tmp_path)
    channel = connect(contact.address, token, 5.0)
    channel.send((0, (os.getenv, ("SQUALL_TOLD_LATE",), {}), 1))
    channel.send((1, "upper", (), {}))
    assert channel.receive() == (0, "done", None)
    assert channel.receive() == (1, "done", "YES")
    channel.close()
    channel.forget()


def test_a_forker_that_was_killed_is_followed_by_another_and_what_it_started_lives_on(forker: Forker) -> None:
    token = secrets.token_bytes(32)
    before = forker.start("NodeAgent", network(), "127.0.0.1", token)
    dead = _forker_of(forker)
    dead.kill()
    dead.wait(_WITHIN_S)
    _started(forker)
    assert _forker_of(forker).pid != dead.pid
    channel = connect(before.address, token, 5.0)  # it waits for its owner all the same
    channel.close()
    channel.forget()


def test_one_that_hangs_is_given_up_in_time(forker: Forker, monkeypatch: pytest.MonkeyPatch) -> None:
    _started(forker)
    monkeypatch.setattr("squall.cluster.remote.forker._START_TIMEOUT_S", 0.3)
    hung = _forker_of(forker)
    hung.send_signal(signal.SIGSTOP)
    with pytest.raises(ClusterError, match=r"^LoadWorker did not come up within 0\.3 s$"):
        forker.start("LoadWorker", network(), "127.0.0.1", b"token")
    assert not hung.is_running()


def test_it_ends_with_its_owner(forker: Forker) -> None:
    _started(forker)
    process = _forker_of(forker)
    assert forker._process is not None
    assert forker._process.stdin is not None
    forker._process.stdin.close()
    process.wait(_WITHIN_S)
