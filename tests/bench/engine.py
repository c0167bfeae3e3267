"""What a request costs the client and how punctual it is, beside other tools against one real Triton.

    python -m tests.bench.engine [SECONDS]
    python -m tests.bench.engine --payloads [SECONDS]    ours alone, few and many distinct payloads of 4 KiB in turn
    python -m tests.bench.engine --data [SECONDS]    the same of payloads from a file

prints one JSON object; see `tests.bench.rivals` for where the other tools are looked for and how their figures are
made. Ours are made alike: one worker in a process of its own, scheduled as in a run, records and schedule included,
CPU by getrusage;
`cpu_us_per_request` is that of a long run less that of a short one, over the difference of their requests.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.lane import IS_BUILT
from squall.actors.load.targets import TargetSettings, Wire, pack
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.messages.packed import PackWriter
from squall.actors.spill import read_spill
from squall.scenarios.arrivals.stationary import GammaArrivals
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.bench import rivals
from tests.bench.target import Target, real_triton

_S = 1_000_000_000
_LEAD_NS = 100_000_000
_SHORT_SHARE = 0.4
_PAYLOAD_WIDTH = 1_024
_PAYLOAD_VARIANTS = (4, 10_000)
_PAYLOAD_ROUNDS = 3
_USERS = (1, 8, 64)
_GAMMA_CV = 2.0
_GAMMA_RATES_HZ = (500.0, 1_000.0, 2_000.0, 4_000.0)
_SPIN_NS = (0, 100_000)
_DISPERSION_MS = (10, 100, 1_000)


def closed_plan(n_users: int, seconds: float, n_variants: int = 4) -> ClosedPlan:
    """Users without think time."""
    end_ns = round(seconds * _S)
    return ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        spans=(PhaseSpan("m", "measure", 0, end_ns), PhaseSpan("d", "drain", end_ns, end_ns + 5 * _S)),
        phases=(
            ClosedPhase(
                n_users, ConstantThink(kind="constant"), 0, ConstantRows(), (ModelLoad(1.0, ConstantRows()),)
            ),
            None,
        ),
        models=(VariantRange(0, n_variants),),
        seed=1,
    )


def gamma_plan(rate_hz: float, seconds: float) -> Plan:
    """Arrivals with gamma gaps of CV 2, and 5 s for the last replies."""
    arrivals = GammaArrivals(kind="gamma", rate=f"{rate_hz}/s", cv=_GAMMA_CV)
    offsets = arrivals.draw(np.random.default_rng(1), round(seconds * _S))
    n = len(offsets)
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=offsets, phase=np.zeros(n, np.uint8), rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8), spans=(PhaseSpan("m", "measure", 0, round((seconds + 5) * _S)),),
    )  # fmt: skip


def _work(settings: WorkerSettings, plan: Plan | ClosedPlan, pipe: Any) -> None:
    """In a process of its own: runs the plan and sends (CPU s, peak MiB)."""
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    before = resource.getrusage(resource.RUSAGE_SELF)
    worker.run(SystemClock().monotonic_ns() + _LEAD_NS)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    pipe.send((cpu_s, after.ru_maxrss / 1_024))


def run_once(
    target: Target,
    protocol: str,
    plan: Plan | ClosedPlan,
    n_connections: int,
    spin_ns: int = 0,
    has_lane: bool = True,
    **settings: Any,
) -> Any:
    """(CPU s, peak MiB, rows of `requests`) of one run; raises RuntimeError where a request is not ok.

    `settings` are those of the worker that are to be others.
    """
    port = target.grpc_port if protocol == "grpc" else target.http_port
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerSettings(
            "r", "node-0", 0, (TargetSettings("server-0", target.host, port, (target.spec,)),), 1, Rules(5 * _S),
            n_connections, folder, protocol, spin_ns=spin_ns, lane=has_lane, priority="auto",
        )  # fmt: skip
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(replace(worker, **settings), plan, theirs)
        )
        process.start()
        cpu_s, peak_mib = ours.recv()
        process.join()
        with pa.OSFile(str(Path(folder) / "requests-0.arrows")) as data:
            rows = pa.concat_tables(list(read_spill(data)))
    outcomes = set(rows.column("outcome").to_pylist())
    if outcomes != {"ok"}:
        raise RuntimeError(f"the bench is void: outcomes {outcomes}")
    return cpu_s, peak_mib, rows


def _quantiles(values_ns: Any) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values_ns, q)) / 1_000, 1) for q in (50, 95, 99)}


def closed(
    target: Target,
    protocol: str,
    n_users: int,
    seconds: float,
    has_lane: bool = IS_BUILT,
    n_variants: int = 4,
    **settings: Any,
) -> dict[str, Any]:
    """Ours in a closed loop without think time, through the lane or all in Python; `settings` as of `run_once`."""
    n_connections = n_users if protocol == "http" else min(n_users, 4)
    plans = [closed_plan(n_users, length_s, n_variants) for length_s in (seconds * _SHORT_SHARE, seconds)]
    runs = [run_once(target, protocol, plan, n_connections, 0, has_lane, **settings) for plan in plans]
    (short_cpu_s, _, short), (cpu_s, peak_mib, rows) = runs
    n_more = rows.num_rows - short.num_rows
    sent, done = (rows.column(name).to_numpy() for name in ("sent_ns", "done_ns"))
    return {
        "tool": "squall" if has_lane else "squall, all in Python", "protocol": protocol,
        "load": f"closed, {n_users} users", "n_requests": rows.num_rows,
        "rate_hz": round(rows.num_rows / seconds), "cpu_us_per_request": round((cpu_s - short_cpu_s) / n_more * 1e6, 2),
        "service_us": _quantiles(done - sent), "peak_mib": round(peak_mib),
    }  # fmt: skip


def opened(target: Target, protocol: str, rate_hz: float, seconds: float, spin_ns: int) -> dict[str, Any]:
    """Ours in an open loop of gamma arrivals: how late the sends were."""
    plan = gamma_plan(rate_hz, seconds)
    cpu_s, _, rows = run_once(target, protocol, plan, 64 if protocol == "http" else 4, spin_ns)
    sent, scheduled = (rows.column(name).to_numpy() for name in ("sent_ns", "scheduled_ns"))
    return {
        "tool": "squall", "protocol": protocol, "load": f"open, gamma CV 2, {rate_hz:g}/s", "spin_us": spin_ns / 1_000,
        "n_requests": len(plan), "cpu_us_per_request": round(cpu_s / len(plan) * 1e6, 1),
        "send_lag_us": _quantiles(sent - scheduled),
        "delivered_over_planned": round((len(sent) - 1) / np.ptp(sent) / ((len(scheduled) - 1) / np.ptp(scheduled)), 5),
        "dispersion_over_planned": {
            f"{ms} ms": round(_dispersion(sent, scheduled, ms) / _dispersion(scheduled, scheduled, ms), 4)
            for ms in _DISPERSION_MS
        },
    }  # fmt: skip


def _dispersion(instants_ns: Any, scheduled_ns: Any, bin_ms: int) -> float:
    """Index of dispersion for counts: variance over mean of the counts in bins of `bin_ms` (Cox and Lewis 1966)."""
    bins = np.arange(scheduled_ns.min(), scheduled_ns.max(), bin_ms * 1_000_000)
    counts = np.histogram(instants_ns, bins)[0]
    return float(counts.var() / counts.mean())


def pacer(target: Target, rate_hz: float, seconds: float) -> dict[str, Any]:
    """An asyncio `call_later` pacer over the same arrivals."""
    figure = rivals.call_later_pacer(target, gamma_plan(rate_hz, seconds).offset_ns, loop="asyncio")
    return asdict(replace(figure, load=f"open, gamma CV 2, {rate_hz:g}/s"))


def packed_payloads(target: Target, protocol: str, n: int, folder: Path) -> tuple[str]:
    """A file of so many encoded requests, as the driver makes it of a user's data."""
    path = folder / f"{protocol}-{n}"
    writer, rng = PackWriter(path), np.random.default_rng(1)
    for number in range(n):
        inputs = {"INPUT": rng.standard_normal((1, _PAYLOAD_WIDTH), np.float32)}
        pack(writer, target.spec, Wire(protocol), (1, number), inputs)
    writer.close()
    return (str(path),)


def payloads(target: Target, seconds: float, folder: Path | None = None) -> list[dict[str, Any]]:
    """CPU per request with few and many distinct payloads, in turn; the median of each and their ratio.

    `folder`: takes files of payloads; None: squall makes them.
    """
    figures = []
    for protocol in ("http", "grpc"):
        found: dict[int, list[float]] = {n: [] for n in _PAYLOAD_VARIANTS}
        files = {n: packed_payloads(target, protocol, n, folder) for n in _PAYLOAD_VARIANTS if folder}
        for n in (*_PAYLOAD_VARIANTS, *reversed(_PAYLOAD_VARIANTS)) * _PAYLOAD_ROUNDS:
            figure = closed(target, protocol, _USERS[-1], seconds, n_variants=n, packed=files.get(n, ()))
            found[n].append(figure["cpu_us_per_request"])
        few, many = (statistics.median(found[n]) for n in _PAYLOAD_VARIANTS)
        figures.append({
            "protocol": protocol, "load": figure["load"], "payload_bytes": 4 * _PAYLOAD_WIDTH,
            "from": "file" if folder else "seed",
            "cpu_us_per_request": {str(n): sorted(values) for n, values in found.items()},
            "medians": [few, many], "ratio": round(many / few, 2),
        })  # fmt: skip
    return figures


def main() -> None:
    if "--payloads" in sys.argv:
        with real_triton(width=_PAYLOAD_WIDTH) as target:
            print(json.dumps(payloads(target, float(sys.argv[2]) if len(sys.argv) > 2 else 4.0), indent=2))
        return
    if "--data" in sys.argv:
        with real_triton(width=_PAYLOAD_WIDTH) as target, tempfile.TemporaryDirectory() as folder:
            seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
            print(json.dumps(payloads(target, seconds, Path(folder)), indent=2))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    figures: list[Any] = []
    lacking = rivals.missing()
    with real_triton() as target:
        for n_users in _USERS:
            figures += [
                closed(target, protocol, n_users, seconds, has_lane)
                for has_lane in (True, False)[not IS_BUILT :]
                for protocol in ("http", "grpc")
            ]
            if "wrk" not in lacking:
                figures.append(asdict(rivals.wrk(target, n_users, seconds)))
            if "perf_analyzer" not in lacking:
                figures += [
                    asdict(rivals.perf_analyzer(target, one, n_users, seconds)) for one in ("http", "grpc")
                ]
            if "locust" not in lacking:
                figures.append(asdict(rivals.locust(target, n_users, seconds)))
            if "grpc.aio" not in lacking:
                figures.append(asdict(rivals.grpc_aio(target, n_users, seconds)))
        for rate_hz in _GAMMA_RATES_HZ:
            figures += [opened(target, "http", rate_hz, seconds, spin_ns) for spin_ns in _SPIN_NS]
            figures += [opened(target, "grpc", rate_hz, seconds, spin_ns) for spin_ns in _SPIN_NS]
            figures.append(pacer(target, rate_hz, seconds))
    machine = {"cpu_count": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(json.dumps({"machine": machine, "missing": lacking, "figures": figures}, indent=2))


if __name__ == "__main__":
    main()
