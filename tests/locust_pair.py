"""A Locust master and worker without Locust: the answers that the driver relies on, and a process that can be killed.

A file that says `# leave after 1.5` ends the load then, as a shape does; `# die on start: words` has every user die.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from squall.actors.client_worker import Account, Progress, Standing
from squall.actors.locust.locust_master import MasterAccount
from squall.actors.locust.settings import MASTER, LocustSettings
from squall.actors.messages.value_check import Tally
from squall.actors.process.priority import Scheduling
from squall.actors.spill import SpillFile
from squall.analysis.schema import arrow_schema
from squall.analysis.tables.locust import AskedUsers, LocustEntry
from squall.scenarios.config.locust.load import LocustConfig
from squall.scenarios.errors import ClusterError, LostActor, ScenarioError
from squall.scenarios.locust.files import LocustFiles
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.units import NS_PER_S

N_USERS = 3
STEP_S = 0.05
PLAIN = Scheduling("other", 0, 0)


def said(settings: LocustSettings, words: str) -> str | None:
    """What the locustfile says behind these words, in a comment."""
    found = re.search(rf"# {words}(.*)", settings.files.contents[settings.files.locustfile].decode())
    return None if found is None else found[1].strip()


class _Process:
    """A process that does nothing, and whose end is the end of who stands behind it."""

    def __init__(self, settings: LocustSettings) -> None:
        self.settings = settings
        self.child: subprocess.Popen[bytes] | None = None
        self.is_stopped = threading.Event()

    def begin(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        (Path(self.settings.spill_dir) / f"{self.settings.name}.log").write_text(
            f"{self.settings.name} began\n"
        )

    @property
    def is_dead(self) -> bool:
        return self.child is not None and self.child.poll() is not None

    def end(self) -> None:
        if self.child is not None:
            with contextlib.suppress(OSError):
                self.child.communicate(b"", timeout=10)

    def end_ns(self, start_ns: int) -> int:
        """Of the load, on the node's clock."""
        left_s = said(self.settings, "leave after")
        after_ns = self.settings.load_end_ns if left_s is None else round(float(left_s) * NS_PER_S)
        return start_ns + after_ns

    def wait_until(self, at_ns: int) -> bool:
        """Whether it goes on: nobody has stopped it, and its process lives."""
        self.is_stopped.wait(max(0, at_ns - time.monotonic_ns()) / NS_PER_S)
        return not self.is_stopped.is_set() and not self.is_dead


class PairedWorker:
    """A `ClientWorker` whose users are answered after 1 ms, each time 20 in a second."""

    def __init__(self, settings: LocustSettings) -> None:
        self._settings = settings
        self._process = _Process(settings)
        self._n = 0
        self._is_over = threading.Event()
        self._is_over.set()
        self._is_whole = False

    def prepare(self, host: str, port: int) -> None:
        if (words := said(self._settings, "no file: ")) is not None:
            raise ScenarioError(f"load.locust.file: {words}")
        assert (host, port) == (self._settings.address, 5557)
        self._process.begin()
        folder, number = Path(self._settings.spill_dir), self._settings.worker
        self._files = {
            table: SpillFile(folder / f"{table}-{number}.arrows", table)
            for table in ("requests", "worker_samples", "locust_samples")
        }

    def pid(self) -> int:
        assert self._process.child is not None
        return self._process.child.pid

    def run(self, start_ns: int, lease_until_ns: int | None = None) -> None:
        del lease_until_ns  # users have none
        self._is_over.clear()
        try:
            at_ns, end_ns, second_ns = start_ns, self._process.end_ns(start_ns), start_ns + NS_PER_S
            while self._process.wait_until(at_ns) and at_ns < end_ns:
                if said(self._settings, "die on start: ") is None:
                    offset_ns = at_ns - start_ns
                    phase = next(one.name for one in self._settings.spans if offset_ns < one.end_ns)
                    own = {"sent_ns": at_ns, "done_ns": at_ns + 1_000_000, "request_id": self._id()}
                    self._write("requests", phase=phase, **own)
                    self._n += 1
                at_ns += round(STEP_S * NS_PER_S)
                if at_ns >= second_ns:
                    self._write("worker_samples", t_ns=second_ns, interval_ns=NS_PER_S, n_sent=20, n_done=20)
                    self._write("locust_samples", t_ns=second_ns, interval_ns=NS_PER_S, n_users=N_USERS)
                    second_ns += NS_PER_S
            self._refuse_dead()
            self._process.end()
            self._is_whole = True
        finally:
            for file in self._files.values():
                file.close()
            self._is_over.set()

    def _id(self) -> int:
        return self._settings.worker + self._settings.n_workers * self._n

    def _write(self, table: str, **columns: int | str) -> None:
        own = self._settings
        texts = {
            "run": own.run,
            "node": own.node,
            "target": "server-0",
            "outcome": "ok",
            "method": "GET",
            "name": "/",
        }
        found = {**columns, **texts, "worker": own.worker, "redealt": False}
        fields = arrow_schema(table)
        filled = {
            one.name: found.get(
                one.name, None if one.nullable else 0 if pa.types.is_integer(one.type) else ""
            )
            for one in fields
        }
        rows = {name: pa.array([value]).cast(fields.field(name).type) for name, value in filled.items()}
        assert self._files[table].write(pa.table(rows, fields))

    def _refuse_dead(self) -> None:
        if self._process.is_dead and not self._is_whole:
            name = self._settings.name
            raise LostActor(
                f"{name} is lost: its process was killed, with {N_USERS} users; {self._n} rows are kept"
            )

    def status(self) -> Standing:
        self._refuse_dead()
        words = said(self._settings, "die on start: ")
        if words is not None and self._process.child is not None:
            raise ScenarioError(f"load.locust.file: {words}")
        recent = np.full(1, 1_000_000, np.int64)
        return Standing(Progress(self._n, self._n, 0, 0, recent))

    def n_users(self) -> int:
        return N_USERS

    def counted(self) -> tuple[int, int] | None:
        return (self._n, 0) if self._is_whole else None

    def renew(self, until_ns: int) -> Standing:
        del until_ns
        return self.status()

    def take_over(self, part: Plan, number: int) -> None:
        raise ClusterError(f"part {number} has {len(part)} arrivals, and there are none to take over")

    def cease(self, offset_ns: int) -> None:
        del offset_ns

    def stop(self) -> None:
        self._process.is_stopped.set()

    def abandoned(self) -> None:
        self.stop()
        self._is_over.wait(10)
        self._process.end()

    def no_lane(self) -> str:
        return "the requests are Locust's"

    def scheduling(self) -> Scheduling:
        return PLAIN

    def account(self) -> Account:
        return Account(PLAIN, 0, 0, 0)

    def tally(self) -> Tally:
        return Tally()

    def n_issued(self) -> int:
        return self._n

    def leftovers(self) -> list[pa.Table]:
        return []


class PairedMaster:
    """Of `PairedWorker`s, of which it hears nothing: it says what was asked for and when the load ended."""

    def __init__(self, settings: LocustSettings) -> None:
        self._settings = settings
        self._process = _Process(settings)
        self._account = MasterAccount(version="0.0", user_classes=("Shopper",))

    def prepare(self) -> tuple[str, int]:
        self._process.begin()
        return self._settings.address, 5557

    def wait_for_workers(self) -> None: ...

    def run(self, start_ns: int) -> None:
        own, version, classes = self._settings, self._account.version, self._account.user_classes
        asked = (AskedUsers(t_ns=start_ns, n_users=own.config.users, spawn_rate_hz=own.config.spawn_rate),)
        self._account = MasterAccount(version=version, user_classes=classes, asked=asked)
        end_ns = self._process.end_ns(start_ns)
        at_ns = start_ns
        while at_ns < end_ns and self._process.wait_until(at_ns):
            at_ns += round(STEP_S * NS_PER_S)
        self.status()
        is_early = end_ns < start_ns + own.load_end_ns and not self._process.is_stopped.is_set()
        self._process.end()
        entry = LocustEntry(method="GET", name="/", n_requests=1, n_failures=0, total_ms=1.0)
        self._account = MasterAccount(
            version, classes, "", asked, end_ns if is_early else None, (entry,), (), (),
            tuple(range(own.n_workers)), True, {"shop_stats.csv": b"Type,Name\n"},
        )  # fmt: skip

    def status(self) -> str:
        if self._process.is_dead and not self._account.is_whole:
            raise LostActor("the Locust master is lost: its process was killed")
        return ""

    def stop(self) -> None:
        self._process.is_stopped.set()

    def pid(self) -> int:
        assert self._process.child is not None
        return self._process.child.pid

    def abandoned(self) -> None:
        self.stop()
        self._process.end()

    def account(self) -> MasterAccount:
        return self._account


def settings_of(
    folder: Path, worker: int = MASTER, n_workers: int = 1, comment: str = "", length_ns: int = NS_PER_S
) -> LocustSettings:
    """Of a run of one measured phase and a second's drain, whose locustfile has that comment."""
    files = LocustFiles("shop.py", {"shop.py": f"# {comment}\n".encode()})
    spans = (
        PhaseSpan("main", "measure", 0, length_ns),
        PhaseSpan("drain", "drain", length_ns, length_ns + NS_PER_S),
    )
    return LocustSettings(
        run="r", node="node-0", worker=worker, n_workers=n_workers, address="127.0.0.1", spill_dir=str(folder),
        config=LocustConfig(file="shop.py", users=5, spawn_rate=2.0), files=files, spans=spans,
        load_end_ns=length_ns, stop_timeout_ns=NS_PER_S, host="http://127.0.0.1:8000", targets=(), models=(), seed=1,
    )  # fmt: skip
