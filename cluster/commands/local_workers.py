"""Null servers and load workers on this host, each a process that ends when we close its stdin, or die."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import WorkerSettings
from squall.actors.process.own_python import own_command, own_environment
from squall.actors.process.proc_files import stolen_ns, waited_ns
from squall.actors.spill import read_spill
from squall.analysis.statistics.answers import Cost, Requests
from squall.analysis.statistics.exact_queue import Waits
from squall.models.spec import head_spec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ClusterError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.plan import Plan
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration, format_rate

_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0
_RUN_SLACK_S = 30.0
_LEAD_NS = NS_PER_S // 10
"""From the last worker's being ready to the start instant."""
_REQUEST_TIMEOUT_NS = 30 * NS_PER_S
_CONNECTIONS = {"http": 256, "grpc": 4}
_SPEC = head_spec("linear_head", "1", {"width": 64, "classes": 2}, 32)
"""What `squall.actors.null.triton` serves unless told otherwise."""
_NOT_REACHED = -1


class Child:
    """`python -m module arguments` with pipes: it is told bytes and says lines of JSON. A context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._heard = b""
        self._process = subprocess.Popen(
            own_command(module, *arguments), env=own_environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # nobody will read what it has to say
            self.kill()
        self.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL; `close` must follow."""
        self._process.kill()

    def tell(self, data: bytes) -> None:
        """Writes to its stdin. Raises ClusterError where it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError as error:
            raise self._lost() from error

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line that it says. Raises ClusterError where none comes, or an error."""
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ClusterError(f"{self._module} says nothing within {timeout_s:g} s")
            data = os.read(fd, 65_536)
            if not data:
                raise self._lost()
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        fact: dict[str, Any] = json.loads(line)
        if "error" in fact:
            raise ClusterError(fact["error"])
        return fact

    def close(self) -> None:
        """Ends it: its stdin is closed; killed where that does not help."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(OSError):  # what it did not read any more
            process.stdin.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()
            process.stderr.close()

    def _lost(self) -> ClusterError:
        """Why it ended, by the last line of its stderr."""
        assert self._process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
        code = self._process.poll()
        said = self._process.stderr.read() if code is not None else b""
        lines = [line.strip() for line in said.decode(errors="replace").split("\n") if line.strip()]
        return ClusterError(f"{self._module} ended early: {lines[-1] if lines else f'exit code {code}'}")


class NullTriton(Child):
    """A null server with `arguments` of `squall.actors.null.triton`; `end` reads its `record`."""

    def __init__(self, *arguments: str, record: Path | None = None) -> None:
        recorded = () if record is None else (f"--record={record}",)
        super().__init__("squall.actors.null.triton", *arguments, *recorded)
        self._record = record
        self._ready: dict[str, Any] = {}

    def port(self, protocol: str) -> int:
        """Where it listens, once it does. Raises ClusterError where it does not start."""
        if not self._ready:
            self._ready = self.hear(_START_TIMEOUT_S)
        return int(self._ready[f"{protocol}_port"])

    def end(self) -> dict[str, NDArray[np.int64]]:
        """Ends it and gives its record. Raises ClusterError where that is missing or not whole."""
        self.close()
        assert self._record is not None
        try:
            with np.load(self._record) as record:
                columns = {name: record[name] for name in record.files}
        except (OSError, ValueError) as error:
            raise ClusterError(f"the null server's record cannot be read: {error}") from error
        if columns["n_rejected"] or columns["n_over"]:
            raise ClusterError("the null server rejected requests or did not record all")
        return columns


class Job(Frozen, eq=False):
    """What one worker does: a plan against a server."""

    server: NullTriton
    protocol: str
    plan: Plan


class Worked(Frozen, eq=False):
    """What workers did that started at one instant: rows and cost of each."""

    start_ns: int
    rows: list[Requests]
    costs: list[Cost]
    waits: list[Waits]

    def together(self) -> tuple[Requests, Cost]:
        """All rows by request_id, and the cost of all."""
        cost = Cost(
            sum(one.user_ns for one in self.costs),
            sum(one.system_ns for one in self.costs),
            max(one.wall_ns for one in self.costs),
        )
        return Requests.merged(self.rows), cost


def run_workers(jobs: Sequence[Job], folder: Path) -> Worked:
    """Runs each job in a process of its own, all from one start instant; files lie in `folder` meanwhile.

    Raises ClusterError where a server or a worker cannot run.
    """
    with tempfile.TemporaryDirectory(dir=folder) as spill_dir, ExitStack() as stack:
        # processes first: they start while the servers do
        workers = [stack.enter_context(Child("squall.actors.load.worker_process")) for _ in jobs]
        for worker, (child, job) in enumerate(zip(workers, jobs, strict=True)):
            child.tell(pickle.dumps((_settings(job, worker, spill_dir), job.plan)))
        for child in workers:
            child.hear(_START_TIMEOUT_S)
        begun = [(waited_ns(job.server.pid), stolen_ns()) for job in jobs]
        start_ns = time.monotonic_ns() + _LEAD_NS
        for child in workers:
            child.tell(b"%d\n" % start_ns)
        longest_s = max(job.plan.spans[-1].end_ns for job in jobs) / NS_PER_S
        costs = [Cost(**child.hear(longest_s + _RUN_SLACK_S)) for child in workers]
        waits = [_waits(job, cost, *before) for job, cost, before in zip(jobs, costs, begun, strict=True)]
        rows = [_read_rows(Path(spill_dir, f"requests-{worker}.arrows")) for worker in range(len(jobs))]
    return Worked(start_ns, rows, costs, waits)


def _waits(job: Job, cost: Cost, server_before_ns: int | None, stolen_before_ns: int) -> Waits:
    """Of server and worker since the readings before; what the hypervisor took meanwhile counts for both."""
    server_ns, taken_ns = waited_ns(job.server.pid), stolen_ns() - stolen_before_ns
    return Waits(
        None if server_ns is None or server_before_ns is None else server_ns - server_before_ns + taken_ns,
        None if cost.waited_ns is None else cost.waited_ns + taken_ns,
    )


def poisson_plan(rate_hz: float, window_ns: int, drain_ns: int, seed: int) -> Plan:
    """squall's own plan of a scenario: Poisson arrivals for `window_ns`, then at most `drain_ns` for replies."""
    phases = [
        {
            "name": "measure", "kind": "measure", "duration": format_duration(window_ns),
            "arrivals": {"kind": "poisson", "rate": format_rate(rate_hz)},
        },
        {"name": "drain", "kind": "drain", "duration": format_duration(drain_ns)},
    ]  # fmt: skip
    mapping = {"name": "selftest", "seed": seed, "model": {"name": _SPEC.name}, "phases": phases}
    return plan_scenario(scenario_from_mapping(mapping, "selftest"))


def _settings(job: Job, worker: int, spill_dir: str) -> WorkerSettings:
    return WorkerSettings(
        run="selftest", node="node-0", worker=worker,
        targets=(TargetSettings("server-0", "127.0.0.1", job.server.port(job.protocol), (_SPEC,)),),
        seed=1, rules=Rules(_REQUEST_TIMEOUT_NS),
        n_connections=_CONNECTIONS[job.protocol], spill_dir=spill_dir, protocol=job.protocol, priority="auto",
    )  # fmt: skip


def _read_rows(spill: Path) -> Requests:
    """A worker's spilled rows by request_id."""
    with pa.OSFile(str(spill)) as data:
        return Requests.merged([_as_requests(table) for table in read_spill(data)])


def _as_requests(table: pa.Table) -> Requests:
    def instants(name: str) -> NDArray[np.int64]:
        return np.asarray(table.column(name).fill_null(_NOT_REACHED).to_numpy(), np.int64)

    outcomes = table.column("outcome").cast(pa.string()).to_numpy()
    return Requests(
        request_id=instants("request_id"),
        scheduled_ns=instants("scheduled_ns"),
        sent_ns=instants("sent_ns"),
        done_ns=instants("done_ns"),
        is_ok=np.asarray(outcomes == "ok", np.bool_),
    )
