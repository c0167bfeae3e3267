from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join import batch_slices
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples
from tests.plain_runs import plain_run

Row = dict[str, Any]
Span = tuple[int, int]
WHOLE = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
THREAD = {"process": 7, "thread": 8}
BLOCKING = ("blocking sync", "blocking copy")

# Instants of small runs are small numbers: every ns of an execution is looked at on its own.
spans = st.tuples(st.integers(-6, 40), st.integers(0, 14)).map(lambda one: (one[0], one[0] + one[1]))
op_rows = st.tuples(spans, st.one_of(st.none(), st.integers(0, 30)), st.booleans())
call_rows = st.tuples(spans, st.sampled_from(["launch", "allocation", "other", *BLOCKING]))
execution_rows = st.tuples(
    st.integers(-5, 15), st.integers(0, 25), st.lists(op_rows, max_size=5), st.lists(call_rows, max_size=4)
)


def covered(some: list[Span]) -> set[int]:
    """The ns that any span covers, each by its start."""
    return {t for first, last in some for t in range(first, last)}


def times_by_hand(start: int, end: int, ops: list[Any], calls: list[Any]) -> Row:
    """What must be said of one execution, ns by ns."""
    inside = set(range(start, end))
    kernels = covered([span for span, _, is_kernel in ops if is_kernel])
    every = covered([span for span, _, _ in ops])
    begin = min([end, *(max(start, span[0]) for span, _, _ in ops)])
    stop = max([begin, *(min(end, span[1]) for span, _, _ in ops)]) if ops else end
    blocked = covered([span for span, kind in calls if kind in BLOCKING])
    idle = set(range(begin, stop)) - every
    lengths = [(span[1] - span[0], is_kernel) for span, _, is_kernel in ops]

    def of_kind(kind: str) -> list[Span]:
        return [span for span, own in calls if own == kind]

    return {
        "n_kernels": sum(is_kernel for _, is_kernel in lengths),
        "n_copies": sum(not is_kernel for _, is_kernel in lengths),
        "kernel_ns": sum(ns for ns, is_kernel in lengths if is_kernel),
        "copy_ns": sum(ns for ns, is_kernel in lengths if not is_kernel),
        "kernel_busy_ns": len(kernels & inside),
        "copy_exposed_ns": len((every - kernels) & inside),
        "sync_wait_ns": len(idle & blocked),
        "launch_idle_ns": len(idle - blocked),
        "head_ns": begin - start,
        "tail_ns": end - stop,
        "overrun_ns": len({t for t in every if t >= end}),
        "n_launches": len(of_kind("launch")),
        "launch_ns": len(covered(of_kind("launch"))),
        "sync_ns": len(covered(of_kind("blocking sync"))),
        "alloc_ns": len(covered(of_kind("allocation"))),
        "api_ns": len(covered([span for span, _ in calls])),
        "n_blocks": sum(kind in BLOCKING for _, kind in calls),
        "blocked_ns": len(blocked),
        "blocked_busy_ns": len(blocked & every),
        "n_mid_blocks": sum(
            kind in BLOCKING and any(launch is not None and launch > span[1] for _, launch, _ in ops)
            for span, kind in calls
        ),
    }


@examples(12)
@given(executions=st.lists(execution_rows, min_size=1, max_size=30))
def test_times_are_those_of_looking_at_every_ns(
    executions: list[tuple[int, int, list[Any], list[Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    executions = [*executions, (0, 9, [((1, 2), None, True)], [((0, 1), "launch")])]  # both were recorded
    tables: Tables = {"batches": [], "nvtx": [], "kernels": [], "memcpys": [], "cuda_api": []}
    for batch_id, (start, length, ops, calls) in enumerate(executions):
        tables["batches"].append(batch(batch_id, start, start + length))
        tables["nvtx"].append(event(batch_id, start, start + length))
        for span, launch_ns, is_kernel in ops:
            tables["kernels" if is_kernel else "memcpys"].append(
                kernel(batch_id, span[0], span[1], launch_ns)
            )
        tables["cuda_api"] += [event(batch_id, *span, call_class=kind) for span, kind in calls]
    found = costs(plain_run(tmp_path_factory.mktemp("times"), tables))
    for batch_id, (start, length, ops, calls) in enumerate(executions):
        row, expected = found["server-0", "i0", batch_id], times_by_hand(start, start + length, ops, calls)
        assert {name: row[name] for name in expected} == expected
        assert sum(row[name] for name in WHOLE) == length


def test_events_far_from_their_execution_do_not_overflow(tmp_path: Path) -> None:
    far = 10**17
    tables: Tables = {
        "batches": [batch(i, i, i + 5) for i in range(4)],
        "nvtx": [event(i, i, i + 5) for i in range(4)],
        "kernels": [kernel(2, far, far + 3, far)],
        "cuda_api": [event(2, 2, 3, call_class="launch")],
    }
    found = costs(plain_run(tmp_path, tables))
    rows = [found["server-0", "i0", i] for i in range(4)]
    assert [row["overrun_ns"] for row in rows] == [0, 0, 3, 0]
    assert [row["head_ns"] for row in rows] == [5, 5, 5, 5]


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {"kernels": [kernel(0, 1, 2, 0)]})
    (part,) = store.parts("kernels")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(AnalysisError, match="kernels"):
        write_batch_costs(store)


# ---- whole runs: two instances that run at the same time, and a report of both


def batch(batch_id: int, start_ns: int, end_ns: int, **more: Any) -> Row:
    return {"model": "m", "version": "1", "instance": "i0", "batch_id": batch_id, "start_ns": start_ns,
            "end_ns": end_ns, "rows": 2, "n_requests": 1, **more}  # fmt: skip


def event(batch_id: int | None, start_ns: int, end_ns: int, **more: Any) -> Row:
    tie = {"instance": "" if batch_id is None else "i0", "batch_id": batch_id}
    return {**THREAD, **tie, "start_ns": start_ns, "end_ns": end_ns, **more}


def kernel(batch_id: int | None, start_ns: int, end_ns: int, launch_ns: int | None, **more: Any) -> Row:
    return event(batch_id, start_ns, end_ns, **{"launch_start_ns": launch_ns, "gpu_uuid": "GPU-0", **more})


def os_call(start_ns: int, end_ns: int, **more: Any) -> Row:
    return {**THREAD, "start_ns": start_ns, "end_ns": end_ns, **more}


Tables = dict[str, list[Row]]
Found = dict[tuple[str, str, int], Row]


def profiled() -> Tables:
    """Batch 0 with a kernel, a copy and a wait; batch 1 without any event; batch 2 outside the recording."""
    return {
        "batches": [batch(0, 0, 100), batch(1, 130, 160), batch(2, 160, 170)],
        "nvtx": [event(0, 0, 100), event(1, 130, 160)],
        "kernels": [kernel(0, 20, 40, 10)],
        "memcpys": [kernel(0, 60, 110, 45, correlation_id=3, bytes=64, copy_kind="DtoH", destination_kind="pageable")],
        "cuda_api": [
            event(0, 10, 14, call_class="launch", correlation_id=1),
            event(0, 30, 50, call_class="blocking sync", correlation_id=2),
            event(0, 55, 58, call_class="async copy", correlation_id=3),
            event(0, 70, 71, call_class="async copy", correlation_id=4),
        ],
        "osrt": [os_call(5, 15), os_call(95, 130), os_call(5, 90, thread=9), os_call(120, 128)],
    }  # fmt: skip


def costs(store: RunStore, **options: Any) -> dict[tuple[str, str, int], Row]:
    n_rows = write_batch_costs(store, **options)
    found = store.read("batch_costs").to_pylist()
    assert n_rows == len(found)
    return {(row["server"], row["instance"], row["batch_id"]): row for row in found}


def values(row: Row, *names: str) -> list[Any]:
    return [row[name] for name in names]


def pinned() -> Tables:
    """The copy is of pinned memory."""
    tables = profiled()
    tables["memcpys"][0] |= {"destination_kind": "pinned"}
    return tables


def never_closed() -> Tables:
    """The range of batch 0 had not ended when the recording did."""
    tables = profiled()
    del tables["nvtx"][0]
    return tables


def broken() -> Tables:
    """Events and an execution that end before they start."""
    tables = profiled()
    tables["kernels"].append(kernel(0, 90, 80, 11))
    tables["cuda_api"].append(event(0, 90, 80, call_class="blocking sync", correlation_id=9))
    tables["batches"].append(batch(3, 300, 290))
    return tables


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Costs of the batches of several servers, each of which was seen as its name says."""
    servers = {
        "server-0": profiled(), "pinned": pinned(), "never closed": never_closed(), "broken": broken(), "bare": bare()
    }  # fmt: skip
    tables: Tables = {}
    for server, own in servers.items():
        for name, rows in own.items():
            tables.setdefault(name, []).extend({**row, "server": server} for row in rows)
    return costs(plain_run(tmp_path_factory.mktemp("servers"), tables))


def test_a_batch_has_the_costs_of_its_events(found: Found) -> None:
    one = found["server-0", "i0", 0]
    assert values(one, "tie", "process", "thread", "gpu_uuid") == ["range", 7, 8, "GPU-0"]
    assert values(one, *WHOLE) == [20, 40, 13, 7, 20, 0]
    assert values(one, "blocked_ns", "blocked_busy_ns", "n_blocks", "n_mid_blocks") == [23, 10, 2, 0]
    assert values(one, "overrun_ns", "os_wait_ns", "pageable_bytes", "d2h_bytes", "d2h_ns") == [
        10,
        15,
        64,
        64,
        50,
    ]
    assert values(one, "n_launches", "launch_ns", "sync_ns", "api_ns", "copy_ns") == [1, 4, 20, 28, 50]
    assert values(found["server-0", "i0", 1], "tie", "head_ns", "n_kernels", "gpu_uuid") == [
        "range",
        30,
        0,
        "",
    ]
    own = [row for (server, _, _), row in found.items() if server == "server-0"]
    assert [row["gap_before_ns"] for row in own] == [None, 30, 0]


def test_an_async_copy_of_pinned_memory_does_not_block(found: Found) -> None:
    one = found["pinned", "i0", 0]
    assert values(one, "blocked_ns", "n_blocks", "pageable_bytes", "d2h_bytes") == [20, 1, 0, 64]


def test_a_batch_outside_the_recording_is_not_profiled(found: Found) -> None:
    row = found["server-0", "i0", 2]
    assert row["tie"] == "none"
    assert {row[name] for name in (*WHOLE, "n_kernels", "api_ns", "os_wait_ns", "process", "thread")} == {
        None
    }
    assert row["gpu_uuid"] == ""


def test_a_range_that_never_closed_ties_what_was_recorded_of_it(found: Found) -> None:
    row = found["never closed", "i0", 0]
    assert values(row, "tie", "process", "thread", "n_kernels", "os_wait_ns") == ["range", 7, 8, 1, 15]


def test_the_same_ids_in_another_instance_process_or_server_are_not_mixed(tmp_path: Path) -> None:
    tables = profiled()
    elsewhere = {"instance": "i1", "process": 70, "thread": 80}
    tables["batches"] += [batch(0, 0, 100, instance="i1"), batch(0, 0, 100, server="server-1")]
    tables["nvtx"] += [event(0, 0, 100, **elsewhere) | elsewhere, event(0, 0, 100, server="server-1")]
    tables["kernels"] += [
        kernel(0, 1, 9, 1, gpu_uuid="GPU-1") | elsewhere,
        kernel(0, 2, 9, 2, server="server-1"),
    ]
    tables["cuda_api"] += [event(0, 55, 58, call_class="async copy", correlation_id=3) | elsewhere]
    found = costs(plain_run(tmp_path, tables))
    assert values(found["server-0", "i1", 0], "kernel_ns", "gpu_uuid", "n_blocks", "process") == [
        8,
        "GPU-1",
        0,
        70,
    ]
    assert values(found["server-1", "i0", 0], "kernel_ns", "copy_ns") == [7, 0]
    assert values(found["server-0", "i0", 0], "kernel_ns", "copy_ns") == [20, 50]


def bare() -> Tables:
    """A server without ranges: an execution alone, two that overlap, two that touch."""
    return {
        "batches": [
            batch(0, 0, 100),
            batch(1, 200, 300),
            batch(2, 250, 350),
            batch(3, 400, 450),
            batch(4, 450, 500),
        ],
        "kernels": [kernel(None, 20 + at, 30 + at, at) for at in (0, 100, 101, 260, 450, 460)],
        "cuda_api": [event(None, at, at + 4, call_class="launch") for at in (0, 100, 101, 260, 450, 460)],
        "osrt": [os_call(5, 15)],
    }


def test_without_ranges_what_was_launched_while_one_execution_ran_alone_is_its_own(tmp_path: Path) -> None:
    found = [row for _, row in sorted(costs(plain_run(tmp_path, bare())).items())]
    assert [row["tie"] for row in found] == ["window", "none", "none", "window", "window"]
    assert [row["n_kernels"] for row in found] == [2, None, None, 0, 1]
    assert [row["n_launches"] for row in found] == [2, None, None, 0, 1]
    assert values(found[0], "process", "thread", "os_wait_ns", "head_ns", "overrun_ns") == [7, 8, 10, 20, 10]
    assert sum(values(found[0], *WHOLE)) == 100


def test_without_ranges_phases_and_times_that_were_not_recorded_are_not_tied(tmp_path: Path) -> None:
    tables = bare()
    for row in (*tables["batches"], *tables["kernels"]):
        row["phase"] = "warmup" if row["start_ns"] < 20 else "burst"
    phases = [{"name": "warmup", "kind": "warmup", "start_ns": 0, "end_ns": 20},
              {"name": "burst", "kind": "measure", "start_ns": 20, "end_ns": 900}]  # fmt: skip
    late = {"burst": {"is_profiled": True, "profiled_after_ns": 390}}
    store = plain_run(tmp_path, tables, phases=phases, profiled_phases=late)
    ties = [row["tie"] for _, row in sorted(costs(store).items())]
    assert ties == ["none", "none", "none", "none", "window"]


def test_a_trace_of_a_server_without_ranges_is_tied_by_time(tmp_path: Path) -> None:
    instants = {"compute_input_end_ns": 0, "compute_output_start_ns": 100}
    traces = [
        {"model": "m", "version": "1", "request_id": i, "compute_start_ns": 0, **instants} for i in (4, 5)
    ]
    tables = {**bare(), "triton_traces": traces}
    del tables["batches"]
    row = costs(plain_run(tmp_path, tables))["server-0", "", 0]
    assert values(row, "source", "n_requests", "tie", "n_kernels") == ["trace", 2, "window", 2]


@pytest.mark.parametrize("absent", ["nvtx", "kernels", "memcpys", "cuda_api", "osrt"])
def test_a_report_without_a_table_leaves_what_it_tells_null(tmp_path: Path, absent: str) -> None:
    tables = profiled()
    del tables[absent]
    row = costs(plain_run(tmp_path, tables))["server-0", "i0", 0]
    assert row["tie"] == "range"
    no_calls = absent == "cuda_api"
    unknown = {name for name in row if row[name] is None} - {"gap_before_ns"}
    of_calls = {
        "n_launches", "launch_ns", "blocked_ns", "blocked_busy_ns", "n_mid_blocks", "n_blocks", "sync_ns", "alloc_ns",
        "api_ns", "sync_wait_ns", "launch_idle_ns",
    }  # fmt: skip
    assert unknown == (of_calls if no_calls else {"os_wait_ns"} if absent == "osrt" else set())
    assert (row["n_kernels"], row["n_copies"]) == (int(absent != "kernels"), int(absent != "memcpys"))


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(["NVIDIA H200"], ["range", None, None, None, None]), ([], ["range", 100, 0, 0, 0])],
)
def test_a_report_without_cuda_says_nothing_of_a_gpu_that_is_there(
    tmp_path: Path, gpus: list[str], expected: list[Any]
) -> None:
    tables = {name: rows for name, rows in profiled().items() if name in ("batches", "nvtx")}
    manifest = {"nodes": {"node-0": {"gpus": gpus}}, "servers": {"server-0": {"node": "node-0"}}}
    row = costs(plain_run(tmp_path, tables, **manifest))["server-0", "i0", 0]
    assert values(row, "tie", "head_ns", "n_kernels", "n_launches", "sync_wait_ns") == expected


@pytest.mark.parametrize("is_sorted", [False, True])
def test_what_was_recorded_is_told_by_phase(tmp_path: Path, is_sorted: bool) -> None:
    tables = profiled()
    tables["batches"].append(batch(3, 200, 260))
    tables["nvtx"].append(event(3, 200, 260))
    tables["cuda_api"].append(event(3, 210, 220, call_class="launch", correlation_id=5))
    tables["kernels"].append(kernel(3, 215, 250, 210))
    for rows in tables.values():
        for row in rows:
            row["phase"] = "burst" if row["start_ns"] < 200 else "calm"
    del tables["kernels"][-1]
    if not is_sorted:  # a row group of two phases
        tables["kernels"].append(kernel(None, 9_000, 9_001, 8_999, phase="late"))
    found = costs(plain_run(tmp_path, tables))
    burst, calm = (found["server-0", "i0", number] for number in (0, 3))
    assert values(burst, "n_kernels", "n_launches", "head_ns", "launch_idle_ns") == [1, 1, 20, 7]
    assert values(calm, "tie", "n_launches", "launch_ns", "blocked_ns") == ["range", 1, 10, 0]
    assert {calm[name] for name in (*WHOLE, "n_kernels", "kernel_ns", "d2h_ns", "n_mid_blocks")} == {None}


def test_a_batch_that_began_before_its_recording_has_what_was_recorded_of_it(
    found: Found, tmp_path: Path
) -> None:
    tables = profiled()
    for row in tables["batches"]:
        row["phase"] = "warmup"
    for table in ("kernels", "memcpys", "cuda_api"):
        for row in tables[table]:
            row["phase"] = "burst"
    early = costs(plain_run(tmp_path, tables))["server-0", "i0", 0]
    within = found["server-0", "i0", 0]
    assert early["n_kernels"] > 0
    assert {**early, "run": "", "phase": ""} == {**within, "run": "", "phase": ""}


def test_a_run_without_a_report_has_a_row_per_execution(tmp_path: Path) -> None:
    found = costs(plain_run(tmp_path, {"batches": profiled()["batches"]}))
    assert [row["tie"] for row in found.values()] == ["none"] * 3
    assert {row[name] for row in found.values() for name in (*WHOLE, "process")} == {None}


def test_a_run_without_batches_has_an_empty_table(tmp_path: Path) -> None:
    assert costs(plain_run(tmp_path, {"requests": [{"request_id": 0}]})) == {}


def test_broken_events_and_executions_are_passed_over(found: Found) -> None:
    assert values(found["broken", "i0", 0], "n_kernels", "n_blocks", "kernel_ns") == [1, 2, 20]
    assert values(found["broken", "i0", 3], "tie", "head_ns") == ["none", None]


def test_slices_do_not_change_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = profiled()
    for i in range(1, 20):
        tables["batches"].append(batch(100 + i, 1000 * i, 1000 * i + 90))
        tables["nvtx"].append(event(100 + i, 1000 * i, 1000 * i + 90))
        tables["kernels"].append(kernel(100 + i, 1000 * i + 10, 1000 * i + 10 + i, 1000 * i + 5))
    store = plain_run(tmp_path, tables)
    whole = costs(store)
    monkeypatch.setattr(batch_slices, "MOST_EVENTS", 3)

    def spread(function: Any, partitions: Any) -> list[Any]:
        assert len(partitions) > 5
        return [function(pickle.loads(pickle.dumps(one))) for one in reversed(partitions)][::-1]

    assert costs(store, spread=spread) == whole
    assert list(whole) == sorted(whole, key=lambda key: whole[key]["start_ns"])
    assert not list(store.run_dir.glob(".spill-*"))


def test_two_servers_of_one_name_are_refused_and_no_table_is_written(tmp_path: Path) -> None:
    tables = profiled()
    tables["batches"].append(batch(0, 0, 100, node="node-1"))
    store = plain_run(tmp_path, tables)
    with pytest.raises(AnalysisError, match="two servers are named server-0"):
        write_batch_costs(store)
    assert not store.has("batch_costs")
