"""How late sends are while other work wants every core, by what the sending thread is given.

    python -m tests.bench.priority [SECONDS] [ROUNDS] [--quiet]

prints one JSON object. Twice as many busy loops as cores run beside one worker that follows gamma arrivals of CV 2 at
300/s against a null server, in turn at niceness 15 (what Ray gives unless told otherwise), at niceness 0, at the best
niceness without real time, and in real time; the last two by `clients.priority: auto`, which is told in the former
that RLIMIT_NICE allows -10 and nothing allows real time. `--quiet`: without the loops. The loops end by themselves.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import WorkerSettings
from squall.actors.process.priority import Priority
from squall.actors.spill import read_spill
from squall.cluster.commands.local_workers import NullTriton
from squall.models.spec import head_spec
from tests.bench.engine import gamma_plan

_S = 1_000_000_000
_RATE_HZ = 300.0
_LEAD_NS = 500_000_000
_LOOPS_PER_CORE = 2
_SLACK_S = 15.0
_SPEC = head_spec("linear_head", "1", {"width": 64, "classes": 2}, 32)
_PROBE = ("-m", "squall.actors.load.worker_process")
_WITHOUT_REALTIME = (
    "-c",
    "import sys, squall.actors.load.sender as s; s.powers = lambda: s.Powers(False, -10, 0, True);"
    " import squall.actors.load.worker_process; sys.exit(squall.actors.load.worker_process.main())",
)
ARRANGEMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Priority]] = {
    "niceness 15": (("nice", "-n", "15"), _PROBE, "normal"),
    "niceness 0": ((), _PROBE, "normal"),
    "niceness -10": ((), _WITHOUT_REALTIME, "auto"),
    "real time": ((), _PROBE, "auto"),
}
"""What stands before the worker's command, what Python runs, and its `clients.priority`."""


@contextmanager
def busy_loops(n: int, seconds: float) -> Iterator[None]:
    """So many processes that compute until the block ends, at the longest so long."""
    script = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-I", "-S", "-c", script]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _steal_ms() -> int:
    """What the hypervisor has kept from all cores so far: a stall of it is no fault of a scheduler's."""
    ticks = int(Path("/proc/stat").read_text(encoding="ascii").split()[8])
    return ticks * 1_000 // os.sysconf("SC_CLK_TCK")


def send_lags(
    server: NullTriton, arrangement: str, seconds: float, n_loops: int, spin_ns: int = 0
) -> dict[str, Any]:
    """Lags of one worker's sends, in us; an arrival that was not sent is late by the time to the run's end at least."""
    prefix, program, priority = ARRANGEMENTS[arrangement]
    with tempfile.TemporaryDirectory() as folder:
        settings = WorkerSettings(
            "r", "node-0", 0, (TargetSettings("server-0", "127.0.0.1", server.port("http"), (_SPEC,)),), 1,
            Rules(30 * _S), 64, folder, priority=priority, spin_ns=spin_ns,
        )  # fmt: skip
        plan = gamma_plan(_RATE_HZ, seconds)
        with subprocess.Popen(
            [*prefix, sys.executable, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as probe:
            assert probe.stdin
            assert probe.stdout
            probe.stdin.write(pickle.dumps((settings, plan)))
            probe.stdin.flush()
            assert json.loads(probe.stdout.readline()) == {"is_ready": True}
            with busy_loops(n_loops, seconds + _SLACK_S):
                steal_before = _steal_ms()
                start_ns = time.monotonic_ns() + _LEAD_NS
                probe.stdin.write(b"%d\n" % start_ns)
                probe.stdin.flush()
                cost = json.loads(probe.stdout.readline())
                steal_ms = _steal_ms() - steal_before
            probe.stdin.close()
        with pa.OSFile(str(Path(folder) / "requests-0.arrows")) as data:
            rows = pa.concat_tables(list(read_spill(data)))
    scheduled, sent = (
        rows.column(name).to_numpy(zero_copy_only=False) for name in ("scheduled_ns", "sent_ns")
    )
    is_sent = ~np.isnan(sent.astype(float))
    end_ns = start_ns + plan.spans[-1].end_ns
    lags_us = (np.where(is_sent, sent, end_ns) - scheduled) / 1_000
    return {
        "arrangement": arrangement, "n_planned": len(plan), "n_sent": int(is_sent.sum()),
        **{f"p{q:g}_us": round(float(np.percentile(lags_us, q)), 1) for q in (50, 95, 99, 99.9)},
        "max_us": round(float(lags_us.max()), 1), "steal_ms": steal_ms,
        "cpu_us_per_request": round((cost["user_ns"] + cost["system_ns"]) / 1_000 / len(plan), 1),
    }  # fmt: skip


def main() -> None:
    arguments = [text for text in sys.argv[1:] if text != "--quiet"]
    seconds = float(arguments[0]) if arguments else 8.0
    n_rounds = int(arguments[1]) if len(arguments) > 1 else 3
    n_cores = len(os.sched_getaffinity(0))
    n_loops = 0 if "--quiet" in sys.argv else _LOOPS_PER_CORE * n_cores
    load_before = os.getloadavg()
    with NullTriton() as server:
        figures = [
            send_lags(server, name, seconds, n_loops) for _ in range(n_rounds) for name in ARRANGEMENTS
        ]  # in turn: what else the host does meets all alike
    machine = {"cpu_count": n_cores, "python": platform.python_version(), "kernel": platform.release()}
    result = {"machine": machine, "load_before": load_before, "n_loops": n_loops, "figures": figures}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
