"""A process of its own beside the agent of a node that takes all samples and answers for the node's clock.

It has its own GIL, so that what the agent does (importing a report, say) does not delay a sample. `python -m
squall.actors.sampling.observer` is that process (`squall.actors.sampling.observer_process`), `Observer` its owner's
side.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from squall.actors.process.own_python import own_command, own_environment
from squall.actors.sampling.observer_settings import ObserverSettings, Order, ServerTarget
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

__all__ = ["Observer", "ObserverReport", "ObserverSettings", "ServerTarget"]

_START_TIMEOUT_S = 60.0
_ORDER_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_LOG = "observer.log"


class ObserverReport(Frozen):
    """How it ended: what is missing, as sentences, and what it took and saw: `Observing.facts`, empty if killed."""

    losses: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class Observer:
    """Starts the process, tells it what to observe, and ends it. Its calls may come from several threads.

    The process ends by itself when its owner does. A spill file is readable to its last second however it ends.
    """

    def __init__(self, settings: ObserverSettings) -> None:
        self._settings = settings
        self._talk = threading.Lock()
        self._heard = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._report: ObserverReport | None = None
        self._why_killed = ""
        self.clock: tuple[str, int] | None = None
        """Host and port at which the node's clock answers, once started."""
        self.token = b""
        """What a probe of the clock must carry."""

    @property
    def is_alive(self) -> bool:
        """False before `start`, and once the process has ended, whatever ended it."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the process; None before `start`."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Returns when every baseline is taken. Raises ClusterError where it cannot start."""
        try:
            with (Path(self._settings.spill_dir) / _LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    own_command("squall.actors.sampling.observer"), env=own_environment(),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise ClusterError(f"the observer of {self._settings.node} cannot start: {error}") from error
        try:
            ready = self._ask(self._settings, _START_TIMEOUT_S)
        except ClusterError:
            self._end()
            raise
        if "clock" in ready:
            host, port = ready["clock"]
            self.clock, self.token = (host, port), bytes.fromhex(ready["token"])

    def add_server(self, target: ServerTarget) -> None:
        """Observes a server from now on; returns when the baseline is taken. Raises ClusterError."""
        self._ask(("add_server", target), _ORDER_TIMEOUT_S)

    def add_gpus(self, with_gpm: bool = True) -> None:
        """Observes the node's GPUs from now on. Raises ClusterError where NVML cannot be used."""
        self._ask(("add_gpus", with_gpm), _ORDER_TIMEOUT_S)

    def set_server_pids(self, server: str, pids: Sequence[int]) -> None:
        """The processes of a server that was started (again) after it was added. Raises ClusterError."""
        self._ask(("set_server_pids", server, tuple(pids)), _ORDER_TIMEOUT_S)

    def set_client_pids(self, pids: Sequence[int]) -> None:
        """The load workers of this node. Raises ClusterError."""
        self._ask(("set_client_pids", tuple(pids)), _ORDER_TIMEOUT_S)

    def stop(self) -> ObserverReport:
        """Takes the last samples and ends the process. The second call answers what the first one did."""
        if self._report is None:
            self._report = self._stop()
        return self._report

    def _stop(self) -> ObserverReport:
        if self._process is None:
            return ObserverReport()
        try:
            said = self._ask(None, _STOP_TIMEOUT_S)
            report = ObserverReport(tuple(said["losses"]), said["facts"])
        except ClusterError as error:
            tables = "host, core, CPU, thread, Triton and GPU samples"
            report = ObserverReport(
                (
                    f"{error}: its {tables} end there, without up to a second before, and its clock answers no more",
                )
            )
        self._end()
        return report

    def _ask(self, message: ObserverSettings | Order | None, timeout_s: float) -> dict[str, Any]:
        """What it answers. Raises ClusterError with its own error, or where it has ended or says nothing."""
        process = self._process
        assert process is not None, "start comes first"
        assert process.stdin is not None
        with self._talk:
            try:
                process.stdin.write(pickle.dumps(message))
                process.stdin.flush()
            except (OSError, ValueError) as error:
                raise ClusterError(self._how_it_ended()) from error
            answer = self._hear(process, timeout_s)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer

    def _hear(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        fd, deadline = process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(fd, 65_536) if ready else b""
            if not ready:
                self._why_killed = f"was killed: it said nothing for {timeout_s:g} s"
                process.kill()
            if not data:
                raise ClusterError(self._how_it_ended())
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        """By which signal or error, in one line."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ORDER_TIMEOUT_S)
        code = self._process.poll()
        why = self._why_killed
        if not why and code is not None and code < 0:
            why = f"was ended by {signal.Signals(-code).name}"
        return f"the observer of {self._settings.node} {why or f'ended early: {self._last_words(code)}'}"

    def _last_words(self, code: int | None) -> str:
        log = Path(self._settings.spill_dir) / _LOG
        said = log.read_bytes().decode(errors="replace") if log.exists() else ""
        lines = [line.strip() for line in said.split("\n") if line.strip()]
        return lines[-1] if lines else f"exit code {code}"

    def _end(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # what it did not read any more
            process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal: who started us decides
    # before pyarrow starts threads: they would take it, and die of it, with the rows that wait to be written
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from squall.actors.sampling.observer_process import main

    sys.exit(main())
