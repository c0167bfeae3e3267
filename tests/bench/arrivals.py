"""What planning costs: every arrival process at 10 million arrivals, and a trace of 100 million dealt to 32 workers.

    python -m tests.bench.arrivals [--quick] [KIND ...]

prints two tables in Markdown, medians of three runs of each in a process of its own: `plan_scenario` and `sha256`, in
seconds of the clock and of CPU, all threads together, the whole process (imports too) and its highest resident memory;
then the making of a Parquet trace, its plan and its parts one after the other, with a check that these have every
arrival, and that the part of one worker has the digest of the plan. --quick takes a tenth of the arrivals, once.
With KIND, processes or `trace`, only those.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

_RATE_HZ = 1_000_000
_N_ARRIVALS = 10_000_000
_N_TRACE = 100_000_000
_N_WORKERS = 32
_N_RUNS = 3
_MIB = 2**20
_T = TypeVar("_T")


def _kinds() -> dict[str, dict[str, Any]]:
    """The arrivals of a phase, without its rate, by the name of the row."""
    gamma = {"kind": "gamma", "cv": 2.0}
    two = [
        {"kind": "poisson", "rate": f"{_RATE_HZ // 2}/s"},
        {**gamma, "rate": f"{_RATE_HZ // 2}/s"},
    ]
    stretches = [{"duration": "300ms", "arrivals": {**gamma, "rate": f"{_RATE_HZ}/s"}}]
    stretches += [{"duration": "1s", "arrivals": {"kind": "poisson", "rate": f"{_RATE_HZ}/s"}}]

    def envelope(residual: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "kind": "envelope", "shape": {"kind": "log-ar1", "sigma": 0.4, "tau": "1s", "bin": "10ms"},
            "residual": dict(residual),
        }  # fmt: skip

    return {
        "constant": {"kind": "constant"},
        "poisson": {"kind": "poisson"},
        "gamma, cv 2": gamma,
        "weibull, shape 0.5": {"kind": "weibull", "shape": 0.5},
        "lognormal, cv 2": {"kind": "lognormal", "cv": 2.0},
        "pareto, alpha 1.5": {"kind": "pareto", "alpha": 1.5},
        "hyperexponential, cv 2": {"kind": "hyperexponential", "cv": 2.0},
        "mmpp": {"kind": "mmpp", "peak": 1.7, "base": 0.14, "tau": "100ms"},
        "on-off, 100 pareto sources": {
            "kind": "on-off", "sources": 100, "on": {"kind": "pareto", "alpha": 1.4, "mean": "10ms"},
            "off": {"kind": "pareto", "alpha": 1.4, "mean": "40ms"},
        },
        "fgn": {"kind": "fgn", "hurst": 0.9, "sigma": 0.4, "bin": "1ms"},
        "b-model": {"kind": "b-model", "bias": 0.6, "bin": "1ms"},
        "envelope x poisson": envelope({"kind": "poisson"}),
        "envelope x gamma": envelope({"kind": "gamma", "cv": 1.5}),
        "diurnal x poisson": {
            "kind": "envelope", "shape": {"kind": "diurnal", "peak": 1.8, "period": "10s"},
            "residual": {"kind": "poisson"},
        },
        "ticks": {"kind": "ticks", "period": "1ms"},
        "concatenate": {"kind": "concatenate", "parts": stretches},
        "hawkes, n 0.9": {"kind": "hawkes", "n": 0.9, "beta": "10000/s"},
        "envelope x hawkes": envelope({"kind": "hawkes", "n": 0.5, "beta": 0.5}),
        "superpose": {"kind": "superpose", "parts": two},
        "clients, 100": {"kind": "clients", "clients": 100, "zipf": 1.0, "cv": 1.5, "cv_sigma": 0.5},
    }  # fmt: skip


_WITHOUT_RATE = ("superpose", "concatenate", "trace")


def scenario_of(
    arrivals: Mapping[str, Any], duration: str, rows: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A scenario of one phase, as the file has it."""
    return {
        "name": "bench", "seed": 1, "model": {"name": "dense", "max_batch_size": 32},
        "clients": {"rows": dict(rows or {"kind": "constant", "value": 1}), "payload_variants": 4},
        "phases": [
            {"name": "load", "kind": "measure", "duration": duration, "arrivals": dict(arrivals)},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip


def plan_one(name: str, n: int) -> dict[str, Any]:
    """Plans `n` arrivals of a process here and says what that cost."""
    from squall.scenarios.config.loader import scenario_from_mapping
    from squall.scenarios.plan.drafting import plan_scenario

    arrivals = _kinds()[name]
    if arrivals["kind"] not in _WITHOUT_RATE:
        arrivals["rate"] = f"{_RATE_HZ}/s"
    duration = f"{n * (1_000_000_000 // _RATE_HZ)}ns"
    scenario = scenario_from_mapping(scenario_of(arrivals, duration), "bench")
    plan, planned = _timed(lambda: plan_scenario(scenario))
    _, digested = _timed(plan.sha256)
    return {
        "n": len(plan), "plan_s": planned[0], "plan_cpu_s": planned[1], "sha_cpu_s": digested[1],
        "process_cpu_s": time.process_time(), "peak_mib": _peak_mib(),
    }  # fmt: skip


def make_trace(path: Path, n: int) -> dict[str, Any]:
    """Writes a Parquet trace of `n` Poisson arrivals with a size and a client each, a million at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(4)
    schema = pa.schema([("timestamp_ns", pa.int64()), ("tokens", pa.int32()), ("client_id", pa.int32())])
    last_ns, step = 0, 1_000_000

    def write() -> None:
        nonlocal last_ns
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for start in range(0, n, step):
                count = min(step, n - start)
                stamps = last_ns + np.cumsum(rng.integers(0, 20_000, count))
                last_ns = int(stamps[-1])
                columns = [
                    stamps,
                    rng.integers(1, 2_000, count, np.int32),
                    rng.integers(0, 5_000, count, np.int32),
                ]
                writer.write_table(pa.table([pa.array(column) for column in columns], schema))

    _, (wall_s, cpu_s) = _timed(write)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": _peak_mib(), "file_mib": path.stat().st_size / _MIB}


def deal_trace(path: Path, rule: str, n: int) -> dict[str, Any]:
    """Plans the trace and deals it to the workers, one part after the other."""
    from squall.scenarios.config.loader import scenario_from_mapping
    from squall.scenarios.plan.drafting import plan_scenario
    from squall.scenarios.plan.plan import deal

    arrivals = {"kind": "trace", "file": str(path)}
    mapping = scenario_of(
        arrivals, f"{n * 10_000 + 10**9}ns", {"kind": "trace", "size": "tokens", "per_row": 64.0, "max": 32}
    )
    mapping["clients"]["deal"] = rule
    scenario = scenario_from_mapping(mapping, "bench")
    plan, planned = _timed(lambda: plan_scenario(scenario))
    digest, digested = _timed(plan.sha256)
    peak_planned_mib = _peak_mib()
    n_dealt, dealt = _timed(lambda: sum(len(part) for part in deal(plan, _N_WORKERS)))
    peak_dealt_mib, anonymous_mib = _peak_mib(), _anonymous_mib()
    part_bytes = 22 * len(next(deal(plan, _N_WORKERS)))
    alone = next(deal(plan, 1)).sha256()
    return {
        "rule": rule, "n": len(plan), "is_exact": n_dealt == len(plan) == n and alone == digest,
        "plan_s": planned[0], "plan_cpu_s": planned[1], "sha_cpu_s": digested[1], "deal_s": dealt[0],
        "deal_cpu_s": dealt[1], "part_mib": part_bytes / _MIB,
        "peak_planned_mib": peak_planned_mib, "peak_dealt_mib": peak_dealt_mib, "anonymous_mib": anonymous_mib,
        "peak_mib": _peak_mib(),
    }  # fmt: skip


def _timed(work: Callable[[], _T]) -> tuple[_T, tuple[float, float]]:
    """What `work` gives; seconds of the clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, (time.perf_counter() - wall, time.process_time() - cpu)


def _peak_mib() -> float:
    """VmHWM: the highest resident memory of this process so far, mapped pages of files too."""
    return _status_mib("VmHWM")


def _anonymous_mib() -> float:
    return _status_mib("RssAnon")


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _in_a_process(*arguments: str) -> dict[str, Any]:
    """The answer of this module run with `arguments` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.arrivals", *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: statistics.median(row[name] for row in rows)
        if isinstance(rows[0][name], float)
        else rows[0][name]
        for name in rows[0]
    }


def _table_of_processes(names: list[str], n: int, n_runs: int) -> None:
    print("| process | arrivals | plan, s | plan, CPU s | sha256, CPU s | process, CPU s | peak, MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        row = _median([_in_a_process("--one", name, str(n)) for _ in range(n_runs)])
        print(
            f"| {name} | {row['n']:,} | {row['plan_s']:.2f} | {row['plan_cpu_s']:.2f} | {row['sha_cpu_s']:.2f}"
            f" | {row['process_cpu_s']:.2f} | {row['peak_mib']:.0f} |",
            flush=True,
        )


def _table_of_deals(n: int, n_runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="squall-bench-") as folder:
        path = Path(folder) / "trace.parquet"
        made = _in_a_process("--make", str(path), str(n))
        print(
            f"\n{n:,} arrivals in Parquet: {made['file_mib']:.0f} MiB, written in {made['wall_s']:.0f} s with"
            f" {made['peak_mib']:.0f} MiB; dealt to {_N_WORKERS} workers:\n"
        )
        print(
            "| deal | plan, s | sha256, s | deal, s | a part, MiB | peak RSS, MiB | anonymous, MiB | exact |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for rule in ("sequence", "hash", "session"):
            row = _median([_in_a_process("--deal", str(path), rule, str(n)) for _ in range(n_runs)])
            print(
                f"| {rule} | {row['plan_s']:.1f} | {row['sha_cpu_s']:.2f} | {row['deal_s']:.1f}"
                f" | {row['part_mib']:.0f} | {row['peak_dealt_mib']:.0f} | {row['anonymous_mib']:.0f}"
                f" | {'yes' if row['is_exact'] else 'NO'} |",
                flush=True,
            )


def main(arguments: list[str]) -> None:
    """One row for a parent process, or all of them."""
    match arguments:
        case ["--one", name, n]:
            print(json.dumps(plan_one(name, int(n))))
        case ["--make", path, n]:
            print(json.dumps(make_trace(Path(path), int(n))))
        case ["--deal", path, rule, n]:
            print(json.dumps(deal_trace(Path(path), rule, int(n))))
        case _:
            is_quick = "--quick" in arguments
            scale, n_runs = (10, 1) if is_quick else (1, _N_RUNS)
            wanted = [name for name in arguments if name != "--quick"]
            names = [name for name in _kinds() if not wanted or name.split(",")[0] in wanted]
            if names:
                _table_of_processes(names, _N_ARRIVALS // scale, n_runs)
            if not wanted or "trace" in wanted:
                _table_of_deals(_N_TRACE // scale, n_runs)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])
