from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.server_parts import LEAST_REQUESTS, PARTS, server_parts, share_of
from squall.analysis.storage.store import RunStore
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, synthesise

MakeRun = Callable[..., RunStore]
TRACE = ("queue_start_ns", "compute_start_ns", "input_end_ns", "output_start_ns", "compute_end_ns", "left_ns")
MEAN = ("network_ns", "input_ns", "handover_ns", "output_ns")


def columns(**values: list[int | None]) -> dict[str, pa.Array]:
    return {name: pa.array(column, pa.int64()) for name, column in values.items()}


def parts_of(
    sent: int | None = 0,
    done: int | None = 1000,
    start: int | None = 400,
    end: int | None = 700,
    gap: int | None = None,
    trace: tuple[int | None, ...] = (None,) * 6,
    mean: tuple[int | None, ...] = (None,) * 4,
) -> dict[str, Any]:
    """The parts of one request."""
    found = server_parts(
        columns(sent_ns=[sent], done_ns=[done]),
        columns(start_ns=[start], end_ns=[end], gap_before_ns=[gap]),
        columns(**{name: [value] for name, value in zip(TRACE, trace, strict=True)}),
        columns(**{name: [value] for name, value in zip(MEAN, mean, strict=True)}),
    )
    return {name: column[0].as_py() for name, column in found.items()}


#        queue  compute_start  input_end  output_start  compute_end  left
WHOLE = (100, 300, 350, 750, 800, 820)


def test_the_parts_of_a_trace_are_differences_of_its_instants() -> None:
    assert parts_of(trace=WHOLE) == {
        "parts_level": "trace", "network_ns": 100 + (1000 - 820), "queue_ns": 200, "input_ns": 50,
        "handover_ns": 400 - 300, "output_ns": 50, "residual_ns": 820 - 800, "idle_wait_ns": 300,
    }  # fmt: skip


def test_the_offset_of_two_clocks_cancels_in_the_parts_of_a_trace() -> None:
    ahead = parts_of(start=500, end=800, trace=tuple(at + 100 for at in WHOLE))
    assert ahead == parts_of(trace=WHOLE)


def test_a_record_longer_than_tritons_own_compute_is_in_the_residual() -> None:
    found = parts_of(start=340, end=760, trace=WHOLE)
    assert (found["handover_ns"], found["residual_ns"]) == (0, 20 - 20)


def test_the_queue_by_statistics_is_the_rest_of_the_wait() -> None:
    found = parts_of(mean=(101, 20, 31, 10))
    assert found == {
        "parts_level": "statistics", "network_ns": 101, "input_ns": 20, "handover_ns": 31, "output_ns": 10,
        "queue_ns": 400 - 50 - 20 - 15, "residual_ns": 1000 - 101 - 315 - 20 - 31 - 300 - 10,
        "idle_wait_ns": 400 - 50,
    }  # fmt: skip


@pytest.mark.parametrize(("start", "queue"), [(60, 0), (-500, 0), (400, 315)])
def test_the_queue_by_statistics_is_never_negative(start: int, queue: int) -> None:
    assert parts_of(start=start, mean=(101, 20, 31, 10))["queue_ns"] == queue


@pytest.mark.parametrize(
    ("gap", "idle"),
    [
        (None, 350),  # the first of its instance: idle ever before
        (1000, 350),  # idle since before the request came
        (120, 120),
        (0, 0),
    ],
)
def test_idle_wait_runs_from_the_later_of_arrival_and_the_batch_before(gap: int | None, idle: int) -> None:
    assert parts_of(gap=gap, mean=(100, 0, 0, 0))["idle_wait_ns"] == idle


def test_a_trace_is_taken_before_the_means() -> None:
    assert parts_of(trace=WHOLE, mean=(1, 2, 3, 4)) == parts_of(trace=WHOLE)


@pytest.mark.parametrize("missing", ["sent", "done", "start", "end"])
def test_without_send_end_or_batch_nothing_is_told(missing: str) -> None:
    found = parts_of(**{missing: None}, trace=WHOLE, mean=(1, 2, 3, 4))
    assert found.pop("parts_level") == "none"
    assert set(found.values()) == {None}


def test_without_trace_and_means_the_level_is_none_even_where_the_gap_is_known() -> None:
    found = parts_of(gap=5)
    assert found.pop("parts_level") == "none"
    assert set(found.values()) == {None}


@given(
    whole=st.integers(0, 10**15),
    rows=st.lists(st.integers(0, 50), max_size=12),
    foreign=st.integers(0, 50),
)
def test_the_parts_of_a_batch_add_up_to_it_and_foreign_rows_keep_theirs(
    whole: int, rows: list[int], foreign: int
) -> None:
    n, total = len(rows), sum(rows) + foreign
    before = [sum(rows[:i]) for i in range(n)]
    own = [
        share.as_py()
        for share in share_of(
            *(pa.array(column, pa.int64()) for column in ([whole] * n, before, rows, [total] * n))
        )
    ]
    if total == 0:
        assert set(own) <= {None}
        return
    assert own == [
        whole * (b + r) // total - whole * b // total for b, r in zip(before, rows, strict=True)
    ]  # in Python's whole numbers, without bound
    assert sum(own) == whole * sum(rows) // total


def test_more_rows_than_the_batch_has_share_no_more_than_there_is() -> None:
    shares = share_of(
        *(pa.array(column, pa.int64()) for column in ([100] * 3, [0, 2, 4], [2, 2, 2], [3] * 3))
    )
    assert shares.to_pylist() == [66, 34, 0]


def means_by_hand(store: RunStore, second: int) -> tuple[int, ...]:
    """Network, input, handover and output of one second, by loops over Python rows."""
    samples = [
        row for row in store.read("triton_samples").to_pylist()
        if (row["t_ns"] - row["interval_ns"] // 2) // S == second
    ]  # fmt: skip
    joined = [
        row for row in store.read("joined").to_pylist()
        if row["outcome"] == "ok" and row["batch_id"] is not None and row["done_ns"] // S == second
    ]  # fmt: skip
    n_triton, n_joined = sum(row["request_count"] for row in samples), len(joined)
    assert min(n_triton, n_joined) >= LEAST_REQUESTS

    def triton(*names: str) -> int:
        return int(sum(row[name] for row in samples for name in names) // n_triton)

    spans = ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
    service, compute = (sum(row[name] for row in joined) // n_joined for name in ("service_ns", "compute_ns"))
    handover = max(0, triton("compute_infer_ns") - compute)
    return max(0, service - triton(*spans)), triton("compute_input_ns"), handover, triton("compute_output_ns")


def test_means_are_those_of_the_second_in_which_a_request_ended(whole_run: RunStore) -> None:
    second = START_NS // S + 7
    rows = [row for row in whole_run.read("joined").to_pylist() if row["parts_level"] == "statistics"]
    own = {tuple(row[name] for name in MEAN) for row in rows if row["done_ns"] // S == second}
    assert own == {means_by_hand(whole_run, second)}


def test_a_second_with_few_requests_takes_the_means_of_its_phase(make_joined: MakeRun) -> None:
    rows = make_joined(synthesise(rate_hz=8.0)).read("joined").to_pylist()
    for phase in ("warmup", "burst"):
        own = [row for row in rows if row["phase"] == phase and row["parts_level"] == "statistics"]
        quiet = {row["done_ns"] // S for row in own if not 7 * S <= row["done_ns"] - START_NS < 9 * S}
        assert len(quiet) > 1
        assert len({tuple(r[n] for n in MEAN) for r in own if r["done_ns"] // S in quiet}) == 1


def test_the_parts_add_up_to_the_latency_row_by_row(whole_run: RunStore) -> None:
    rows = [row for row in whole_run.read("joined").to_pylist() if row["parts_level"] != "none"]
    assert len(rows) > 2000
    assert {sum(row[name] for name in PARTS) - row["response_ns"] for row in rows} == {0}


def traced(run: SyntheticRun) -> None:
    """Gives `run` a trace for each request of its batches, 0.3 ms in the queue's front, and takes its statistics."""
    batches, sent = run.tables["batches"], run.tables["requests"]["sent_ns"]
    rows: list[dict[str, Any]] = []
    for place, ids in enumerate(batches["request_ids"]):
        start, end = batches["start_ns"][place], batches["end_ns"][place]
        for request_id in ids:
            rows.append({
                "phase": "", "node": batches["node"][place], "server": "server-0", "model": "seqlen_head",
                "version": "1", "trace_id": len(rows), "request_id": request_id, "protocol": "http",
                "queue_start_ns": sent[request_id] + MS // 10, "compute_start_ns": start - 70_000,
                "compute_input_end_ns": start - 20_000, "compute_output_start_ns": end + 10_000,
                "compute_end_ns": end + 40_000, "send_end_ns": end + 50_000,
            })  # fmt: skip
    names = (
        "recv_start_ns",
        "recv_end_ns",
        "request_start_ns",
        "request_end_ns",
        "send_start_ns",
        "parent_trace_id",
    )
    run.tables["triton_traces"] = {
        **{name: [row[name] for row in rows] for name in rows[0]},
        **{name: [None] * len(rows) for name in names},
    }
    run.omit = {"triton_samples"}


def test_a_trace_of_each_request_gives_its_parts(make_joined: MakeRun) -> None:
    run = synthesise(rate_hz=20.0)
    traced(run)
    rows = [row for row in make_joined(run).read("joined").to_pylist() if row["batch_id"] is not None]
    assert {row["parts_level"] for row in rows} == {"trace"}
    for row in rows:
        fixed = (row["input_ns"], row["handover_ns"], row["output_ns"])
        assert fixed == (50_000, 30_000, 30_000)
        if row["outcome"] == "ok":
            assert row["queue_ns"] == row["batch_start_ns"] - 70_000 - row["sent_ns"] - MS // 10
            assert row["network_ns"] == MS // 10 + row["done_ns"] - row["batch_end_ns"] - 50_000
            assert row["residual_ns"] == 10_000


def test_without_a_record_the_trace_gives_the_batch_too(make_joined: MakeRun) -> None:
    run = synthesise(rate_hz=20.0)
    traced(run)
    run.omit |= {"batches"}
    rows = make_joined(run).read("joined").to_pylist()
    served = {i for ids in run.tables["batches"]["request_ids"] for i in ids}
    assert {row["request_id"] for row in rows if row["join_level"] == "batch"} == served
    assert {row["handover_ns"] for row in rows if row["join_level"] == "batch"} == {0}
    sizes = {row["request_id"]: row["batch_n_requests"] for row in rows}
    assert all(sizes[i] == len(ids) for ids in run.tables["batches"]["request_ids"] for i in ids)
