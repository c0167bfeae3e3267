"""`squall run --measure-overhead` around a real Triton: pairs of sealed runs, and a comparison made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, scenario_mapping, wait_until


def mapping(duration: str, rate: str, **profile: Any) -> dict[str, Any]:
    base = scenario_mapping(profile=profile)
    arrivals = {"kind": "poisson", "rate": rate}
    base["clients"]["workers_per_node"] = 1
    base["server"] = {"stop_timeout": "1s"}
    base["phases"] = [
        {"name": "warmup", "kind": "warmup", "duration": "200ms", "arrivals": arrivals},
        {"name": "steady", "kind": "measure", "duration": duration, "arrivals": arrivals},
        {"name": "drain", "kind": "drain", "duration": "200ms"},
    ]
    return base


def compared(bench: Bench) -> tuple[Path, dict[str, Any]]:
    """The folder with the runs, and what it tells."""
    (folder,) = bench.out.iterdir()
    return folder, json.loads((folder / "compare.json").read_text())


def stores_of(folder: Path, side: str) -> list[RunStore]:
    """The runs of a side, each sealed and whole, in their order."""
    found = sorted(
        map(RunStore.open, (folder / side).iterdir()), key=lambda one: one.manifest.started_ns or 0
    )
    assert all(store.is_sealed and store.verify() == [] for store in found)
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_pairs_around_a_real_triton(joined: Bench) -> None:
    """A busy machine may make a run invalid, hold up its slowest requests or its samples: then it must say so."""
    live = joined.start_run(
        mapping("1400ms", "300/s", nsys="off", nvml="off"), "--measure-overhead", "--repeat", "2", "--json"
    )
    assert live.end() in (0, 3), live.lines
    folder, found = compared(joined)
    assert json.loads(joined.stdout()) == found
    sides = {side: stores_of(folder, side) for side in "ab"}
    assert len({store.manifest.plan.sha256 for side in sides.values() for store in side}) == 1
    digests = [{store.manifest.scenario_digest for store in side} for side in sides.values()]
    assert [len(one) for one in digests] == [1, 1]
    assert digests[0] != digests[1]
    assert (live.process.returncode == 0) == (found["verdict"] != "invalid")
    assert {one["key"] for one in found["differs"]} >= {"profile.thread_interval"}
    for change in found["changes"]:
        assert change["n_pairs"] == found["n_pairs"]
        assert (
            (change["change"] is not None)
            or change["reason"]
            or change["n_infinite_a"]
            or change["n_infinite_b"]
        )
    joined.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.single
def test_pairs_with_nsys(alone: Bench) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems, component non-free)")
    live = alone.start_run(
        mapping("2s", "300/s", nsys="required", nvml="off"), "--measure-overhead", "--repeat", "2"
    )
    assert live.end() in (0, 3), live.lines
    folder, _ = compared(alone)
    for side, is_profiled in (("a", False), ("b", True)):
        for store in stores_of(folder, side):
            assert store.has("osrt") == is_profiled
            assert (store.manifest.collectors["nsys"].status == "on") == is_profiled
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_ctrl_c_keeps_what_was_measured(joined: Bench) -> None:
    live = joined.start_run(
        mapping("1s", "500/s", nsys="off", nvml="off"), "--measure-overhead", "--repeat", "50"
    )
    wait_until(
        lambda: all([*joined.out.glob(f"*/{side}/*/run.parquet")] for side in "ab"), 120, "a run of each side"
    )
    live.interrupt()
    assert live.end() == 1, live.lines
    folder, found = compared(joined)
    assert (found["verdict"], found["n_pairs_planned"]) == ("unfinished", 50)
    assert all(stores_of(folder, side) for side in "ab")
    joined.wait_until_gone()
