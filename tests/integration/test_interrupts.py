"""Ctrl-C, SIGTERM and SIGKILL at every stage of a run: sealed, one line, nothing left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, Live, scenario_mapping, titled, wait_until

pytestmark = pytest.mark.beside

_LONG_S = 30


def _long_run() -> dict[str, object]:
    """A run that nobody waits for: it ends by the signal."""
    mapping = scenario_mapping()
    mapping["phases"][1] |= {"duration": f"{_LONG_S}s"}
    mapping["phases"][1]["arrivals"] = {"kind": "poisson", "rate": "100/s"}
    return mapping


def _outcomes(store: RunStore) -> list[str]:
    found: list[str] = store.read("requests").column("outcome").cast(pa.string()).to_pylist()
    return found


def _wait_for_records(bench: Bench, tmp: Path) -> None:
    """Waits until a worker has spilled rows of the measured phase."""

    def has_rows() -> bool:
        return any(path.stat().st_size > 4096 for path in tmp.glob("squall-tmp-*/spill/requests-*.arrows"))

    wait_until(has_rows, 60, "records in a spill file")
    assert bench.processes()


def _interrupted(live: Live, name: str = "SIGINT") -> None:
    assert live.end() == 1, live.lines
    assert live.error_line() == f"squall: interrupted by {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("starting Ray", signal.SIGINT, marks=pytest.mark.long),
        ("starting Triton", signal.SIGINT),
        ("Ray's own", signal.SIGTERM),
        pytest.param("Ray's own", signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_before_the_load_leaves_an_aborted_run_without_rows(
    with_own_ray: Bench, moment: str, number: signal.Signals
) -> None:
    live = with_own_ray.start_run(_long_run())
    if moment == "Ray's own":  # its first process is there: its library is amid its start
        wait_until(lambda: titled(with_own_ray.processes(), "gcs_server"), 60, "a process of Ray's")
        os.kill(live.process.pid, number)
    else:
        live.wait_for(moment)
        live.interrupt(number)
    _interrupted(live, number.name)
    assert with_own_ray.aborted().manifest.reasons == (f"interrupted by {number.name}",)
    assert with_own_ray.aborted().tables() == []
    with_own_ray.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_without_ray_while_triton_starts_leaves_an_aborted_run(
    alone: Bench, number: signal.Signals
) -> None:
    live = alone.start_run(_long_run())
    live.wait_for("starting Triton")
    live.interrupt(number)
    _interrupted(live, number.name)
    assert alone.aborted().manifest.reasons == (f"interrupted by {number.name}",)
    assert alone.aborted().tables() == []
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_driver_killed_before_the_load_is_sealed_by_resume_though_nothing_lies_here(alone: Bench) -> None:
    live = alone.start_run(_long_run())
    live.wait_for("starting Triton")
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    alone.wait_until_gone()
    resumed = alone.start("resume", alone.store().run_dir)
    assert resumed.end() == 1, resumed.lines
    assert any("it was broken off before the load began" in line for line in resumed.lines)
    assert alone.aborted().manifest.reasons == ("it was broken off before the load began",)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_the_measured_phase_keeps_the_rows_so_far(joined: Bench, number: signal.Signals) -> None:
    live = joined.start_run(_long_run())
    assert joined.ray_tmp is not None
    _wait_for_records(joined, joined.ray_tmp)
    live.interrupt(number)
    _interrupted(live, number.name)
    store = joined.aborted()
    outcomes = _outcomes(store)
    assert len(outcomes) == store.manifest.plan.n_arrivals
    assert outcomes.count("ok") > 50
    assert outcomes.count("unsent") > 50
    assert {"joined", "batches", "triton_samples"} <= set(store.tables())
    joined.wait_until_gone()


@pytest.mark.slow
def test_ctrl_c_in_the_warm_up_keeps_a_row_for_every_arrival(joined: Bench) -> None:
    mapping = _long_run()
    mapping["phases"][0]["duration"] = f"{_LONG_S}s"  # type: ignore[index]
    live = joined.start_run(mapping)
    live.wait_for("warmup")
    live.interrupt()
    _interrupted(live)
    store = joined.aborted()
    assert len(_outcomes(store)) == store.manifest.plan.n_arrivals
    joined.wait_until_gone()


@pytest.mark.slow
def test_ctrl_c_while_collecting_keeps_everything(joined: Bench) -> None:
    live = joined.start_run(scenario_mapping())
    live.wait_for("collecting")
    live.interrupt()
    live.interrupt()  # impatience changes nothing
    _interrupted(live)
    store = joined.aborted()
    assert set(_outcomes(store)) == {"ok"}
    assert len(_outcomes(store)) == store.manifest.plan.n_arrivals
    joined.wait_until_gone()


@pytest.mark.slow
def test_ctrl_c_while_joining_leaves_a_judged_run_that_analyze_completes(joined: Bench) -> None:
    live = joined.start_run(scenario_mapping())
    live.wait_for("joining and judging")
    live.interrupt()
    _interrupted(live)
    store = joined.store()
    assert store.is_sealed
    assert store.manifest.status in ("VALID", "INVALID")
    assert store.verify() == []
    assert not (store.run_dir / "report.html").exists()
    assert any(f"squall analyze {store.run_dir}" in line for line in live.lines)
    assert joined.start("analyze", store.run_dir).end() == 0
    joined.wait_until_gone()
