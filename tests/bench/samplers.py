"""What the samplers of a node cost: of each call, of each sample, and as a share of one core.

    python -m tests.bench.samplers [SECONDS]

prints one JSON object. Without a usable NVML the GPU's part says why there is none. SECONDS (5) is the length of
each run whose share of a core is stated: CPU time of the whole process, writing of the rows included, over wall time;
`thread_share` is that of the sampler's own thread. The GPU gets no load from here.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from squall.actors.clock import SystemClock
from squall.actors.sampling.cpu_source import CoreSource, CpuSource
from squall.actors.sampling.gpu.device import GpuLost
from squall.actors.sampling.gpu.gpm import GpmPair
from squall.actors.sampling.gpu.readings import READINGS, TRAFFIC
from squall.actors.sampling.gpu.source import GpuProcessSource, GpuSource, missing_reason
from squall.actors.sampling.host import HostSource
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.sampling.sampler import Sampler
from squall.actors.sampling.source import Pids, Source
from squall.actors.sampling.threads import ThreadSource
from squall.cluster.remote.spawn import spawn
from tests.golden.told import HERE

_S = 1_000_000_000
_N_CALLS = 200
_GPM_GAP_S = 0.11
_N_THREADS = 100
_LABELS = {"run": "bench", "node": "node-0", "server": "server-0"}
_RATES_HZ = (10, 100)


def cost_us(call: Callable[[], object], n_calls: int = _N_CALLS, gap_s: float = 0.0) -> dict[str, float]:
    """CPU and wall time of a call: median, mean of the CPU time and the largest wall time, in us."""
    cpu, wall = [], []
    for _ in range(n_calls):
        time.sleep(gap_s)
        begun, begun_cpu = time.monotonic_ns(), time.thread_time_ns()
        call()
        cpu.append((time.thread_time_ns() - begun_cpu) / 1_000)
        wall.append((time.monotonic_ns() - begun) / 1_000)
    return {
        "cpu_mean": round(statistics.fmean(cpu), 1),
        "cpu_median": round(statistics.median(cpu), 1),
        "wall_median": round(statistics.median(wall), 1),
        "wall_max": round(max(wall), 1),
    }


def share(source: Source, interval_ns: int, seconds: float) -> dict[str, Any]:
    """A sampler's run of `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(source, _LABELS, interval_ns, Path(folder) / "s.arrows", SystemClock())
        sampler.start()
        begun, begun_cpu = time.monotonic_ns(), time.process_time_ns()
        time.sleep(seconds)
        spent, wall = time.process_time_ns() - begun_cpu, time.monotonic_ns() - begun
        sampler.stop()
    facts = sampler.facts()
    return {
        "core_share": round(spent / wall, 5), "thread_share": round(facts["cpu_ns"] / facts["wall_ns"], 5),
        **{name: facts[name] for name in ("n_ticks", "n_late", "n_skipped", "n_rows")},
        "longest_read_us": facts["longest_read_ns"] // 1_000, "losses": sampler.losses(),
    }  # fmt: skip


def observer_share(seconds: float, **settings: Any) -> dict[str, Any]:
    """A whole observer process."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ObserverSettings("bench", "node-0", folder, clock_host="127.0.0.1", **settings)
        observer = spawn("observer", HERE, 2, Observer, asked)
        observer.pid()
        time.sleep(seconds)
        losses, facts = observer.call(Observer.stop)
        observer.end()
    return {
        "core_share": round(facts["cpu_ns"] / facts["wall_ns"], 5),
        "start_cpu_ms": facts["start_cpu_ns"] // 1_000_000,
        "by_sampler": {
            name: round(sampler["cpu_ns"] / sampler["wall_ns"], 5) for name, sampler in facts["samplers"].items()
        },
        "losses": losses,
    }  # fmt: skip


def sample_now(source: Source) -> object:
    return source.sample(time.monotonic_ns())


def host_part(seconds: float) -> dict[str, Any]:
    """The samplers that read /proc, the threads being 100 of this process that wait."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(_N_THREADS)]
    for thread in threads:
        thread.start()
    own = (os.getpid(),)
    sources: dict[str, Source] = {
        "host": HostSource(lambda: own), "cores": CoreSource(), f"threads_{_N_THREADS}": ThreadSource(lambda: own),
        f"cpu_{_N_THREADS}_threads": CpuSource(lambda: own, Pids(), Pids(own)),
    }  # fmt: skip
    costs = {name: cost_us(partial(sample_now, source)) for name, source in sources.items()}
    costs[f"psutil_threads_{_N_THREADS}"] = cost_us(psutil.Process().threads)
    target = ServerTarget("server-0", pids=own)
    whole = observer_share(seconds, servers=(target,))
    end.set()
    for thread in threads:
        thread.join()
    return {"us_per_sample": costs, "observer_at_1_hz": whole}


def gpu_calls() -> dict[str, Any]:
    """What each NVML call of the first GPU costs, one alone."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, Any] = {}
    for reading in (*READINGS, *TRAFFIC):
        try:
            found[reading.name] = cost_us(partial(reading.read, pynvml, handle))
        except pynvml.NVMLError as error:
            found[reading.name] = str(error)
    try:
        found["pcie_throughput_not_used"] = cost_us(
            lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES), 10
        )
        pair = GpmPair(pynvml, lambda sample: pynvml.nvmlGpmSampleGet(handle, sample), time.monotonic_ns())
        found["gpm_pair"] = cost_us(lambda: pair.take(time.monotonic_ns()), 20, _GPM_GAP_S)
        found["gpm_silent"] = sorted(pair.silent)
        pair.close()
    except pynvml.NVMLError as error:
        found["gpm_pair"] = str(error)
    pynvml.nvmlShutdown()
    return found


def gpu_part(seconds: float) -> dict[str, Any]:
    """Calls, samples, and shares of a core at 10 and 100 Hz, with and without GPM."""
    reason = missing_reason()
    if reason is not None:
        return {"missing": reason}
    found: dict[str, Any] = {"us_per_call": gpu_calls()}
    for rate_hz in _RATES_HZ:
        for with_gpm in (True, False):
            source = GpuSource(with_gpm)
            name = f"{rate_hz}_hz_{'with' if with_gpm else 'without'}_gpm"
            found[name] = share(source, _S // rate_hz, seconds)
            found["facts"] = source.facts() if with_gpm else found["facts"]
            source.close()
    processes = GpuProcessSource(lambda: (os.getpid(),))
    found["processes_1_hz"] = share(processes, _S, seconds)
    processes.close()
    found["observer_10_hz_with_gpm"] = observer_share(seconds, with_gpu=True)
    return found


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    result = {
        "machine": {
            "kernel": platform.release(),
            "n_cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "host": host_part(seconds),
        "gpu": gpu_part(seconds),
    }
    print(json.dumps(result, indent=1, default=str))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GpuLost as error:
        sys.exit(f"the GPU is lost: {error}")
