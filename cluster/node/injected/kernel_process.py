"""One process that uses CUDA, as its kernel library shows it: its records to a file, its switch, its state."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

from squall.actors.inject.kernel_ring import (
    RECORD_BYTES,
    KernelRing,
    Losses,
    RingStatus,
    Switched,
)
from squall.actors.process.namespaces import mapper_of, pids_called
from squall.cluster.node.injected.process_gpus import gpus_of
from squall.cluster.node.injected.taken_file import TakenRing
from squall.scenarios.records import Int, Listed, Record


class TakenProcess(Record):
    """What was taken of a process: `path` has its records, as `recorded_activities` reads them, if there were any."""

    path: Path
    pid: Int
    """As this node numbers it; as it numbers itself where it could not be seen here."""
    gpus: Listed[str]
    """UUID of the process's CUDA devices by number; empty where unknown."""
    status: str
    """How the library does in it, in one line."""


class KernelProcess:
    """The reader of a process's ring. For one thread.

    `path`: takes its records; what another reader of this ring left there stays. `skips`: what the ring holds already
    is of others, and is thrown away. A process in a container writes its number there into its ring: it is known here
    by what it has mapped.
    """

    def __init__(self, ring: KernelRing, path: Path, skips: bool) -> None:
        self.ring = ring
        self._pid = mapper_of(ring.path, ring.pid)
        self.is_silent = False
        self.is_recording = False
        self._taken = TakenRing(ring, path, "kernels")
        self._gpus = gpus_of(self._pid)
        self._status = self._told()
        self._before = Losses(0, 0, 0, 0, 0, 0)
        if skips:
            self._taken.skip()
            self._before = ring.lost()
        elif path.exists():
            os.truncate(path, path.stat().st_size // RECORD_BYTES * RECORD_BYTES)

    @property
    def pid(self) -> int:
        """As in `TakenProcess`."""
        return self.ring.pid if self._pid is None else self._pid

    def _told(self) -> str:
        return str(replace(self.ring.state, pid=self.pid))

    @property
    def taken(self) -> TakenProcess:
        """As it is now."""
        return TakenProcess(path=self._taken.path, pid=self.pid, gpus=self._gpus, status=self._status)

    @property
    def is_over(self) -> bool:
        """It ended by itself, and all its records are in the ring, or it is gone.

        One that could not be seen is gone when nobody has its number any more, in whatever namespace.
        """
        if self.ring.state.is_ended:
            return True
        return not (pids_called(self.ring.pid) if self._pid is None else Path(f"/proc/{self._pid}").exists())

    @property
    def n_lost(self) -> int:
        """Records that were made and are not there, so far; one of what was under way at a switch is none of them."""
        lost = self.ring.lost()
        return lost.n_ring + lost.n_cupti

    def take(self) -> None:
        """What cannot be read or written is told by `close`; nothing is tried after that."""
        self._taken.take()

    def ask(self, is_on: bool) -> bool:
        """Switches; whether an answer is to be waited for. One that was silent is, once it has answered."""
        if self.ring.state.is_ended:
            self.is_recording = False
            return False
        if self.is_silent:
            self.is_silent = self.ring.switched(0.0) is None
        self.ring.switch(is_on)
        return not self.is_silent

    def answer(self) -> Switched | None:
        """To the last switch, if it is there."""
        answer = self.ring.switched(0.0)
        if answer is not None:
            state = self.ring.state
            self.is_recording = answer.is_on and state.status is RingStatus.RECORDING
            self._status = self._told() if answer.is_on else self._status
        return answer

    def close(self) -> list[str]:
        """Takes what is left; returns what is missing, a line each."""
        self.take()
        lost, before = asdict(self.ring.lost()), asdict(self._before)
        counts = {name: lost[name] - before[name] for name in _LOST}
        told = [f"kernels: process {self.pid}: {n} {_LOST[name]}" for name, n in counts.items() if n > 0]
        self.ring.close()
        self._taken.close()
        return told + ([self._taken.trouble] if self._taken.trouble else [])


_LOST = {
    "n_ring": "records found no room in its ring",
    "n_cupti": "records were dropped by CUPTI",
    "n_untimed": "records have no instants, and are left out",
    "n_buffers_refused": "buffers that CUPTI asked for were not there",
}
"""By field of `Losses`."""
