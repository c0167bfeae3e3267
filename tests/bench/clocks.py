"""What knowing the clocks costs: CPU per probe at the driver and at the node, and CPU to fit an hour of probes.

`python -m tests.bench.clocks` takes about 5 s. The responder is a process of its own on loopback.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil

from squall.actors.clock import utc_minus_monotonic_ns
from squall.analysis.storage.clock_brackets import Brackets
from squall.analysis.storage.clock_fit import fit_track
from squall.cluster.driver.clocksync import ClockWatch

S = 1_000_000_000
N_BURSTS = 200


def probe_costs() -> str:
    """CPU per probe on both sides, of about 2,000 probes, and the bound that they give."""
    command = [sys.executable, "-m", "squall.actors.sampling.clock_responder", "127.0.0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        host, port, token = process.stdout.readline().split()
        node = psutil.Process(process.pid)
        before = node.cpu_times()
        watch = ClockWatch(utc_minus_monotonic_ns())
        watch.add("node-1", (host, int(port)), bytes.fromhex(token))
        watch.settle()
        for _ in range(N_BURSTS):
            watch.burst()
        watch.stop()
        after = node.cpu_times()
        process.stdin.close()
    n_probes, cpu_ns = watch.cost()
    node_s = after.user + after.system - before.user - before.system
    bound_ns = watch.tracks()["node-1"].largest_error_ns
    per_probe = f"driver {cpu_ns / n_probes / 1e3:.0f} us, node {node_s / n_probes * 1e6:.0f} us"
    return f"{n_probes} probes: CPU a probe {per_probe}; bound {bound_ns / 1e3:.0f} us"


def fit_time() -> str:
    """CPU time to fit 72,000 probes of 1 h: 20 a second, 50 ppm, delays of 40 us and an exponential part of 20 us."""
    rng = np.random.default_rng(1)
    got = np.sort(rng.integers(0, 3_600 * S, 72_000))
    answered = got + rng.integers(5_000, 50_000, len(got))
    late = [40_000 + rng.exponential(20_000, len(got)).astype(np.int64) for _ in range(2)]
    sent, back = got + got // 20_000 - late[0], answered + answered // 20_000 + late[1]
    begun = time.process_time()
    track = fit_track(Brackets.of_probes(sent, got, answered, back))
    took_s = time.process_time() - begun
    fitted = f"{len(track.at_ns)} knots, bound {track.largest_error_ns / 1e3:.0f} us"
    return f"{len(got)} probes fitted in {took_s:.2f} s of CPU: {fitted}"


if __name__ == "__main__":
    print(probe_costs())
    print(fit_time())
