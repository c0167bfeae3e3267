from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.join import read_join_report, write_joined
from squall.analysis.metrics.windows import WINDOW_NS, write_windows
from squall.analysis.record import to_json
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.query import in_threads
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, MissingTable
from tests.many_examples import examples
from tests.synthetic_runs import START_NS, S, SyntheticRun, synthesise
from tests.unit.analysis.join.conftest import joined_run

MakeRun = Callable[..., RunStore]


def joined_by_hand(store: RunStore) -> dict[int, int]:
    """Batch of each request by a dict over Python rows: of several the first."""
    first: dict[int, int] = {}
    for batch in sorted(store.read("batches").to_pylist(), key=lambda row: row["start_ns"]):
        for request_id in batch["request_ids"]:
            first.setdefault(request_id, batch["batch_id"])
    return first


@examples(8)
@given(data=st.data(), n=st.integers(0, 12))
def test_any_dealing_of_ids_to_batches_joins_like_a_dict(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, n: int
) -> None:
    run = synthesise(rate_hz=2.0)
    n_requests = len(run.tables["requests"]["phase"])
    batches = {name: values[:n] for name, values in run.tables["batches"].items()}
    n = len(batches["phase"])
    ids = st.lists(st.integers(0, n_requests + 3), max_size=4)
    batches["request_ids"] = data.draw(st.lists(ids, min_size=n, max_size=n))
    batches["n_foreign"] = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    run.tables["batches"] = batches
    store = joined_run(run, tmp_path_factory.mktemp("join"))
    report = read_join_report(store)
    first = joined_by_hand(store)
    found = {row["request_id"]: row["batch_id"] for row in store.read("joined").to_pylist()}
    assert found == {i: first.get(i) for i in range(n_requests)}
    everything = [i for own in batches["request_ids"] for i in own]
    assert report.n_requests == n_requests
    assert report.n_exact == len({i for i in everything if i < n_requests})
    assert report.n_duplicate_ids == len({i for i in everything if everything.count(i) > 1})
    assert report.n_foreign == sum(i >= n_requests for i in everything) + sum(batches["n_foreign"])


def test_the_clock_error_is_that_of_both_nodes_at_the_instants_of_the_request(make_joined: MakeRun) -> None:
    """Its server is on node-1, with a clock error of 20 us; that of node-2 changes after 7 s, node-3 is unknown."""
    run = synthesise(n_nodes=2)
    requests, nodes = run.tables["requests"], run.manifest["nodes"]
    requests["node"] = [f"node-{i % 4}" for i in requests["request_id"]]
    knots = np.array([-1, 7, 15, 23], np.int64) * S
    track = ClockTrack(knots, np.full(4, START_NS, np.int64), np.array([100, 100, 900, 900], np.int64))
    nodes["node-2"] = {**nodes["node-0"], "clock_error_ns": 900, "clock_track": to_json(track.to_knots())}
    nodes["node-0"]["clock_error_ns"] = 700
    run.manifest["start_ns"] = START_NS + 7 * WINDOW_NS + 1
    unsent = requests["outcome"].index("rejected")
    requests["outcome"][unsent] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][unsent] = None
    store = make_joined(run)
    rows = store.read("joined").to_pylist()
    found = {
        (row["node"], row["node"] == "node-2" and row["sent_ns"] >= START_NS + 7 * S, row["clock_error_ns"])
        for row in rows if row["join_level"] == "exact"
    }  # fmt: skip
    assert found == {
        ("node-0", False, 20_700), ("node-1", False, 0), ("node-2", False, 20_100), ("node-2", True, 20_900),
        ("node-3", False, None),
    }  # fmt: skip
    assert {rows[unsent][name] for name in ("response_ns", "service_ns", "lag_ns", "clock_error_ns")} == {
        None
    }
    write_windows(store)  # arrivals before the start that was agreed on have some too
    windows = store.read("windows")
    first = windows["t_ns"][0].as_py()
    assert (START_NS + 7 * WINDOW_NS + 1 - first) % WINDOW_NS == 0
    assert 0 <= requests["scheduled_ns"][0] - first < WINDOW_NS
    assert sum(windows["n_arrivals"].to_pylist()) == len(rows)


def test_a_run_without_requests_cannot_be_joined(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit, synthetic.derived, synthetic.seal = {"requests"}, False, False
    store = make_run(synthetic)
    with pytest.raises(MissingTable, match="requests"):
        write_joined(store)
    with pytest.raises(MissingTable, match="joined"):
        write_windows(store)


def test_a_run_without_batches_has_windows_without_what_they_tell(make_joined: MakeRun) -> None:
    run = synthesise(rate_hz=10.0)
    run.omit = {"batches"}
    store = make_joined(run)
    write_windows(store)
    windows = store.read("windows")
    for name in ("queue_depth", "n_batches", "batch_rows_mean"):
        assert windows[name].null_count == windows.num_rows
    assert windows["in_flight"].null_count == 0


def test_a_sealed_run_is_joined_again_in_any_slices_or_keeps_what_it_had(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = synthesise(rate_hz=60.0).write(tmp_path_factory.mktemp("rejoined"))
    before = store.read("joined")

    def failing(function: Callable[[Any], Any], partitions: Sequence[Any]) -> list[Any]:
        function(partitions[0])
        raise AnalysisError("the second slice")

    monkeypatch.setattr("squall.analysis.join.join._LEAST_ROWS", 150)
    monkeypatch.setattr("squall.analysis.join.join._ROW_BYTES", 2**31 // 150)
    with pytest.raises(AnalysisError, match="second slice"):
        write_joined(store, spread=failing)
    assert RunStore.open(store.run_dir).read("joined").equals(before)
    write_joined(store, spread=in_threads(3))
    folder = store.run_dir / "tables" / "joined"
    parts = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert len(parts) > 5
    write_joined(store)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == parts
    assert store.read("joined").to_pylist() == before.to_pylist()
    monkeypatch.undo()
    write_joined(store, memory_limit_bytes=64 * 1024**2)
    assert len(store.parts("joined")) == 1
    assert RunStore.open(store.run_dir).read("joined").equals(before)
    assert store.verify() == []
    assert not [
        path for path in store.run_dir.iterdir() if path.name.startswith((".new", ".scratch", ".spill"))
    ]


def test_ids_that_are_far_apart_or_negative_are_joined_too(make_joined: MakeRun) -> None:
    run = synthesise(rate_hz=5.0)
    far = [-(2**62), *range(5, 10**17, 10**15)]
    names = dict(enumerate(far[: len(run.tables["requests"]["phase"])]))
    run.tables["requests"]["request_id"] = [names.get(i, i) for i in run.tables["requests"]["request_id"]]
    ids = run.tables["batches"]["request_ids"]
    run.tables["batches"]["request_ids"] = [[names.get(i, i) for i in own] for own in ids]
    store = make_joined(run)
    first = joined_by_hand(store)
    found = {row["request_id"]: row["batch_id"] for row in store.read("joined").to_pylist()}
    assert {i: found[i] for i in first} == first
    report = read_join_report(store)
    assert (report.n_exact, report.n_duplicate_ids, report.n_foreign) == (len(first), 0, 0)
