"""`squall capacity` on real time: does its interval hold the answer that is known?

    python -m tests.bench.capacity_known --searches 10 --parallel 1 --cv 1 3 --requests 6000
    python -m tests.bench.capacity_known --triton --searches 10

The null Triton with a constant service time D is a first-come-first-served queue: under Poisson arrivals (gamma gaps of
cv 1) p95 is 7.61 D at a load of 0.8, under gamma gaps of cv 3 it is 63 D there. Each search is the command itself, with
seeds of its own, against a null server of its own that has a core to itself; with `--parallel` several at once, each on
cores of its own. `--triton`: a head on the CPU in a Triton that has a core to itself; a long scan of loads gives its
answer. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any, TypeVar

import yaml

from squall.cluster.node.server import TritonServer
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.units import NS_PER_S, parse_duration
from tests.null_process import NullProcess

LOAD = 0.8
LIMITS = {1.0: 7.61, 3.0: 63.0}
"""p95 over D at that load (tests/unit/analysis/studies holds both to a simulation)."""
_ON_CORES = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(',')));"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
_SCAN_SEED = 90_000
_HEAD = {
    "name": "seqlen_head",
    "settings": {"width": 256, "layers": 6, "sequence": 32, "classes": 2},
    "max_batch_size": 1,
}
_One = TypeVar("_One")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every search ended with an answer or a refusal of its own."""
    options = _parser().parse_args(arguments)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="squall-capacity-") as folder:
        found = (_of_triton if options.triton else _of_null)(options, Path(folder))
    minutes = (time.monotonic() - begun) / 60.0
    told = {
        "host_cores": os.cpu_count(),
        "python": platform.python_version(),
        "minutes": round(minutes, 1),
        **found,
    }
    print(json.dumps(told, indent=1))
    return 0


def alone_on(pid: int, core: int) -> None:
    """Ties a null server to a core, in real time where that is allowed: it stands for a host of its own."""
    os.sched_setaffinity(pid, [core])
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


def core_sets(n_parallel: int) -> list[list[int]]:
    """As many sets of cores of this process, apart from one another, each of two at least. Raises SystemExit.

    The threads of one physical core lie beside one another.
    """
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (min(_siblings(core)), core))
    size = len(cores) // n_parallel
    if size < 2:
        raise SystemExit(f"{n_parallel} searches at once need {2 * n_parallel} cores, there are {len(cores)}")
    return [cores[place * size : (place + 1) * size] for place in range(n_parallel)]


def _siblings(core: int) -> set[int]:
    """The hardware threads of a core's physical core, itself among them; itself alone where Linux does not tell."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text(
            encoding="ascii"
        )
    except OSError:
        return {core}
    ranges = [one.split("-") for one in text.strip().split(",")]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}


def _parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--searches", type=int, default=10, help="of each cv")
    out.add_argument(
        "--first", type=int, default=0, help="number of the first search: each has seeds of its own"
    )
    out.add_argument("--parallel", type=int, default=1, help="at once, each on cores of its own")
    out.add_argument("--cv", type=float, nargs="+", default=[1.0, 3.0], choices=sorted(LIMITS))
    out.add_argument("--requests", type=int, default=6_000, help="of a run")
    out.add_argument("--seeds", type=int, default=5, help="of a search")
    out.add_argument("--service", default="1600us", help="D of the null server")
    out.add_argument("--low", default="25%", help="as of squall capacity")
    out.add_argument("--triton", action="store_true", help="a head on the CPU instead of the null server")
    out.add_argument("--scan", type=int, default=9, help="loads of the scan")
    out.add_argument("--reach", type=float, default=1.25, help="of the scan, up and down from a first search")
    out.add_argument(
        "--scan-requests", type=int, default=30_000, help="of a run of the scan: short runs flatter"
    )
    out.add_argument("--scan-seeds", type=int, default=2, help="at each load of the scan")
    out.add_argument(
        "--limit", default="8ms", help="of p95 with --triton under Poisson; in proportion under cv 3"
    )
    out.add_argument(
        "--about", type=float, default=500.0, help="requests per second to begin with, with --triton"
    )
    return out


def queued(values: Iterable[_One]) -> SimpleQueue[_One]:
    """What works that go on at once take turns on."""
    found = SimpleQueue[_One]()
    for one in values:
        found.put(one)
    return found


@contextlib.contextmanager
def taken(queue: SimpleQueue[_One]) -> Iterator[_One]:
    """One of `queue`, which has it back at the end; waits for it."""
    one = queue.get()
    try:
        yield one
    finally:
        queue.put(one)


def _of_null(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cores = queued(core_sets(options.parallel))
    service_ns = parse_duration(options.service)
    truth_hz = LOAD * NS_PER_S / service_ns
    found: dict[str, Any] = {"service": options.service, "truth_hz": truth_hz, "requests": options.requests}
    for cv in options.cv:
        limit_ns = round(LIMITS[cv] * service_ns)
        scenario = null_scenario(truth_hz, cv, options.requests, limit_ns)

        def searched(number: int, scenario: dict[str, Any] = scenario, cv: float = cv) -> dict[str, Any]:
            served = NullProcess(f"--service=constant:{service_ns}ns", "--servers=1")
            with taken(cores) as own, served as null:
                alone_on(null.pid, own[0])
                url = f"http://127.0.0.1:{null.ports['http']}"
                place = folder / f"cv{cv:g}-{number}"
                return search(place, scenario, options, number, own[1:], ["--server", url])

        with ThreadPoolExecutor(options.parallel) as pool:
            found[f"cv_{cv:g}"] = _counted(
                pool.map(searched, range(options.first, options.first + options.searches)), truth_hz
            )
    return found


@dataclass(frozen=True)
class _Slot:
    """A Triton with a core to itself, and the cores of who asks it."""

    url: str
    cores: list[int]


def _of_triton(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The truth is where the late share of all seeds of a scan, taken together, crosses 5 %."""
    slots = SimpleQueue[_Slot]()
    with ExitStack() as stack:
        for number, own in enumerate(core_sets(options.parallel)):
            model = ModelConfig.model_validate(_HEAD)
            place = folder / f"server-{number}"
            place.mkdir()
            server = TritonServer([model], ServerConfig(), place, None, has_gpu=False, cores=(own[0],))
            stack.callback(server.stop)
            at = server.start()
            own = [core for core in own if core not in _siblings(own[0])] or own[1:]
            slots.put(_Slot(f"http://{at.host}:{at.port}", own))
        # the searches of both shapes, and the scans beside them, take turns on the same servers
        with ThreadPoolExecutor(len(options.cv)) as pool:
            found = pool.map(lambda cv: _of_head(options, folder / f"cv{cv:g}", slots, cv), options.cv)
            return {f"cv_{cv:g}": one for cv, one in zip(options.cv, found, strict=True)}


def _of_head(
    options: argparse.Namespace, folder: Path, slots: SimpleQueue[_Slot], cv: float
) -> dict[str, Any]:
    limit_ns = round(parse_duration(options.limit) * LIMITS[cv] / LIMITS[1.0])
    first = _head_scenario(options.about, cv, options.requests, limit_ns)
    with taken(slots) as on:
        pilot = search(folder / "pilot", first, options, 500, on.cores, ["--server", on.url], 1)
    about_hz = pilot["capacity_hz"]
    if about_hz is None:
        raise SystemExit(f"the first search found no capacity: {pilot['kind']}: {pilot['reason']}")
    scenario = _head_scenario(about_hz, cv, options.requests, limit_ns)
    long = _head_scenario(about_hz, cv, options.scan_requests, limit_ns)

    ratios = [options.reach ** (2.0 * place / (options.scan - 1) - 1.0) for place in range(options.scan)]

    def scanned(place: int, seed: int) -> float:
        with taken(slots) as on:
            return late_at(folder / f"scan-{place}-{seed}", long, ratios[place], seed, on)

    def searched(number: int) -> dict[str, Any]:
        with taken(slots) as on:
            more = ["--server", on.url]
            return search(folder / f"{number}", scenario, options, number, on.cores, more)

    seeds = range(_SCAN_SEED, _SCAN_SEED + options.scan_seeds)
    runs = [(place, seed) for place in range(options.scan) for seed in seeds]
    numbers = range(options.first, options.first + options.searches)
    # in an order drawn at random, so that a host that drifts does so under the scan and the searches alike
    works: list[tuple[int, int | None]] = [*runs, *((number, None) for number in numbers)]
    random.Random(_SCAN_SEED).shuffle(works)
    lates: dict[tuple[int, int], Future[float]] = {}
    answers: dict[int, Future[dict[str, Any]]] = {}
    with ThreadPoolExecutor(options.parallel) as pool:
        for number, seed in works:
            if seed is None:
                answers[number] = pool.submit(searched, number)
            else:
                lates[number, seed] = pool.submit(scanned, number, seed)
        levels = [
            {
                "rate_hz": about_hz * ratio,
                "late_ratio": fmean(lates[place, seed].result() for seed in seeds),
            }
            for place, ratio in enumerate(ratios)
        ]
        sys.stderr.write(f"scan of cv {cv:g}: {json.dumps(levels)}\n")
        truth_hz = crossing_hz(levels, 0.05)
        return {
            "limit_ms": limit_ns / 1e6,
            "truth_hz": truth_hz,
            "scan": levels,
            "searches": _counted((answers[number].result() for number in numbers), truth_hz),
        }


def late_at(folder: Path, scenario: dict[str, Any], ratio: float, seed: int, on: _Slot) -> float:
    """The late share at a load, of a seed that no search has. Raises SystemExit where the run is INVALID twice."""
    words = ["run", "--set", f"phases.main.speed={ratio:.5f}", "--seed", str(seed), "--server", on.url]
    for attempt in range(2):
        summary = squall(folder / f"{attempt}", scenario, words, on.cores)
        if summary["verdict"]["status"] == "VALID":
            late = summary["promises"][0]["late_ratio"]
            sys.stderr.write(f"{folder.name} at {ratio:.3f}: {late:.4f}\n")
            return float(late)
    raise SystemExit(f"a run of the scan is INVALID twice: {summary['verdict']['reasons'][0]}")


def crossing_hz(scan: Sequence[dict[str, float]], share: float) -> float:
    """The load at which the late share crosses `share`, between the two levels about it, in logarithms.

    Raises SystemExit where the scan does not reach it.
    """
    for low, high in pairwise(scan):
        if low["late_ratio"] <= share < high["late_ratio"]:
            first, last = (math.log(max(one["late_ratio"], 1e-6)) for one in (low, high))
            part = (math.log(share) - first) / (last - first)
            return float(low["rate_hz"] * (high["rate_hz"] / low["rate_hz"]) ** part)
    raise SystemExit(f"the scan does not cross {share:.0%}: {json.dumps(list(scan))}")


def _counted(answers: Iterable[dict[str, Any]], truth_hz: float) -> dict[str, Any]:
    """How many of the searches hold the truth, and how wide they are."""
    told = [
        {**one, "holds_truth": bool(one["low_hz"] and one["low_hz"] <= truth_hz <= one["high_hz"])}
        for one in answers
    ]
    widths = [one["width_ratio"] for one in told if one["width_ratio"] is not None]
    return {
        "n_searches": len(told),
        "n_hold_truth": sum(one["holds_truth"] for one in told),
        "n_safe_below_truth": sum(bool(one["safe_hz"] and one["safe_hz"] < truth_hz) for one in told),
        "width_mean_ratio": sum(widths) / len(widths) if widths else None,
        "searches": told,
    }


def search(
    folder: Path,
    scenario: dict[str, Any],
    options: argparse.Namespace,
    number: int,
    cores: Sequence[int],
    more: Sequence[str],
    n_seeds: int | None = None,
) -> dict[str, Any]:
    """One search, its seeds a thousand from those of the others."""
    begun = time.monotonic()
    words = [
        "capacity",
        "--seeds",
        str(n_seeds or options.seeds),
        "--seed",
        str(1 + 1_000 * number),
        "--low",
        options.low,
    ]
    answer = squall(folder, scenario, [*words, *more], cores)
    interval = answer.get("interval")
    found = {
        "kind": answer["kind"],
        "capacity_hz": answer["capacity_hz"],
        "low_hz": interval and interval["low_hz"],
        "high_hz": interval and interval["high_hz"],
        "width_ratio": interval and (interval["high_hz"] - interval["low_hz"]) / interval["rate_hz"],
        "safe_hz": answer["safe"] and answer["safe"]["rate_hz"],
        "is_confirmed": answer["safe"] and answer["safe"]["is_confirmed"],
        "per_seed_hz": [one["capacity_hz"] for one in answer["per_seed"]],
        "reason": answer["reason"],
        "n_runs": answer["n_runs"],
        "minutes": round((time.monotonic() - begun) / 60.0, 2),
    }
    sys.stderr.write(f"{folder.name}: {json.dumps(found)}\n")
    return found


def squall(
    folder: Path, scenario: dict[str, Any], words: Sequence[str], cores: Sequence[int]
) -> dict[str, Any]:
    """What a command says with --json, run on `cores`. Raises SystemExit with its last lines where it says nothing."""
    folder.mkdir(parents=True)
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    command = [sys.executable, "-m", "squall.cluster.cli", words[0], str(path), *words[1:], "--json"]
    on_cores = [sys.executable, "-c", _ON_CORES, ",".join(map(str, cores))]
    done = subprocess.run(
        [*on_cores, *command, "--out", str(folder / "runs")], capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2_000:]}"
        ) from None
    return found


def null_scenario(rate_hz: float, cv: float, n_requests: int, limit_ns: int) -> dict[str, Any]:
    """So many requests at that rate for the null server; profilers off, one worker."""
    arrivals = {"kind": "poisson"} if cv == 1.0 else {"kind": "gamma", "cv": cv}
    return {
        "name": f"known-cv{cv:g}",
        "seed": 1,
        "model": {"name": "linear_head", "settings": {"width": 4, "classes": 2}},
        "clients": {"workers_per_node": 1, "timeout": "30s", "connections": 64, "payload_variants": 1},
        "phases": _phases({**arrivals, "rate": f"{rate_hz}/s"}, rate_hz, n_requests),
        "profile": {"kernels": "off", "nvml": "off", "batches": "off", "gpm": "off"},
        "promises": {"response": f"p(95)<{limit_ns / 1e6:.6f}ms"},
    }


def _head_scenario(rate_hz: float, cv: float, n_requests: int, limit_ns: int) -> dict[str, Any]:
    """A head on the CPU, one request a batch."""
    return {**null_scenario(rate_hz, cv, n_requests, limit_ns), "name": "known-head", "model": _HEAD}


def _phases(arrivals: dict[str, Any], rate_hz: float, n_requests: int) -> list[dict[str, Any]]:
    """A second of a twentieth of the load before, so that nothing is cold."""
    warm = {"kind": "poisson", "rate": f"{rate_hz / 20}/s"}
    return [
        {"name": "warm", "kind": "warmup", "duration": "1s", "arrivals": warm},
        {
            "name": "main",
            "kind": "measure",
            "duration": f"{round(n_requests / rate_hz * 1_000)}ms",
            "arrivals": arrivals,
        },
        {"name": "drain", "kind": "drain", "duration": "30s"},
    ]


if __name__ == "__main__":
    sys.exit(main())
