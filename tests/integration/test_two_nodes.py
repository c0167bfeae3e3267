"""Runs over two nodes whose monotonic clocks are far apart, and what is kept where the clients' node is lost.

The driver is on the first node, client workers on the second (`two_nodes`), whose clock's distance is known exactly.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from squall.analysis.join.join import read_join_report, write_joined
from squall.analysis.storage.clock_brackets import Brackets
from squall.analysis.storage.clock_fit import fit_track
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.cluster.driver.ingest import ingest_table
from squall.cluster.node.agent import FIRST_SERVER
from squall.cluster.node.batches import read_batches
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet, wait_until
from tests.integration.two_nodes import AHEAD_S, Pair, two_nodes
from tests.null_process import NullProcess

S = 1_000_000_000
BOUND_NS = 1_000_000
NEAR, FAR = "node-0", "node-1"
_LOST_TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with two_nodes(os.getpid() % 128) as made:
        yield made


@pytest.fixture
def bench(alone: Bench, pair: Pair) -> Bench:
    """A bench whose runs join the pair's Ray."""
    return Bench(alone.folder, alone.tmp, pair.ray, pair.near_tmp)


def _scenario(seconds: float, url: str, **changes: Any) -> dict[str, Any]:
    """Poisson arrivals for `seconds` at a server that runs already."""
    mapping = scenario_mapping(server={"url": url}, **changes)
    mapping["phases"][1] |= {"duration": f"{seconds:g}s", "arrivals": {"kind": "poisson", "rate": "150/s"}}
    return mapping


def _anchor_ns(store: RunStore) -> int:
    """The run clock minus this machine's monotonic clock."""
    anchor_ns = store.manifest.nodes[NEAR].clock_offset_ns
    assert anchor_ns is not None
    return anchor_ns


def _track(store: RunStore) -> ClockTrack:
    knots = store.manifest.nodes[FAR].clock_track
    assert knots is not None
    return ClockTrack.from_knots(knots)


def _n_outside(store: RunStore, ahead_ns: int = AHEAD_S * S) -> int:
    """Of 2,001 instants of the run: those at which a clock so far ahead is outside the stated bound."""
    spans, anchor_ns, track = phase_spans(store.manifest), _anchor_ns(store), _track(store)
    run_ns = np.linspace(spans[0].start_ns, spans[-1].end_ns, 2_001).astype(np.int64)
    node_ns = run_ns - anchor_ns + ahead_ns
    return int(np.count_nonzero(np.abs(track.convert(node_ns) - run_ns) > track.error_at(node_ns)))


def _probes(store: RunStore) -> dict[str, NDArray[np.int64]]:
    table = store.read("clock_probes")
    assert set(table.column("node").to_pylist()) == {FAR}
    names = ("sent_ns", "node_received_ns", "node_sent_ns", "received_ns")
    return {name: table.column(name).to_numpy() for name in names}


def _told_start_error_ns(store: RunStore) -> int:
    """Bound of the clock at the start, by the probes that were there when the workers were told of it."""
    probes, start_ns = _probes(store), store.manifest.start_ns
    assert start_ns is not None
    is_early = probes["received_ns"] < start_ns - S // 2
    track = fit_track(Brackets.of_probes(*(column[is_early] for column in probes.values())))
    return int(track.error_at(np.array([track.source_ns(start_ns)]))[0])


def _with_batches(store: RunStore, records: Path, folder: Path) -> dict[str, Any]:
    """`joined` of the run and its server's own records, which squall has only of a server that it started."""
    copy = RunStore.create(folder, "joined", time.time_ns(), Manifest(nodes=store.manifest.nodes))
    copy.append("requests", store.read("requests"))
    spans, near = phase_spans(store.manifest), ClockTrack.constant(_anchor_ns(store))
    labels = {"run": store.run, "node": NEAR, "server": FIRST_SERVER, "model": "seqlen_head", "version": "1"}
    losses: list[str] = []
    for data in read_batches(records, labels, losses):
        is_ours = pc.greater_equal(data.column("start_ns"), spans[0].start_ns - _anchor_ns(store))
        ingest_table(copy, "batches", data.filter(is_ours), near, spans)
    assert losses == []
    copy.seal(Verdict(status="VALID"))
    write_joined(copy)
    report = read_join_report(copy)
    assert (report.n_duplicate_ids, report.n_foreign) == (0, 0)
    joined: dict[str, Any] = copy.read("joined").to_pydict()
    return joined


def _assert_on_the_run_clock(store: RunStore) -> None:
    """Every instant of every table lies in the run, or a little around it: raw ones are hours or decades off."""
    spans = phase_spans(store.manifest)
    for name in store.tables():
        for column in set(TABLES[name].instants) & set(store.read(name).column_names):
            at_ns = store.read(name).column(column).drop_null()
            if len(at_ns):
                least_ns, most_ns = pc.min_max(at_ns).as_py().values()
                assert spans[0].start_ns - 60 * S < least_ns, (name, column)
                assert most_ns < spans[-1].end_ns + 60 * S, (name, column)


def _wait_until_gone(bench: Bench, pair: Pair) -> None:
    """Nothing of a run lives on either node, and no scratch folder lies on one that lives."""
    bench.wait_until_gone()
    served = "squall.cluster.remote.served"
    wait_until(lambda: not pair.far.processes(served), 20, "no process of the run on the second node")
    if pair.far.processes("raylet"):
        wait_until(lambda: not pair.far.scratch_folders(), 20, "no scratch folder on the second node")


@pytest.mark.long
@pytest.mark.slow
def test_a_clock_hours_apart_is_known_within_its_bound_and_every_row_lies_on_the_run_clock(
    bench: Bench, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = _scenario(2, pair.url)
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert unmet(store) == [], store.manifest.verdict
    assert store.manifest.losses == ()
    rows = planned_rows(store)
    assert set(rows["node"]) == {FAR}
    assert set(rows["outcome"]) == {"ok"}

    bound_ns = store.manifest.nodes[FAR].clock_error_ns
    assert bound_ns is not None
    with capsys.disabled():
        print(f"\ntwo nodes: clock bound {bound_ns / 1e3:.0f} us, {store.manifest.clock_probing}")
    assert 0 < bound_ns < BOUND_NS
    assert _n_outside(store) == 0
    assert _n_outside(store, AHEAD_S * S + 2 * bound_ns) > 0
    assert _n_outside(store, AHEAD_S * S - 2 * bound_ns) > 0

    probes, start_ns = _probes(store), store.manifest.start_ns
    assert start_ns is not None
    raw_apart_ns = probes["node_received_ns"] - (probes["sent_ns"] - _anchor_ns(store))
    assert (np.abs(raw_apart_ns - AHEAD_S * S) < S).all()
    sent_ns = probes["sent_ns"]
    assert (sent_ns < start_ns).sum() > 20
    assert ((sent_ns > start_ns) & (sent_ns < max(rows["done_ns"]))).sum() > 20
    assert (sent_ns > max(rows["done_ns"])).sum() > 3

    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    apart_ns = np.abs(np.array(rows["scheduled_ns"]) - start_ns - plan.offset_ns)
    assert apart_ns.max() <= bound_ns + _told_start_error_ns(store)
    _assert_on_the_run_clock(store)

    joined = _with_batches(store, pair.records, bench.folder / "copy")
    assert set(joined["join_level"]) == {"exact"}
    error_ns, wait_ns, reply_ns = (
        np.array(joined[name]) for name in ("clock_error_ns", "wait_ns", "reply_ns")
    )
    assert (error_ns > 0).all()
    assert error_ns.max() < BOUND_NS
    assert (wait_ns >= -error_ns).all()
    assert (reply_ns >= -error_ns).all()
    assert store.verify() == []
    _wait_until_gone(bench, pair)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.single
def test_a_killed_agent_of_the_second_node_leaves_its_workers_and_their_rows(
    bench: Bench, pair: Pair
) -> None:
    live = bench.start_run(_scenario(3, pair.url))
    bench.wait_for_phase("burst", 1)
    (agent,) = pair.far.processes("squall.cluster.remote.served NodeAgent")
    agent.kill()
    assert live.end() == 3, live.lines
    store = bench.store()
    assert set(planned_rows(store)["outcome"]) == {"ok"}
    assert store.manifest.status == "INVALID"
    losses, notes = store.manifest.losses, store.manifest.notes
    assert len(losses) == 1, losses
    assert "agent on node-1 is lost" in losses[0]
    assert not any("clock of node-1: no answer since" in note for note in notes), notes
    assert _n_outside(store) == 0
    _assert_on_the_run_clock(store)
    hosts = store.read("host_samples").filter(
        pc.equal(store.read("host_samples").column("node").cast(pa.string()), FAR)
    )
    (end_ns,) = [one.end_ns for one in phase_spans(store.manifest) if one.name == "burst"]
    assert pc.max(hosts.column("t_ns")).as_py() > end_ns - 2 * S, "the observer goes on"
    assert store.verify() == []
    _wait_until_gone(bench, pair)


def _assert_the_far_worker_alone_is_lost(store: RunStore, killed_ns: int) -> None:
    """The near worker's arrivals are all served; the far one's are recorded, `lost` or, where its end was seen,
    `unsent`; the loss is named, and that its node's files are not here."""
    rows = planned_rows(store)
    assert set(rows["node"]) == {NEAR, FAR}
    outcomes = {
        node: {one for at, one in zip(rows["node"], rows["outcome"], strict=True) if at == node}
        for node in set(rows["node"])
    }
    assert outcomes[NEAR] == {"ok"}
    assert outcomes[FAR] <= {"ok", "lost", "unsent"}
    assert store.manifest.unfinished is not None
    assert set(store.manifest.unfinished.why) == {FAR}
    late = [
        node for node, at_ns in zip(rows["node"], rows["scheduled_ns"], strict=True) if at_ns > killed_ns + S
    ]
    assert late.count(NEAR) > 50, "the near worker went on"
    assert store.manifest.status == "INVALID"
    losses = store.manifest.losses
    assert any("worker 1 on node-1" in loss for loss in losses), losses
    assert any("agent on node-1" in loss for loss in losses), losses
    n_gone = rows["outcome"].count("unsent") + rows["outcome"].count("lost")
    assert n_gone > 100
    assert any(f"{n_gone} arrivals have no record" in loss for loss in losses), losses
    assert any("clock of node-1: no answer since" in note for note in store.manifest.notes)
    assert _n_outside(store) == 0
    _assert_on_the_run_clock(store)
    for name in ("host_samples", "worker_samples"):
        samples = store.read(name).to_pydict()
        assert (
            max(at_ns for node, at_ns in zip(samples["node"], samples["t_ns"], strict=True) if node == NEAR)
            > killed_ns + S
        )
    assert store.verify() == []


@contextlib.contextmanager
def _served_to_both(pair: Pair, seconds: float) -> Iterator[dict[str, Any]]:
    """A scenario of one worker on each node: its server has an address of neither."""
    with NullProcess("--host", pair.far.elsewhere) as null:
        url = f"http://{pair.far.elsewhere}:{null.ports['http']}"
        mapping = _scenario(seconds, url, model={"name": "linear_head"})
        mapping["clients"]["workers_per_node"] = 1
        yield mapping


@pytest.mark.slow
@pytest.mark.single
def test_a_node_that_is_killed_with_its_worker_ends_only_that_workers_load(bench: Bench, pair: Pair) -> None:
    """Last of those that share the nodes: it leaves one."""
    with _served_to_both(pair, 4) as mapping:
        live = bench.start_run(mapping)
        bench.wait_for_phase("burst", 1.5)
        killed_ns = time.time_ns()
        pair.far.kill()
        assert live.end(_LOST_TIMEOUT_S) == 3, live.lines
    _assert_the_far_worker_alone_is_lost(bench.store(), killed_ns)
    _wait_until_gone(bench, pair)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_a_node_that_falls_silent_ends_only_its_workers_load(alone: Bench) -> None:
    with two_nodes(128 + os.getpid() % 128) as pair, _served_to_both(pair, 4) as mapping:
        bench = Bench(alone.folder, alone.tmp, pair.ray, pair.near_tmp)
        live = bench.start_run(mapping)
        bench.wait_for_phase("burst", 1.5)
        pair.far.unplug()
        killed_ns = time.time_ns()
        pair.far.kill()
        assert live.end(_LOST_TIMEOUT_S) == 3, live.lines
        _assert_the_far_worker_alone_is_lost(bench.store(), killed_ns)
        _wait_until_gone(bench, pair)
