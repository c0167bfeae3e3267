"""What several workers send together is what one would send: the union exact, and as bursty."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from squall.analysis.arrays import Int64s
from squall.analysis.limits import LIMITS
from squall.analysis.requests.stimulus import compare_dispersion
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.plan.plan import Plan, deal
from tests.fakes import StubTriton
from tests.golden.driving import MS, REPLY_BYTES, S, numbers, plan_of, run_worker, settings_of

ROOT = Path(__file__).parents[2]
LENGTH_NS = 2 * S
WINDOW_NS = S // 10
QUIET_P99_NS = 5 * MS
"""Send lag beyond which the host was not quiet: four workers, a server and the test share its cores."""

WORKER = """
import json, pickle, sys
from dataclasses import replace
from pathlib import Path
from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker
from tests.golden.driving import numbers, requests_of, settings_of

folder, port, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
settings = replace(settings_of(folder, port, n_connections=16), worker=number)
worker = LoadWorker(settings, SystemClock())
worker.prepare(pickle.loads((folder / f"plan-{number}").read_bytes()))
print("ready", flush=True)
worker.run(int(sys.stdin.readline()))
rows = requests_of(settings)
print(json.dumps({name: numbers(rows, name).tolist() for name in ("request_id", "scheduled_ns", "sent_ns")}))
"""


def clustered(seed: int, rate_hz: float, length_ns: int) -> Int64s:
    """Offsets with gamma gaps of c² 9: of ten windows of 0.1 s, some are nearly empty and one has a hundred."""
    n = round(2 * rate_hz * length_ns / S) + 100
    times = np.cumsum(np.random.default_rng(seed).gamma(1 / 9, 9 * S / rate_hz, n)).astype(np.int64)
    return np.asarray(times[times < length_ns], dtype=np.int64)


def sent_by_processes(n_workers: int, plan: Plan, folder: Path) -> dict[str, Int64s]:
    """Rows of all workers, each a process that follows its part, by request_id; instants from the start instant."""
    folder.mkdir()
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        workers = []
        for number, part in enumerate(deal(plan, n_workers)):
            (folder / f"plan-{number}").write_bytes(pickle.dumps(part))
            command = [sys.executable, "-c", WORKER, str(folder), str(stub.port), str(number)]
            workers.append(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        try:
            for worker in workers:
                assert worker.stdout
                assert worker.stdout.readline() == "ready\n"
            start_ns = time.monotonic_ns() + 200 * MS
            said = _outputs(workers, start_ns)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    parts = [json.loads(text) for text in said]
    rows = {name: np.concatenate([np.array(part[name], np.int64) for part in parts]) for name in parts[0]}
    order = np.argsort(rows["request_id"], kind="stable")
    return {name: values[order] - (0 if name == "request_id" else start_ns) for name, values in rows.items()}


def _outputs(workers: list[subprocess.Popen[str]], start_ns: int) -> list[str]:
    """Tells all the start instant, then reads each to its end."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write(f"{start_ns}\n")
        worker.stdin.flush()
    return [worker.communicate(timeout=60)[0] for worker in workers]


def sent_by_one(plan: Plan, folder: Path) -> dict[str, Int64s]:
    """The same of one worker in this process."""
    folder.mkdir()
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        rows = run_worker(settings_of(folder, stub.port, n_connections=16), plan)
    start_ns = int(rows.column("scheduled_ns")[0].as_py()) - int(plan.offset_ns[0])
    instants = {name: numbers(rows, name) - start_ns for name in ("scheduled_ns", "sent_ns")}
    return {"request_id": numbers(rows, "request_id"), **instants}


def change_of(planned: Int64s, sent: Int64s, length_ns: int = LENGTH_NS) -> tuple[float, float]:
    """Relative change of the dispersion from one series to the other, and the limit of a run's check."""
    span = RunPhase("m", "measure", 0, length_ns)
    found = compare_dispersion(np.sort(planned), np.sort(sent), span, WINDOW_NS, LIMITS)
    assert found is not None
    return abs(found.change_ratio), found.limit_ratio


@pytest.mark.slow
@pytest.mark.serial
def test_four_workers_together_send_what_one_does(tmp_path: Path) -> None:
    # nothing due in the last tenth, so that a late send still falls into the span
    plan = plan_of(clustered(4, 300.0, LENGTH_NS - WINDOW_NS).tolist(), LENGTH_NS)
    one = sent_by_one(plan, tmp_path / "one")
    four = sent_by_processes(4, plan, tmp_path / "four")
    for rows in (one, four):
        assert rows["request_id"].tolist() == plan.seq.tolist()
        assert rows["scheduled_ns"].tolist() == plan.offset_ns.tolist()
    pairs = [(plan.offset_ns, one), (plan.offset_ns, four), (one["sent_ns"], four)]
    changes = [change_of(planned, rows["sent_ns"]) for planned, rows in pairs]
    lags_ns = [float(np.quantile(rows["sent_ns"] - plan.offset_ns, 0.99)) for rows in (one, four)]
    is_alike = all(change <= limit for change, limit in changes)
    if not is_alike and max(lags_ns) > QUIET_P99_NS:
        pytest.skip(f"a quiet host: here the send lag p99 was {lags_ns} ns")
    assert is_alike, (changes, lags_ns)


def test_neither_a_part_nor_independent_draws_have_the_dispersion_of_the_whole() -> None:
    length_ns = 300 * S
    whole = clustered(4, 300.0, length_ns)
    for part in deal(plan_of(whole.tolist(), length_ns), 4):
        change, limit = change_of(whole, part.offset_ns, length_ns)
        assert change > 5 * limit
    for seed in range(100, 180, 4):
        together = np.concatenate([clustered(seed + i, 300.0 / 4, length_ns) for i in range(4)])
        change, limit = change_of(whole, together, length_ns)
        assert change > 2 * limit
