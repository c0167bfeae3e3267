"""What a worker has used and done by now: two of these make a row of worker_samples."""

from __future__ import annotations

import gc
import resource
import time
from typing import Any

import pyarrow as pa

from squall.analysis.storage.schema import arrow_schema
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S


def sample_table(row: dict[str, Any]) -> pa.Table:
    """One row of worker_samples; columns that `row` lacks are null."""
    return pa.Table.from_pylist([row], schema=arrow_schema("worker_samples"))


class Usage(Frozen):
    """Cumulative counts of the process, the engine and its client at one instant."""

    at_ns: int = 0
    n_due: int = 0
    n_sent: int = 0
    n_done: int = 0
    cpu_ns: int = 0
    gc_count: int = 0
    gc_pause_ns: int = 0
    n_socket_errors: int = 0
    n_write_pauses: int = 0
    spun_ns: int = 0


def cpu_ns() -> int:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * NS_PER_S)


def gc_count() -> int:
    """Garbage collections of this process, all generations."""
    return sum(stat["collections"] for stat in gc.get_stats())


class GcWatch:
    """Counts the time that garbage collections take; one of `gc.callbacks`."""

    def __init__(self) -> None:
        self.paused_ns = 0
        self._since_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        del info
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._since_ns = now_ns
        else:
            self.paused_ns += now_ns - self._since_ns
