"""`batch_costs` and `joined` of planted runs: against loops over plain rows, and against what was planted."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import example, given

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import read_join_report, write_joined
from squall.analysis.join.server_parts import PARTS
from squall.analysis.storage.store import RunStore
from tests.many_examples import examples, folder_in
from tests.planted_runs import MS, STYLES, US, Planted, PlantedBatch, Shape, plant, shapes
from tests.reference_join import Reference, key, reference, unknown

Row = dict[str, Any]
SMALL = 64 * 1024**2
BATCH = ("server", "instance", "instance_device", "batch_id")
WHOLE = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")


def derived(planted: Planted, parent: Path) -> RunStore:
    store = planted.write(parent)
    write_batch_costs(store)
    write_joined(store)
    return store


def rows(store: RunStore, table: str) -> list[Row]:
    found: list[Row] = store.read(table).to_pylist()
    return found


def differences(found: Row, expected: Row) -> Row:
    """Columns whose value differs; `gpu_uuids` are the GPUs that may be named, `...` is not compared."""
    wrong = {
        name: (found[name], value)
        for name, value in expected.items()
        if name != "gpu_uuids" and value is not ... and found[name] != value
    }
    if found["gpu_uuid"] not in expected["gpu_uuids"]:
        wrong["gpu_uuid"] = (found["gpu_uuid"], expected["gpu_uuids"])
    return wrong


def check_tables(store: RunStore, expected: Reference) -> None:
    costs = {key(one): one for one in rows(store, "batch_costs")}
    assert costs.keys() == expected.batch_costs.keys()
    wrong = {key: differences(costs[key], row) for key, row in expected.batch_costs.items()}
    assert not {key: found for key, found in wrong.items() if found}, "batch_costs: (found, expected)"
    joined = rows(store, "joined")
    assert [row["request_id"] for row in joined] == list(expected.joined)
    found = {row["request_id"]: differences(row, expected.joined[row["request_id"]]) for row in joined}
    assert not {key: one for key, one in found.items() if one}, "joined: (found, expected)"


def source_of(batch: PlantedBatch, planted: Planted) -> str | None:
    """What tells which requests the batch served: the server's record where that has any batch, else its trace."""
    if (
        any(one.is_recorded for one in planted.batches if one.server is batch.server)
        and batch.server.has_record
    ):
        return "record" if batch.is_recorded else None
    return "trace" if batch.server.has_traces else None


def check_truth(store: RunStore, planted: Planted, expected: Reference) -> None:
    """What was planted, wherever the record and the report have it."""
    costs = {tuple(one[name] for name in BATCH): one for one in rows(store, "batch_costs")}
    tied = {batch.key for batch in planted.batches if is_tied(batch)}
    for batch in planted.batches:
        if batch.server.has_ranges and batch.is_recorded:
            assert (costs[batch.key]["tie"] == "range") == (batch.key in tied)
        if batch.key in tied:
            truth = batch.work.costs() if store.has("osrt") else without_os_waits(batch)
            nothing = unknown(costs[batch.key], expected.tables, expected.events[key(costs[batch.key])])
            truth = {name: None if name in nothing else value for name, value in truth.items()}
            assert {name: costs[batch.key][name] for name in truth} == truth
    joined = {row["request_id"]: row for row in rows(store, "joined")}
    for one in planted.requests:
        row = joined[one.request_id]
        source = source_of(one.batch, planted) if one.batch else None
        if one.batch is None or source is None:
            assert (row["join_level"] in ("none", "window"), row["batch_id"]) == (True, None)
            continue
        error_ns = planted.clock_ns[one.batch.server.node]
        assert (row["server"], row["batch_start_ns"]) == (
            one.server.name, model_start_ns(one.batch, source) + error_ns)  # fmt: skip
        if source == "record":
            assert tuple(row[name] for name in BATCH) == one.batch.key
        check_parts(row, planted, one.batch)


def model_start_ns(batch: PlantedBatch, source: str) -> int:
    """Start of the execution as its source has it: the model's own, or the core's instants about it."""
    if source == "record":
        return batch.work.start_ns
    return batch.compute_start_ns if batch.is_partial else batch.input_end_ns


def without_os_waits(batch: PlantedBatch) -> dict[str, int | None]:
    """The truth of a run whose report has no OS-runtime calls: whether there were any is not known."""
    return {**batch.work.costs(), "os_wait_ns": None}


def is_tied(batch: PlantedBatch) -> bool:
    events = batch.work.calls or batch.work.ops or not batch.is_open
    there = batch.is_recorded and batch.is_profiled and batch.has_range
    return batch.server.has_ranges and there and bool(events)


def check_parts(row: Row, planted: Planted, batch: PlantedBatch) -> None:
    """Parts of a trace are the planted ones, whatever the clocks' errors: they are spans of one node."""
    if row["parts_level"] == "none":
        return
    parts = sum(row[f"{name}_ns"] for name in ("network", "queue", "input", "handover", "output", "residual"))
    since = row["sent_ns"] if row["scheduled_ns"] is None else row["scheduled_ns"]
    assert parts + (row["lag_ns"] or 0) + row["compute_ns"] == row["done_ns"] - since
    if row["parts_level"] != "trace":
        return
    one = planted.requests[row["request_id"]]
    work = batch.work
    handover = work.start_ns - batch.input_end_ns + batch.output_start_ns - work.end_ns
    assert row["queue_ns"] == batch.compute_start_ns - one.queue_start_ns
    assert row["input_ns"] == batch.input_end_ns - batch.compute_start_ns
    assert row["handover_ns"] == (handover if row["join_level"] == "exact" else 0)
    assert row["output_ns"] == batch.compute_end_ns - batch.output_start_ns
    if one.outcome == "ok":
        way_out = (one.done_ns or 0) - batch.compute_end_ns
        network = one.queue_start_ns - (one.sent_ns or 0) + way_out - row["residual_ns"]
        assert row["network_ns"] == max(0, network)
        assert 0 <= row["residual_ns"] <= 20 * US or network < 0  # from the core to the front end


def check_sums(store: RunStore, planted: Planted) -> None:
    """Kernels of whole batches are counted once: the parts of their requests add up to them."""
    costs = {key(one): one for one in rows(store, "batch_costs")}
    shared: Counter[tuple[Any, ...]] = Counter()
    n_rows: Counter[tuple[Any, ...]] = Counter()
    models = {one.name: one.model for one in planted.servers}
    for row in rows(store, "joined"):
        if row["batch_id"] is not None and row["kernel_share_ns"] is not None:
            own = key({**row, "model": models[row["server"]]})
            shared[own] += row["kernel_share_ns"]
            n_rows[own] += row["rows"]
    whole = [one for one, n in n_rows.items() if n == costs[one]["rows"]]
    kernels: Counter[tuple[Any, ...]] = Counter()
    for op in rows(store, "kernels") if store.has("kernels") else []:
        if op["batch_id"] is not None and op["end_ns"] >= op["start_ns"]:
            kernels[key({**op, "model": models[op["server"]]})] += op["end_ns"] - op["start_ns"]
    for one in whole:
        assert shared[one] == costs[one]["kernel_ns"]
        if costs[one]["tie"] == "range":
            assert shared[one] == kernels[one]
    for one, cost in costs.items():
        parts = [cost[name] for name in WHOLE]
        assert None in parts or sum(parts) == cost["end_ns"] - cost["start_ns"]
        assert shared[one] <= (cost["kernel_ns"] or 0)


def check_report(store: RunStore) -> None:
    """The report counts and adds up the rows of `joined`."""
    report, joined = read_join_report(store), rows(store, "joined")
    assert report.n_by_level == Counter(row["join_level"] for row in joined)
    assert report.n_by_parts_level == Counter(row["parts_level"] for row in joined)
    ok = [row for row in joined if row["outcome"] == "ok"]
    assert report.n_ok_kernels == sum((row["n_kernels"] or 0) > 0 and row["tie"] != "none" for row in ok)
    ok = [row for row in ok if row["parts_level"] != "none"]
    latencies = [row["service_ns"] if row["response_ns"] is None else row["response_ns"] for row in ok]
    assert report.sums_ns == {
        "latency_ns": sum(latencies), **{name: sum(row[name] or 0 for row in ok) for name in PARTS}
    }  # fmt: skip
    assert sum(report.sums_ns[name] for name in PARTS) == report.sums_ns["latency_ns"]
    ratios = [abs(row["residual_ns"]) / ns for row, ns in zip(ok, latencies, strict=True)]
    assert report.residual_median_ratio == (pytest.approx(median(ratios)) if ratios else None)


def check_run(store: RunStore, planted: Planted, expected: Reference) -> None:
    check_tables(store, expected)
    check_report(store)
    check_truth(store, planted, expected)
    check_sums(store, planted)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@dataclass(frozen=True)
class Whole:
    """A run with every kind of server and loss, and its rows; tests make them again and leave what they found."""

    planted: Planted
    store: RunStore
    rows: dict[str, list[Row]]


@pytest.fixture(scope="module")
def every_kind(parent: Path) -> Whole:
    planted = plant(Shape(seed=3, n_requests=90, servers=STYLES, n_instances=2, n_nodes=3))
    store = derived(planted, parent)
    return Whole(planted, store, {name: rows(store, name) for name in ("batch_costs", "joined")})


@examples(4)
@given(shape=shapes())
@example(  # batch ids of one server in row groups that also hold what another server's windows tie
    shape=Shape(seed=30, servers=("bare", "blind", "record"), features=frozenset({"overrun", "lost_ranges"}))
)
@example(  # two instances of one name, on two GPUs, both of which count their batches from 0
    shape=Shape(seed=5, n_requests=12, n_instances=2, features=frozenset({"alike_names", "streams"}))
)
@example(  # the record lost the only batch: the server's trace tells of it
    shape=Shape(
        seed=10379352, n_requests=1, servers=("traced",), n_nodes=2, most_runs=2, most_batch=1, span_ns=20 * MS,
        features=frozenset({"lost_batches"}),
    )
)  # fmt: skip
def test_any_planted_run_is_joined_as_loops_join_it_and_as_it_was_planted(shape: Shape, parent: Path) -> None:
    planted = plant(shape)
    with folder_in(parent) as folder:
        store = derived(planted, folder)
        check_run(store, planted, reference(store))


def test_a_run_with_every_kind_of_server_and_loss_is_joined_as_it_was_planted(every_kind: Whole) -> None:
    check_run(every_kind.store, every_kind.planted, reference(every_kind.store))


def test_parts_from_statistics_are_the_planted_means_and_the_queue_lies_within_what_means_can_say(
    parent: Path,
) -> None:
    """All requests end in one second, so that its cell holds exactly what the samples count.

    Then network, input, handover and output are the planted means, but for the ns that whole numbers lose (two floors
    each). The queue is the rest of wait: wait = way in + queue + input + half of the handover, of which a mean is taken
    off in place of its own, so it is wrong by at most the longest way in (300 us), input (40 us) and way to the model
    (60 us), and by the error of both clocks.
    """
    planted = plant(
        Shape(seed=4, n_requests=120, n_nodes=2, features=frozenset({"blocks", "streams", "clock"}))
    )
    store = derived(planted, parent)
    n = len(planted.requests)
    served = [(one, one.batch) for one in planted.requests if one.batch is not None]
    assert len(served) == n
    in_server = sum(b.compute_end_ns - one.queue_start_ns for one, b in served)
    service = sum((one.done_ns or 0) - (one.sent_ns or 0) for one, _ in served)
    model_ns = sum(b.output_start_ns - b.input_end_ns - (b.work.end_ns - b.work.start_ns) for _, b in served)
    means = {
        "network_ns": (service - in_server) / n,
        "input_ns": sum(b.input_end_ns - b.compute_start_ns for _, b in served) / n,
        "handover_ns": model_ns / n,
        "output_ns": sum(b.compute_end_ns - b.output_start_ns for _, b in served) / n,
    }
    errors_ns = sum(abs(error) for error in planted.clock_ns.values())
    joined = rows(store, "joined")
    for row, (one, batch) in zip(joined, served, strict=True):
        assert row["parts_level"] == "statistics"
        assert {name: row[name] for name in means} == pytest.approx(means, abs=2)
        queue = batch.compute_start_ns - one.queue_start_ns
        assert abs(row["queue_ns"] - queue) <= 400 * US + errors_ns
    assert errors_ns > 0


class Backwards:
    """A `Spread` that works on pickled copies of the partitions, last first."""

    def __init__(self) -> None:
        self.n_partitions: list[int] = []

    def __call__(self, function: Callable[[Any], Any], partitions: Sequence[Any], /) -> list[Any]:
        self.n_partitions.append(len(partitions))
        copies = [pickle.loads(pickle.dumps((function, one))) for one in partitions]
        return [work(one) for work, one in reversed(copies)][::-1]


def test_any_slicing_in_any_order_gives_the_rows_of_one_slice(
    every_kind: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, whole = every_kind.store, every_kind.rows
    monkeypatch.setattr("squall.analysis.join.batch_slices.MOST_EVENTS", 150)
    monkeypatch.setattr("squall.analysis.join.join._MOST_ROWS", 40)
    spread = Backwards()
    write_batch_costs(store, spread=spread)
    write_joined(store, spread=spread)
    assert min(spread.n_partitions) >= 3, "slices of each"
    assert rows(store, "joined") == whole["joined"]
    by_key = {key(row): row for row in whole["batch_costs"]}
    again = rows(store, "batch_costs")
    assert {key(row): row for row in again} == by_key
    assert len(again) == len(by_key)
    assert [row["server"] for row in again] == sorted(row["server"] for row in again)
    assert not list(store.run_dir.glob(".spill-*"))


def check_little_memory(store: RunStore, whole: dict[str, list[Row]]) -> None:
    write_batch_costs(store, memory_limit_bytes=SMALL)
    write_joined(store, memory_limit_bytes=SMALL)
    assert {name: rows(store, name) for name in whole} == whole


def test_little_memory_gives_the_same_rows(every_kind: Whole) -> None:
    check_little_memory(every_kind.store, every_kind.rows)


@pytest.mark.slow
def test_less_memory_than_a_run_takes_gives_the_same_rows(parent: Path) -> None:
    shape = Shape(seed=10, n_requests=3000, servers=STYLES, n_nodes=2, span_ns=60_000 * MS)
    store = derived(plant(shape), parent)
    check_little_memory(store, {name: rows(store, name) for name in ("batch_costs", "joined")})
