"""What starts processes of ours on a machine: a process that has imported all that they need, and forks one when asked,
in some ms instead of half a second of CPU each: `python -m squall.cluster.remote.forker`.

stdin:  pickles of the arguments of `_start`, by name; it ends when that closes
stdout: for each a line of JSON, {"address": …, "pid": …} once the owner may connect, else {"error": …}

What it starts belongs to nobody: a session of its own, no parent of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from squall.actors.net.stream import allow_many_files
from squall.actors.process.own_python import leave_out_pandas, own_command, own_environment
from squall.cluster.remote.channel import Address
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

_START_TIMEOUT_S = 60.0
_MOMENT_S = 1.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""As Ray gives it to what takes no core, unless the environment says otherwise: of numpy, Arrow and our DuckDB."""
_TITLE = "python -P -m squall.cluster.remote.served "
_ROOM = "_" * 64
"""An argument that leaves room for the title of what is forked."""


class Contact(Frozen):
    """Where a process of ours answers, and its pid on its node."""

    address: Address
    pid: int


class Forker:
    """The forking process of this one, begun when it is first needed, and again where it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def begin(self) -> None:
        """Starts it, if it is not there, and does not wait: it imports meanwhile. Raises ClusterError."""
        with self._lock:
            self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            try:
                self._process = subprocess.Popen(
                    own_command("squall.cluster.remote.forker", _ROOM), stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, start_new_session=True, env=_ONE_THREAD | own_environment(),
                )  # fmt: skip
            except OSError as error:
                raise ClusterError(f"no process can be started: {error}") from error
        return self._process

    def start(self, title: str, their_network: str, host: str, token: bytes) -> Contact:
        """Starts `squall.cluster.remote.served` on this machine. `their_network`: the owner's `network()`; `title` is
        what ps shows.

        Raises ClusterError where it does not come up.
        """
        asked = pickle.dumps({
            "title": title, "environment": _ONE_THREAD | dict(os.environ), "path": [*filter(None, sys.path)],
            "folder": _working_folder(),
            "owner": (their_network, host, token),
        })  # fmt: skip
        with self._lock:
            was_there = self._process is not None
            try:
                return self._ask(title, asked)
            except _ForkerLost:
                if not was_there or self._is_ending:
                    raise
            return self._ask(title, asked)  # it had died since: another one

    def _ask(self, title: str, asked: bytes) -> Contact:
        process = self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        said, deadline = b"", time.monotonic() + _START_TIMEOUT_S
        try:
            process.stdin.write(asked)
            process.stdin.flush()
            while not said.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._end()
                    raise ClusterError(f"{title} did not come up within {_START_TIMEOUT_S:g} s")
                data = os.read(process.stdout.fileno(), 4_096)
                if not data:
                    raise BrokenPipeError
                said += data
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_MOMENT_S)
            code = process.poll()
            self._end()
            raise _ForkerLost(f"{title} cannot start: what starts it ended with code {code}") from error
        fact = json.loads(said)
        if "error" in fact:
            raise ClusterError(f"{title} {fact['error']}")
        address = fact["address"]
        return Contact(address if isinstance(address, str) else (address[0], address[1]), fact["pid"])

    def end(self) -> None:
        """Ends it, not what it has started; a start that waits for it fails."""
        self._is_ending = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()
            self._is_ending = False

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        process.kill()
        process.wait()


def _working_folder() -> str:
    """Empty where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class _ForkerLost(ClusterError):
    """It ended while it was asked."""


FORKER = Forker()


def main() -> int:
    """Exit code 0 once the owner has gone."""
    leave_out_pandas()
    allow_many_files()  # as what Ray starts may have: an observer holds hundreds
    import squall.actors.load.worker
    import squall.actors.sampling.observer
    import squall.cluster.node.agent  # noqa: F401

    gc.collect()
    gc.freeze()  # no collection writes to pages that all share
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        sys.stdout.write(f"{_start(**asked)}\n")
        sys.stdout.flush()


def _start(title: str, owner: tuple[str, str, bytes], **around: Any) -> str:
    """Forks twice, so that what serves is no child of this process; its line of JSON. `owner`: the arguments of
    `squall.cluster.remote.served.serve` but the last; `around`: see `_take_over`."""
    said, saying = os.pipe()
    with warnings.catch_warnings():
        # of a thread of Arrow's allocator, which knows of forks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code, unsaid = 1, [saying]
        try:
            os.close(said)
            if os.fork():
                os._exit(0)
            os.setsid()
            _take_over(**around)
            from squall.cluster.remote.served import serve

            code = serve(*owner, lambda line: _say(unsaid.pop(), line, title))
        except BaseException as error:
            if unsaid:
                told = {"error": f"ended at its start: {type(error).__name__}: {error}"}
                os.write(saying, json.dumps(told).encode())
        finally:
            os._exit(code)
    os.close(saying)
    os.waitpid(child, 0)
    with open(said, encoding="utf-8") as answer:
        return answer.read().strip() or json.dumps({"error": "ended at its start"})


def _take_over(environment: dict[str, str], path: list[str], folder: str) -> None:
    """Environment, import path and working folder of who asked. What it writes past its answers goes nowhere: it may
    outlive who reads the driver's screen."""
    with open(os.devnull, "r+b") as nothing:
        for descriptor in range(3):
            os.dup2(nothing.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _say(saying: int, line: str, title: str) -> None:
    os.write(saying, line.encode())
    os.close(saying)
    _take_title(f"{_TITLE}{title}")


def _take_title(title: str) -> None:
    """What ps and /proc show as this process's command line, in the place of its arguments (proc(5), fields 48, 49)."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    first, end = int(stat[45]), int(stat[46])
    room = end - first
    if first and room > 1:
        # without a NUL at its end the kernel takes it for a title, up to the first NUL (proc_pid_cmdline)
        text = title.encode()[: room - 2].ljust(room - 1, b"\0") + b"."
        ctypes.memmove(first, text, room)


if __name__ == "__main__":
    sys.exit(main())
