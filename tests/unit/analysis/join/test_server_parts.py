from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.join import write_joined
from squall.analysis.join.server_parts import LEAST_REQUESTS, PARTS
from squall.analysis.storage.store import RunStore
from tests.many_examples import examples
from tests.plain_runs import plain_run
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, synthesise

MakeRun = Callable[..., RunStore]
Row = dict[str, Any]
TRACE = (
    "queue_start_ns", "compute_start_ns", "compute_input_end_ns", "compute_output_start_ns", "compute_end_ns",
    "send_end_ns",
)  # fmt: skip
MEAN = ("network_ns", "input_ns", "handover_ns", "output_ns")
FOUND = ("parts_level", *MEAN, "queue_ns", "residual_ns", "idle_wait_ns")


@dataclass(frozen=True)
class Case:
    """A request in a batch of its own, the end of the batch before that of its instance, the instants of its trace and
    the means of its phase."""

    sent: int | None = 0
    done: int | None = 1000
    start: int = 400
    end: int = 700
    gap: int | None = None
    trace: tuple[int, ...] = ()
    mean: tuple[int, ...] = ()


#        queue  compute_start  input_end  output_start  compute_end  left
WHOLE = (100, 300, 350, 750, 800, 820)
MEANS = (101, 20, 31, 10)
NOTHING = ("none", *[None] * 7)
#                                 level, network, input, handover, output, queue, residual, idle wait
CASES: dict[str, tuple[Case, tuple[Any, ...]]] = {
    "differences of a trace's instants": (
        Case(trace=WHOLE), ("trace", 100 + (1000 - 820), 50, 400 - 300, 50, 200, 820 - 800, 300)),
    "the offset of two clocks cancels in a trace": (
        Case(start=500, end=800, trace=tuple(at + 100 for at in WHOLE)), ("trace", 280, 50, 100, 50, 200, 20, 300)),
    "a record longer than Triton's own compute is in the residual": (
        Case(start=340, end=760, trace=WHOLE), ("trace", 280, 50, 0, 50, 200, 20 - 20, 240)),
    "a trace is taken before the means": (
        Case(trace=WHOLE, mean=MEANS), ("trace", 280, 50, 100, 50, 200, 20, 300)),
    "the queue by statistics is the rest of the wait": (
        Case(mean=MEANS), ("statistics", 101, 20, 31, 10, 400 - 50 - 20 - 15, 1000 - 101 - 315 - 20 - 31 - 300 - 10,
                           400 - 50)),
    "a wait shorter than the means has no queue": (
        Case(start=60, end=360, mean=MEANS), ("statistics", 101, 20, 31, 10, 0, 1000 - 101 - 20 - 31 - 300 - 10, 10)),
    "nor has a negative one": (
        Case(start=-500, end=-200, mean=MEANS),
        ("statistics", 101, 20, 31, 10, 0, 1000 - 101 - 20 - 31 - 300 - 10, 0)),
    "idle since before the request came": (
        Case(gap=1000, mean=(100, 0, 0, 0)), ("statistics", 100, 0, 0, 0, 350, 250, 350)),
    "idle since the batch before": (
        Case(gap=120, mean=(100, 0, 0, 0)), ("statistics", 100, 0, 0, 0, 350, 250, 120)),
    "never idle": (Case(gap=0, mean=(100, 0, 0, 0)), ("statistics", 100, 0, 0, 0, 350, 250, 0)),
    "never sent": (Case(sent=None, done=None, trace=WHOLE, mean=MEANS), NOTHING),
    "without an end": (Case(done=None, trace=WHOLE, mean=MEANS), NOTHING),
    "neither trace nor means": (Case(gap=5), NOTHING),
}  # fmt: skip


def tables_of(number: int, case: Case) -> dict[str, list[Row]]:
    """One request of a server and phase of its own, and what Triton's sums must be for the means of `case`."""
    own = {"server": f"server-{number}", "model": "m", "version": "1", "phase": f"phase-{number}"}
    batch = {**own, "instance": "m_0", "rows": 1, "n_requests": 1, "request_ids": []}
    ids = {
        "request_id": number,
        "target": own["server"],
        "request_kind": "m",
        "phase": own["phase"],
        "rows": 1,
    }
    found: dict[str, list[Row]] = {
        "requests": [
            {**ids, "sent_ns": case.sent, "done_ns": case.done, "scheduled_ns": case.sent, "outcome": "ok"}
        ],
        "batches": [
            {**batch, "batch_id": 1, "start_ns": case.start, "end_ns": case.end, "request_ids": [number]}
        ],
    }
    if case.gap is not None:
        before = case.start - case.gap
        found["batches"].append({**batch, "batch_id": 0, "start_ns": before - 1, "end_ns": before})
    if case.trace:
        instants = dict(zip(TRACE, case.trace, strict=True))
        found["triton_traces"] = [{**own, "request_id": number, **instants}]
    if case.mean:
        network, input_ns, handover, output = case.mean
        infer = case.end - case.start + handover
        queue = 1000 - network - input_ns - infer - output
        sums = {
            "queue_ns": queue,
            "compute_input_ns": input_ns,
            "compute_infer_ns": infer,
            "compute_output_ns": output,
        }
        found["triton_samples"] = [{**own, "t_ns": 500, "interval_ns": 1000, "request_count": 1, **sums}]
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """The parts of each of `CASES`, by its name."""
    tables: dict[str, list[Row]] = {}
    for number, (case, _) in enumerate(CASES.values()):
        for table, rows in tables_of(number, case).items():
            tables.setdefault(table, []).extend(rows)
    store = plain_run(tmp_path_factory.mktemp("parts"), tables)
    write_joined(store)
    joined = {row["request_id"]: row for row in store.read("joined").to_pylist()}
    return {name: tuple(joined[i][column] for column in FOUND) for i, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_a_request(parts: dict[str, tuple[Any, ...]], name: str) -> None:
    _, expected = CASES[name]
    assert parts[name] == expected


@examples(6)
@given(
    batches=st.lists(
        st.tuples(st.integers(0, 10**15), st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50)),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_the_parts_of_a_batch_add_up_to_it_and_foreign_rows_keep_theirs(
    batches: list[tuple[int, list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables: dict[str, list[Row]] = {"requests": [], "batches": [], "kernels": []}
    expected: dict[int, int | None] = {}
    for batch_id, (whole, rows, foreign) in enumerate(batches):
        ids = list(range(len(expected), len(expected) + len(rows)))
        n = sum(rows) + foreign
        before = [sum(rows[:i]) for i in range(len(rows))]
        for request_id, b, own in zip(ids, before, rows, strict=True):
            expected[request_id] = whole * (b + own) // n - whole * b // n if n else None  # without bound
            tables["requests"].append({"request_id": request_id, "rows": own, "sent_ns": 0, "done_ns": 9})
        tie = {"instance": "m_0", "batch_id": batch_id}
        tables["batches"].append({
            **tie, "model": "m", "start_ns": batch_id, "end_ns": batch_id + 1, "rows": n, "n_requests": len(rows),
            "request_ids": ids,
        })  # fmt: skip
        tables["kernels"].append({**tie, "start_ns": 0, "end_ns": whole, "gpu_uuid": "GPU-0"})
    tables["requests"].append({"request_id": len(expected), "rows": 1})
    store = plain_run(tmp_path_factory.mktemp("shares"), tables)
    write_joined(store)
    found = {row["request_id"]: row["kernel_share_ns"] for row in store.read("joined").to_pylist()}
    assert found == {**expected, len(expected): None}


def test_more_rows_than_the_batch_has_share_no_more_than_there_is(tmp_path: Path) -> None:
    tie = {"instance": "m_0", "batch_id": 0}
    tables: dict[str, list[Row]] = {
        "requests": [{"request_id": i, "rows": 2} for i in range(3)],
        "batches": [{**tie, "model": "m", "end_ns": 9, "rows": 3, "n_requests": 3, "request_ids": [0, 1, 2]}],
        "kernels": [{**tie, "end_ns": 100}],
    }
    store = plain_run(tmp_path, tables)
    write_joined(store)
    assert store.read("joined")["kernel_share_ns"].to_pylist() == [66, 34, 0]


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
