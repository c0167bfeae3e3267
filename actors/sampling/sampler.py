"""Samples at a steady pace, each source in a thread of its own, its rows spilled, its own cost counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from squall.actors.clock import Clock
from squall.actors.sampling.source import Row, Source
from squall.actors.spill import SpillFile
from squall.analysis.storage.schema import arrow_schema
from squall.scenarios.units import NS_PER_S

_BASELINE_TIMEOUT_S = 15.0
_END_TIMEOUT_S = 10.0
_FLUSH_NS = NS_PER_S
_LATE_SHARE = 0.1


@runtime_checkable
class Telling(Protocol):
    """A source that can say what it lacks: `losses` as sentences, `facts` as plain values for the manifest."""

    def losses(self) -> list[str]: ...

    def facts(self) -> dict[str, Any]: ...


@runtime_checkable
class Late(Protocol):
    """A source that counts what happened up to so long after others have seen it; its last sample waits for that."""

    late_s: float


class Sampler:
    """Calls a source at absolute multiples of `interval_ns`, from `start` to `stop`, in a thread of its own.

    A source that raises is asked again at the next tick; how often and why is told by `losses`. Rows are written
    once a second, so that a process that is killed loses no more than that.
    """

    def __init__(
        self, source: Source, labels: Mapping[str, str], interval_ns: int, path: Path, clock: Clock
    ) -> None:
        """Creates the spill file. Raises OSError where that fails."""
        self._source = source
        self._labels = dict(labels)
        self._interval_ns = interval_ns
        self._clock = clock
        self._spill_file = SpillFile(path, source.table)
        self._halt = threading.Event()
        self._has_baseline = threading.Event()
        self._n_failures = 0
        self._last_failure = ""
        self._rows: list[Row] = []
        self._written_ns = 0
        self._cost = {
            "n_ticks": 0, "n_late": 0, "n_skipped": 0, "n_rows": 0, "cpu_ns": 0, "wall_ns": 0, "longest_read_ns": 0
        }  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"squall-{source.table}", daemon=True)

    @property
    def table(self) -> str:
        """The table that it fills."""
        return self._source.table

    def start(self) -> None:
        """Takes the baseline and returns; rows follow from the first tick on."""
        self.begin()
        self.wait_for_baseline()

    def begin(self) -> None:
        """Starts the thread; `wait_for_baseline` must follow."""
        self._thread.start()

    def wait_for_baseline(self, timeout_s: float = _BASELINE_TIMEOUT_S) -> None:
        """Returns when the source has been read once, or has not within `timeout_s`, which is a loss."""
        if not self._has_baseline.wait(timeout_s):
            self._note_failure("its first read did not end in time")

    def halt(self) -> None:
        """Asks for the last sample; `stop` must follow."""
        self._halt.set()

    def stop(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """Takes a last sample, so that the deltas add up to the whole, and closes the file."""
        self.halt()
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # it may still write: the file stays open
            self._note_failure("its last read did not end in time")
        else:
            self._spill_file.close()

    def losses(self) -> list[str]:
        """What is missing from the table, as sentences; empty if nothing is."""
        found = []
        if self._n_failures:
            found.append(
                f"{self._source.table}: {self._n_failures} samples failed, last: {self._last_failure}"
            )
        if self._spill_file.error:
            found.append(f"{self._source.table}: samples lost, the spill file: {self._spill_file.error}")
        if isinstance(self._source, Telling):
            found += self._source.losses()
        return found

    def facts(self) -> dict[str, Any]:
        """What the sampling took so far, and what its source tells of itself.

        `cpu_ns`: of its thread, reads and writes, of `wall_ns`; `n_late`: ticks that began more than a tenth of the
        interval after their instant; `n_skipped`: ticks that a slow one ran over.
        """
        told = self._source.facts() if isinstance(self._source, Telling) else {}
        return {"interval_ns": self._interval_ns, **self._cost, **told}

    def _run(self) -> None:
        """All ticks in this one thread: a source need not be thread-safe."""
        begun_ns = self._clock.monotonic_ns()
        due_ns = begun_ns + self._interval_ns
        self._written_ns = begun_ns
        self._tick(begun_ns)
        self._has_baseline.set()
        while not self._halt.wait(max(0, due_ns - self._clock.monotonic_ns()) / NS_PER_S):
            if self._clock.monotonic_ns() - due_ns > self._interval_ns * _LATE_SHARE:
                self._cost["n_late"] += 1
            self._tick(begun_ns)
            # ticks that a slow sample ran over are not made up for
            n_over = max(0, self._clock.monotonic_ns() - due_ns) // self._interval_ns
            self._cost["n_skipped"] += n_over
            due_ns += (1 + n_over) * self._interval_ns
        if isinstance(self._source, Late):
            threading.Event().wait(self._source.late_s)
        self._tick(begun_ns, is_last=True)

    def _tick(self, begun_ns: int, is_last: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        try:
            self._rows += self._source.sample(now_ns)
        except Exception as error:  # a thread's edge: recorded, and the next tick tries again
            self._note_failure(f"{type(error).__name__}: {error}")
        read_ns = self._clock.monotonic_ns() - now_ns
        if is_last or now_ns - self._written_ns >= _FLUSH_NS:
            rows, self._rows, self._written_ns = self._rows, [], now_ns
            self._write(rows)
        self._cost["n_ticks"] += 1
        self._cost["longest_read_ns"] = max(self._cost["longest_read_ns"], read_ns)
        self._cost["cpu_ns"] = time.thread_time_ns()
        self._cost["wall_ns"] = self._clock.monotonic_ns() - begun_ns

    def _write(self, rows: list[Row]) -> None:
        """Rows into the file; where one of them does not fit its table, the others all the same."""
        if not rows:
            return
        try:
            self._spill_file.write(_table(self._source.table, self._labels, rows))
            self._cost["n_rows"] += len(rows)
        except Exception as error:  # a thread's edge, as above
            if len(rows) == 1:
                self._note_failure(f"{type(error).__name__}: {error}")
            else:
                for row in rows:
                    self._write([row])

    def _note_failure(self, why: str) -> None:
        self._n_failures += 1
        self._last_failure = why


def wait_for_baselines(samplers: Sequence[Sampler], clock: Clock) -> None:
    """Of all of them together, after `begin`, within 15 s: several that hang take no longer than one."""
    end_ns = clock.monotonic_ns() + round(_BASELINE_TIMEOUT_S * NS_PER_S)
    for sampler in samplers:
        sampler.wait_for_baseline(max(0, end_ns - clock.monotonic_ns()) / NS_PER_S)


def stop_all(samplers: Sequence[Sampler], clock: Clock) -> None:
    """Of all of them together, within 10 s."""
    for sampler in samplers:
        sampler.halt()
    end_ns = clock.monotonic_ns() + round(_END_TIMEOUT_S * NS_PER_S)
    for sampler in samplers:
        sampler.stop(max(0, end_ns - clock.monotonic_ns()) / NS_PER_S)


def _table(name: str, labels: Mapping[str, str], rows: list[Row]) -> pa.Table:
    """`rows` in the columns of a table; what a row lacks is its label, else null."""
    constant = {"phase": "", **labels}
    return pa.Table.from_pylist([{**constant, **row} for row in rows], schema=arrow_schema(name))
