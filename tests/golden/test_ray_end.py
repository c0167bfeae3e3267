"""A Ray that does not answer: it is asked in bounded time, and a process that hangs in its library ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from squall.actors.process.state import wait_until_gone
from squall.cluster.remote.patience import PATIENCE
from squall.cluster.remote.ray_end import never_stuck, within
from squall.scenarios.errors import ClusterError

ROOT = Path(__file__).parents[2]
_STUCK = """
import subprocess, sys, time
from squall.cluster.remote.ray_end import never_stuck
from squall.cluster.remote.session import say_stuck
with never_stuck(0.5, "Ray did not answer", say_stuck):
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    while True:  # as a library that gives nothing to Python
        try:
            time.sleep(600)
        except BaseException:
            pass
"""


def test_a_process_that_hangs_says_why_and_takes_along_what_it_had_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STUCK], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "squall: Ray did not answer within 0.5 s\n")
    child = int(done.stdout)
    with suppress(psutil.NoSuchProcess):
        left = psutil.Process(child)
        wait_until_gone([left], 10)
        assert left.status() == psutil.STATUS_ZOMBIE


def test_what_comes_in_time_is_not_ended() -> None:
    with never_stuck(0.05, "never", lambda _: None):
        pass
    time.sleep(0.2)


def test_an_answer_an_error_and_none_at_all() -> None:
    assert within(30, "anything", lambda: 5) == 5
    with pytest.raises(KeyError):
        within(30, "anything", lambda: dict[int, int]()[0])
    forever = threading.Event()
    with pytest.raises(ClusterError, match=r"^Ray did not say which nodes it has within 0\.1 s$"):
        within(0.1, "which nodes it has", forever.wait)
    PATIENCE.hurry()
    try:
        with pytest.raises(ClusterError):
            within(600, "which nodes it has", forever.wait)
    finally:
        PATIENCE.restore()
        forever.set()
