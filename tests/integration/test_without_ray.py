"""Ray's own processes die, or the memory that they share is full: the run goes on, and no row of it is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from tests.integration.disks import assert_whole, fill
from tests.integration.live_runs import Bench, Live, scenario_mapping, wait_until

pytestmark = pytest.mark.beside

_RAYS = ("raylet", "gcs_server")
_WITHOUT = """
import sys, time
import psutil
from squall.actors.process.ending import leave
from squall.cluster.remote.session import Session

with Session(None):
    for one in psutil.Process().children(recursive=True):
        if one.name() in sys.argv[1:]:
            one.kill()
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(2)
    print(time.process_time() - before)
leave(0)
"""
"""CPU that a session of Ray takes in 2 s, in s, once its processes of the given names are dead. It ends as commands do:
at a plain exit Ray's library takes its own worker down while a thread of it still counts, a crash now and then."""


def _run_of(seconds: int) -> dict[str, Any]:
    mapping = scenario_mapping()
    mapping["phases"][1] |= {"duration": f"{seconds}s", "arrivals": {"kind": "poisson", "rate": "100/s"}}
    return mapping


def _of_name(bench: Bench, name: str) -> psutil.Process:
    (found,) = (one for one in bench.processes() if one.name() == name)
    return found


def _outcomes(bench: Bench) -> list[str]:
    found: list[str] = bench.store().read("requests").column("outcome").cast(pa.string()).to_pylist()
    return found


@pytest.mark.long
@pytest.mark.slow
def test_rays_own_processes_killed_under_load_cost_nothing(alone: Bench) -> None:
    live = alone.start_run(_run_of(4))
    alone.wait_for_phase("burst", 0.5)
    for name in _RAYS:
        _of_name(alone, name).kill()
    assert live.end() in (0, 3), live.lines
    assert not any(line.startswith("squall: ") for line in live.lines), live.lines
    assert_whole(alone.store())
    assert set(_outcomes(alone)) == {"ok"}
    assert alone.store().manifest.losses == ()
    assert all(line.startswith("squall ") for line in live.lines if line.strip()), live.lines
    alone.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [
        # each once here, the rest in the longest suite
        pytest.param(name, number, marks=[pytest.mark.long] if number == other else [])
        for name, other in zip(_RAYS, (signal.SIGSTOP, signal.SIGKILL), strict=True)
        for number in (signal.SIGKILL, signal.SIGSTOP)
    ],
)
def test_one_of_them_killed_or_stopped_costs_nothing_and_ctrl_c_is_obeyed(
    alone: Bench, name: str, number: signal.Signals
) -> None:
    live = alone.start_run(_run_of(30))
    alone.wait_for_phase("burst", 1)
    _of_name(alone, name).send_signal(number)
    alone.wait_for_phase("burst", 2)
    live.interrupt()
    assert live.end(20) == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    assert_whole(alone.store())
    assert set(_outcomes(alone)) <= {"ok", "cancelled", "unsent"}
    assert _outcomes(alone).count("ok") > 100
    alone.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize("names", [_RAYS[1:], pytest.param(_RAYS, marks=pytest.mark.long)])
def test_a_session_whose_ray_died_takes_next_to_no_cpu(alone: Bench, names: tuple[str, ...]) -> None:
    """A twentieth of a core at most: half a hundredth was seen, and a whole one where Ray's library asks for ever."""
    live = alone.start_python("-c", _WITHOUT, *names)
    assert live.end() == 0, live.lines
    assert float(alone.stdout()) < 0.05 * 2
    alone.wait_until_gone()


@pytest.mark.slow
@pytest.mark.long
def test_a_load_that_outlives_the_gcs_by_more_than_rays_patience_is_whole(alone: Bench) -> None:
    live = alone.start_run(_run_of(75))
    alone.wait_for_phase("burst", 1)
    _of_name(alone, "gcs_server").kill()
    driver = psutil.Process(live.process.pid)
    before = driver.cpu_times()
    alone.wait_for_phase("burst", 71)
    taken = driver.cpu_times()
    assert taken.user + taken.system - before.user - before.system < 0.05 * 70, "of 70 s"
    assert live.end() in (0, 3), live.lines
    assert_whole(alone.store())
    assert set(_outcomes(alone)) == {"ok"}
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_full_shared_memory_costs_no_row(alone: Bench) -> None:
    """In a mount namespace of its own: the /dev/shm of this machine is others' too."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /dev/shm of one's own needs root and unshare")
    scenario = alone.write(_run_of(6))
    script = 'mount -t tmpfs -o size=400m tmpfs /dev/shm && exec "$@"'
    command = [sys.executable, "-m", "squall.cluster.cli", "run", str(scenario), "--out", str(alone.out)]
    with (alone.folder / "stdout").open("w") as stdout:
        live = Live(
            subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", *command], stdin=subprocess.DEVNULL, stdout=stdout,
                stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(alone.tmp)},
                start_new_session=True,
            )
        )  # fmt: skip
    alone.wait_for_phase("burst", 1)
    fill(Path("/proc", str(live.process.pid), "root", "dev", "shm"))
    assert live.end() in (0, 3), live.lines
    assert_whole(alone.store())
    assert not {"lost", "unsent"} & set(_outcomes(alone))
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_what_a_killed_driver_left_is_kept_and_resume_seals_it(alone: Bench) -> None:
    live = alone.start_run(_run_of(30))
    alone.wait_for_phase("burst", 1.5)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not alone.processes(), 30, "the end of every process")
    assert not alone.store().is_sealed

    bad = alone.write(scenario_mapping(server={"url": "http://127.0.0.1:1"}))
    assert alone.start("run", bad, "--out", alone.folder / "next").end() == 1
    assert list(alone.tmp.glob("squall-tmp-*/spill/requests-0.arrows")), "the next run sweeps, but not these"

    again = alone.start("resume", alone.store().run_dir)
    assert again.end() == 3, again.lines
    assert_whole(alone.store())
    outcomes = _outcomes(alone)
    assert outcomes.count("ok") > 100
    assert set(outcomes) <= {"ok", "cancelled", "unsent", "lost"}
    assert alone.store().manifest.status == "INVALID"
    assert alone.start("resume", alone.store().run_dir).end() == 3, "there is nothing more to do"
    alone.wait_until_gone()
