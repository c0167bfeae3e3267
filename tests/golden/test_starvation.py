"""Who starves a server, recorded by a real observer: real spinners beside it, its own processes, a real CPU quota."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.sampling.cgroups import groups_of
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.spill import read_spill
from squall.analysis.verdict.cpu_shares import CpuShares, InFlight, cpu_shares
from squall.analysis.verdict.server_checks import judge_starvation, makes_invalid
from squall.cluster.remote.spawn import spawn
from squall.scenarios.units import NS_PER_S
from tests.golden.told import HERE

pytestmark = pytest.mark.serial  # whose the CPU of this host is

MS = 1_000_000
SECONDS = 1.5
QUOTA_CORES = 0.2
N_CORES = len(os.sched_getaffinity(0))
N_SPINNERS = 4 * N_CORES
SPIN = """
import os, sys, time
from tests.golden.told import HERE
end = time.monotonic() + 300
if sys.argv[2] == "foreign" and os.fork():
    os._exit(0)
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
print(flush=True)
while time.monotonic() < end:
    pass
"""


@contextmanager
def spinning(n: int, whose: str = "ours") -> Iterator[int]:
    """`n` processes that each want a core, the first of them the parent of the others: its pid.

    `foreign`: they are no children of this process, below which an observer takes all for its run's own.
    """
    command = [sys.executable, "-c", SPIN, str(n), whose]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    try:
        for _ in range(n):
            process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def observed(folder: Path, server: int) -> CpuShares:
    """The shares of a server's node while it runs on for a while, with a request in flight all the time."""
    own = (os.getpid(),)
    settings = ObserverSettings("run", "node-0", str(folder), host_interval_ns=250 * MS, own=own)
    observer = spawn("observer", HERE, 2, Observer, settings)
    try:
        observer.call(Observer.add_server, ServerTarget("server-0", pids=(server,)))
        time.sleep(SECONDS)
    finally:
        observer.call(Observer.stop)
        observer.end()
    with pa.OSFile(str(folder / "cpu_samples.arrows")) as data:
        samples = pa.concat_tables(read_spill(data))
    begin_ns, end_ns = samples.column("t_ns").to_numpy()[[0, -1]]
    in_flight = InFlight.of(np.array([begin_ns - 10 * NS_PER_S]), np.array([end_ns]))
    (found,) = cpu_shares(samples, [""], {"node-0": in_flight})
    return found


def test_spinners_beside_a_server_starve_it(tmp_path: Path) -> None:
    with spinning(1) as server, spinning(N_SPINNERS, "foreign"):
        found = observed(tmp_path, server)
    starved = judge_starvation(found)
    assert (starved.starved_by, makes_invalid(starved)) == ("others", True)
    assert found.taken is not None
    assert found.taken["others"] > 0.5
    assert found.cores["server"] < 0.5
    assert found.cores["others"] > found.cores["server"]


def test_a_server_whose_own_processes_wait_for_one_another_is_not_starved_by_that(tmp_path: Path) -> None:
    with spinning(N_SPINNERS) as server:
        found = observed(tmp_path, server)
    assert found.server_wait_ratio is not None
    assert found.taken_ratio is not None
    assert found.server_wait_ratio > 0.6
    had = found.cores["server"]
    waited = had * found.server_wait_ratio / (1.0 - found.server_wait_ratio)
    lacked = had * found.taken_ratio / (1.0 - found.taken_ratio)
    # what it lacked is what whatever else runs on this host had, far less than they made one another wait
    assert lacked <= N_CORES - had + 0.05
    assert lacked < waited / 2


@pytest.fixture
def quota_group() -> Iterator[Path]:
    """A control group of the test's own with a CPU quota; skipped where none can be made."""
    with ExitStack() as made:
        for parent, is_v2 in groups_of(os.getpid()):
            folder = Path(parent) / f"squall-test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            made.callback(folder.rmdir)
            period_us, quota_us = 20_000, round(QUOTA_CORES * 20_000)
            with suppress(OSError):
                # its weight is such that what else runs on this host takes nothing from it
                if is_v2:
                    (folder / "cpu.weight").write_text("10000")
                    (folder / "cpu.max").write_text(f"{quota_us} {period_us}")
                else:
                    (folder / "cpu.shares").write_text("100000")
                    (folder / "cpu.cfs_period_us").write_text(str(period_us))
                    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
                yield folder
                return
        pytest.skip("no control group with a CPU quota can be made here")


def test_a_quota_of_the_server_is_a_finding_and_not_the_fault_of_others(
    tmp_path: Path, quota_group: Path
) -> None:
    with spinning(1) as server:
        (quota_group / "cgroup.procs").write_text(str(server))
        found = observed(tmp_path, server)
    starved = judge_starvation(found)
    assert (starved.starved_by, makes_invalid(starved)) == ("quota", False)
    assert found.quota_cores == pytest.approx(QUOTA_CORES)
    assert found.throttled_ratio is not None
    assert found.throttled_ratio > 0.8
    assert found.is_quota_shared is False
    assert found.cores["server"] < 1.5 * QUOTA_CORES
