"""The observer, the nsys session or the whole agent of the server's node that is killed in the middle of a phase."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.compute as pc
import pytest

from squall.analysis.storage.timeline import phase_spans
from tests.integration.live_runs import Bench, scenario_mapping, wait_until

needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")


def _two_phases(seconds: float, between_s: float, **profile: Any) -> dict[str, Any]:
    """Measured phases of 1.5 s and of `seconds` at a steady rate, and `between_s` in which the profiler may import."""
    mapping = scenario_mapping(profile={"nsys": "auto", "nvml": "off", "osrt_threshold": "10us", **profile})
    warmup, measure, drain = mapping["phases"]
    measure |= {"duration": "1500ms", "arrivals": {"kind": "poisson", "rate": "100/s"}}
    between = {**warmup, "name": "between", "duration": f"{between_s:g}s"}
    mapping["phases"] = [warmup, {**measure, "name": "first"}, between, {**measure, "name": "second"}, drain]
    mapping["phases"][3]["duration"] = f"{seconds:g}s"
    return mapping


def _processes(bench: Bench, *words: str) -> Iterator[psutil.Process]:
    """Processes of the bench's Ray whose command line holds all of `words`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if f"{process.environ().get('TMPDIR', '')}/".startswith(f"{bench.ray_tmp}/") and all(
                word in line for word in words
            ):
                yield process


def _one(bench: Bench, *words: str) -> psutil.Process:
    found: psutil.Process = wait_until(lambda: next(_processes(bench, *words), None), 60, " ".join(words))
    return found


def _rows(bench: Bench, table: str) -> dict[str, Any]:
    found: dict[str, Any] = bench.store().read(table).to_pydict()
    return found


def _assert_every_arrival_has_one_row(bench: Bench) -> dict[str, Any]:
    rows = _rows(bench, "requests")
    n_planned = bench.store().manifest.plan.n_arrivals
    assert np.array_equal(np.sort(rows["request_id"]), np.arange(n_planned))
    return rows


@pytest.mark.slow
@pytest.mark.beside
def test_a_killed_observer_ends_its_samples_and_nothing_else(joined: Bench) -> None:
    live = joined.start_run(_two_phases(1.5, 1, nsys="off"))
    observer = _one(joined, "squall.cluster.remote.served Observer")
    joined.wait_for_phase("first", 1)
    observer.kill()
    assert live.end() in (0, 3), live.lines
    store, rows = joined.store(), _assert_every_arrival_has_one_row(joined)
    assert set(rows["outcome"]) == {"ok"}
    assert store.manifest.losses == ()
    assert any("observer on node-0 is lost: its process has ended" in note for note in store.manifest.notes)
    spans = {span.name: span for span in phase_spans(store.manifest)}
    for table in ("host_samples", "core_samples", "thread_samples", "triton_samples"):
        at_ns = np.array(_rows(joined, table)["t_ns"])
        assert len(at_ns), table
        assert at_ns.max() < spans["second"].start_ns, table
    assert store.verify() == []
    joined.wait_until_gone()


@pytest.mark.slow
@pytest.mark.single
@needs_nsys
def test_a_killed_agent_takes_the_server_along_and_all_that_was_recorded_is_kept(joined: Bench) -> None:
    live = joined.start_run(_two_phases(6, 12))
    joined.wait_for_phase("second", 0.5)
    ray_tmp = joined.ray_tmp or joined.tmp
    wait_until(lambda: any(ray_tmp.rglob("first.nsys-rep")), 60, "the report of the first phase")
    _one(joined, "squall.cluster.remote.served NodeAgent").kill()
    assert live.end() == 3, live.lines
    store, rows = joined.store(), _assert_every_arrival_has_one_row(joined)
    assert store.manifest.status == "INVALID"
    assert any("agent on node-0 is lost" in loss for loss in store.manifest.losses)
    assert set(rows["outcome"]) <= {"ok", "transport_error"}, "Triton serves open connections while it ends"
    outcomes = zip(rows["phase"], rows["outcome"], strict=True)
    assert {outcome for phase, outcome in outcomes if phase == "first"} == {"ok"}
    n_ok = rows["outcome"].count("ok")
    assert store.read("batches").num_rows > 20
    named = pc.list_flatten(store.read("batches").column("request_ids")).to_pylist()
    assert len(named) >= n_ok
    for table in ("host_samples", "thread_samples", "triton_samples"):
        assert len(_rows(joined, table)["t_ns"]) > 2, table
    assert set(_rows(joined, "osrt")["phase"]) == {"first"}
    assert (Path(store.run_dir) / "nsys" / "server-0" / "first").is_dir()
    profiled = store.manifest.profiled_phases
    assert profiled["first"].is_profiled
    assert not profiled["second"].is_profiled
    assert store.verify() == []
    joined.wait_until_gone()
