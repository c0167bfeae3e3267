"""`--measure-overhead` around a real Triton: pairs of sealed runs, and an evaluation made of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import RAY_AUTH, Bench, scenario_mapping, wait_until
from tests.overhead_runs import evaluated_again

_DRIVE = """
import json, sys
from pathlib import Path
from squall.cluster.interrupts import Interrupts
from squall.cluster.commands.overhead import measure_overhead
from squall.scenarios.config.loader import load_scenario
path, out, n_pairs, *ray = sys.argv[1:]
with Interrupts() as interrupts:
    result = measure_overhead(load_scenario(path), Path(out), ray[0] if ray else None, interrupts, int(n_pairs))
print(json.dumps(result.evaluation.to_json()))
sys.exit(0 if result.is_valid else 3)
"""


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


def start(bench: Bench, content: dict[str, Any], n_pairs: int) -> subprocess.Popen[str]:
    auth = RAY_AUTH if bench.ray else {}
    ray = [bench.ray] if bench.ray else []
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVE, str(bench.write(content)), str(bench.out), str(n_pairs), *ray],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, **auth, "TMPDIR": str(bench.tmp)},
    )  # fmt: skip


def check_pairs(bench: Bench, found: dict[str, Any], n_pairs: int) -> list[RunStore]:
    """The runs, in their order: each sealed, whole and of the same plan."""
    (folder,) = bench.out.iterdir()
    assert json.loads((folder / "overhead.json").read_text()) == found == evaluated_again(folder).to_json()
    stores = [RunStore.open(folder / one["run"]) for one in found["runs"]]
    assert len(stores) == 2 * n_pairs == len({store.run for store in stores})
    assert all(store.is_sealed and store.verify() == [] for store in stores)
    assert len({store.manifest.plan.sha256 for store in stores}) == 1
    assert len({store.manifest.scenario_digest for store in stores}) == 2
    assert len({one.server_version for store in stores for one in store.manifest.servers.values()}) == 1
    return stores


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_pairs_around_a_real_triton(joined: Bench) -> None:
    """A busy machine may make a run invalid, hold up its slowest requests or its samples: then it must say so."""
    process = start(joined, mapping("1400ms", "300/s", nsys="off", nvml="off"), 2)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode in (0, 3), stderr
    found = json.loads(stdout)
    check_pairs(joined, found, 2)
    assert [one["is_profiled"] for one in found["runs"]] == [False, True, True, False]
    assert (process.returncode == 0) == (found["n_pairs"] == 2)
    assert found["n_pairs"] + len(found["left_out"]) == 2
    for line in found["left_out"]:
        assert "is INVALID" in line
    for run in filter(lambda run: run["figures"], found["runs"]):
        for metric, reading in run["figures"]["pooled"].items():
            if reading["value"] is None:  # samples that were held up do not cover a phase as short as this
                assert reading["reason"], (metric, run)
                assert "_cpu_" in metric or found["left_out"], (metric, run)
            else:
                assert reading["value"] > 0, (metric, run)
    for metric, change in found["pooled"].items():
        if None in (*change["bare"], *change["profiled"]):
            assert change["ratio"] is None
            assert change["reason"], metric
        elif found["n_pairs"] < 2:
            assert change["ratio"] is None
            assert f"takes 2 whole pairs at least, not {found['n_pairs']}" in change["reason"]
        else:
            assert change["low_ratio"] <= change["ratio"] <= change["high_ratio"], metric
    joined.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.single
def test_a_pair_with_nsys(alone: Bench) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems, component non-free)")
    process = start(alone, mapping("2s", "300/s", nsys="required", nvml="off"), 1)
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode in (0, 3), stderr
    found = json.loads(stdout)
    for one, store in zip(found["runs"], check_pairs(alone, found, 1), strict=True):
        assert store.has("osrt") == one["is_profiled"], one
        assert ("nsys" in one["collectors_on"]) == one["is_profiled"]
    for sentence in found["sentences"]:
        print(sentence)
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_ctrl_c_keeps_and_evaluates_what_was_measured(joined: Bench) -> None:
    process = start(joined, mapping("1s", "500/s", nsys="off", nvml="off"), 50)

    def runs() -> list[Any]:
        files = list(joined.out.glob("*/overhead.json"))
        return list(json.loads(files[0].read_text())["runs"]) if files else []

    wait_until(lambda: len(runs()) >= 2, 120, "a pair")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    (folder,) = joined.out.iterdir()
    found = json.loads((Path(folder) / "overhead.json").read_text())
    assert len(found["runs"]) in (2, 3, 4)
    assert found["n_pairs_planned"] == 50
    assert found["n_pairs"] + len(found["left_out"]) >= 1
    for one in found["runs"]:
        assert not one["run"] or RunStore.open(folder / one["run"]).is_sealed
    joined.wait_until_gone()
