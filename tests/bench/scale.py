"""How many requests one worker holds open at once, and what memory it needs for that and for long runs.

    python -m tests.bench.scale [REQUESTS]

prints one JSON object, of one worker in a process of its own against the null Triton: `held`, with that many requests
in flight at one time, over HTTP each on a connection of its own; `closed`, with as many users; `long`, about REQUESTS
requests (1,000,000) of a closed loop, whose `rss_mib_per_million` is the slope of the resident memory over the
requests of its last three quarters.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.spill import read_spill
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.null_process import NullProcess, null_spec

_S = 1_000_000_000
_LEAD_NS = 200_000_000
_SAMPLE_S = 0.25
_LONG_USERS = 32
_LONG_TRIAL_S = 5.0


@dataclass(frozen=True)
class Scale:
    """One run: how its requests ended, what it held at once, and the worker's memory in MiB.

    `samples`: (requests done, resident MiB), four a second.
    """

    n: int
    n_ok: int
    most_in_flight: int
    most_connections: int
    p50_lag_us: float | None
    p99_lag_us: float | None
    prepared_mib: float
    peak_mib: float
    seconds: float
    samples: list[tuple[int, float]]


def has_files_for(n_connections: int) -> bool:
    """Whether worker and server, each of which raises its soft limit to the hard one, may open so many and some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard == resource.RLIM_INFINITY or hard >= n_connections + 200


def held_plan(n: int, within_s: float, length_s: float) -> Plan:
    """`n` arrivals at even gaps within `within_s`."""
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=np.linspace(0, within_s * _S, n).astype(np.int64),
        phase=np.zeros(n, np.uint8), rows=np.ones(n, np.int32), variant=np.zeros(n, np.uint8),
        spans=(PhaseSpan("m", "measure", 0, round(length_s * _S)),),
    )  # fmt: skip


def closed_plan(n_users: int, seconds: float, ramp_s: float = 0.0) -> ClosedPlan:
    """Users without think time that begin over `ramp_s`; then 30 s for the last replies."""
    end_ns = round(seconds * _S)
    return ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        spans=(PhaseSpan("m", "measure", 0, end_ns), PhaseSpan("d", "drain", end_ns, end_ns + 30 * _S)),
        phases=(
            ClosedPhase(
                n_users,
                ConstantThink(),
                round(ramp_s * _S),
                ConstantRows(),
                (ModelLoad(1.0, ConstantRows()),),
            ),
            None,
        ),
        models=(VariantRange(0, 1),),
        seed=1,
    )


def _memory_mib(name: str) -> float:
    """VmRSS, the resident memory now, or VmHWM, its peak; ru_maxrss would count the process before its exec."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1_024


def _work(settings: WorkerSettings, plan: Plan | ClosedPlan, pipe: Any) -> None:
    """In a process of its own: runs the plan and sends what it measured of itself."""
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    prepared_mib = _memory_mib("VmRSS")
    samples: list[tuple[int, float]] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_S):
            samples.append((worker.progress().n_done, _memory_mib("VmRSS")))

    sampler = threading.Thread(target=sample)
    sampler.start()
    clock = SystemClock()
    start_ns = clock.monotonic_ns() + _LEAD_NS
    worker.run(start_ns)
    seconds = (clock.monotonic_ns() - start_ns) / _S
    is_over.set()
    sampler.join()
    peak_mib = _memory_mib("VmHWM")
    pipe.send((prepared_mib, peak_mib, seconds, samples))


def _tables(folder: str, table: str) -> pa.Table:
    with pa.OSFile(str(Path(folder) / f"{table}-0.arrows")) as data:
        return pa.concat_tables(part.unify_dictionaries() for part in read_spill(data))


def _quantile_us(values: Any, q: float) -> float | None:
    return round(float(np.quantile(values, q)) / 1_000, 1) if len(values) else None


def run_once(protocol: str, null: NullProcess, plan: Plan | ClosedPlan, n_connections: int) -> Scale:
    """One run of one worker. Raises EOFError where the worker could not run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = WorkerSettings(
            run="r", node="node-0", worker=0, seed=1,
            targets=(TargetSettings("null", "127.0.0.1", null.ports[protocol], (null_spec(),)),),
            rules=Rules(60 * _S), n_connections=n_connections,
            spill_dir=folder, protocol=protocol,
        )  # fmt: skip
        context = multiprocessing.get_context("spawn")  # a fork would begin with the memory of this process
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(settings, plan, theirs))
        process.start()
        theirs.close()
        try:
            prepared_mib, peak_mib, seconds, samples = ours.recv()
        finally:
            process.join()
            ours.close()
        rows, seen = _tables(folder, "requests"), _tables(folder, "worker_samples")
    outcomes = rows.column("outcome").cast(pa.string()).to_pylist()
    sent, done = (rows.column(name).to_numpy() for name in ("sent_ns", "done_ns"))
    steps = np.concatenate([np.full(len(sent), 1), np.full(len(done), -1)])
    order = np.argsort(np.concatenate([sent, done]), kind="stable")
    is_open_loop = rows.column("scheduled_ns").null_count == 0
    lags = sent - rows.column("scheduled_ns").to_numpy() if is_open_loop else np.empty(0)
    return Scale(
        len(outcomes), outcomes.count("ok"), int(np.cumsum(steps[order]).max()),
        int(np.max(seen.column("n_connections").to_numpy())), _quantile_us(lags, 0.5), _quantile_us(lags, 0.99),
        round(prepared_mib, 1), round(peak_mib, 1), round(seconds, 2), samples,
    )  # fmt: skip


def held(protocol: str, n: int) -> Scale:
    """`n` requests that arrive within a second or two and are answered together, long enough after the last of them."""
    within_s = n / 5_000
    hold_s = within_s + 10
    with NullProcess(f"--service=constant:{round(hold_s * 1_000)}ms") as null:
        return run_once(protocol, null, held_plan(n, within_s, hold_s + 30), 16)


def closed(protocol: str, n_users: int) -> Scale:
    """`n_users` that come within 3 s, wait 20 s for each answer and ask again at once, for 25 s."""
    with NullProcess("--service=constant:20s") as null:
        return run_once(protocol, null, closed_plan(n_users, 25.0, ramp_s=3.0), 16)


def long(protocol: str, n: int) -> tuple[Scale, float]:
    """About `n` requests as quick as one worker can; with MiB per million requests."""
    with NullProcess() as null:
        trial = run_once(protocol, null, closed_plan(_LONG_USERS, _LONG_TRIAL_S), _LONG_USERS)
        seconds = n / (trial.n / _LONG_TRIAL_S)
        found = run_once(protocol, null, closed_plan(_LONG_USERS, seconds), _LONG_USERS)
    late = [(done, mib) for done, mib in found.samples if done > found.n / 4]
    n_done, mib = map(np.array, zip(*late, strict=True))
    slope = np.polyfit(n_done, mib, 1)[0]
    return found, round(float(slope) * 1e6, 2)


def _told(scale: Scale) -> dict[str, Any]:
    return {name: value for name, value in vars(scale).items() if name != "samples"}


def main() -> None:
    """Prints the JSON object."""
    n_long = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    found: dict[str, Any] = {"has_files_enough": has_files_for(10_000)}
    for protocol in ("http", "grpc"):
        for n in (1_000, 10_000):
            found[f"held {protocol} {n}"] = _told(held(protocol, n))
            found[f"closed {protocol} {n}"] = _told(closed(protocol, n))
        scale, slope = long(protocol, n_long)
        found[f"long {protocol}"] = {**_told(scale), "rss_mib_per_million": slope}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
