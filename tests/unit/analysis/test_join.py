from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import START_NS, SyntheticRun, phase_at, synthesise
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.clock_track import ClockTrack
from analysis.join import read_join_report, write_joined
from analysis.schema import arrow_schema
from analysis.store import RunStore
from analysis.windows import WINDOW_NS, write_windows
from scenarios.errors import MissingTable

MakeRun = Callable[..., RunStore]


def joined_by_hand(store: RunStore) -> dict[int, dict[str, Any]]:
    """Batch columns of each request by a dict over Python rows."""
    first: dict[int, dict[str, Any]] = {}
    for batch in sorted(store.read("batches").to_pylist(), key=lambda row: row["start_ns"]):
        for request_id in batch["request_ids"]:
            first.setdefault(request_id, batch)
    return first


def test_joined_is_the_join_by_hand_with_one_row_per_request(whole_run: RunStore) -> None:
    first = joined_by_hand(whole_run)
    requests = {row["request_id"]: row for row in whole_run.read("requests").to_pylist()}
    joined = whole_run.read("joined").to_pylist()
    assert [row["request_id"] for row in joined] == sorted(requests)
    for row in joined:
        request, batch = requests[row["request_id"]], first.get(row["request_id"])
        assert {name: row[name] for name in request} == request
        assert row["response_ns"] == row["done_ns"] - row["scheduled_ns"]
        assert row["join_level"] == ("exact" if batch else "none")
        if batch is None:
            assert {row[n] for n in ("server", "batch_id", "wait_ns", "compute_ns", "clock_error_ns")} == {
                None
            }
            continue
        assert (row["batch_id"], row["batch_rows"]) == (batch["batch_id"], batch["rows"])
        assert row["compute_ns"] == batch["end_ns"] - batch["start_ns"]
        parts = row["lag_ns"] + row["wait_ns"] + row["compute_ns"] + row["reply_ns"]
        assert parts == row["response_ns"]


def test_joined_has_the_schema_with_units(whole_run: RunStore) -> None:
    assert whole_run.read("joined").schema.equals(arrow_schema("joined"), check_metadata=True)


@settings(deadline=None, max_examples=10)
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
    run.tables["batches"] = batches
    run.seal = False
    store = run.write(tmp_path_factory.mktemp("join"))

    first = joined_by_hand(store)
    found = {row["request_id"]: row["batch_id"] for row in store.read("joined").to_pylist()}
    assert found == {i: first[i]["batch_id"] if i in first else None for i in range(n_requests)}
    everything = [i for own in batches["request_ids"] for i in own]
    report = read_join_report(store)
    assert report.n_requests == n_requests
    assert report.n_exact == len({i for i in everything if i < n_requests})
    assert report.n_duplicate_ids == len({i for i in everything if everything.count(i) > 1})
    assert report.n_foreign == sum(i >= n_requests for i in everything)


def test_of_two_batches_the_first_is_kept_and_the_id_counted(
    make_run: MakeRun, synthetic: SyntheticRun
) -> None:
    ids = synthetic.tables["batches"]["request_ids"]
    ids[5] = [*ids[5], ids[2][0]]
    store = make_run(synthetic)
    assert read_join_report(store).n_duplicate_ids == 1
    rows = {row["request_id"]: row["batch_id"] for row in store.read("joined").to_pylist()}
    assert rows[ids[2][0]] == 2


def test_foreign_requests_of_the_record_are_counted(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.tables["batches"]["n_foreign"][0] = 3
    assert read_join_report(make_run(synthetic)).n_foreign == 3


def test_without_a_batch_record_nothing_is_joined_and_every_request_stays(
    make_run: MakeRun, synthetic: SyntheticRun
) -> None:
    synthetic.omit = {"batches"}
    store = make_run(synthetic)
    joined = store.read("joined")
    assert joined.num_rows == store.read("requests").num_rows
    assert set(joined["join_level"].to_pylist()) == {"none"}
    assert joined["batch_start_ns"].null_count == joined.num_rows
    assert read_join_report(store).n_exact == 0
    windows = store.read("windows")
    for name in ("queue_depth", "n_batches", "batch_rows_mean"):
        assert windows[name].null_count == windows.num_rows
    assert windows["in_flight"].null_count == 0


def test_the_clock_error_is_the_sum_of_both_bounds_and_0_on_one_node(
    make_run: MakeRun,
) -> None:
    run = synthesise(n_nodes=2)
    run.manifest["nodes"]["node-0"]["clock_error_ns"] = 700
    joined = [row for row in make_run(run).read("joined").to_pylist() if row["join_level"] == "exact"]
    assert {(row["node"], row["clock_error_ns"]) for row in joined} == {("node-0", 20_700), ("node-1", 0)}


def test_the_clock_error_is_that_at_the_instants_of_the_request(make_run: MakeRun) -> None:
    run = synthesise(n_nodes=2)
    knots = np.array([-1, 7, 15, 23], np.int64) * 1_000_000_000
    track = ClockTrack(knots, np.full(4, START_NS, np.int64), np.array([100, 100, 900, 900], np.int64))
    run.manifest["nodes"]["node-0"] |= {"clock_error_ns": 900, "clock_track": track.to_mapping()}
    joined = [row for row in make_run(run).read("joined").to_pylist() if row["join_level"] == "exact"]
    found = {
        (row["sent_ns"] < START_NS + 7_000_000_000, row["clock_error_ns"])
        for row in joined
        if row["node"] == "node-0"
    }
    assert found == {(True, 20_100), (False, 20_900)}
    assert {row["clock_error_ns"] for row in joined if row["node"] == "node-1"} == {0}


def test_a_clock_error_that_nobody_measured_is_null(make_run: MakeRun) -> None:
    run = synthesise(n_nodes=2)
    del run.manifest["nodes"]["node-0"]
    joined = make_run(run).read("joined").to_pylist()
    assert {row["clock_error_ns"] for row in joined if row["node"] == "node-0"} == {None}


def test_unsent_requests_have_no_spans(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    never = requests["outcome"].index("rejected")
    requests["outcome"][never] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][never] = None
    row = make_run(synthetic).read("joined").slice(never, 1).to_pylist()[0]
    assert (row["response_ns"], row["service_ns"], row["lag_ns"]) == (None, None, None)


def test_joining_again_after_the_seal_gives_the_same_table(make_run: MakeRun) -> None:
    store = make_run()
    before = store.read("joined")
    write_joined(store)
    assert RunStore.open(store.run_dir).read("joined").equals(before)
    assert store.verify() == []
    assert not list(store.run_dir.glob(".spill*"))


def test_a_run_without_requests_cannot_be_joined(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit, synthetic.derived, synthetic.seal = {"requests"}, False, False
    store = make_run(synthetic)
    with pytest.raises(MissingTable, match="requests"):
        write_joined(store)
    with pytest.raises(MissingTable, match="joined"):
        write_windows(store)


def windows_by_hand(store: RunStore, t_ns: int) -> dict[str, Any]:
    """The counts of the window from `t_ns` by loops over Python rows."""
    rows = store.read("joined").to_pylist()
    end_ns = t_ns + WINDOW_NS
    own = [row for row in rows if t_ns <= row["scheduled_ns"] < end_ns]
    failed = [row["outcome"] != "ok" for row in own]
    responses = sorted(np.inf if f else row["response_ns"] for row, f in zip(own, failed, strict=True))
    ranked = {
        name: responses[-(-percent * len(own) // 100) - 1] if own else None
        for name, percent in (("response_p50_ns", 50), ("response_p95_ns", 95))
    }
    begun = [b for b in store.read("batches").to_pylist() if t_ns <= b["start_ns"] < end_ns]
    waits = [(r["sent_ns"], max(r["sent_ns"], r["batch_start_ns"] or r["done_ns"])) for r in rows]
    return {
        "phase": phase_at(t_ns),
        "n_arrivals": len(own),
        "n_sent": sum(t_ns <= row["sent_ns"] < end_ns for row in rows),
        "n_done": sum(t_ns <= row["done_ns"] < end_ns and row["outcome"] == "ok" for row in rows),
        "n_failed": sum(failed),
        "in_flight": sum(row["sent_ns"] < end_ns <= row["done_ns"] for row in rows),
        "queue_depth": sum(sent < end_ns <= begun_ns for sent, begun_ns in waits),
        "n_batches": len(begun),
        "batch_rows_mean": sum(b["rows"] for b in begun) / len(begun) if begun else None,
        **{name: None if value == np.inf else value for name, value in ranked.items()},
    }


def test_windows_are_what_loops_over_the_rows_count(make_run: MakeRun) -> None:
    store = make_run(synthesise(rate_hz=60.0))
    windows = store.read("windows").to_pylist()
    assert [row["t_ns"] for row in windows] == [START_NS + i * WINDOW_NS for i in range(len(windows))]
    assert sum(row["n_arrivals"] for row in windows) == store.read("requests").num_rows
    for row in windows[::3] + windows[70:80] + windows[-2:]:
        expected = windows_by_hand(store, row["t_ns"])
        assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_arrivals_before_the_agreed_start_get_windows_too(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.manifest["start_ns"] = START_NS + 7 * WINDOW_NS + 1
    windows = make_run(synthetic).read("windows")
    first = windows["t_ns"][0].as_py()
    assert (synthetic.manifest["start_ns"] - first) % WINDOW_NS == 0
    assert 0 <= synthetic.tables["requests"]["scheduled_ns"][0] - first < WINDOW_NS
    assert sum(windows["n_arrivals"].to_pylist()) == len(synthetic.tables["requests"]["phase"])


def test_a_query_that_needs_more_memory_than_allowed_spills_and_ends_the_same(whole_run: RunStore) -> None:
    from analysis.query import connect

    with connect(whole_run, ["requests"], memory_limit_bytes=32 * 1024**2) as connection:
        (row,) = connection.execute("SELECT count(DISTINCT request_id) FROM requests").fetchall()
    assert row[0] == whole_run.read("requests").num_rows
