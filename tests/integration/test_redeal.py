"""A worker that is lost, or does not renew its lease, while the others take over what it had to send.

A null server's own record says what came: no arrival twice, and none that a row calls unsent.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.driver.redealing.redealer import redeals_of
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.deal import owners_of
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import plan_run
from tests.integration.live_runs import Bench, scenario_mapping, titled, wait_until
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.beside]
S = 1_000_000_000
LEASE_S = 3


def run_of(url: str, seconds: int, **clients: Any) -> dict[str, Any]:
    mapping = scenario_mapping(model={"name": "linear_head"}, server={"url": url})
    mapping["clients"] |= {
        "workers_per_node": 3, "on_client_loss": "redeal", "lease": f"{LEASE_S}s", "deal": "hash", **clients
    }  # fmt: skip
    mapping["phases"][1] |= {"duration": f"{seconds}s", "arrivals": {"kind": "poisson", "rate": "200/s"}}
    return mapping


class Record:
    """A null server that writes down what came."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "record.npz"
        self.server = NullProcess("--service=constant:1ms", f"--record={self.path}")

    def arrived(self) -> list[int]:
        """Ids of the requests, in the order in which they came; ends the server."""
        self.server.__exit__()
        wait_until(self.path.exists, 20, "the server's record")
        with np.load(self.path) as saved:
            assert int(saved["n_over"]) == int(saved["n_rejected"]) == 0
            found: list[int] = saved["request_id"].tolist()
        return found


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path)
    with made.server:
        yield made


def worker_of(bench: Bench, number: int) -> psutil.Process:
    """The process that has the worker's spill file open."""
    assert bench.ray_tmp is not None
    tmp = bench.ray_tmp

    def found() -> psutil.Process | None:
        for path in tmp.glob(f"squall-tmp-*/spill/requests-{number}.arrows"):
            for process in titled(psutil.process_iter(), "served LoadWorker"):
                if str(path) in {file.path for file in process.open_files()}:
                    return process
        return None

    process: psutil.Process = wait_until(found, 60, f"worker {number}")
    return process


def judged(store: RunStore, mapping: dict[str, Any], arrived: list[int]) -> dict[str, Any]:
    """Rows by arrival of a run in which worker 1 was lost, after the checks that hold however it was lost."""
    table = store.read("requests").sort_by("request_id")
    columns = {
        name: table.column(name).to_numpy()
        for name in ("request_id", "worker", "scheduled_ns", "redealt", "sent_ns")
    }
    rows = columns | {"outcome": table.column("outcome").cast(pa.string()).to_numpy()}
    n_planned = store.manifest.plan.n_arrivals
    assert np.array_equal(rows["request_id"], np.arange(n_planned)), "planned is the sum over the outcomes"

    came = [one for one in arrived if one >= 0]
    assert len(came) == len(set(came)), "no arrival came twice"
    assert not set(came) & set(rows["request_id"][rows["outcome"] == "unsent"])
    assert set(rows["request_id"][rows["outcome"] == "ok"]) <= set(came)

    plan = plan_run(scenario_from_mapping(mapping, "test"), _entries(mapping))
    assert isinstance(plan, Plan)
    (facts,) = store.manifest.redeals
    assert (facts.worker, facts.takers) == (1, (0, 2))
    first, last = (
        owners_of(plan.deal, plan.seq, plan.affinity, plan.offset_ns, 3, some)
        for some in ((), redeals_of([facts]))
    )
    assert np.array_equal(rows["worker"], last)
    assert np.array_equal(rows["redealt"].astype(bool), first != last)
    assert facts.n_arrivals == np.count_nonzero(first != last) > 200
    assert (plan.offset_ns[first != last] >= facts.from_ns).all()
    taken = rows["outcome"][first != last]
    assert set(taken) == {"ok"}
    hole = (first == 1) & (plan.offset_ns >= facts.lost_ns) & (plan.offset_ns < facts.from_ns)
    assert set(rows["outcome"][hole]) == {"unsent"}
    others = np.isin(first, (0, 2))
    assert set(rows["outcome"][others]) == {"ok"}
    assert any("arrivals of worker 1 due from" in note for note in store.manifest.notes)
    assert any(f"of {len(taken)} arrivals that were dealt anew and recorded, {len(taken)} ended ok" in note
               for note in store.manifest.notes)  # fmt: skip
    assert store.manifest.status == "INVALID", "what was due in between was not sent"
    assert store.verify() == []
    return rows


def _entries(mapping: dict[str, Any]) -> Any:
    return scenario_from_mapping(mapping, "test").server_entries()


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_what_a_killed_worker_had_is_sent_by_the_others_each_arrival_once(
    joined: Bench, record: Record, protocol: str
) -> None:
    url = f"http://127.0.0.1:{record.server.ports['http']}"
    mapping = run_of(url, 8, protocol=protocol)
    if protocol == "grpc":
        mapping["server"]["grpc_port"] = record.server.ports["grpc"]
    live = joined.start_run(mapping)
    worker = worker_of(joined, 1)
    joined.wait_for_phase("burst", 1.2)
    worker.kill()
    assert live.end() == 3, live.lines
    store = joined.store()
    rows = judged(store, mapping, record.arrived())
    of_lost = rows["outcome"][rows["worker"] == 1]
    assert {"ok", "unsent"} <= set(of_lost) <= {"ok", "lost", "unsent"}
    facts = store.manifest.redeals[0]
    assert facts.from_ns - facts.lost_ns < 5 * S, "at once: a poll and the margin"
    assert any("arrivals of worker 1 due from" in line for line in live.lines)
    joined.wait_until_gone()


def test_a_worker_that_stands_still_beyond_its_lease_sends_nothing_when_it_goes_on(
    joined: Bench, record: Record
) -> None:
    """The driver is stopped with it, so that the worker goes on before it is given up: by its own clock it stops."""
    mapping = run_of(f"http://127.0.0.1:{record.server.ports['http']}", 14)
    live = joined.start_run(mapping)
    worker = worker_of(joined, 1)
    joined.wait_for_phase("burst", 1.2)
    worker.send_signal(signal.SIGSTOP)
    time.sleep(LEASE_S - 1)
    live.process.send_signal(signal.SIGSTOP)  # renews nobody's lease for less than the others' have left
    time.sleep(1.6)
    worker.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    live.process.send_signal(signal.SIGCONT)
    assert live.end() == 3, live.lines
    rows = judged(joined.store(), mapping, record.arrived())
    assert "ok" in rows["outcome"][rows["worker"] == 1]
    # the one, or what a busy host's driver sees first
    ends = ("its lease ran out", "it did not renew its lease")
    told = [f"worker 1 on node-0 is lost: {end}" for end in ends]
    assert any(one in loss for one in told for loss in joined.store().manifest.losses)
    joined.wait_until_gone()


def test_without_its_driver_every_worker_ends_by_its_lease(joined: Bench, record: Record) -> None:
    """A driver that stands still does not close its connections, as one that dies does."""
    mapping = run_of(f"http://127.0.0.1:{record.server.ports['http']}", 14)
    live = joined.start_run(mapping)
    joined.wait_for_phase("burst", 1.2)
    live.process.send_signal(signal.SIGSTOP)
    time.sleep(LEASE_S + 2)
    live.process.send_signal(signal.SIGCONT)
    assert live.end() == 3, live.lines
    store, arrived = joined.store(), record.arrived()
    table = store.read("requests").sort_by("request_id").to_pydict()
    assert table["request_id"] == list(range(store.manifest.plan.n_arrivals))
    assert store.manifest.redeals == (), "nobody is left to deal to"
    assert len(arrived) == len(set(arrived))
    unsent = [i for i, outcome in enumerate(table["outcome"]) if outcome == "unsent"]
    assert not set(unsent) & set(arrived)
    assert {table["detail"][i] for i in unsent} == {"its worker's lease ran out before its turn"}
    assert set(table["outcome"]) <= {"ok", "unsent", "cancelled"}
    assert store.manifest.start_ns is not None
    last_ns = max(ns for ns in table["sent_ns"] if ns is not None) - store.manifest.start_ns
    assert last_ns < (0.5 + 1.2 + 1.5 + LEASE_S) * S + 5 * S, "the load is 15 s long"
    assert sum("its lease ran out" in loss for loss in store.manifest.losses) == 3
    joined.wait_until_gone()


@pytest.mark.long
def test_a_killed_driver_leaves_no_arrival_sent_twice_and_resume_brings_the_rest(
    joined: Bench, record: Record
) -> None:
    """After a redeal: the parts that were taken over are files of their own."""
    mapping = run_of(f"http://127.0.0.1:{record.server.ports['http']}", 20)
    live = joined.start_run(mapping)
    worker = worker_of(joined, 1)
    joined.wait_for_phase("burst", 1.2)
    worker.kill()
    live.wait_for("arrivals of worker 1 due from")
    joined.wait_for_phase("burst", 7)
    live.process.kill()
    live.end()
    assert joined.ray_tmp is not None
    again = Bench(joined.folder, joined.ray_tmp).start("resume", joined.store().run_dir)
    assert again.end(90) == 3, again.lines
    store, arrived = joined.store(), record.arrived()
    table = store.read("requests").sort_by("request_id").to_pydict()
    assert table["request_id"] == list(range(store.manifest.plan.n_arrivals))
    assert len(arrived) == len(set(arrived))
    taken = [outcome for outcome, is_one in zip(table["outcome"], table["redealt"], strict=True) if is_one]
    assert taken.count("ok") > 50
    assert len(taken) == store.manifest.redeals[0].n_arrivals
    assert set(table["outcome"]) <= {"ok", "unsent", "cancelled", "lost"}
    joined.wait_until_gone()
