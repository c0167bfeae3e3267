"""Spill files of hosts whose disk the driver does not see (`namespaces`), fetched over a link that breaks, and by a
driver that is killed meanwhile."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.actors.inject.library import built_library
from squall.actors.spill import read_spill
from squall.analysis.storage.store import RunStore
from squall.cluster.driver.copies import FETCHED, folder_of
from tests.integration.disks import assert_whole
from tests.integration.live_runs import Bench, planned_rows, wait_until
from tests.integration.namespaces import Host, cluster
from tests.integration.test_cluster import ALL_OK, NODES, Site, _outcomes

pytestmark = [
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
    pytest.mark.slow,
    pytest.mark.long,
]

BANDWIDTH = 20_000
PIECE_BYTES = BANDWIDTH // 4
CUT_S = 25.0
"""Longer than an agent is waited for that says nothing, shorter than Ray takes to give the host up."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("fetching")
    with cluster(folder, *list(NODES)[1:]) as made, made.triton("gpu0") as url:
        yield Site(made, url)


@pytest.fixture
def bench(site: Site, tmp_path: Path) -> Bench:
    site.cluster.start_ray()
    site.cluster.sweep()
    return Bench(tmp_path, site.cluster.tmp, site.cluster.ray, within=site.cluster.head.within)


def _scenario(site: Site, **records: str) -> dict[str, Any]:
    return site.scenario(8) | {"records": {"bandwidth": f"{BANDWIDTH}B/s", **records}}


def _wait_for_half_a_copy(bench: Bench, label: str) -> Path:
    """A requests file of the node, some pieces of which have come."""

    def begun() -> Path | None:
        runs = [path for path in bench.out.iterdir() if path.is_dir()] if bench.out.is_dir() else []
        found = [one for run in runs for one in folder_of(run, label).glob("spill/requests-*.arrows")]
        return next((one for one in found if one.stat().st_size >= 2 * PIECE_BYTES), None)

    found: Path = wait_until(begun, 90, f"a part of the requests of {label}")
    return found


def _spilled(host: Host) -> dict[str, bytes]:
    """The spill files of the one scratch folder of a host, by path."""
    (folder,) = host.scratch_folders()
    return {f"spill/{path.name}": path.read_bytes() for path in folder.glob("spill/*.arrows")}


def _requests(files: dict[str, bytes]) -> dict[int, tuple[Any, ...]]:
    """What no clock changes of each row of requests."""
    rows: dict[int, tuple[Any, ...]] = {}
    for path, content in files.items():
        if path.startswith("spill/requests-"):
            for table in read_spill(pa.PythonFile(io.BytesIO(content), mode="r")):
                rows |= _plain(table)
    return rows


def _plain(table: pa.Table) -> dict[int, tuple[Any, ...]]:
    names = ("request_id", "worker", "outcome", "rows", "request_bytes", "response_bytes")
    columns = [table.column(name).to_pylist() for name in names]
    instants = (table.column(name).to_pylist() for name in ("sent_ns", "done_ns"))
    spans = [0 if sent is None else done - sent for sent, done in zip(*instants, strict=True)]
    return {row[0]: (*row[1:], span // 10_000) for *row, span in zip(*columns, spans, strict=True)}


def _stored(store: RunStore, label: str) -> dict[int, tuple[Any, ...]]:
    table = store.read("requests")
    return _plain(table.filter(pa.compute.equal(table.column("node").cast(pa.string()), label)))


def _assert_alike(stored: dict[int, tuple[Any, ...]], spilled: dict[int, tuple[Any, ...]]) -> None:
    """Every row of the one is in the other; the service time is one to the rate of two clocks."""
    assert len(spilled) > 100
    assert {at: row[:-1] for at, row in stored.items()} == {at: row[:-1] for at, row in spilled.items()}
    assert all(abs(stored[at][-1] - spilled[at][-1]) <= 1 for at in spilled)


def test_a_link_that_breaks_while_files_are_fetched_costs_no_row_and_no_piece_twice(
    site: Site, bench: Bench
) -> None:
    cut, label = site.host("client0"), NODES["client0"]
    live = bench.start_run(_scenario(site, fetch="after"))
    begun = _wait_for_half_a_copy(bench, label)
    cut.unplug()
    try:
        spilled, stood_at = _spilled(cut), begun.stat().st_size
        assert stood_at < len(spilled[f"spill/{begun.name}"]), "in the middle of the file"
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: begun.stat().st_size > stood_at + PIECE_BYTES, CUT_S, "it goes on")
    finally:
        cut.plug()
    assert live.end(240) in (0, 3), live.lines
    store = bench.store()
    assert store.manifest.unfinished is None, (live.lines, store.manifest.losses)
    assert _outcomes(store) == ALL_OK
    _assert_alike(_stored(store, label), _requests(spilled))
    facts, n_bytes = store.manifest.fetched[label], sum(map(len, spilled.values()))
    assert (facts.n_asked_again, facts.n_begun_anew, facts.n_bytes_during) == (0, 0, 0)
    assert n_bytes <= facts.n_bytes_after < n_bytes + PIECE_BYTES
    assert not (store.run_dir / FETCHED).exists(), "the run has all that was in it"
    assert_whole(store)
    site.cluster.wait_until_clean()


def test_a_driver_killed_while_it_fetches_leaves_what_came_and_resume_brings_the_rest(
    site: Site, bench: Bench
) -> None:
    client, label = site.host("client0"), NODES["client0"]
    live = bench.start_run(_scenario(site, fetch="after"))
    begun = _wait_for_half_a_copy(bench, label)
    spilled = _spilled(client)
    site.cluster.head.process("squall.cluster.entry run").kill()
    live.end()
    hosts = site.cluster.hosts
    served = "squall.cluster.remote.served"
    wait_until(lambda: not any(one.processes(served) for one in hosts.values()), 60, "the end on every host")
    content, run_dir = begun.read_bytes(), bench.store().run_dir
    assert (
        hashlib.sha256(content).digest()
        == hashlib.sha256(spilled[f"spill/{begun.name}"][: len(content)]).digest()
    )

    head = Bench(bench.folder, bench.tmp, within=site.cluster.head.within).start("resume", run_dir)
    assert head.end(60) == 3, head.lines
    assert any(f"found what was fetched from {label}, not all of it" in line for line in head.lines)
    came = _stored(bench.store(), label)
    known = {at for at, row in came.items() if row[1] != "lost"}
    assert known == set(_requests({f"spill/{begun.name}": content})), "the rows of what had come, no other"
    unfinished = bench.store().manifest.unfinished
    assert unfinished is not None
    assert label in unfinished.folders
    assert begun.exists()

    for name in list(hosts)[1:]:
        again = Bench(bench.folder, bench.tmp, within=hosts[name].within).start("resume", run_dir)
        assert again.end(60) in (0, 3), again.lines
    store = bench.store()
    assert store.manifest.unfinished is None, store.manifest.losses
    _assert_alike(_stored(store, label), _requests(spilled))
    assert "lost" not in planned_rows(store)["outcome"]
    assert not (run_dir / FETCHED).exists()
    assert_whole(store)
    site.cluster.wait_until_clean()


def test_in_phases_that_are_not_measured_records_come_while_the_load_runs(site: Site, bench: Bench) -> None:
    """In the warm-up before the first measured phase and in the one between the two."""
    mapping = site.scenario(3) | {"records": {"fetch": "during"}}
    warmup, burst, drain = mapping["phases"]
    warmup["duration"] = "4s"
    mapping["phases"] = [warmup, burst, warmup | {"name": "between"}, burst | {"name": "again"}, drain]
    live = bench.start_run(mapping)
    label = NODES["client0"]
    bench.wait_for_phase("warmup", 0)
    run_dir = bench.store().run_dir

    def copied() -> int:
        return sum(one.stat().st_size for one in folder_of(run_dir, label).glob("spill/*.arrows"))

    wait_until(copied, 10, "something of the warm-up")
    bench.wait_for_phase("burst", 0.2)
    before = copied()
    bench.wait_for_phase("burst", 2.8)
    assert copied() == before > 0, "nothing comes in a measured phase"
    bench.wait_for_phase("again", 0.2)
    between = copied()
    assert between > before
    bench.wait_for_phase("again", 2.8)
    assert copied() == between
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    assert (store.manifest.losses, store.manifest.unfinished) == ((), None)
    facts = store.manifest.fetched[label]
    assert facts.n_bytes_during >= between
    assert facts.n_begun_anew == 0
    assert _outcomes(store) == ALL_OK
    assert_whole(store)
    site.cluster.wait_until_clean()
