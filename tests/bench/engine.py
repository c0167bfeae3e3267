"""What a request costs the client: one load worker here against a stub server in a process of its own.

    python -m tests.bench.engine

prints one JSON object. CPU is that of this process alone (getrusage), from the start instant to the last row, writer
thread included; the server only ever answers at once.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from actors.clock import SystemClock
from actors.engine import Rules
from actors.loadgen import LoadWorker, WorkerSettings
from actors.spool import read_spool
from models.spec import ModelSpec, TensorSpec
from scenarios.plan import PhaseSpan, Plan

_S = 1_000_000_000
_DURATION_S = 4
_RATES_HZ = (500, 2_000)
_LEAD_NS = 200_000_000
_SPEC = ModelSpec(
    "stub", "1", (TensorSpec("INPUT", "FP32", (64,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8
)


def poisson_plan(rate_hz: float) -> Plan:
    """Arrivals of a Poisson process over the bench's duration, and as long again for the last replies."""
    rng = np.random.default_rng(1)
    offsets = np.sort(rng.integers(0, _DURATION_S * _S, rng.poisson(rate_hz * _DURATION_S)))
    n = len(offsets)
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=offsets, phase=np.zeros(n, np.uint8), rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8), spans=(PhaseSpan("m", "measure", 0, 2 * _DURATION_S * _S),),
    )  # fmt: skip


def cpu_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * _S)


def measure(rate_hz: float, port: int, folder: Path) -> dict[str, Any]:
    """One run at `rate_hz`; raises RuntimeError where a request is missing or not ok."""
    plan = poisson_plan(rate_hz)
    worker = LoadWorker(
        WorkerSettings(
            "r", "node-0", 0, "server-0", "127.0.0.1", port, _SPEC, 1, {}, Rules(5 * _S), 16, str(folder)
        ),
        SystemClock(),
    )
    worker.prepare(plan)
    before_ns = cpu_ns()
    worker.run(time.monotonic_ns() + _LEAD_NS)
    used_ns = cpu_ns() - before_ns
    spill = folder / "requests-0.arrows"
    with pa.OSFile(str(spill)) as data:
        rows = pa.concat_tables(list(read_spool(data)))
    if set(rows.column("outcome").to_pylist()) != {"ok"} or len(rows) != len(plan):
        raise RuntimeError(f"the bench is void: {len(rows)} of {len(plan)} rows, or some not ok")
    lag_ns = rows.column("sent_ns").to_numpy() - rows.column("scheduled_ns").to_numpy()
    return {
        "rate_hz": rate_hz,
        "n_requests": len(plan),
        "cpu_us_per_request": round(used_ns / 1_000 / len(plan), 1),
        "send_lag_us": {f"p{q}": round(float(np.percentile(lag_ns, q)) / 1_000, 1) for q in (50, 90, 99)},
        "spilled_bytes_per_request": round(spill.stat().st_size / len(plan), 1),
    }


def main() -> None:
    command = [sys.executable, "-m", "tests.fakes", str(_SPEC.reply_bytes(1))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        port = int(server.stdout.readline())
        runs = []
        for rate_hz in _RATES_HZ:
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure(rate_hz, port, Path(folder)))
        server.stdin.close()
    machine = {"cpu_count": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(json.dumps({"machine": machine, "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
