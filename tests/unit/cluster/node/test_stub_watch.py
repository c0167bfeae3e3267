"""A model's Python process that dies while Triton loads it is noticed; one that ends in its turn is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from squall.cluster.node.stub_watch import Stub, StubWatch, stubs_below

LIVING = Stub(7, None)


def said(looks: list[tuple[float, list[Stub]]], is_expected: bool = True) -> list[str | None]:
    watch = StubWatch(is_expected)
    return [watch.look(stubs, now_s) for now_s, stubs in looks]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (signal.SIGKILL, "was ended by SIGKILL (out of memory?)"),
        (signal.SIGSEGV, "was ended by SIGSEGV"),
        (3 << 8, "ended with exit code 3"),
    ],
)
def test_a_dead_one_that_triton_leaves_lying_is_told_with_its_end(status: int, words: str) -> None:
    dead = Stub(7, int(status))
    assert said([(0.0, [LIVING]), (0.1, [dead]), (1.0, [dead]), (1.2, [dead])]) == [None, None, None, words]


def test_one_that_ends_in_its_turn_is_not_told_while_another_follows() -> None:
    ended, second = Stub(7, 0), Stub(8, None)
    looks = [
        (0.0, [LIVING]),
        (1.0, [ended]),
        (3.0, [ended]),
        (4.0, []),
        (7.0, []),
        (7.5, [second]),
        (20.0, [second]),
    ]
    assert said(looks) == [None] * 7


def test_one_that_triton_killed_and_reaped_at_once_is_not_told() -> None:
    assert said([(0.0, [LIVING]), (1.0, [Stub(7, 9)]), (1.1, []), (2.5, [Stub(8, None)])]) == [None] * 4


def test_where_none_follows_the_end_of_the_last_is_told() -> None:
    looks: list[tuple[float, list[Stub]]] = [(0.0, [LIVING]), (1.0, []), (5.1, [])]
    assert said(looks) == [None, None, "has ended and no other came"]
    assert said(looks, is_expected=False) == [None] * 3
    assert said([(0.0, []), (60.0, [])]) == [None, None], "none was ever there"


def test_the_end_of_a_real_process_is_read_while_nobody_has_asked_for_it() -> None:
    program = "import ctypes, os; ctypes.CDLL(None).prctl(15, b'triton_python_b'); os.kill(os.getpid(), 9)"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert stubs_below(os.getpid()) == [Stub(child.pid, signal.SIGKILL)]
    finally:
        child.wait()
    assert stubs_below(os.getpid()) == []
