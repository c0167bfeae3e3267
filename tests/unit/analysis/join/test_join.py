from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.join.join import read_join_report, write_joined
from squall.analysis.join.server_parts import PARTS
from squall.analysis.metrics.windows import WINDOW_NS, write_windows
from squall.analysis.record import to_json
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.query import Spread, in_threads
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.identities import cost_identities
from squall.scenarios.errors import AnalysisError, MissingTable
from tests.known import known
from tests.many_examples import examples
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, phase_at, synthesise
from tests.unit.analysis.join.conftest import joined_run

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
    run.tables["batches"] = batches
    run.seal = run.derived = False
    store = run.write(tmp_path_factory.mktemp("join"))
    write_joined(store)
    report = read_join_report(store)

    first = joined_by_hand(store)
    found = {row["request_id"]: row["batch_id"] for row in store.read("joined").to_pylist()}
    assert found == {i: first[i]["batch_id"] if i in first else None for i in range(n_requests)}
    everything = [i for own in batches["request_ids"] for i in own]
    assert report.n_requests == n_requests
    assert report.n_exact == len({i for i in everything if i < n_requests})
    assert report.n_duplicate_ids == len({i for i in everything if everything.count(i) > 1})
    assert report.n_foreign == sum(i >= n_requests for i in everything)


TWICE, FOREIGN = 5, 3
"""A batch that names the first request of batch 2 too, and how many requests of batch 0 are not ours."""


@dataclass(frozen=True)
class Odd:
    """A run with one oddity of each kind, and its rows of `joined` by request id."""

    store: RunStore
    tables: dict[str, dict[str, list[Any]]]
    unsent: int
    joined: dict[int, dict[str, Any]]

    def errors_ns(self, node: str) -> set[int | None]:
        """Clock errors of the requests from `node` that have a batch."""
        exact = [row for row in self.joined.values() if row["join_level"] == "exact"]
        return {row["clock_error_ns"] for row in exact if row["node"] == node}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """Its server is on node-1, with a clock error of 20 µs; node-3 is not in the manifest."""
    run = synthesise(n_nodes=2)
    requests, ids = run.tables["requests"], run.tables["batches"]["request_ids"]
    requests["node"] = [f"node-{i % 4}" for i in requests["request_id"]]
    knots = np.array([-1, 7, 15, 23], np.int64) * S
    track = ClockTrack(knots, np.full(4, START_NS, np.int64), np.array([100, 100, 900, 900], np.int64))
    nodes = run.manifest["nodes"]
    nodes["node-2"] = {**nodes["node-0"], "clock_error_ns": 900, "clock_track": to_json(track.to_knots())}
    nodes["node-0"]["clock_error_ns"] = 700
    run.manifest["start_ns"] = START_NS + 7 * WINDOW_NS + 1
    ids[TWICE] = [*ids[TWICE], ids[2][0]]
    run.tables["batches"]["n_foreign"][0] = FOREIGN
    unsent = requests["outcome"].index("rejected")
    requests["outcome"][unsent] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][unsent] = None
    store = joined_run(run, tmp_path_factory.mktemp("odd"))
    write_windows(store)
    return Odd(
        store, run.tables, unsent, {row["request_id"]: row for row in store.read("joined").to_pylist()}
    )


def test_of_two_batches_the_first_is_kept_and_the_id_counted(odd: Odd) -> None:
    assert read_join_report(odd.store).n_duplicate_ids == 1
    assert odd.joined[odd.tables["batches"]["request_ids"][2][0]]["batch_id"] == 2


def test_foreign_requests_of_the_record_are_counted(odd: Odd, on_gpu: tuple[RunStore, SyntheticRun]) -> None:
    """Beside an id that is named twice and without, which are counted in two ways."""
    assert read_join_report(odd.store).n_foreign == FOREIGN
    assert read_join_report(on_gpu[0]).n_foreign == FOREIGN


def test_the_clock_error_is_the_sum_of_both_bounds_and_0_on_one_node(odd: Odd) -> None:
    assert (odd.errors_ns("node-0"), odd.errors_ns("node-1")) == ({20_700}, {0})


def test_the_clock_error_is_that_at_the_instants_of_the_request(odd: Odd) -> None:
    own = [row for row in odd.joined.values() if row["node"] == "node-2" and row["join_level"] == "exact"]
    found = {(row["sent_ns"] < START_NS + 7 * S, row["clock_error_ns"]) for row in own}
    assert found == {(True, 20_100), (False, 20_900)}


def test_a_clock_error_that_nobody_measured_is_null(odd: Odd) -> None:
    assert odd.errors_ns("node-3") == {None}


def test_unsent_requests_have_no_spans(odd: Odd) -> None:
    row = odd.joined[odd.unsent]
    assert (row["response_ns"], row["service_ns"], row["lag_ns"]) == (None, None, None)


def test_arrivals_before_the_agreed_start_get_windows_too(odd: Odd) -> None:
    windows, scheduled = odd.store.read("windows"), odd.tables["requests"]["scheduled_ns"]
    first = windows["t_ns"][0].as_py()
    assert (odd.store.manifest.start_ns - first) % WINDOW_NS == 0
    assert 0 <= scheduled[0] - first < WINDOW_NS
    assert sum(windows["n_arrivals"].to_pylist()) == len(scheduled)


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


def test_a_run_without_requests_cannot_be_joined(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit, synthetic.derived, synthetic.seal = {"requests"}, False, False
    store = make_run(synthetic)
    with pytest.raises(MissingTable, match="requests"):
        write_joined(store)
    with pytest.raises(MissingTable, match="joined"):
        write_windows(store)


def test_the_report_counts_levels_and_sums_the_parts(whole_run: RunStore) -> None:
    report, rows = read_join_report(whole_run), whole_run.read("joined").to_pylist()
    assert report.n_by_level == Counter(row["join_level"] for row in rows)
    assert report.n_by_parts_level == Counter(row["parts_level"] for row in rows)
    assert set(known(report.n_by_level)) == {"exact", "none"}
    ok = [row for row in rows if row["outcome"] == "ok" and row["parts_level"] != "none"]
    assert report.sums_ns["latency_ns"] == sum(row["response_ns"] for row in ok)
    assert all(report.sums_ns[name] == sum(row[name] for row in ok) for name in PARTS)
    assert sum(report.sums_ns[name] for name in PARTS) == report.sums_ns["latency_ns"]
    ratios = [abs(row["residual_ns"]) / row["response_ns"] for row in ok]
    assert report.residual_median_ratio == pytest.approx(np.median(ratios))
    assert (report.n_ok_kernels, report.n_repeated_rows) == (0, 0)


def test_a_closed_loop_has_parts_without_lag(closed_run: RunStore) -> None:
    row = closed_run.read("joined").slice(200, 1).to_pylist()[0]
    parts = [row[name] for name in PARTS if name != "lag_ns"]
    assert (row["lag_ns"], row["response_ns"], sum(parts)) == (None, None, row["service_ns"])
    sums = read_join_report(closed_run).sums_ns
    assert (sums["lag_ns"], sum(sums[name] for name in PARTS)) == (0, sums["latency_ns"])


def test_rows_of_one_request_id_stay_and_are_counted_and_only_the_first_has_a_share(
    make_joined: MakeRun,
) -> None:
    run = profiled(synthesise(rate_hz=10.0))
    twice = run.tables["batches"]["request_ids"][3][0]
    for name, values in run.tables["requests"].items():
        values.append(values[twice] + 5 if name == "sent_ns" else values[twice])
    store = make_joined(run)
    own = [row for row in store.read("joined").to_pylist() if row["request_id"] == twice]
    assert [row["batch_id"] for row in own] == [3, 3]
    assert own[0]["sent_ns"] + 5 == own[1]["sent_ns"]
    assert own[0]["kernel_share_ns"] > own[1]["kernel_share_ns"] == 0
    report = read_join_report(store)
    assert (report.n_repeated_rows, report.n_requests) == (1, len(run.tables["requests"]["phase"]))
    assert shared(store) == kernel_time(store)


def row_of(table: str, **values: Any) -> dict[str, Any]:
    """A row of `table`: what is not given is 0, empty or null."""
    return {
        field.name: values.get(
            field.name, None if field.nullable else "" if pa.types.is_dictionary(field.type) else 0
        )
        for field in arrow_schema(table)
        if field.name != "run"
    }


def kernel(start_ns: int, end_ns: int, **values: Any) -> dict[str, Any]:
    labels = {
        "phase": phase_at(start_ns),
        "node": "node-0",
        "server": "server-0",
        "gpu_uuid": "GPU-0",
        **values,
    }
    return row_of("kernels", start_ns=start_ns, end_ns=end_ns, name="k", full_name="k", **labels)


def add(run: SyntheticRun, table: str, rows: list[dict[str, Any]]) -> None:
    run.tables[table] = {name: [row[name] for row in rows] for name in rows[0]}


def profiled(run: SyntheticRun) -> SyntheticRun:
    """`run` with two kernels in each batch of which one runs while the other does, and samples of their GPU."""
    batches = run.tables["batches"]
    rows = []
    for batch_id, (start, end) in enumerate(zip(batches["start_ns"], batches["end_ns"], strict=True)):
        tie = {"instance": "seqlen_head_0_0", "instance_device": -1, "batch_id": batch_id}
        own = {"process": 7, "thread": 7, **tie}
        rows += [kernel(start + MS, start + MS + 300_001, **own), kernel(start + MS + 7, end - 100, **own)]
    add(run, "kernels", rows)
    return run


def shared(store: RunStore) -> int:
    """Kernel time of `joined`, over whole batches."""
    rows = store.read("joined").to_pylist()
    n_rows = Counter({row["batch_id"]: 0 for row in rows})
    for request_id, row in {row["request_id"]: row for row in rows}.items():
        del request_id
        n_rows[row["batch_id"]] += row["rows"]
    return sum(row["kernel_share_ns"] for row in rows if n_rows[row["batch_id"]] == row["batch_rows"])


def kernel_time(store: RunStore) -> int:
    return sum(row["end_ns"] - row["start_ns"] for row in store.read("kernels").to_pylist())


def sample(t_ns: int, gpu: str = "GPU-0", mig: str = "", util: float | None = 0.5) -> dict[str, Any]:
    return row_of(
        "gpu_samples", phase="burst", node="node-0", gpu_uuid=gpu, t_ns=t_ns, interval_ns=100 * MS, mig_instance=mig,
        util=util, sm_util=0.25, sm_clock_hz=1e9, throttle_reasons=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, SyntheticRun]:
    """A profiled run with samples of its GPU about the start of batch 20, and of others."""
    run = profiled(synthesise(rate_hz=20.0))
    run.tables["batches"]["n_foreign"][0] = FOREIGN
    start = run.tables["batches"]["start_ns"][20]
    add(run, "gpu_samples", [
        sample(start - 1, util=0.1), sample(start + 100 * MS - 1, util=0.2), sample(start + 200 * MS, util=0.3),
        sample(start + 50 * MS, "GPU-1", util=0.9), sample(start + 50 * MS, mig="1/0", util=0.9),
    ])  # fmt: skip
    return joined_run(run, tmp_path_factory.mktemp("on_gpu")), run


def test_the_kernels_of_a_batch_are_shared_among_its_requests_and_add_up_exactly(
    on_gpu: tuple[RunStore, SyntheticRun],
) -> None:
    store, _ = on_gpu
    assert shared(store) == kernel_time(store)
    rows = [row for row in store.read("joined").to_pylist() if row["batch_id"] is not None]
    assert {(row["tie"], row["n_kernels"], row["gpu_uuid"]) for row in rows} == {("range", 2, "GPU-0")}
    for row in rows:
        inside = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
        assert sum(row[name] or 0 for name in inside) == row["compute_ns"]  # without calls no wait is known
    report = read_join_report(store)
    assert report.n_ok_kernels == report.n_ok


def kernel_lengths(run: SyntheticRun) -> list[int]:
    kernels = run.tables["kernels"]
    return [end - start for start, end in zip(kernels["start_ns"], kernels["end_ns"], strict=True)]


def test_batch_costs_have_every_batch_and_every_kernel_of_one(
    on_gpu: tuple[RunStore, SyntheticRun], make_joined: MakeRun
) -> None:
    store, run = on_gpu
    met = {one.name: (one.found, one.is_met) for one in cost_identities(store)}
    n_batches = len(run.tables["batches"]["phase"])
    assert met == {"batch costs": (n_batches, True), "kernel time": (sum(kernel_lengths(run)), True)}
    lost = profiled(synthesise(rate_hz=10.0))
    for values in lost.tables["batches"].values():
        values.pop(4)  # lost from the record: its kernels are of no batch that is known
    found = {one.name: one for one in cost_identities(make_joined(lost))}
    assert found["batch costs"].is_met
    assert found["kernel time"].most - found["kernel time"].found == sum(kernel_lengths(lost)[8:10])
    assert not found["kernel time"].is_met


def test_the_state_of_the_gpu_is_that_of_the_sample_that_holds_the_start(
    on_gpu: tuple[RunStore, SyntheticRun],
) -> None:
    rows = {row["batch_id"]: row for row in on_gpu[0].read("joined").to_pylist()}
    state = ("gpu_util", "gpu_sm_util", "gpu_sm_clock_hz", "gpu_throttle_reasons")
    assert [rows[20][name] for name in state] == [0.2, 0.25, 1e9, 4]
    assert [rows[0][name] for name in state] == [None] * 4  # long before the first sample


@pytest.mark.parametrize(("gpus", "util"), [(["GPU-0"], 0.5), (["GPU-0", "GPU-1"], None)])
def test_without_kernels_the_only_gpu_of_the_node_is_the_batchs(
    make_joined: MakeRun, gpus: list[str], util: float | None
) -> None:
    run = synthesise(rate_hz=10.0)
    start = run.tables["batches"]["start_ns"][20]
    add(run, "gpu_samples", [sample(start + 50 * MS, gpu) for gpu in gpus])
    rows = {row["batch_id"]: row for row in make_joined(run).read("joined").to_pylist()}
    assert (rows[20]["gpu_util"], rows[20]["gpu_uuid"]) == (util, "")


def test_where_a_server_gives_no_ids_the_kernels_meanwhile_are_told(make_joined: MakeRun) -> None:
    run = synthesise(rate_hz=10.0)
    requests = run.tables["requests"]
    sent, done = requests["sent_ns"][50], requests["done_ns"][50]
    assert phase_at(sent) == "burst"
    add(run, "kernels", [
        kernel(sent - 400, sent + 100, phase="burst"),  # began before it: busy, but not counted
        kernel(sent, sent + 1000, phase="burst"),
        kernel(sent + 500, sent + 600, phase="burst"),  # within the one before
        kernel(sent + 500, sent + 2000, phase="burst"),
        kernel(done - 300, done + 9000, phase="burst"),
        kernel(done, done + 1, phase="burst", gpu_uuid="GPU-1"),
        kernel(sent, done, phase="burst", server="server-9"),
    ])  # fmt: skip
    add(run, "gpu_samples", [sample(sent + 3), sample(sent + 3, "GPU-1", util=0.9)])
    run.omit = {"batches"}
    store = make_joined(run)
    rows = {row["request_id"]: row for row in store.read("joined").to_pylist()}
    found = {
        name: rows[50][name] for name in ("join_level", "tie", "n_kernels", "kernel_ns", "kernel_busy_ns")
    }
    assert found == {
        "join_level": "window", "tie": "window", "n_kernels": 4, "kernel_ns": 1000 + 100 + 1500 + 9300,
        "kernel_busy_ns": 2000 + 300,
    }  # fmt: skip
    assert (rows[50]["gpu_uuid"], rows[50]["gpu_util"]) == ("GPU-0", 0.5)
    assert {rows[50][name] for name in ("server", "batch_id", "head_ns", "kernel_share_ns", "wait_ns")} == {
        None
    }
    quiet = next(row for row in rows.values() if row["phase"] == "warmup")
    assert (quiet["join_level"], quiet["tie"], quiet["n_kernels"]) == (
        "none",
        "none",
        None,
    )  # not recorded then
    assert known(read_join_report(store).n_by_level)["window"] == sum(
        r["phase"] == "burst" for r in rows.values()
    )


@pytest.fixture(scope="module")
def rejoined(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A sealed run that tests join again: each leaves the rows that it found."""
    return profiled(synthesise(rate_hz=60.0)).write(tmp_path_factory.mktemp("rejoined"))


def test_joining_again_after_the_seal_gives_the_same_table(rejoined: RunStore) -> None:
    before = rejoined.read("joined")
    write_joined(rejoined)
    assert RunStore.open(rejoined.run_dir).read("joined").equals(before)
    assert rejoined.verify() == []
    assert not list(rejoined.run_dir.glob(".spill*"))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.analysis.join.join._LEAST_ROWS", 150)
    monkeypatch.setattr("squall.analysis.join.join._ROW_BYTES", 2**31 // 150)


def backwards(function: Callable[[Any], Any], partitions: Sequence[Any]) -> list[Any]:
    """Each partition by itself, the last one first, as another process would have it."""
    return [pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(p))) for p in partitions[::-1]][
        ::-1
    ]


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("spread", [pytest.param(backwards, marks=pytest.mark.slow), in_threads(3)])
def test_slices_made_anywhere_and_in_any_order_are_the_rows_of_one_slice(
    rejoined: RunStore, monkeypatch: pytest.MonkeyPatch, spread: Spread
) -> None:
    store = rejoined
    write_joined(store)
    parts = [path.read_bytes() for path in store.parts("joined")]
    assert len(parts) > 5
    write_joined(store, spread=spread)
    assert [path.read_bytes() for path in store.parts("joined")] == parts
    many = store.read("joined")
    monkeypatch.undo()
    write_joined(store, memory_limit_bytes=64 * 1024**2)
    assert len(store.parts("joined")) == 1
    assert store.read("joined").to_pylist() == many.to_pylist()
    assert store.verify() == []


@pytest.mark.usefixtures("small_slices")
def test_a_slice_that_fails_leaves_the_old_join(rejoined: RunStore) -> None:
    store = rejoined
    before = store.read("joined")

    def failing(function: Callable[[Any], Any], partitions: Sequence[Any]) -> list[Any]:
        function(partitions[0])
        raise AnalysisError("the second slice")

    with pytest.raises(AnalysisError, match="second slice"):
        write_joined(store, spread=failing)
    assert RunStore.open(store.run_dir).read("joined").equals(before)
    assert store.verify() == []
    assert not [path.name for path in store.run_dir.iterdir() if path.name.startswith((".new", ".scratch"))]


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
    assert {i: found[i] for i in first} == {i: batch["batch_id"] for i, batch in first.items()}
    report = read_join_report(store)
    assert (report.n_exact, report.n_duplicate_ids, report.n_foreign) == (len(first), 0, 0)


def test_a_query_that_needs_more_memory_than_allowed_spills_and_ends_the_same(whole_run: RunStore) -> None:
    from squall.analysis.storage.query import connect

    with connect(whole_run, ["requests"], memory_limit_bytes=32 * 1024**2) as connection:
        (row,) = connection.execute("SELECT count(DISTINCT request_id) FROM requests").fetchall()
    assert row[0] == whole_run.read("requests").num_rows
