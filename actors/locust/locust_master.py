"""The Locust master as the driver sees it: starts its process, watches it, and keeps what it says and writes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squall.actors.locust.child import LocustChild
from squall.actors.locust.settings import ACCOUNT, LocustSettings
from squall.analysis.storage.locust import AskedUsers, LocustEntry, LocustException, LocustFailure
from squall.scenarios.errors import ClusterError, LostActor, ScenarioError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.units import NS_PER_S

_CONNECTED_WITHIN_S = 60.0
_TURN_S = 0.2
_END_WITHIN_S = 8.0
_OVERRUN_S = 20.0
"""After the load's end and the users' time to stop: it hears the last reports for 15 s, then it writes its outputs."""
_OUTPUTS = ("*.csv", "*.html")
_MOST_BYTES = 64 * 1024**2
"""Of one of its files."""


@dataclass(frozen=True)
class MasterAccount:
    """What the master said, up to now or up to its end. Instants are of its node's clock. `reported`: workers whose
    last report it has; `is_whole`: it ended in order; `exit_code`: what the locustfile says of the test. `files`:
    its outputs by name, as far as they were written."""

    version: str = ""
    user_classes: tuple[str, ...] = ()
    shape: str = ""
    asked: tuple[AskedUsers, ...] = ()
    ended_ns: int | None = None
    entries: tuple[LocustEntry, ...] = ()
    failures: tuple[LocustFailure, ...] = ()
    exceptions: tuple[LocustException, ...] = ()
    reported: tuple[int, ...] = ()
    is_whole: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    exit_code: int = 0


def _content(path: Path) -> bytes:
    """Raises OSError for a file that cannot be read, or is larger than what strangers may make of it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise OSError(f"{path.name} has more than {_MOST_BYTES:,} bytes")
        return file.read()


class LocustMaster:
    """Life: `prepare`, `wait_for_workers`, `run` once, `account`; from other threads at any time `status`, `stop`."""

    def __init__(self, settings: LocustSettings) -> None:
        self._settings = settings
        self._child: LocustChild | None = None
        self._ready: dict[str, Any] = {}
        self._n_connected = 0
        self._asked: list[AskedUsers] = []
        self._ended_ns: int | None = None
        self._reported: list[int] | None = None
        self._exit_code = 0
        self._connected = threading.Condition()
        self._stop_by_s: float | None = None

    def prepare(self) -> tuple[str, int]:
        """Starts the process; where it listens. Raises as `LocustWorker.prepare`, and ClusterError where the port of
        `load.locust.web` is taken."""
        self._child = child = LocustChild(self._settings, self._hear, -1)
        try:
            self._ready = child.wait_ready()
        except (ScenarioError, ClusterError):
            child.close()
            raise
        host, port = self._ready["address"]
        return str(host), int(port)

    def _hear(self, said: dict[str, Any]) -> None:
        """In the thread that reads what the process says."""
        with self._connected:
            self._n_connected = said.get("connected", self._n_connected)
            self._connected.notify_all()
        if "asked" in said:
            t_ns, n_users, rate_hz = said["asked"]
            self._asked.append(AskedUsers(t_ns=t_ns, n_users=n_users, spawn_rate_hz=rate_hz))
        self._ended_ns = said.get("ended_ns", self._ended_ns)
        if "ended" in said:
            self._reported, self._exit_code = said["reported"], said["exit_code"]

    def wait_for_workers(self) -> None:
        """Returns when all workers are connected. Raises ClusterError where they are not in time."""
        n = self._settings.n_workers
        with self._connected:
            if self._connected.wait_for(lambda: self._n_connected >= n, _CONNECTED_WITHIN_S):
                return
            found = self._n_connected
        raise ClusterError(
            f"{found} of {n} Locust workers have connected to the master within {_CONNECTED_WITHIN_S:.0f} s"
        )

    def run(self, start_ns: int) -> None:
        """Starts the users at `start_ns` (node's clock), stops them at the end of the load, waits for the last report
        of each worker, writes the outputs. Raises LostActor where the process died before that."""
        child = self._child
        if child is None:
            raise ClusterError("the Locust master was not prepared")
        child.order("start", start_ns)
        load_ns = self._settings.load_end_ns + self._settings.stop_timeout_ns
        end_by_s = (start_ns + load_ns) / NS_PER_S + _OVERRUN_S
        while not child.has_ended(_TURN_S):
            if time.monotonic() > min(end_by_s, self._stop_by_s or end_by_s):
                child.kill()
        child.close()
        self.status()

    def status(self) -> str:
        """Empty while it lives or after it ended in order. Raises LostActor where it died."""
        if self._child is not None and self._child.has_ended() and self._reported is None:
            raise LostActor(f"the Locust master on {self._settings.node} is lost: it {self._child.end}")
        return ""

    def stop(self) -> None:
        """Ends the load at once; the outputs are written."""
        if self._child is not None and self._stop_by_s is None:
            self._stop_by_s = time.monotonic() + _END_WITHIN_S
            self._child.order("stop")

    def abandoned(self) -> None:
        """Who gave the orders is gone: ends the process."""
        if self._child is not None:
            self._child.close()

    def pid(self) -> int:
        """Of the process, once prepared."""
        assert self._child is not None
        return self._child.pid

    def account(self) -> MasterAccount:
        """See there; of a master that died what it had said by then."""
        child = self._child
        said: dict[str, Any] = {}
        files: dict[str, bytes] = {}
        if child is not None:
            with suppress(OSError, ValueError):
                said = json_of(_content(child.folder / ACCOUNT))
            for path in [one for pattern in _OUTPUTS for one in sorted(child.folder.glob(pattern))]:
                with suppress(OSError):
                    files[path.name] = _content(path)
        return MasterAccount(
            version=str(self._ready.get("version", "")),
            user_classes=tuple(self._ready.get("user_classes", ())),
            shape=str(self._ready.get("shape", "")),
            asked=tuple(self._asked),
            ended_ns=self._ended_ns,
            entries=tuple(LocustEntry(**one) for one in said.get("entries", ())),
            failures=tuple(LocustFailure(**one) for one in said.get("failures", ())),
            exceptions=tuple(LocustException(**one) for one in said.get("exceptions", ())),
            reported=tuple(self._reported or ()),
            is_whole=self._reported is not None,
            exit_code=self._exit_code,
            files=files,
        )
