from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.ops import add_ops
from analysis.query import connect
from analysis.store import RunStore
from tests.plain_runs import plain_run

Row = dict[str, Any]
HERE = {"process": 7, "thread": 8}


def call(correlation_id: int, call_class: str, **more: Any) -> Row:
    return {**HERE, "correlation_id": correlation_id, "call_class": call_class, "end_ns": 5, **more}


def copy(correlation_id: int, source: str, destination: str, **more: Any) -> Row:
    kinds = {"copy_kind": "HtoD", "source_kind": source, "destination_kind": destination, "bytes": 64}
    return {**HERE, "correlation_id": correlation_id, "end_ns": 5, **kinds, **more}


def rows(store: RunStore, view: str, order: str = "ALL") -> list[Row]:
    with connect(store, []) as connection:
        add_ops(connection, store)
        found: list[Row] = connection.sql(f"FROM {view} ORDER BY {order}").to_arrow_table().to_pylist()
    return found


def blocking(store: RunStore) -> dict[int, bool]:
    found = rows(store, "calls")
    assert len({row["correlation_id"] for row in found}) == len(found)
    return {row["correlation_id"]: row["blocks"] for row in found}


def test_ops_are_kernels_copies_and_sets_under_one_name_each(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {
        "kernels": [{**HERE, "name": "gemm", "end_ns": 9, "launch_start_ns": 3, "batch_id": 4}],
        "memcpys": [copy(1, "pinned", "device")],
        "memsets": [{**HERE, "memory_kind": "device", "bytes": 16, "end_ns": 1}],
    })  # fmt: skip
    kernel, copied, cleared = rows(store, "ops", "end_ns DESC")
    assert [row["kind"] for row in (kernel, copied, cleared)] == ["kernel", "copy", "set"]
    assert (kernel["name"], kernel["bytes"], kernel["launch_start_ns"], kernel["batch_id"]) == (
        "gemm",
        0,
        3,
        4,
    )
    assert (copied["copy_kind"], copied["source_kind"], copied["bytes"]) == ("HtoD", "pinned", 64)
    assert (cleared["destination_kind"], cleared["copy_kind"], cleared["batch_id"]) == ("device", "", None)


def test_calls_block_by_their_name(tmp_path: Path) -> None:
    classes = [
        "blocking sync",
        "blocking copy",
        "launch",
        "graph launch",
        "poll",
        "async copy",
        "memset",
        "other",
    ]
    store = plain_run(tmp_path, {"cuda_api": [call(i, name) for i, name in enumerate(classes)]})
    assert blocking(store) == {i: i < 2 for i in range(len(classes))}


def test_an_async_copy_blocks_if_it_touches_pageable_memory(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {
        "cuda_api": [call(i, "async copy") for i in range(4)] + [call(9, "launch")],
        "memcpys": [
            copy(0, "pageable", "device"), copy(1, "device", "pageable"), copy(2, "pinned", "device"),
            copy(0, "pageable", "device"), copy(9, "pageable", "device"),
        ],
    })  # fmt: skip
    assert blocking(store) == {0: True, 1: True, 2: False, 3: False, 9: False}


def test_a_copy_of_another_process_or_server_blocks_no_call_of_the_same_id(tmp_path: Path) -> None:
    others: tuple[Row, ...] = ({"process": 70}, {"node": "node-1"}, {"server": "server-1"})
    copies = [copy(0, "pageable", "device", **other) for other in others]
    assert blocking(plain_run(tmp_path, {"cuda_api": [call(0, "async copy")], "memcpys": copies})) == {
        0: False
    }


def test_what_ends_before_it_starts_is_left_out(tmp_path: Path) -> None:
    back = {"start_ns": 8, "end_ns": 7}
    store = plain_run(tmp_path, {
        "kernels": [{**HERE, **back}, {**HERE, "start_ns": 8, "end_ns": 8}], "memcpys": [copy(0, "", "", **back)],
        "cuda_api": [call(0, "launch", **back), call(1, "launch")], "osrt": [{**HERE, **back}],
    })  # fmt: skip
    assert [row["kind"] for row in rows(store, "ops")] == ["kernel"]
    assert blocking(store) == {1: False}


def test_a_run_without_a_report_has_no_ops_and_no_calls(tmp_path: Path) -> None:
    empty = plain_run(tmp_path, {"requests": [{"request_id": 0}]})
    whole = plain_run(tmp_path, {
        "kernels": [dict(HERE)], "memcpys": [copy(0, "", "")], "memsets": [dict(HERE)], "cuda_api": [call(0, "")]
    })  # fmt: skip
    for view in ("ops", "calls"):
        assert rows(empty, view) == []
        with connect(empty, []) as nothing, connect(whole, []) as something:
            add_ops(nothing, empty)
            add_ops(something, whole)
            columns = {
                tuple(sorted(zip(one.columns, map(str, one.types), strict=True)))
                for one in (nothing.sql(f"FROM {view}"), something.sql(f"FROM {view}"))
            }
        assert len({tuple(name for name, _ in one if name != "run") for one in columns}) == 1
