"""Many client nodes in one process: stand-ins for agents and workers, each behind a real channel of its own.

    python -m tests.bench.stub_nodes

stdin: a line {"title": …, "token": …} for each process that is wanted; stdout: {"address": …, "pid": …} for it. What a
stand-in does not do is said here; all else, its files and its rows among it, is the real class.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.clock import SystemClock
from squall.actors.load import recorder
from squall.actors.load.recorder import Recorder
from squall.actors.load.worker import Answers, LoadWorker
from squall.actors.net.stream import allow_many_files
from squall.actors.process.priority import settle_process
from squall.actors.sampling.clock_responder import ClockResponder
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings
from squall.analysis.storage.deployed import NodeFacts
from squall.analysis.storage.schema import OUTCOME_CODE, arrow_schema
from squall.cluster.node import scratch
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.node_facts import node_facts
from squall.cluster.node.scratch import Owner
from squall.cluster.remote import served
from squall.cluster.remote.channel import Channel, listen
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.units import NS_PER_S

_BUFFER_ROWS = 1_024
"""Of a recorder: a process holds the buffers of hundreds."""
_STACK_BYTES = 256 * 1024
_SERVICE_NS = 2_000_000
_N_BYTES = 1_024
_ONE_AT_A_TIME = threading.Lock()
"""Hundreds that write in one process would but wait for Python's lock."""
_NOBODY = 2**30
"""In the place of the process that one is: the driver kills what does not answer, and this one is many."""


class StubWorker(LoadWorker):
    """Sends nothing: at the end it writes its arrivals as if each was answered after 2 ms, and a sample a second."""

    def prepare(self, plan: Plan | ClosedPlan, answers: Answers | None = None) -> None:
        """Opens the files; no request is encoded, no connection made."""
        del answers  # no reply is compared
        assert isinstance(plan, Plan)
        self._plan = plan
        self._open_files([span.name for span in plan.spans])

    def run(self, start_ns: int) -> None:
        """Until the end of the plan, or `stop`."""
        self._ready_before_ns = start_ns - self._clock.monotonic_ns()
        end_ns = start_ns + self._plan.spans[-1].end_ns
        self._is_stopped.wait(max(0, end_ns - self._clock.monotonic_ns()) / NS_PER_S)
        assert self._recorder is not None
        assert self._samples is not None
        with _ONE_AT_A_TIME:
            self._record(self._recorder, start_ns)
            self._samples.write(self._samples_until(start_ns, end_ns))
            self._kept = self._recorder.close()
            self._samples.close()
        assert self._folder_lock is not None
        os.close(self._folder_lock)

    def _record(self, recorder: Recorder, start_ns: int) -> None:
        plan = self._plan
        for row in range(len(plan)):
            due_ns = start_ns + int(plan.offset_ns[row])
            recorder.record(
                int(plan.seq[row]), due_ns, due_ns, due_ns + _SERVICE_NS, due_ns + _SERVICE_NS, _N_BYTES,
                int(plan.rows[row]), _N_BYTES, int(plan.phase[row]), OUTCOME_CODE["ok"],
            )  # fmt: skip

    def _samples_until(self, start_ns: int, end_ns: int) -> pa.Table:
        zeros = (
            "n_backlog", "n_in_flight", "lag_max_ns", "loop_lag_ns", "cpu_ns", "gc_count", "gc_pause_ns",
            "n_socket_errors", "n_write_pauses", "n_held", "spin_ns",
        )  # fmt: skip
        edges_ns = np.arange(start_ns + NS_PER_S, end_ns + 1, NS_PER_S)
        due = np.searchsorted(self._plan.offset_ns, edges_ns - start_ns)
        counts = np.diff(due, prepend=0).tolist()
        labels = {"run": self._settings.run, "phase": "", "node": self._settings.node}
        return pa.Table.from_pylist(
            [
                {
                    **dict.fromkeys(zeros, 0), **labels, "worker": self._settings.worker, "t_ns": at_ns,
                    "interval_ns": NS_PER_S, "n_due": n, "n_sent": n, "n_done": n, "n_connections": 1,
                }
                for at_ns, n in zip(edges_ns.tolist(), counts, strict=True)
            ],
            schema=arrow_schema("worker_samples"),
        )  # fmt: skip


class StubAgent(NodeAgent):
    """Samples nothing; the clock of all nodes of this process is answered for by one responder."""

    def owner(self) -> Owner | None:
        """Nobody's, so that the driver has files sent, as from another machine."""
        return None

    def clock_domain(self) -> str:
        """One that no driver is of, so that clocks are probed."""
        return "stub"

    def describe(self) -> NodeFacts:
        """Those of this machine, looked up once."""
        return _facts()


class StubObserver:
    """Observes nothing, and answers for the clock."""

    def __init__(self, _settings: ObserverSettings) -> None:
        pass

    def clock(self) -> tuple[tuple[str, int], bytes] | None:
        """The one responder of this process."""
        return _responder().address, _responder().token

    def set_client_pids(self, pids: tuple[int, ...]) -> None:
        """Nothing is observed."""

    def stop(self) -> tuple[list[str], dict[str, Any]]:
        """What one on a real node gives: nothing is missing, and what it cost."""
        return [], {}


@cache
def _facts() -> NodeFacts:
    return node_facts()


@cache
def _responder() -> ClockResponder:
    return ClockResponder(SystemClock(), "127.0.0.1")


class _Service(served._Service):
    def _create(self, cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        stub = {NodeAgent: StubAgent, Observer: StubObserver}.get(cls, StubWorker)
        super()._create(stub, arguments, named)

    def _end(self) -> None:
        """The process serves others."""
        if hasattr(self._object, "close"):
            self._object.close()


def _serve(listener: Any, token: bytes) -> None:
    channel: Channel | None = served._owner(listener, token)
    if channel is not None:
        _Service(channel, _settled()).serve()


@cache
def _settled() -> Any:
    return settle_process()


def main() -> None:
    """Until stdin ends."""
    allow_many_files()
    threading.stack_size(_STACK_BYTES)
    recorder.BUFFER_ROWS = _BUFFER_ROWS
    scratch.sweep_scratch = lambda: None  # a look at the folders of hundreds of nodes for each of them
    _settled(), _facts(), _responder()
    for line in sys.stdin:
        token = bytes.fromhex(json.loads(line)["token"])
        listener, address = listen(None)
        threading.Thread(target=_serve, args=(listener, token), daemon=True).start()
        sys.stdout.write(json.dumps({"address": address, "pid": _NOBODY}) + "\n")
        sys.stdout.flush()
    time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    main()
