"""`batch_costs` of a real export (2025.3.2): its sums are those of independent queries of the same capture."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.analysis.storage.store import RunStore

WHOLE = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
LINEAR, SEQLEN = "m_575", "m_576"


@pytest.fixture(scope="module")
def costs(two_heads: RunStore) -> dict[str, dict[str, Any]]:
    """Sums of the columns by instance, and `wall_ns`, first start to last end."""
    table = two_heads.read("batch_costs")
    assert table.num_rows == 568 + 489
    assert set(table["tie"].to_pylist()) == {"range"}
    return {name: _sums(table.filter(pc.equal(table["instance"], name))) for name in (LINEAR, SEQLEN)}


def _sums(table: pa.Table) -> dict[str, Any]:
    sums = {
        name: pc.sum(table[name]).as_py()
        for name in table.column_names
        if pa.types.is_int64(table.schema.field(name).type)
    }
    wall_ns = pc.max(table["end_ns"]).as_py() - pc.min(table["start_ns"]).as_py()
    length_ns = pc.sum(pc.subtract(table["end_ns"], table["start_ns"])).as_py()
    return {**sums, "n": table.num_rows, "wall_ns": wall_ns, "length_ns": length_ns}


def test_parts_of_every_instance_add_up_to_its_executions(costs: dict[str, dict[str, Any]]) -> None:
    for one in costs.values():
        assert sum(one[name] for name in WHOLE) == one["length_ns"]
        assert one["length_ns"] + one["gap_before_ns"] == one["wall_ns"]


@pytest.mark.parametrize(
    ("instance", "kernel", "any_op"), [(LINEAR, "2.336", "2.694"), (SEQLEN, "26.123", "26.604")]
)
def test_gpu_activity_is_the_union_over_the_wall(
    costs: dict[str, dict[str, Any]], instance: str, kernel: str, any_op: str
) -> None:
    one = costs[instance]
    busy_ns = one["kernel_busy_ns"] + one["copy_exposed_ns"]
    found = [f"{100 * ns / one['wall_ns']:.3f}" for ns in (one["kernel_busy_ns"], busy_ns)]
    assert found == [kernel, any_op]


@pytest.mark.parametrize(
    ("instance", "explicit", "hidden", "blocked_ms", "busy"),
    [(LINEAR, "0.15", "0.63", "12.98", "7.0"), (SEQLEN, "0.11", "14.78", "305.27", "91.5")],
)
def test_blocking_time_counts_copies_of_pageable_memory(
    costs: dict[str, dict[str, Any]], instance: str, explicit: str, hidden: str, blocked_ms: str, busy: str
) -> None:
    one = costs[instance]
    assert f"{100 * one['sync_ns'] / one['length_ns']:.2f}" == explicit
    assert f"{100 * (one['blocked_ns'] - one['sync_ns']) / one['length_ns']:.2f}" == hidden
    assert f"{one['blocked_ns'] / 1e6:.2f}" == blocked_ms
    assert f"{100 * one['blocked_busy_ns'] / one['blocked_ns']:.1f}" == busy
    assert one["n_mid_blocks"] == 0


@pytest.mark.parametrize(
    ("instance", "shares", "means_us", "body_busy"),
    [
        (LINEAR, ["2.7", "33.2", "15.6", "3.8", "44.6"], [2934, 1762, 970, 202], "14.7"),
        (SEQLEN, ["26.6", "31.3", "7.2", "3.3", "31.7"], [4194, 1919, 2073, 202], "78.7"),
    ],
)
def test_the_wall_is_busy_head_body_idle_tail_and_between(
    costs: dict[str, dict[str, Any]], instance: str, shares: list[str], means_us: list[int], body_busy: str
) -> None:
    one = costs[instance]
    busy = one["kernel_busy_ns"] + one["copy_exposed_ns"]
    idle = one["sync_wait_ns"] + one["launch_idle_ns"]
    parts = (busy, one["head_ns"], idle, one["tail_ns"], one["gap_before_ns"])
    assert [f"{100 * part / one['wall_ns']:.1f}" for part in parts] == shares
    means = (one["length_ns"], one["head_ns"], busy + idle, one["tail_ns"])
    assert [round(ns / one["n"] / 1e3) for ns in means] == means_us
    assert f"{100 * busy / (busy + idle):.1f}" == body_busy


@pytest.mark.parametrize(
    ("instance", "n_kernels", "n_others", "launch_ms"),
    [(LINEAR, 24424, 1136, "125.98"), (SEQLEN, 30318, 7153, "153.34")],
)
def test_every_operation_and_launch_is_in_one_batch(
    costs: dict[str, dict[str, Any]], instance: str, n_kernels: int, n_others: int, launch_ms: str
) -> None:
    one = costs[instance]
    assert (one["n_kernels"], one["n_copies"], one["n_launches"]) == (n_kernels, n_others, n_kernels)
    assert f"{one['launch_ns'] / 1e6:.2f}" == launch_ms
