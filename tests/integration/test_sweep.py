"""`squall sweep` through the command against a null server of known service time: what it leaves, and Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, Live, wait_until
from tests.null_process import NullProcess
from tests.sweep_runs import SCENARIO

pytestmark = pytest.mark.beside

SERVICE_NS = 3_000_000
RATES = ["40/s", "80/s"]


def experiment(folder: Path, null: NullProcess, measured: str = "1500ms", **changes: Any) -> Path:
    warm, burst, end = SCENARIO["phases"]
    scenario = {
        **SCENARIO,
        "server": {"url": f"http://127.0.0.1:{null.ports['http']}"},
        "clients": {"workers_per_node": 1, "timeout": "10s"},
        "phases": [
            {**warm, "duration": "500ms"},
            {**burst, "duration": measured},
            {**end, "duration": "300ms"},
        ],
        "promises": {"response": "p(50)<1500ms"},
    }
    path = folder / "experiment.yaml"
    stated = {
        "scenario": scenario, "matrix": {"phases.burst.arrivals.rate": RATES}, "repeats": 1, "confirm": 0,
        "restart": "never", **changes,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(stated))
    return path


def start(bench: Bench, path: Path, *options: str | Path) -> Live:
    assert bench.ray is not None
    return bench.start("sweep", path, "--out", bench.out, "--ray", bench.ray, *options)


def folder_of(bench: Bench) -> Path:
    (folder,) = bench.out.iterdir()
    return folder


def test_a_sweep_of_two_cells_leaves_their_runs_and_tables_and_is_not_run_twice(joined: Bench) -> None:
    with NullProcess(f"--service=constant:{SERVICE_NS // 1_000_000}ms") as null:
        path = experiment(joined.folder, null)
        live = start(joined, path, "--json")
        code = live.end()
        assert code in (0, 3), live.lines
        found = json.loads(joined.stdout())
        folder = folder_of(joined)
        with (folder / "runs.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        final = [row for row in rows if row["attempt"] == "2" or row["outcome"] == "done"]
        assert {row["phases.burst.arrivals.rate"] for row in final} == set(RATES)
        for row in rows:
            store = RunStore.open(folder / row["run"])
            assert store.is_sealed
            assert store.manifest.status == row["verdict"]
            n = store.manifest.plan.n_by_phase["burst"]
            assert int(row["n"]) == n
            assert float(row["p50_ns"]) >= SERVICE_NS, "no reply comes before the service time is over"
            assert float(row["offered_hz"]) == pytest.approx(n / 1.5)
            assert float(row["throughput_hz"]) <= 1.2 * n
            promised = row["promise: response p(50)<1500ms"]
            assert promised == ("kept" if row["verdict"] == "VALID" else "invalid")
        assert code == (0 if {row["outcome"] for row in final} == {"done"} else 3)
        assert found["is_complete"]
        assert found["answer"] in (folder / "sweep.html").read_text()
        assert found["design"]["restart"] == "no run: it runs already"
        before = (folder / "sweep.jsonl").read_bytes()
        again = start(joined, path, "--resume", folder)
        assert again.end() == code, again.lines
    assert (folder / "sweep.jsonl").read_bytes() == before
    assert "".join(joined.stdout().split()).endswith(str(folder)), "wrapped as a screen is"


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_lets_the_run_end_and_a_second_one_breaks_it_off(joined: Bench) -> None:
    with NullProcess(f"--service=constant:{SERVICE_NS // 1_000_000}ms") as null:
        path = experiment(joined.folder, null, measured="6s")
        live = start(joined, path)
        live.wait_for("burst ")
        live.interrupt(signal.SIGINT)  # to the whole group, as a terminal does
        assert live.end() == 1, live.lines
        assert live.error_line() == "squall: interrupted by SIGINT"
        folder = folder_of(joined)
        (store,) = [RunStore.open(one.parent) for one in folder.glob("*/manifest.json")]
        assert store.manifest.status in ("VALID", "INVALID"), "it was not aborted"
        outcomes = store.read("requests").column("outcome").to_pylist()
        assert outcomes.count("ok") == store.manifest.plan.n_arrivals
        live = start(joined, path, "--resume", folder)
        live.wait_for("burst ")
        live.interrupt(signal.SIGINT)
        live.wait_for("the run that goes on is finished first")
        live.interrupt(signal.SIGINT)
        assert live.end() == 1, live.lines
        assert live.error_line() == "squall: interrupted by SIGINT"
        statuses = sorted(RunStore.open(one.parent).manifest.status for one in folder.glob("*/manifest.json"))
        assert statuses[0] == "ABORTED"
        assert len(json.loads((folder / "sweep.json").read_text())["runs"]) == len(statuses) - 1
    joined.wait_until_gone()


@pytest.mark.slow
def test_a_sweep_whose_server_is_dead_stops_after_three_runs_and_goes_on_later(joined: Bench) -> None:
    rates = [f"{rate}/s" for rate in (40, 50, 60, 70, 80)]
    with NullProcess(f"--service=constant:{SERVICE_NS // 1_000_000}ms") as null:
        path = experiment(joined.folder, null, measured="1s", matrix={"phases.burst.arrivals.rate": rates})
        null.kill()
        live = start(joined, path)
        assert live.end() == 1, live.lines
        assert live.error_line().startswith("squall: 3 runs in a row failed at the server: ")
        folder = folder_of(joined)
        assert any(f"--resume {folder} goes on with it" in line for line in live.lines)
        lines = [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]
        assert [one["state"] for one in lines].count("failed") == 3
        null.start()
        again = start(joined, path, "--resume", folder)
        again.wait_for("are connected")
        again.interrupt()
        assert again.end() == 1, again.lines
    lines = [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]
    assert lines[-1]["state"] in ("done", "invalid")


@pytest.mark.long
@pytest.mark.slow
def test_what_a_killed_run_of_a_sweep_left_is_gathered_when_the_sweep_goes_on(joined: Bench) -> None:
    assert joined.ray_tmp is not None
    tmp = joined.ray_tmp
    with NullProcess(f"--service=constant:{SERVICE_NS // 1_000_000}ms") as null:
        path = experiment(joined.folder, null, measured="3s")
        live = start(joined, path)
        spills = "squall-tmp-*/spill/requests-*.arrows"
        wait_until(lambda: any(one.stat().st_size > 8192 for one in tmp.glob(spills)), 90, "spilled rows")
        os.kill(live.process.pid, signal.SIGKILL)
        live.end()
        folder = folder_of(joined)
        (broken,) = [one.parent for one in folder.glob("*/manifest.json")]
        again = start(joined, path, "--resume", folder)
        again.wait_for("are connected")
        again.interrupt()
        assert again.end() == 1, again.lines
    sealed = RunStore.open(broken)
    assert sealed.is_sealed
    assert sealed.manifest.reasons[0].startswith("The run's driver was killed ")
    assert broken.name not in (folder / "runs.csv").read_text(), "another run stands for it"
    joined.wait_until_gone()
