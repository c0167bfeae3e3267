"""Runs a load worker against a server of a test and reads back what it spilled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.client_worker import Progress
from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import Answers, LoadWorker, WorkerSettings
from squall.actors.spill import read_spill
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows, RowsConfig
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.fakes import Seen

ONE_ROW = ConstantRows()
MS = 1_000_000
S = 1_000_000_000
REPLY_BYTES = 8
SPEC = ModelSpec("stub", "1", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8)
LARGE_SPEC = ModelSpec(
    "stub", "1", (TensorSpec("INPUT", "FP32", (4 * 1024**2,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8
)


def plan_of(offsets_ns: Sequence[int], length_ns: int, seq: Sequence[int] | None = None) -> Plan:
    """A plan of one measured phase of `length_ns`, one row an arrival."""
    n = len(offsets_ns)
    return Plan(
        seq=np.arange(n, dtype=np.int64) if seq is None else np.array(seq, np.int64),
        offset_ns=np.array(offsets_ns, np.int64),
        phase=np.zeros(n, np.uint8),
        rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8),
        spans=(PhaseSpan("m", "measure", 0, length_ns),),
    )


def settings_of(
    folder: Path,
    port: int,
    rules: Rules | None = None,
    n_connections: int = 2,
    spec: ModelSpec = SPEC,
    protocol: str = "http",
) -> WorkerSettings:
    return WorkerSettings(
        run="r", node="node-0", worker=0, targets=(TargetSettings("server-0", "127.0.0.1", port, (spec,)),), seed=1,
        rules=rules or Rules(timeout_ns=30 * S), n_connections=n_connections, spill_dir=str(folder),
        protocol=protocol,
    )  # fmt: skip


def toward(settings: WorkerSettings, **changes: Any) -> WorkerSettings:
    """The same worker, whose one server is reached otherwise."""
    (target,) = settings.targets
    return replace(settings, targets=(replace(target, **changes),))


def run_worker(
    settings: WorkerSettings,
    plan: Plan | ClosedPlan,
    lead_ns: int = 30 * MS,
    meanwhile: Callable[[LoadWorker], None] | None = None,
    answers: Answers | None = None,
    after: Callable[[LoadWorker], None] | None = None,
) -> pa.Table:
    """Rows of `requests` by request_id: `lead_ns` is how far ahead the start instant lies, negative for a late start.

    `meanwhile` runs in a thread of its own beside the worker, `after` at its end.
    """
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan, answers)
    beside = threading.Thread(target=meanwhile, args=(worker,)) if meanwhile else None
    if beside:
        beside.start()
    worker.run(time.monotonic_ns() + lead_ns)
    if beside:
        beside.join()
    assert worker.leftovers() == []
    if after:
        after(worker)
    return requests_of(settings)


def run_asking(
    settings: WorkerSettings,
    n_done: int,
    n_users: int = 1,
    n_variants: int = 2,
    sizes: RowsConfig = ONE_ROW,
    think: str = "0s",
) -> tuple[pa.Table, LoadWorker]:
    """Rows of `requests` by request_id, of users who ask until `n_done` requests have ended; the worker.

    However long a host holds it up, no user has more than one request in flight. The last ones may be cancelled.
    """
    plan = ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        models=(VariantRange(0, n_variants),),
        seed=1,
        spans=(PhaseSpan("m", "measure", 0, 120 * S),),
        phases=(
            ClosedPhase(
                n_users, ConstantThink(kind="constant", value=think), 0, sizes, (ModelLoad(1.0, sizes),)
            ),
        ),
    )
    return run_until(settings, plan, n_done)


def run_until(settings: WorkerSettings, plan: ClosedPlan, n_done: int) -> tuple[pa.Table, LoadWorker]:
    """Rows of `requests` by request_id of a run that is stopped when `n_done` have ended; the worker."""
    workers: list[LoadWorker] = []
    stop = stop_when(lambda progress: progress.n_done >= n_done)
    return run_worker(settings, plan, meanwhile=stop, after=workers.append), workers[0]


def stop_when(is_reached: Callable[[Progress], bool]) -> Callable[[LoadWorker], None]:
    """What stops a worker as soon as it stands so."""

    def stop(worker: LoadWorker) -> None:
        while not is_reached(worker.progress()):
            time.sleep(0.005)
        worker.stop()

    return stop


def requests_of(settings: WorkerSettings) -> pa.Table:
    """All spilled rows by request_id: how many batches they came in is a matter of time."""
    return pa.concat_tables(spilled(settings, "requests")).sort_by("request_id")


def spilled(settings: WorkerSettings, table: str) -> list[pa.Table]:
    path = Path(settings.spill_dir) / f"{table}-{settings.worker}.arrows"
    with pa.OSFile(str(path)) as data:
        return [part.unify_dictionaries() for part in read_spill(data)]


def column(rows: pa.Table, name: str) -> list[object]:
    return list(rows.column(name).to_pylist())


def numbers(rows: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column without nulls; fails where there is one."""
    assert rows.column(name).null_count == 0, name
    return np.asarray(rows.column(name).to_numpy(), np.int64)


def assert_one_row_each(rows: pa.Table, plan: Plan) -> None:
    """Every planned arrival has one row, in the plan's phase, with no instant before the one that must precede it."""
    assert len(plan) > 0
    assert column(rows, "request_id") == plan.seq.tolist()
    assert set(column(rows, "phase")) == {"m"}
    for row in rows.to_pylist():
        reached = [row[name] for name in ("scheduled_ns", "sent_ns", "first_byte_ns", "done_ns")]
        known = [instant for instant in reached if instant is not None]
        assert known == sorted(known), row
        assert (row["outcome"] == "unsent") == (row["sent_ns"] is None and row["done_ns"] is None), row


def assert_instants_hold(rows: pa.Table, seen: Seen, services_ns: Sequence[int]) -> None:
    """Sent, arrived, replied and done follow each other, and the service's own time lies between."""
    ids = range(len(services_ns))
    arrived = np.array([seen.arrived_ns[i] for i in ids])
    replied = np.array([seen.replied_ns[i] for i in ids])
    sent, first, done = (numbers(rows, name) for name in ("sent_ns", "first_byte_ns", "done_ns"))
    assert (sent >= numbers(rows, "scheduled_ns")).all()
    assert (sent < arrived).all()
    assert (replied < done).all()
    assert (first <= done).all()
    assert (done - sent > np.array(services_ns)).all()
