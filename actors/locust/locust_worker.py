"""A Locust worker as the driver sees it: starts its process, watches it, and writes what its users did to spill files.

    process under gevent ──ring in memory──▶ this process ──▶ requests-….arrows
                         ──samples, a line──▶              ──▶ worker_samples-….arrows, locust_samples-….arrows

The process is one of its own, since gevent patches the interpreter; this one is not patched. What it had recorded when
it is killed lies in the ring, which is this process's too.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.client_worker import Account, Progress, Standing
from squall.actors.load.engine import FAILED_NS
from squall.actors.locust.child import LocustChild
from squall.actors.locust.row_ring import NEVER, RowReader, Rows, open_ring_file
from squall.actors.locust.row_table import RowTable
from squall.actors.locust.settings import LocustSettings
from squall.actors.messages.value_check import Tally
from squall.actors.spill import SpillFile
from squall.actors.worker_usage import sample_table
from squall.analysis.storage.schema import OUTCOME_CODE, arrow_schema
from squall.scenarios.errors import ClusterError, LostActor, ScenarioError
from squall.scenarios.records import AddressFacts, SenderScheduling
from squall.scenarios.units import NS_PER_S

_TAKE_S = 0.25
_END_WITHIN_S = 10.0
_OVERRUN_S = 15.0
"""After the load's end and the users' time to stop: the master hears the last reports as long (`_REPORTS_WITHIN_S`)."""
_LARGEST_RECENT_COUNT = 4_096
_OK = OUTCOME_CODE["ok"]
_NO_LANE = "Locust makes the load"
_BLOCKS = "did not end with the load, since code of the locustfile blocks, and was killed"


class LocustWorker:
    """A `ClientWorker`. Life: `prepare`, `run` once, `leftovers`; from other threads at any time `status`, `stop`."""

    def __init__(self, settings: LocustSettings) -> None:
        self._settings = settings
        self._child: LocustChild | None = None
        self._lock = threading.Lock()
        self._stop_by_s: float | None = None
        self._over = threading.Event()
        self._killed = ""
        self._last: dict[str, Any] = {}
        self._ended: dict[str, int] | None = None
        self._kept: list[pa.Table] = []
        self._recent_ns: list[int] = []
        self._n_rows = 0
        self._n_failed = 0

    def prepare(self, host: str, port: int) -> None:
        """Starts the process, which loads the locustfile and connects to the master there.

        Raises ScenarioError for a locustfile that does not load or has no user class, in Locust's or Python's own
        words; ClusterError where the process does not start or finds no master, or files cannot be written.
        """
        settings, folder = self._settings, Path(self._settings.spill_dir)
        name = f"{settings.worker}.arrows"
        try:
            self._files = {
                table: SpillFile(folder / f"{table}-{name}", table)
                for table in ("requests", "worker_samples", "locust_samples")
            }
            ring_fd = open_ring_file()
        except OSError as error:
            raise ClusterError(f"{settings.name}: cannot write {folder}: {error.strerror}") from error
        self._reader = RowReader(ring_fd)
        self._table = RowTable(
            settings.run,
            settings.node,
            settings.worker,
            [span.name for span in settings.spans],
            [one.name for one in settings.targets],
            [one.name for one in settings.models],
        )
        self._child = child = LocustChild(settings, self._hear, ring_fd, (host, port))
        os.close(ring_fd)  # mapped here, inherited there
        try:
            child.wait_ready()
        except (ScenarioError, ClusterError):
            child.close()
            raise

    def pid(self) -> int:
        """Of the process with the users, once prepared."""
        assert self._child is not None
        return self._child.pid

    def run(self, start_ns: int) -> None:
        """Returns when its users have ended and all rows are in the spill files. Raises LostActor where the process
        died before that: what it had recorded is in the files all the same."""
        child = self._child
        if child is None:
            raise ClusterError(f"{self._settings.name} was not prepared")
        child.order("start", start_ns)
        load_ns = self._settings.load_end_ns + self._settings.stop_timeout_ns
        end_by_s = (start_ns + load_ns) / NS_PER_S + _OVERRUN_S
        try:
            while not child.has_ended(_TAKE_S):
                self._take()
                now_s = time.monotonic()
                if now_s > end_by_s:
                    self._killed = _BLOCKS
                    child.kill()
                elif self._stop_by_s is not None and now_s > self._stop_by_s:
                    self._killed = f"did not end within {_END_WITHIN_S:.0f} s of the stop, and was killed"
                    child.kill()
        finally:
            self._finish(child)
        self._raise_if_lost()

    def _finish(self, child: LocustChild) -> None:
        """Ends the process, if it has not, and writes the last that it recorded."""
        child.close()
        self._take()
        for file in self._files.values():
            file.close()
        self._over.set()

    def _raise_if_lost(self) -> None:
        assert self._child is not None
        if not self._child.has_ended() or self._ended is not None:
            return
        self._over.wait(_END_WITHIN_S)  # what it had recorded is being written
        n, how = self.n_users(), self._killed or self._child.end
        raise LostActor(
            f"{self._settings.name} on {self._settings.node} {how}: its {n} users are gone, with what they"
            f" had in flight; all {self._n_rows} requests that it had recorded are kept"
        )

    def _take(self) -> None:
        """What the process has recorded, into the spill file."""
        with self._lock:
            rows = self._reader.take()
            if not len(rows.records):
                return
            self._n_rows += len(rows.records)
            self._note_recent(rows)
            self._write("requests", self._table.of(rows))

    def _note_recent(self, rows: Rows) -> None:
        records = rows.records
        is_ok = (records["outcome"] == _OK) & (records["sent_ns"] != NEVER)
        self._n_failed += int(np.count_nonzero(records["outcome"] != _OK))
        service_ns = np.where(is_ok, records["done_ns"] - records["sent_ns"], FAILED_NS)
        self._recent_ns = [*self._recent_ns, *service_ns.tolist()][-_LARGEST_RECENT_COUNT:]

    def _write(self, table: str, data: pa.Table) -> None:
        if not self._files[table].write(data):
            self._kept.append(data)

    def _hear(self, said: dict[str, Any]) -> None:
        """In the thread that reads what the process says."""
        if "ended" in said:
            self._ended = said["ended"]
        if "sample" not in said:
            return
        self._last = said
        settings, sample = self._settings, said["sample"]
        labels = {"run": settings.run, "phase": "", "node": settings.node, "worker": settings.worker}
        n_done = sample["n_requests"]
        process = {
            **labels, **dict.fromkeys(_ZERO, 0), "t_ns": sample["t_ns"], "interval_ns": sample["interval_ns"],
            "n_due": n_done, "n_sent": n_done, "n_done": n_done,
            "n_in_flight": sample["n_users"] - sample["n_thinking"], **said["process"],
        }  # fmt: skip
        schema = arrow_schema("locust_samples")
        with self._lock:
            self._write("worker_samples", sample_table(process))
            self._write("locust_samples", pa.Table.from_pylist([{**labels, **sample}], schema=schema))

    def status(self) -> Standing:
        """Raises LostActor as `run` does, naming the users that are gone with it, and ScenarioError where an exception
        of on_start ended every user that was ever spawned and nothing was ever sent, in its own words."""
        self._raise_if_lost()
        last = self._last
        if last and last["n_died"] and last["n_died"] == last["n_started"] and not self._n_rows:
            raise ScenarioError(
                f"load.locust.file: {self._settings.config.file.rpartition('/')[2]}: all {last['n_died']} users of"
                f" {self._settings.name} ended in on_start, and none sent anything: {last['first_death']}"
            )
        recent, self._recent_ns = self._recent_ns, []
        in_flight = last["sample"]["n_users"] - last["sample"]["n_thinking"] if last else 0
        progress = Progress(self._n_rows, self._n_rows, self._n_failed, in_flight, np.array(recent, np.int64))
        return Standing(progress, self._spill_error())

    def _spill_error(self) -> str:
        return next(filter(None, (file.error for file in self._files.values())), "")

    def n_users(self) -> int:
        """Users that it runs; of one that died, that it ran then."""
        return int(self._last["sample"]["n_users"]) if self._last else 0

    def counted(self) -> tuple[int, int, int] | None:
        """Requests and failures that Locust counted in the process, and the exit code that the locustfile gave it, once
        it ended in order; else None."""
        if self._ended is None:
            return None
        return self._ended["n_requests"], self._ended["n_failures"], self._ended["exit_code"]

    def cease(self, offset_ns: int) -> None:
        """Nothing: there is no schedule that could be certain before its end."""

    def stop(self) -> None:
        """Ends the users at once; what is in flight has no row."""
        if self._child is not None and self._stop_by_s is None:
            self._stop_by_s = time.monotonic() + _END_WITHIN_S
            self._child.order("stop")

    def abandoned(self) -> None:
        """Who gave the orders is gone: ends the process and closes the files, which stay."""
        if self._child is None:
            return
        self.stop()
        self._child.has_ended(_END_WITHIN_S)
        self._child.close()
        if not self._over.wait(_TAKE_S * 4):  # never run
            self._finish(self._child)

    def no_lane(self) -> str:
        """The common case does not run in C."""
        return _NO_LANE

    def addresses(self) -> tuple[AddressFacts, ...]:
        """Locust's users connect as they like."""
        return ()

    def scheduling(self) -> SenderScheduling:
        """Of an ordinary process."""
        return SenderScheduling(policy="other", realtime_priority=0, niceness=0)

    def account(self) -> Account:
        """What it had while it ran; after `run`."""
        return Account(self.scheduling(), 0, 0, None)

    def tally(self) -> Tally:
        """No replies are compared."""
        return Tally()

    def n_issued(self) -> int:
        """Requests that have a row."""
        return self._n_rows

    def leftovers(self) -> list[pa.Table]:
        """Rows that its spill files could not take: what each is says its schema."""
        return self._kept


_ZERO = (
    "n_backlog", "n_held", "n_connections", "n_socket_errors", "n_write_pauses", "spin_ns",
)  # fmt: skip
"""Columns of worker_samples about what Locust has not."""
