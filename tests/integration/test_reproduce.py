"""`squall reproduce EXPERIMENT --small`: published scenarios in small sizes, by a real Triton, PyTorch on the CPU."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from squall.scenarios.published.experiment import load_published
from tests.integration.live_runs import Bench, Live, wait_until

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


def start(bench: Bench, name: str, *options: str | Path) -> Live:
    assert bench.ray is not None
    return bench.start("reproduce", name, "--small", "--out", bench.out, "--ray", bench.ray, *options)


def folder_of(bench: Bench) -> Path:
    (folder,) = bench.out.iterdir()
    return folder


def found_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "reproduction.json").read_text())
    return found


def standing(folder: Path) -> list[dict[str, Any]]:
    """Of each row and seed the last attempt."""
    last = {(run["row"], run["seed"]): run for run in found_in(folder)["runs"]}
    return list(last.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "e2",
        pytest.param("e3", marks=pytest.mark.long),
        pytest.param("e1", marks=pytest.mark.long),
        pytest.param("e1-l", marks=pytest.mark.long),
    ],
)
def test_every_row_is_served_and_measured_in_small_sizes(joined: Bench, name: str) -> None:
    live = start(joined, name, "--part", "latency")
    code = live.end(600)
    assert code in (0, 3), live.lines
    folder = folder_of(joined)
    runs = standing(folder)
    part = load_published(name, is_small=True).parts["latency"]
    assert [run["row"] for run in sorted(runs, key=lambda run: run["row"])] == sorted(
        cell.label for cell in part.cells
    )
    for run in runs:
        store = RunStore.open(folder / "latency" / run["run"])
        assert store.is_sealed
        assert run["status"] == store.manifest.status
        assert run["status"] == "VALID" or run["reason"]
        figures = run["figures"]
        assert figures["throughput_hz"] > 0
        assert figures["p50_ns"] > 0
        assert figures["batch_rows_mean"] >= 1
        assert "sm_util_ratio" not in figures, "there is no GPU here"
    page = (folder / "reproduction.html").read_text()
    assert "figures mean nothing" in page
    for cell in part.cells:
        assert cell.label in page
    assert (code == 0) == all(run["status"] == "VALID" for run in runs)


@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_lets_the_run_end_and_the_rest_is_run_later(joined: Bench) -> None:
    live = start(joined, "e2", "--part", "latency")
    wait_until(lambda: any("in flight" in line for line in live.lines), 120, "the first run sends")
    live.process.send_signal(signal.SIGINT)
    assert live.end(120) == 1, live.lines
    folder = folder_of(joined)
    (first,) = standing(folder)
    assert any(f"--resume {folder}" in line.replace("\n", " ") for line in live.lines), live.lines
    again = start(joined, "e2", "--part", "latency", "--resume", folder)
    assert again.end(300) in (0, 3), again.lines
    runs = standing(folder)
    assert len(runs) == 3
    assert first in runs or first["status"] != "VALID", "what was measured is not measured again"
