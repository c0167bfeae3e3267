"""Runs over hosts of a cluster (`namespaces`): the driver, a Triton and client nodes, and what faults on the way cost.

The run directory lies on a disk that all hosts see, scratch folders do not.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from squall.actors.inject.library import built_library
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.disks import assert_whole, executed, fill
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet, wait_until
from tests.integration.namespaces import APART_S, MODEL, Cluster, Host, cluster

pytestmark = pytest.mark.skipif(
    built_library("batches") is None, reason="the batch library was not built: no C compiler"
)

S = 1_000_000_000
NODES = {"head": "node-0", "gpu0": "node-1", "client0": "node-2", "client1": "node-3"}
"""Labels of the hosts: the driver's first, then by address."""
CLIENTS = {NODES[name] for name in ("head", "client0", "client1")}
ALL_OK = {label: {"ok"} for label in CLIENTS}
"""Outcomes by node of a run that lacks nothing."""
_LOST_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Site:
    """A cluster that stands, and a Triton on its host gpu0."""

    cluster: Cluster
    url: str

    def host(self, name: str) -> Host:
        return self.cluster.hosts[name]

    def scenario(self, seconds: float, **arrivals: str) -> dict[str, Any]:
        """One worker on each client; Poisson arrivals for `seconds` unless `arrivals` say otherwise."""
        mapping = scenario_mapping(model={"name": MODEL}, server={"url": self.url})
        mapping["clients"]["workers_per_node"] = 1
        mapping["phases"][1] |= {
            "duration": f"{seconds:g}s",
            "arrivals": arrivals or {"kind": "poisson", "rate": "90/s"},
        }
        mapping["profile"]["batches"] = "required"
        return mapping


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, *list(NODES)[1:]) as made, made.triton("gpu0") as url:
        yield Site(made, url)


@pytest.fixture
def bench(site: Site, tmp_path: Path) -> Bench:
    """Its commands run on the head; Ray runs on every host again, whatever the test before did to it."""
    site.cluster.start_ray()
    site.cluster.sweep()
    return Bench(tmp_path, site.cluster.tmp, site.cluster.ray, within=site.cluster.head.within)


def _outcomes(store: RunStore) -> dict[str, set[str]]:
    """By node, of a run whose every arrival has one row; none denies what the server did."""
    rows = planned_rows(store)
    found: dict[str, set[str]] = {}
    for node, outcome in zip(rows["node"], rows["outcome"], strict=True):
        found.setdefault(node, set()).add(outcome)
    by_id = dict(zip(rows["request_id"], rows["outcome"], strict=True))
    assert not {by_id[one] for one in executed(store) if one in by_id} & {"unsent"}
    return found


def _all(outcomes: dict[str, set[str]]) -> set[str]:
    return {one for of_node in outcomes.values() for one in of_node}


def _n(store: RunStore, node: str, outcome: str) -> int:
    rows = planned_rows(store)
    return [*zip(rows["node"], rows["outcome"], strict=True)].count((node, outcome))


def _assert_clocks_true(store: RunStore) -> None:
    """Each node's clock is ahead of the driver's by what is known exactly, within the stated bound, all through."""
    spans = phase_spans(store.manifest)
    run_ns = np.linspace(spans[0].start_ns, spans[-1].end_ns, 501).astype(np.int64)
    anchor_ns = store.manifest.nodes[NODES["head"]].clock_offset_ns
    assert anchor_ns is not None
    for number, label in enumerate(NODES.values()):
        knots = store.manifest.nodes[label].clock_track
        assert knots is not None
        track, node_ns = ClockTrack.from_knots(knots), run_ns - anchor_ns + number * APART_S * S
        assert (np.abs(track.convert(node_ns) - run_ns) <= track.error_at(node_ns)).all(), label


_USERS = """
from locust import between, task
from squall import TritonUser
from shop.words import NAME

class Caller(TritonUser):
    wait_time = between(0.02, 0.06)

    @task
    def ask(self):
        self.triton.infer(rows=2, name=NAME)
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.beside
def test_users_of_locust_on_three_hosts_meet_at_one_master_and_their_rows_are_on_one_clock(
    site: Site, bench: Bench, tmp_path: Path
) -> None:
    """Two of the clients do not see the disk with the locustfile and the module that it imports."""
    (tmp_path / "users.py").write_text(_USERS)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "words.py").write_text('NAME = "two rows"\n')
    mapping = site.scenario(4)
    for phase in mapping["phases"]:
        phase.pop("arrivals", None)
    for key in ("rows", "try_first"):
        del mapping["clients"][key]
    mapping["load"] = {
        "locust": {
            "file": str(tmp_path / "users.py"), "include": [str(tmp_path / "shop")], "users": 9, "spawn_rate": 50.0,
        }
    }  # fmt: skip
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    facts, rows = store.manifest.locust, store.read("requests").to_pydict()
    assert facts is not None
    assert store.manifest.losses == ()
    assert [(one.name, one.n_requests) for one in facts.entries[:-1]] == [
        ("two rows", len(rows["request_id"]))
    ]
    assert set(rows["node"]) == CLIENTS
    assert [one.has_reported for one in facts.workers] == [True] * 3
    _assert_clocks_true(store)
    bound_ns = max(one.clock_error_ns or 0 for one in store.manifest.nodes.values())
    joined = store.read("joined").to_pydict()
    assert set(joined["join_level"]) == {"exact"}
    for sent, start, end, done in zip(
        *(joined[name] for name in ("sent_ns", "batch_start_ns", "batch_end_ns", "done_ns")), strict=True
    ):
        assert sent - 2 * bound_ns <= start < end <= done + 2 * bound_ns
    site.cluster.wait_until_clean()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_a_users_data_reaches_clients_that_do_not_see_its_disk(
    site: Site, bench: Bench, tmp_path: Path
) -> None:
    """One client shares the driver's disk, two do not; each reply is held to the entry that its request carried."""
    ours = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    values = np.repeat(
        ours[:, None], 4, axis=1
    )  # Triton 2.51's `as_numpy` repeats a row's first under NumPy 2
    np.save(tmp_path / "values.npy", values)
    mapping = site.scenario(2)
    mapping["clients"] |= {
        "data": {"path": str(tmp_path / "values.npy"), "order": "random"},
        "rows": {"kind": "constant", "value": 1},
        "check": {"share": 1.0, "reference": str(tmp_path / "answers.npz"), "rtol": 0.0, "atol": 0.0},
    }
    answers: dict[str, Any] = {f"OUT/1/{entry}": values[entry : entry + 1] for entry in range(500)}
    np.savez(tmp_path / "answers.npz", **answers)
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert _outcomes(store) == ALL_OK
    checks = store.manifest.value_checks
    assert checks is not None
    assert (checks.n_checked, checks.n_wrong) == (store.manifest.plan.n_arrivals, 0)
    site.cluster.wait_until_clean()


@pytest.mark.beside
def test_a_burst_from_three_nodes_is_sent_whole_on_one_clock_and_joined_to_its_batches(
    site: Site, bench: Bench
) -> None:
    mapping = site.scenario(4, kind="envelope", preset="nasa-flash-crowd", bin="34ms", rate="120/s")
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert unmet(store) == [], store.manifest.verdict
    assert (store.manifest.losses, store.manifest.unfinished) == ((), None)
    assert _outcomes(store) == ALL_OK
    rows, start_ns = planned_rows(store), store.manifest.start_ns
    assert start_ns is not None

    bound_ns = max(facts.clock_error_ns or 0 for facts in store.manifest.nodes.values())
    assert 0 < bound_ns < np.median(np.array(rows["done_ns"]) - np.array(rows["sent_ns"])) / 10
    _assert_clocks_true(store)
    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    apart_ns = np.array(rows["scheduled_ns"]) - start_ns - plan.offset_ns
    assert np.abs(apart_ns).max() <= 2 * bound_ns, "the bound as the start was told, and as it was at the end"
    assert (np.array(rows["sent_ns"]) >= np.array(rows["scheduled_ns"])).all()
    assert min(rows["sent_ns"]) > start_ns - bound_ns
    halfway_ns = phase_spans(store.manifest)[1].start_ns + 2 * S
    for is_late in (False, True):
        sending = {
            node
            for node, at in zip(rows["node"], rows["sent_ns"], strict=True)
            if (at > halfway_ns) == is_late
        }
        assert sending == CLIENTS, "all send at once, each its part of the plan"

    joined = store.read("joined").to_pydict()
    assert joined["join_level"] == ["exact"] * len(joined["request_id"])
    assert set(joined["request_id"]) <= executed(store)
    assert store.verify() == []
    site.cluster.wait_until_clean()


@pytest.mark.beside
@pytest.mark.slow
def test_two_servers_on_two_hosts_share_a_burst_and_each_request_is_joined_on_its_own(
    site: Site, bench: Bench
) -> None:
    """squall starts them, on gpu0 and client0; head and client1 load both."""
    mapping = scenario_mapping(server={"listen": "cluster"}, servers={"count": 2})
    mapping["clients"] |= {"workers_per_node": 1, "deal": "hash"}
    mapping["phases"][1]["duration"] = "4s"
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert unmet(store) == [], store.manifest.verdict
    assert (store.manifest.losses, store.manifest.unfinished) == ((), None)
    clients, servers = (
        {NODES["head"], NODES["client1"]},
        {"server-0": NODES["gpu0"], "server-1": NODES["client0"]},
    )
    assert _outcomes(store) == {label: {"ok"} for label in clients}
    assert {name: one.node for name, one in store.manifest.servers.items()} == servers
    requests = store.read("requests", ["request_id", "target", "node"]).to_pylist()
    assert {(row["target"], row["node"]) for row in requests} == {
        (name, label) for name in servers for label in clients
    }, "each client loads both"
    assert all(row["target"] == f"server-{row['request_id'] % 2}" for row in requests), "in turn"
    for table in ("batches", "triton_samples", "thread_samples"):
        found = {(row["server"], row["node"]) for row in store.read(table, ["server", "node"]).to_pylist()}
        assert found == set(servers.items()), table
    joined = store.read("joined", ["target", "server", "join_level"]).to_pylist()
    assert {row["join_level"] for row in joined} == {"exact"}
    assert all(row["server"] == row["target"] for row in joined)
    _assert_clocks_true(store)
    assert store.verify() == []
    site.cluster.wait_until_clean()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_a_server_on_each_node_shares_the_plan_once_the_nodes_say_how_many_there_are(
    site: Site, bench: Bench
) -> None:
    """Each host but the driver's has one; the head alone loads them."""
    mapping = scenario_mapping(server={"listen": "cluster"}, servers={"per": "node"})
    mapping["clients"]["workers_per_node"] = 1
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert unmet(store) == [], store.manifest.verdict
    assert _outcomes(store) == {NODES["head"]: {"ok"}}
    requests = store.read("requests", ["request_id", "target"]).to_pylist()
    assert all(row["target"] == f"server-{row['request_id'] % 3}" for row in requests), "in turn"
    joined = store.read("joined", ["target", "server", "join_level"]).to_pylist()
    assert {row["join_level"] for row in joined} == {"exact"}
    assert all(row["server"] == row["target"] for row in joined)
    site.cluster.wait_until_clean()


@pytest.mark.slow
def test_a_link_that_is_down_for_seconds_and_a_worker_that_stands_still_cost_no_row(
    site: Site, bench: Bench
) -> None:
    """The link of client0; the worker of client1 sends late, and the run says so."""
    cut, late = NODES["client0"], NODES["client1"]
    live = bench.start_run(site.scenario(8))
    bench.wait_for_phase("burst", 1.5)
    site.host("client0").unplug()
    with _stopped(site.host("client1").process("served LoadWorker")):
        bench.wait_for_phase("burst", 4.5)
    site.host("client0").plug()
    assert live.end() == 3, live.lines
    store = bench.store()
    outcomes = _outcomes(store)
    assert not {"lost", "unsent"} & _all(outcomes)
    assert outcomes[NODES["head"]] == {"ok"}
    assert outcomes[late] <= {"ok", "timeout"}, "of what was under way as it stopped"
    rows = planned_rows(store)
    lag_ns: dict[str, list[int]] = {}
    for node, due_ns, sent_ns in zip(rows["node"], rows["scheduled_ns"], rows["sent_ns"], strict=True):
        if sent_ns is not None:  # while the link was down there was no connection to send on
            lag_ns.setdefault(node, []).append(sent_ns - due_ns)
    of_cut = [one for one, node in zip(rows["outcome"], rows["node"], strict=True) if node == cut]
    assert set(of_cut[-30:]) == {"ok"}, "it goes on where the link is back"
    assert max(lag_ns[NODES["head"]]) < 2 * S < max(lag_ns[late]) < 4 * S
    assert any("worker 2 was late" in reason for reason in store.manifest.reasons), store.manifest.reasons
    assert store.manifest.losses == ()
    _assert_clocks_true(store)
    assert_whole(store)
    site.cluster.wait_until_clean()


@pytest.mark.slow
@pytest.mark.long
def test_what_a_client_kept_whose_link_stays_down_is_brought_by_resume_there(
    site: Site, bench: Bench
) -> None:
    gone, label = site.host("client1"), NODES["client1"]
    live = bench.start_run(site.scenario(5))
    bench.wait_for_phase("burst", 2.5)
    with _unplugged(gone):
        assert live.end(_LOST_TIMEOUT_S) == 3, live.lines
        store = bench.store()
        outcomes = _outcomes(store)
        assert outcomes == {**ALL_OK, label: {"lost"}}
        n_lost = planned_rows(store)["outcome"].count("lost")
        losses, unfinished = store.manifest.losses, store.manifest.unfinished
        assert store.manifest.status == "INVALID"
        assert any(f"worker 2 on {label}" in loss for loss in losses), losses
        assert any(f"{n_lost} arrivals have no record" in loss for loss in losses), losses
        assert unfinished is not None
        assert set(unfinished.folders) == {label}
        assert any(f"squall resume {store.run_dir} finishes the run" in line for line in live.lines)
        site.cluster.wait_until_clean(but="client1")
        assert len(gone.scratch_folders()) == 1

        again = Bench(bench.folder, bench.tmp, within=gone.within).start("resume", store.run_dir)
        assert again.end(60) == 3, again.lines
    assert_whole(bench.store())
    assert _n(bench.store(), label, "ok") > 60
    assert planned_rows(bench.store())["outcome"].count("lost") < n_lost - 60
    site.cluster.wait_until_clean()


@contextlib.contextmanager
def _unplugged(host: Host) -> Iterator[None]:
    """So long that Ray may take the host for dead: it is a new node afterwards.

    Its launcher ends before the link is back, over which it would be asked by a driver that has gone.
    """
    host.unplug()
    try:
        yield
    finally:
        for launcher in host.processes("ray::_Launcher"):
            launcher.kill()
        host.plug()
        host.stop_ray()


@pytest.mark.slow
def test_a_killed_driver_leaves_rows_on_each_host_which_resume_brings_host_by_host(
    site: Site, bench: Bench
) -> None:
    live = bench.start_run(site.scenario(30))
    bench.wait_for_phase("burst", 2.5)
    site.cluster.head.process("squall.cluster.entry run").kill()
    live.end()
    hosts = site.cluster.hosts.values()
    served = "squall.cluster.remote.served"
    wait_until(lambda: not any(host.processes(served) for host in hosts), 60, "the end on every host")
    assert not bench.store().is_sealed
    n_ok = []
    for host in hosts:
        again = Bench(bench.folder, bench.tmp, within=host.within).start("resume", bench.store().run_dir)
        assert again.end(60) == 3, again.lines
        n_ok.append(planned_rows(bench.store())["outcome"].count("ok"))
        assert bench.store().has("batches") == (host is not site.cluster.head)
    head, gpu0, client0, client1 = n_ok
    assert 30 < head == gpu0 < client0 - 30
    assert client0 + 30 < client1
    assert_whole(bench.store())
    assert _all(_outcomes(bench.store())) <= {"ok", "cancelled", "unsent", "lost"}
    site.cluster.wait_until_clean()


@pytest.mark.slow
def test_a_raylet_of_a_client_and_the_gcs_killed_under_load_cost_nothing(site: Site, bench: Bench) -> None:
    live = bench.start_run(site.scenario(5))
    bench.wait_for_phase("burst", 1)
    site.host("client0").process("raylet/raylet").kill()
    bench.wait_for_phase("burst", 2)
    site.cluster.head.process("gcs/gcs_server").kill()
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert _outcomes(store) == ALL_OK
    assert store.manifest.losses == ()
    assert_whole(store)
    assert not any(line.startswith("squall: ") for line in live.lines), live.lines
    site.cluster.start_ray()  # what a Ray without its GCS keeps goes with that Ray
    site.cluster.wait_until_clean()


@pytest.mark.slow
def test_a_full_disk_of_a_client_ends_the_load_and_keeps_what_was_recorded(site: Site, bench: Bench) -> None:
    full = site.host("client0")
    live = bench.start_run(site.scenario(20))
    bench.wait_for_phase("burst", 2.5)
    fill(full.seen(full.tmp))
    try:
        assert live.end() == 1, live.lines
        assert "worker 1 on node-2 cannot write its records: No space left on device" in live.error_line()
    finally:
        (full.seen(full.tmp) / "filler").unlink()
    store = bench.aborted()
    assert {"ok", "unsent"} <= _all(_outcomes(store)) <= {"ok", "cancelled", "unsent"}
    assert all(_n(store, label, "ok") > 30 for label in CLIENTS)
    assert_whole(store)
    site.cluster.wait_until_clean()


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.long
@pytest.mark.slow
def test_killed_a_clients_worker_and_the_agent_of_the_servers_node_cost_what_they_had_not_written(
    site: Site, bench: Bench
) -> None:
    live = bench.start_run(site.scenario(6))
    bench.wait_for_phase("burst", 1.5)
    site.host("gpu0").process("served NodeAgent").kill()
    bench.wait_for_phase("burst", 3)
    site.host("client0").process("served LoadWorker").kill()
    assert live.end() == 3, live.lines
    store = bench.store()
    outcomes = _outcomes(store)
    assert outcomes == {**ALL_OK, NODES["client0"]: {"ok", "lost", "unsent"}}
    losses = store.manifest.losses
    assert any("worker 1 on node-2 is lost" in loss for loss in losses), losses
    assert any("agent on node-1 is lost" in loss for loss in losses), losses
    assert store.manifest.status == "INVALID"
    assert len(executed(store)) > 60, "batches up to the agent's last second are kept"
    assert store.verify() == []
    assert store.manifest.unfinished is None
    site.cluster.wait_until_clean()
