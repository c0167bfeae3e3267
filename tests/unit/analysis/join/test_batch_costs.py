from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.report.identities import cost_identities
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples
from tests.plain_runs import plain_run

Row = dict[str, Any]
Span = tuple[int, int]
WHOLE = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
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
    tables: dict[str, list[Row]] = {"batches": [], "nvtx": [], "kernels": [], "memcpys": [], "cuda_api": []}
    for batch_id, (start, length, ops, calls) in enumerate(executions):
        tie = {"instance": "i0", "batch_id": batch_id}
        whole = {**tie, "start_ns": start, "end_ns": start + length}
        tables["batches"].append({**whole, "rows": 2})
        tables["nvtx"].append({**whole, "process": 7, "thread": 8})
        for (first, last), launch_ns, is_kernel in ops:
            row = {**tie, "start_ns": first, "end_ns": last, "launch_start_ns": launch_ns}
            tables["kernels" if is_kernel else "memcpys"].append(row)
        for (first, last), kind in calls:
            tables["cuda_api"].append({**tie, "start_ns": first, "end_ns": last, "call_class": kind})
    store = plain_run(tmp_path_factory.mktemp("times"), tables)
    assert write_batch_costs(store) == len(executions)
    found = {row["batch_id"]: row for row in store.read("batch_costs").to_pylist()}
    for batch_id, (start, length, ops, calls) in enumerate(executions):
        row, expected = found[batch_id], times_by_hand(start, start + length, ops, calls)
        assert {name: row[name] for name in expected} == expected
        assert sum(row[name] for name in WHOLE) == length


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {"kernels": [{"start_ns": 1, "end_ns": 2}]})
    (part,) = (store.run_dir / "tables" / "kernels").iterdir()
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(AnalysisError, match="kernels"):
        write_batch_costs(store)


def test_kernels_of_a_batch_that_the_record_lost_are_missed(tmp_path: Path) -> None:
    batches = [{"instance": "i0", "batch_id": 0, "end_ns": 9, "rows": 1}]
    for n_lost_ns in (0, 4):
        kernels = [
            {"instance": "i0", "batch_id": i, "start_ns": 5, "end_ns": 5 + n}
            for i, n in enumerate((3, n_lost_ns))
        ]
        store = plain_run(tmp_path / str(n_lost_ns), {"batches": batches, "kernels": kernels})
        write_batch_costs(store)
        found = {one.name: one for one in cost_identities(store)}
        assert found["batch costs"].is_met
        assert found["kernel time"].most - found["kernel time"].found == n_lost_ns
        assert found["kernel time"].is_met == (n_lost_ns == 0)
