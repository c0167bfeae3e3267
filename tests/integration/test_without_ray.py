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

from squall.cluster.remote.session import LOCAL
from tests.integration.disks import assert_whole, fill
from tests.integration.live_runs import Bench, Live, scenario_mapping, wait_until

pytestmark = pytest.mark.beside

_RAYS = ("raylet", "gcs_server")
_WITHOUT = """
import sys, time
import psutil
from squall.actors.process.ending import leave
from squall.cluster.remote.session import Session

with Session("local"):
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
def test_rays_own_processes_killed_under_load_cost_nothing(with_own_ray: Bench) -> None:
    live = with_own_ray.start_run(_run_of(4))
    with_own_ray.wait_for_phase("burst", 0.5)
    for name in _RAYS:
        _of_name(with_own_ray, name).kill()
    assert live.end() in (0, 3), live.lines
    assert not any(line.startswith("squall: ") for line in live.lines), live.lines
    assert_whole(with_own_ray.store())
    assert set(_outcomes(with_own_ray)) == {"ok"}
    assert with_own_ray.store().manifest.losses == ()
    assert all(line.startswith("squall ") for line in live.lines if line.strip()), live.lines
    with_own_ray.wait_until_gone()


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
    with_own_ray: Bench, name: str, number: signal.Signals
) -> None:
    live = with_own_ray.start_run(_run_of(30))
    with_own_ray.wait_for_phase("burst", 1)
    _of_name(with_own_ray, name).send_signal(number)
    with_own_ray.wait_for_phase("burst", 2)
    live.interrupt()
    assert live.end(20) == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    assert_whole(with_own_ray.store())
    assert set(_outcomes(with_own_ray)) <= {"ok", "cancelled", "unsent"}
    assert _outcomes(with_own_ray).count("ok") > 100
    with_own_ray.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize("names", [_RAYS[1:], pytest.param(_RAYS, marks=pytest.mark.long)])
def test_a_session_whose_ray_died_takes_next_to_no_cpu(with_own_ray: Bench, names: tuple[str, ...]) -> None:
    """A twentieth of a core at most: half a hundredth was seen, and a whole one where Ray's library asks for ever."""
    live = with_own_ray.start_python("-c", _WITHOUT, *names)
    assert live.end() == 0, live.lines
    assert float(with_own_ray.stdout()) < 0.05 * 2
    with_own_ray.wait_until_gone()


@pytest.mark.slow
@pytest.mark.long
def test_a_load_that_outlives_the_gcs_by_more_than_rays_patience_is_whole(with_own_ray: Bench) -> None:
    live = with_own_ray.start_run(_run_of(75))
    with_own_ray.wait_for_phase("burst", 1)
    _of_name(with_own_ray, "gcs_server").kill()
    driver = psutil.Process(live.process.pid)
    before = driver.cpu_times()
    with_own_ray.wait_for_phase("burst", 71)
    taken = driver.cpu_times()
    assert taken.user + taken.system - before.user - before.system < 0.05 * 70, "of 70 s"
    assert live.end() in (0, 3), live.lines
    assert_whole(with_own_ray.store())
    assert set(_outcomes(with_own_ray)) == {"ok"}
    with_own_ray.wait_until_gone()


@pytest.mark.slow
def test_a_full_shared_memory_costs_no_row(with_own_ray: Bench) -> None:
    """In a mount namespace of its own: the /dev/shm of this machine is others' too."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a /dev/shm of one's own needs root and unshare")
    scenario = with_own_ray.write(_run_of(6))
    script = 'mount -t tmpfs -o size=400m tmpfs /dev/shm && exec "$@"'
    command = [
        sys.executable,
        "-m",
        "squall.cluster.cli",
        "run",
        str(scenario),
        "--out",
        str(with_own_ray.out),
        "--ray",
        LOCAL,
    ]
    with (with_own_ray.folder / "stdout").open("w") as stdout:
        live = Live(
            subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", *command], stdin=subprocess.DEVNULL, stdout=stdout,
                stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(with_own_ray.tmp)},
                start_new_session=True,
            )
        )  # fmt: skip
    with_own_ray.wait_for_phase("burst", 1)
    fill(Path("/proc", str(live.process.pid), "root", "dev", "shm"))
    assert live.end() in (0, 3), live.lines
    assert_whole(with_own_ray.store())
    assert not {"lost", "unsent"} & set(_outcomes(with_own_ray))
    (node,) = with_own_ray.store().manifest.nodes.values()
    assert node.ray is not None
    assert (node.ray.niceness_given, node.ray.oom_score_adj_given, node.ray_watchdogs) == (0, 0, ())
    with_own_ray.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_what_a_killed_driver_left_is_kept_and_resume_seals_it(with_own_ray: Bench) -> None:
    live = with_own_ray.start_run(_run_of(30))
    with_own_ray.wait_for_phase("burst", 1.5)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not with_own_ray.processes(), 30, "the end of every process")
    assert not with_own_ray.store().is_sealed

    bad = with_own_ray.write(scenario_mapping(server={"url": "http://127.0.0.1:1"}))
    assert with_own_ray.start("run", bad, "--out", with_own_ray.folder / "next").end() == 1
    assert list(with_own_ray.tmp.glob("squall-tmp-*/spill/requests-0.arrows")), (
        "the next run sweeps, but not these"
    )

    again = with_own_ray.start("resume", with_own_ray.store().run_dir)
    assert again.end() == 3, again.lines
    assert_whole(with_own_ray.store())
    outcomes = _outcomes(with_own_ray)
    assert outcomes.count("ok") > 100
    assert set(outcomes) <= {"ok", "cancelled", "unsent", "lost"}
    assert with_own_ray.store().manifest.status == "INVALID"
    assert with_own_ray.start("resume", with_own_ray.store().run_dir).end() == 3, (
        "there is nothing more to do"
    )
    with_own_ray.wait_until_gone()
