"""The end of our processes: by their own code, past what libraries do when C++ takes them down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ABORTS = """
import atexit, ctypes, sys
from squall.actors.process import ending
if sys.argv[1] == "leave":
    ending.end_without_destructors()
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.abort, None, None)  # as the destructor of a thread that nobody has joined
atexit.register(print, "let go")
print("done")
if sys.argv[2] == "raise":
    raise KeyError("found")
(ending.leave if sys.argv[1] == "leave" else sys.exit)(3)
"""


def end_of(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _ABORTS, *words], stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_a_process_leaves_by_its_code_and_after_its_exit_handlers() -> None:
    done = end_of("leave", "with a code")
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\nlet go\n", "")


def test_a_process_that_ends_otherwise_is_aborted_by_such_a_destructor() -> None:
    assert end_of("sys.exit", "with a code").returncode == -6


def test_an_error_is_still_printed() -> None:
    done = end_of("leave", "raise")
    assert done.stderr.endswith("KeyError: 'found'\n")
    assert done.stdout == "done\nlet go\n"


def test_a_stdout_that_takes_nothing_is_no_success() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = end_of("leave", "with a code", stdout=full.fileno())
    assert done.returncode not in (0, 3)
