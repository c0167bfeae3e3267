"""One load worker: engine, client, collector and its own samples, in one event loop of one thread."""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from actors.client import HttpClient
from actors.clock import NS_PER_S, Alarm, Clock
from actors.collector import Collector
from actors.engine import Engine, Rules, templates_needed
from actors.spool import Spool
from actors.wire import request_template
from analysis.schema import arrow_schema
from models.payload import encode_body, make_inputs
from models.spec import ModelSpec
from scenarios.errors import ClusterError, TargetError
from scenarios.plan import Plan

_SAMPLE_NS = NS_PER_S
_LARGEST_RECENT_COUNT = 4_096


@dataclass(frozen=True)
class WorkerSettings:
    """What one worker needs to know beside its plan; plain values, so that it travels cheaply.

    `seed` is that of the payloads; `spill_dir` is on the worker's node.
    """

    run: str
    node: str
    worker: int
    target: str
    host: str
    port: int
    spec: ModelSpec
    seed: int
    shapes: dict[str, tuple[int, ...]]
    rules: Rules
    n_connections: int
    spill_dir: str


@dataclass(frozen=True)
class Progress:
    """How a worker stands: counts since the start, and the last second's response times in ns, at most 4,096."""

    n_sent: int
    n_done: int
    n_failed: int
    n_in_flight: int
    recent_response_ns: np.ndarray[Any, np.dtype[np.int64]]


class LoadWorker:
    """Life: `prepare`, `run` once, `leftovers`; `progress` and `stop` at any time from another thread."""

    def __init__(self, settings: WorkerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None
        self._client: HttpClient | None = None
        self._collector: Collector | None = None
        self._samples: Spool | None = None
        self._kept: list[pa.Table] = []
        self._last_response_ns: list[int] = []
        self._is_stopped = threading.Event()

    def prepare(self, plan: Plan) -> None:
        """Encodes every request, opens files and connections.

        Raises ScenarioError for a payload the model does not take, TargetError where the server cannot be reached,
        ClusterError where the spill folder cannot be written.
        """
        import uvloop

        settings = self._settings
        templates = {}
        for rows, variant in templates_needed(plan).tolist():
            inputs = make_inputs(settings.spec, rows, variant, settings.seed, settings.shapes)
            templates[rows, variant] = request_template(
                f"{settings.host}:{settings.port}", settings.spec.name, settings.spec.version,
                encode_body(settings.spec, inputs), rows, settings.spec.reply_bytes(rows),
            )  # fmt: skip
        labels = {
            "run": settings.run, "node": settings.node, "target": settings.target, "request_kind": settings.spec.name
        }  # fmt: skip
        folder = Path(settings.spill_dir)
        try:
            self._collector = Collector(
                folder / f"requests-{settings.worker}.arrows",
                labels,
                settings.worker,
                [s.name for s in plan.spans],
            )
            self._samples = Spool(folder / f"worker_samples-{settings.worker}.arrows", "worker_samples")
        except OSError as error:
            raise ClusterError(
                f"worker {settings.worker}: cannot write {folder}: {error.strerror}"
            ) from error
        self._engine = Engine(plan, templates, settings.rules, self._collector, self._clock)
        self._loop = uvloop.new_event_loop()
        self._client = HttpClient(
            self._loop,
            self._clock,
            settings.host,
            settings.port,
            self._engine.on_reply,
            self._engine.on_failure,
        )
        try:
            self._loop.run_until_complete(self._client.open(settings.n_connections))
        except OSError as error:
            raise TargetError(
                f"worker {settings.worker}: no connection to {settings.host}:{settings.port}: "
                f"{error.strerror or error}"
            ) from error

    def run(self, start_ns: int) -> None:
        """Follows the plan from `start_ns` (node's clock) and closes everything. Call `prepare` before."""
        if self._loop is None:
            raise ClusterError(f"worker {self._settings.worker} was not prepared")
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection would stop the sends; what cycles there are wait for the end
        try:
            self._loop.run_until_complete(self._run(start_ns))
        finally:
            gc.enable()
            gc.unfreeze()
            self._loop.close()

    async def _run(self, start_ns: int) -> None:
        assert self._engine and self._client and self._collector and self._samples
        if self._is_stopped.is_set():
            self._engine.request_stop()
        sampling = asyncio.get_running_loop().create_task(self._sample(start_ns))
        try:
            await self._engine.run(self._client, start_ns)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await self._client.close()
            self._kept = self._collector.close()
            self._samples.close()

    def stop(self) -> None:
        """Ends `run` at once; what it has not done is recorded as cancelled or unsent."""
        self._is_stopped.set()
        if self._engine is not None:
            self._engine.request_stop()

    def leftovers(self) -> list[pa.Table]:
        """Rows of `requests` that the spill file could not take."""
        return self._kept

    def spill_error(self) -> str:
        """Why the spill file cannot be written; empty while it can."""
        return self._collector.error if self._collector is not None else ""

    def progress(self) -> Progress:
        """How the worker stands."""
        engine = self._engine
        if engine is None:
            return Progress(0, 0, 0, 0, np.empty(0, np.int64))
        counters = engine.counters
        recent = np.array(self._last_response_ns[:_LARGEST_RECENT_COUNT], np.int64)
        return Progress(counters.n_sent, counters.n_done, counters.n_failed, engine.n_in_flight, recent)

    async def _sample(self, start_ns: int) -> None:
        """One row of worker_samples a second, on the second of the run, and the last part of one at its end."""
        alarm, wake = Alarm(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(alarm.fd, wake.set)
        previous = _Usage.now(self._clock.monotonic_ns(), 0, 0)
        due_ns = start_ns
        try:
            while True:
                alarm.arm(due_ns)
                await wake.wait()
                alarm.clear()
                wake.clear()
                now_ns = self._clock.monotonic_ns()
                previous = self._take_sample(previous, now_ns, now_ns - due_ns)
                due_ns += _SAMPLE_NS
        finally:
            loop.remove_reader(alarm.fd)
            alarm.close()
            self._take_sample(previous, self._clock.monotonic_ns(), 0)

    def _take_sample(self, previous: _Usage, now_ns: int, loop_lag_ns: int) -> _Usage:
        assert self._engine and self._client and self._collector and self._samples
        engine, counters = self._engine, self._engine.counters
        usage = _Usage.now(now_ns, counters.n_sent, counters.n_done)
        row = {
            "run": self._settings.run, "phase": "", "node": self._settings.node, "worker": self._settings.worker,
            "t_ns": now_ns, "interval_ns": now_ns - previous.at_ns,
            "n_due": engine.n_due_between(previous.at_ns, now_ns),
            "n_sent": usage.n_sent - previous.n_sent, "n_done": usage.n_done - previous.n_done,
            "n_backlog": engine.n_backlog, "n_in_flight": engine.n_in_flight,
            "n_connections": self._client.n_connections, "lag_max_ns": counters.reset_lag(),
            "loop_lag_ns": loop_lag_ns, "cpu_ns": usage.cpu_ns - previous.cpu_ns,
            "gc_count": usage.gc_count - previous.gc_count, "n_dropped": 0,
        }  # fmt: skip
        self._samples.write(pa.Table.from_pylist([row], schema=arrow_schema("worker_samples")))
        self._last_response_ns, engine.recent_response_ns = engine.recent_response_ns, []
        self._collector.flush()
        return usage


@dataclass(frozen=True)
class _Usage:
    """Cumulative counts of the process and the engine at one instant."""

    at_ns: int
    n_sent: int
    n_done: int
    cpu_ns: int
    gc_count: int

    @classmethod
    def now(cls, at_ns: int, n_sent: int, n_done: int) -> _Usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_ns = round((used.ru_utime + used.ru_stime) * NS_PER_S)
        return cls(at_ns, n_sent, n_done, cpu_ns, sum(stat["collections"] for stat in gc.get_stats()))
