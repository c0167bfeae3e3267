"""Workers in processes of their own beside busy loops on every core: who is punctual, and who shuts nobody out."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.load.engine import Rules
from squall.actors.load.sender import Sender
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import WorkerSettings
from squall.actors.process.priority import Priority
from squall.actors.spill import read_spill
from squall.scenarios.plan.plan import Plan
from tests.bench.engine import gamma_plan
from tests.bench.priority import busy_loops
from tests.null_process import NullProcess, null_spec

_S = 1_000_000_000
_RATE_HZ, _SECONDS = 100.0, 2.0

needs_realtime = pytest.mark.skipif(
    Sender("auto", is_spinning=False, core=None).tried().policy != "fifo",
    reason="real time is not to be had here: it needs CAP_SYS_NICE or an RLIMIT_RTPRIO",
)


@contextmanager
def probe(
    port: int,
    folder: Path,
    plan: Plan,
    priority: Priority,
    prefix: tuple[str, ...] = (),
    core: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is ready and waits for its start instant."""
    folder.mkdir()
    settings = WorkerSettings(
        "r", "node-0", 0, (TargetSettings("server-0", "127.0.0.1", port, (null_spec(),)),), 1, Rules(20 * _S), 16,
        str(folder), priority=priority, core=core,
    )  # fmt: skip
    command = [*prefix, sys.executable, "-m", "squall.actors.load.worker_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(pickle.dumps((settings, plan)))
            process.stdin.flush()
            assert b"is_ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[bytes], start_ns: int) -> None:
    assert process.stdin
    process.stdin.write(b"%d\n" % start_ns)
    process.stdin.flush()


def lags_ns(folder: Path) -> Any:
    """Of every arrival, sorted; one that was not sent is for ever late."""
    with pa.OSFile(str(folder / "requests-0.arrows")) as data:
        rows = pa.concat_tables(list(read_spill(data)))
    sent = rows.column("sent_ns").fill_null(2**62).to_numpy()
    return np.sort(sent - rows.column("scheduled_ns").to_numpy())


def policies(pid: int) -> dict[int, int]:
    """Of each thread (proc(5), field 41)."""
    folders = Path(f"/proc/{pid}/task").iterdir()
    return {int(one.name): int((one / "stat").read_text().rpartition(")")[2].split()[38]) for one in folders}


@needs_realtime
@pytest.mark.slow
def test_beside_busy_loops_a_sender_in_real_time_is_punctual_where_one_at_niceness_15_starves(
    tmp_path: Path,
) -> None:
    plan = gamma_plan(_RATE_HZ, _SECONDS)
    folders = tmp_path / "first", tmp_path / "last"
    with NullProcess() as server, ExitStack() as stack:
        core = max(os.sched_getaffinity(0))
        first = stack.enter_context(probe(server.ports["http"], folders[0], plan, "auto", core=core))
        nice = ("nice", "-n", "15")
        last = stack.enter_context(probe(server.ports["http"], folders[1], plan, "normal", nice))
        with busy_loops(2 * len(os.sched_getaffinity(0)), 12.0):
            start_ns = time.monotonic_ns() + _S // 5
            begin(first, start_ns)
            begin(last, start_ns)
            time.sleep(1.0)
            seen = policies(first.pid), policies(last.pid)
            cores = {tid: os.sched_getaffinity(tid) for tid in seen[0]}
            for process in (first, last):
                assert process.stdout
                assert b"wall_ns" in process.stdout.readline()
    (sending,) = [tid for tid, policy in seen[0].items() if policy == os.SCHED_FIFO]
    assert cores.pop(sending) == {core}
    assert all(others == os.sched_getaffinity(0) for others in cores.values())
    assert set(seen[1].values()) == {os.SCHED_OTHER}
    punctual, starved = (lags_ns(folder) for folder in folders)
    assert len(punctual) == len(starved) == len(plan) > 100
    at = int(0.9 * len(plan))
    assert 20 * punctual[at] < starved[at]


@needs_realtime
def test_a_sender_that_computes_all_the_time_loses_real_time_and_others_run_on(tmp_path: Path) -> None:
    # far more than one worker can send, all at once due
    n = 150_000
    plan = Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=np.arange(n, dtype=np.int64), phase=np.zeros(n, np.uint8),
        rows=np.ones(n, np.int32), variant=np.zeros(n, np.uint8), spans=gamma_plan(100.0, 1.0).spans,
    )  # fmt: skip
    with NullProcess() as server, probe(server.ports["http"], tmp_path / "w", plan, "auto") as process:
        begin(process, time.monotonic_ns() + _S // 5)
        seen: list[bool] = []
        while process.poll() is None and len(seen) < 40:
            time.sleep(0.05)
            seen.append(os.SCHED_FIFO in policies(process.pid).values())
        assert any(seen), "it was in real time at first"
        assert not all(seen[-5:]), "and is not while it computes all the time"
