"""Processes of a run that are killed or stopped, a driver that dies, a disk that fills up: no row that was written is
lost, and no row says what the server's own counts deny. Without Ray, against a null server."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.cluster.commands.local_workers import NullTriton
from tests.integration.disks import fill, small_disk
from tests.integration.live_runs import Bench, Live, titled, wait_until

RATE = 60
S = 1_000_000_000


@dataclass
class Alone(Bench):
    """Runs of the command without Ray, against a null server of their own."""

    port: int = 0

    def load(self, seconds: float, **clients: Any) -> Live:
        """A run of so long."""
        mapping = {
            "name": "try", "seed": 7,
            "model": {"name": "linear_head", "settings": {"width": 64, "classes": 2}},
            "server": {"url": f"http://127.0.0.1:{self.port}"},
            "clients": {"workers_per_node": 2, "timeout": "2s", **clients},
            "phases": [
                {
                    "name": "burst", "kind": "measure", "duration": f"{seconds}s",
                    "arrivals": {"kind": "poisson", "rate": f"{RATE}/s"},
                },
                {"name": "drain", "kind": "drain", "duration": "300ms"},
            ],
            "profile": {"nsys": "off", "nvml": "off", "triton_interval": "200ms"},
        }  # fmt: skip
        return self.start_run(mapping)

    def of(self, title: str) -> list[psutil.Process]:
        """Its processes with `title` in their command line, in the order of their pids."""
        return sorted(titled(self.processes(), title), key=lambda one: one.pid)

    def rows(self) -> dict[str, Any]:
        """Columns of `requests`, after the run was found whole: sealed, nothing left to resume, a row an arrival."""
        store = self.store()
        assert store.is_sealed
        assert store.manifest.unfinished is None
        assert store.verify() == []
        assert not list(store.run_dir.glob(".*"))
        table = store.read("requests")
        ids = table.column("request_id").to_numpy()
        assert np.array_equal(np.sort(ids), np.arange(store.manifest.plan.n_arrivals))
        texts = {name: table.column(name).cast(pa.string()).to_numpy() for name in ("outcome", "detail")}
        return texts | {name: table.column(name).to_numpy() for name in ("worker", "scheduled_ns", "done_ns")}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    with tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as tmp, NullTriton() as server:
        yield Alone(tmp_path, Path(tmp), port=server.port("http"))


def n_served(store: RunStore) -> int:
    """Requests that the server counts, over the run."""
    return int(store.read("triton_samples").column("request_count").to_numpy().sum())


def worker_of(bench: Alone, number: int) -> psutil.Process:
    """The process that writes the spill file of that worker, once it holds rows."""

    def found() -> psutil.Process | None:
        for path in bench.tmp.glob(f"squall-tmp-*/spill/requests-{number}.arrows"):
            for one in bench.of("LoadWorker") if path.stat().st_size > 8192 else []:
                if str(path) in {file.path for file in one.open_files()}:
                    return one
        return None

    process: psutil.Process = wait_until(found, 30, f"rows of worker {number}")
    return process


def test_what_a_killed_worker_had_not_written_is_lost_and_what_was_due_later_is_unsent(alone: Alone) -> None:
    live = alone.load(4)
    worker = worker_of(alone, 1)
    worker.suspend()
    time.sleep(0.5)  # what is due meanwhile has no record
    worker.kill()
    assert live.end() == 3, live.lines
    rows, store = alone.rows(), alone.store()
    outcome, is_1 = rows["outcome"], rows["worker"] == 1
    assert set(outcome[~is_1]) == {"ok"}
    assert set(outcome[is_1]) == {"ok", "lost", "unsent"}
    last_lost_ns = rows["scheduled_ns"][outcome == "lost"].max()
    assert rows["scheduled_ns"][outcome == "unsent"].min() > last_lost_ns
    n = {name: int((outcome == name).sum()) for name in ("ok", "lost", "unsent")}
    assert n["ok"] <= n_served(store) <= n["ok"] + n["lost"]
    said = f"{n['lost'] + n['unsent']} arrivals have no record: {n['lost']} are lost"
    assert any(said in loss for loss in store.manifest.losses), store.manifest.losses
    assert any("worker 1 on node-0 is lost: its process has ended" in loss for loss in store.manifest.losses)
    reasons = store.manifest.reasons
    assert any(f"whose record was lost is {n['lost']}" in reason for reason in reasons), reasons
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_killed_agent_is_replaced_without_ray_and_load_and_samples_go_on(alone: Alone) -> None:
    live = alone.load(5)
    worker_of(alone, 0)
    (agent,) = alone.of("NodeAgent")
    agent.kill()
    assert live.end() == 3, live.lines
    assert set(alone.rows()["outcome"]) == {"ok"}
    losses = alone.store().manifest.losses
    assert [loss.partition(":")[0] for loss in losses] == ["agent on node-0 is lost"]
    (burst_ns,) = [one.end_ns for one in phase_spans(alone.store().manifest) if one.name == "burst"]
    last_ns = pc.max(alone.store().read("host_samples").column("t_ns")).as_py()
    assert last_ns > burst_ns - 2 * S, "the agent was killed in the first second of five"
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_agent_is_given_up_after_the_load_and_its_files_are_read(alone: Alone) -> None:
    live = alone.load(3)
    worker_of(alone, 0)
    (agent,) = alone.of("NodeAgent")
    agent.send_signal(signal.SIGSTOP)
    assert live.end() == 3, live.lines
    assert set(alone.rows()["outcome"]) == {"ok"}
    assert any("agent on node-0 did not answer within 10 s" in loss for loss in alone.store().manifest.losses)
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_stopped_worker_is_given_up_and_what_it_wrote_is_kept(alone: Alone) -> None:
    live = alone.load(3)
    worker_of(alone, 1).send_signal(signal.SIGSTOP)
    assert live.end() == 3, live.lines
    outcome, is_1 = alone.rows()["outcome"], alone.rows()["worker"] == 1
    assert set(outcome[~is_1]) == {"ok"}
    assert set(outcome[is_1]) == {"ok", "lost"}, "of a worker that was stopped nothing is known"
    assert not [line for line in live.lines if re.search(r"-\d+ req/s", line)]
    alone.wait_until_gone()


@pytest.mark.slow
def test_ctrl_c_is_obeyed_at_once_while_processes_do_not_answer(alone: Alone) -> None:
    live = alone.load(30)
    stopped = [worker_of(alone, 1), *alone.of("NodeAgent")]
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    live.interrupt()
    assert live.end(60) == 1, live.lines
    assert time.monotonic() - begun < 30
    assert live.error_line() == "squall: interrupted by SIGINT"
    outcome = alone.rows()["outcome"]
    assert set(outcome) <= {"ok", "cancelled", "unsent", "lost"}
    assert (outcome == "ok").sum() > 20
    assert alone.store().manifest.status == "ABORTED"
    alone.wait_until_gone()


def test_what_a_killed_driver_left_is_kept_and_resume_seals_it(alone: Alone) -> None:
    live = alone.load(30)
    for number in (0, 1):
        worker_of(alone, number)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not alone.processes(), 30, "the end of every process")
    assert not alone.store().is_sealed
    (folder,) = alone.tmp.glob("squall-tmp-*")

    again = alone.start("resume", alone.store().run_dir)
    assert again.end() == 3, again.lines
    rows = alone.rows()
    assert set(rows["outcome"]) <= {"ok", "cancelled", "unsent", "lost"}
    was_served = rows["outcome"] == "ok"
    assert was_served.sum() > 20
    # nobody asked the server any more after its last sample
    sampled_ns = alone.store().read("triton_samples").column("t_ns").to_numpy().max() - S // 10
    assert (was_served & (rows["done_ns"] <= sampled_ns)).sum() <= n_served(alone.store())
    assert alone.store().manifest.status == "INVALID"
    assert not folder.exists()
    assert alone.start("resume", alone.store().run_dir).end() == 3, "there is nothing more to do"
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_full_disk_costs_no_row_once_there_is_room_again(alone: Alone) -> None:
    with small_disk(alone.folder / "out", "16m") as disk:
        live = alone.load(2)
        worker_of(alone, 0)
        fill(disk)
        assert live.end() == 1, live.lines
        said, store = live.error_line(), alone.aborted()
        (folder,) = alone.tmp.glob("squall-tmp-*")
        assert "no space left on device" in said
        assert f"kept in {folder} of node-0: squall resume {store.run_dir} finishes the run" in said
        n_planned = store.manifest.plan.n_arrivals
        counts = [int(word) for loss in store.manifest.losses for word in loss.split() if word.isdigit()]
        assert all(count <= n_planned for count in counts), store.manifest.losses

        folder.rename(folder.with_name("elsewhere"))
        again = alone.start("resume", store.run_dir)
        assert again.end() == 1
        assert (
            again.error_line()
            == f"squall: nothing to gather: what node-0 kept in {folder} is not on this machine"
        )
        folder.with_name("elsewhere").rename(folder)

        again = alone.start("resume", store.run_dir)
        assert again.end() == 1, "there is still no room"
        assert f"squall resume {store.run_dir} finishes the run" in again.error_line()
        (disk / "filler").unlink()
        again = alone.start("resume", store.run_dir)
        assert again.end() in (0, 3), again.lines
        assert set(alone.rows()["outcome"]) == {"ok"}
        assert alone.store().manifest.losses == ()
        assert (store.run_dir / "report.html").exists()
        alone.wait_until_gone()


@pytest.mark.slow
def test_a_disk_that_fills_while_joining_is_said_in_one_line_and_resume_finishes(alone: Alone) -> None:
    with small_disk(alone.folder / "out", "16m") as disk:
        live = alone.load(2)
        live.wait_for("joining and judging")
        wait_until(lambda: alone.store().is_sealed, 30, "the seal")
        fill(disk)
        assert live.end() == 1, live.lines
        assert "no space left on device" in live.error_line()
        (disk / "filler").unlink()
        again = alone.start("resume", alone.store().run_dir)
        assert again.end() in (0, 3), again.lines
        assert set(alone.rows()["outcome"]) == {"ok"}
        report = alone.store().run_dir / "report.html"
        assert report.exists()
        report.unlink()  # as where the disk filled a moment later, beneath the last file
        assert alone.start("resume", alone.store().run_dir).end() in (0, 3)
        assert report.exists()
        alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("title", ["NodeAgent", "LoadWorker"])
def test_a_process_that_is_stopped_before_the_load_ends_the_run_in_one_line_and_is_not_left(
    alone: Alone, title: str
) -> None:
    live = alone.load(2, workers_per_node=12)  # the first is stopped before the last is ready
    stopped = wait_until(lambda: alone.of(title), 30, title)[0]
    stopped.send_signal(signal.SIGSTOP)
    assert live.end() == 1, live.lines
    assert re.search("did not (answer|come up) within|does not answer any more", live.error_line())
    assert alone.store().manifest.status == "ABORTED"
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_a_driver_killed_before_the_first_rows_are_written_leaves_them_to_resume(alone: Alone) -> None:
    """The workers write them when they find themselves alone; the folder must still be there then."""
    live = alone.load(4)
    alone.wait_for_phase("burst", 0.4)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not alone.processes(), 60, "the end of every process")
    again = alone.start("resume", alone.store().run_dir)
    assert again.end() == 3, again.lines
    outcomes = alone.rows()["outcome"].tolist()
    assert outcomes.count("ok") > 10
    assert set(outcomes) <= {"ok", "cancelled", "unsent"}
    alone.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["collecting", pytest.param("joining and judging", marks=pytest.mark.long)]
)
def test_a_driver_killed_after_the_load_leaves_all_rows_to_resume(alone: Alone, moment: str) -> None:
    live = alone.load(2)
    live.wait_for(moment)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not alone.processes(), 30, "the end of every process")
    again = alone.start("resume", alone.store().run_dir)
    assert again.end() in (0, 3), again.lines
    assert set(alone.rows()["outcome"]) == {"ok"}
    assert alone.start("analyze", alone.store().run_dir).end() == 0
    alone.wait_until_gone()
