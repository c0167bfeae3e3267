"""The process of a Locust master or worker, from outside: its start, what it says, its end. A supervisor of its own
(`squall.actors.process.supervisor`) ends it and all that it started, whatever user code does there.

    start ─ ready (or error) ─ say … say ─ ended ─ exit

It says JSON objects, a line each. Both: `ready`, or `error` (with `is_users`: the locustfile's fault), and at the end
`ended` (a master: with `reported`). A master: `connected`, `asked`, `ended_ns`. A worker: `sample`, with `process`,
`n_started`, `n_died`, `first_death`.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import squall.actors.process.supervisor
from squall.actors.locust.settings import LocustSettings
from squall.actors.process.own_python import own_command, own_environment
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.foreign_text import json_of

_READY_WITHIN_S = 60.0
_KILLED_WITHIN_S = 5.0
_LINE_BYTES = 1 << 20
_LOG_BYTES = 65_536
"""Of the end of its log."""
_OF_A_SIGNAL = 128
"""And the signal's number: the supervisor's exit code."""


class LocustChild:
    """One process, under gevent; this one is not. `log`: what it and user code print."""

    def __init__(
        self,
        settings: LocustSettings,
        hear: Callable[[dict[str, Any]], None],
        ring_fd: int,
        master: tuple[str, int] | None = None,
    ) -> None:
        """Starts it, with the locustfile and its files below `settings.spill_dir`. `hear` is called in a thread of this
        object's, with all that it says. Raises ClusterError where it cannot be started."""
        self._settings = settings
        self._hear = hear
        self.folder = Path(settings.spill_dir) / settings.name
        self.log = self.folder.with_suffix(".log")
        self._ready = threading.Event()
        self._said: dict[str, Any] = {}
        self._lock = threading.Lock()
        orders_fd, self._orders_fd = os.pipe()
        command = own_command("squall.actors.locust.process", str(orders_fd), str(ring_fd))
        supervisor = [sys.executable, "-I", "-S", squall.actors.process.supervisor.__file__, "0", "-", "-"]
        try:
            path = settings.files.write(self.folder / "files")
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    supervisor, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env={**own_environment(), "SQUALL_COMMAND": json.dumps(command)},
                    pass_fds=(orders_fd, ring_fd) if ring_fd >= 0 else (orders_fd,), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            os.close(self._orders_fd)
            raise ClusterError(
                f"{settings.name} on {settings.node} cannot be started: {error.strerror}"
            ) from error
        finally:
            os.close(orders_fd)
        self._send(pickle.dumps((settings, str(path), master)))
        self._reading = threading.Thread(target=self._read, name="squall-locust", daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        """Of the process, once it is ready."""
        return int(self._said["ready"]["pid"])

    def _read(self) -> None:
        """Until its end; what it said by then has been heard when `has_ended` is true."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            while line := lines.readline(_LINE_BYTES):
                with suppress(ValueError):  # cut off by its end
                    said = json_of(line)
                    if "ready" in said or "error" in said:
                        self._said = said
                        self._ready.set()
                    self._hear(said)
        self._process.wait()
        self._ready.set()

    def wait_ready(self) -> dict[str, Any]:
        """What it says of itself once its locustfile is loaded and its runner connected. Raises ScenarioError in the
        file's own words, ClusterError where it is the process's fault."""
        in_time = self._ready.wait(_READY_WITHIN_S)
        name, node = self._settings.name, self._settings.node
        if "ready" in self._said:
            found: dict[str, Any] = self._said["ready"]
            return found
        if not in_time:
            self.kill()
            raise ClusterError(
                f"{name} on {node} was not ready within {_READY_WITHIN_S:.0f} s{self._last_words()}"
            )
        if self._said.get("is_users"):
            raise ScenarioError(f"load.locust on {node}: {self._said['error']}")
        why = self._said.get("error") or f"ended with {self._process.wait()}{self._last_words()}"
        raise ClusterError(f"{name} on {node}: {why}")

    def _last_words(self) -> str:
        """The end of its log."""
        with suppress(OSError):
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - _LOG_BYTES))
                lines = log.read(_LOG_BYTES).decode(errors="replace").split("\n")
            said = " / ".join(" ".join(line.split()) for line in lines if line.strip())
            return f": {said[-500:]}" if said else ""
        return ""

    def order(self, *words: object) -> None:
        """Tells it something; nothing where it has ended."""
        self._send(" ".join(map(str, words)).encode() + b"\n")

    def _send(self, data: bytes) -> None:
        """All of it; nothing where it has ended: `wait_ready` or the end says why."""
        with self._lock, suppress(OSError):
            while data and self._orders_fd >= 0:
                data = data[os.write(self._orders_fd, data) :]

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it has, and all that it said has been heard."""
        self._reading.join(within_s)
        return not self._reading.is_alive()

    @property
    def end(self) -> str:
        """How it ended, for people."""
        code = self._process.poll()
        if code is None:
            return "lives"
        number = -code if code < 0 else code - _OF_A_SIGNAL
        return f"was killed by signal {number}" if number > 0 else f"ended with {code}"

    def kill(self) -> None:
        """Ends it and what it started, by SIGKILL where SIGTERM does not within a second."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._reading.join(_KILLED_WITHIN_S)

    def close(self) -> None:
        """Ends it, if it has not, and what it started."""
        with self._lock:
            if self._orders_fd >= 0:
                os.close(self._orders_fd)
            self._orders_fd = -1
        self.has_ended(_KILLED_WITHIN_S)
        self.kill()
