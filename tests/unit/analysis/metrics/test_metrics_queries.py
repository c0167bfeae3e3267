"""The queries over operations against brute force over lists."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.metrics.batches import pick
from squall.analysis.metrics.gpus import foreign_ns, gap_figures, gpu_activity
from squall.analysis.metrics.kernels import TENSOR_CORES, kernel_figures
from squall.analysis.metrics.launches import BACK_TO_BACK_NS, CAUSES, launch_figures
from squall.analysis.metrics.operations import (
    Row,
    add_lanes,
    add_operations,
    add_table,
    median,
)
from squall.analysis.occupancy import DeviceLimits, Launch, filling
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage import query
from squall.analysis.storage.nsys import DEVICE_TABLES
from squall.analysis.storage.schema import TABLES, arrow_schema
from tests.many_examples import examples
from tests.reference_metrics import disagreements, over

STEP_NS = 700
"""Instants are multiples of this, so that they meet; two steps are less than back to back, three are more."""
LAST_NS = 60 * STEP_NS
KERNEL, COPY, SET = range(3)
few = examples(30)
T = TypeVar("T")


class Op(NamedTuple):
    """An operation of a test; times in ns. `launch` is None where it was not recorded, `batch` -1 for one of none."""

    kind: int
    gpu: int
    process: int
    stream: int
    start: int
    end: int
    launch: tuple[int, int] | None
    batch: int


@st.composite
def ops(draw: st.DrawFn, n_gpus: int = 2) -> list[Op]:
    """Up to 14 operations; batches 0 to 3 are of process 0, 4 to 7 of process 1, process 2 has none."""
    found = []
    for _ in range(draw(st.integers(1, 14))):
        start = draw(st.integers(0, 50)) * STEP_NS
        end = start + draw(st.integers(0, 6)) * STEP_NS
        before = draw(st.integers(0, 8)) * STEP_NS
        launch = (start - before, start - before + draw(st.integers(0, 2)) * STEP_NS)
        process = draw(st.integers(0, 2))
        batch = process * 4 + draw(st.integers(0, 3)) if process < 2 and draw(st.booleans()) else -1
        found.append(
            Op(
                draw(st.integers(0, 2)), draw(st.integers(0, n_gpus - 1)), process, draw(st.integers(0, 2)), start,
                end, launch if draw(st.integers(0, 9)) else None, batch,
            )
        )  # fmt: skip
    return sorted(found, key=lambda op: (op.start, op.end, op.launch or (LAST_NS,)))


SPANS = [(10 * (row % 4) * STEP_NS, (10 * (row % 4) + 9) * STEP_NS) for row in range(8)]
"""Start and end of each batch."""
ROWS = {"a": range(3), "b": range(4, 8)}
"""Batches of each of two instances in the phase that counts; batch 3 is of another."""


def add(connection: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    """`rows` as `table`: of its schema, or of numbers and texts as the first has them; what a row lacks is null."""
    if table in TABLES:
        fields = [(field.name, field.type) for field in arrow_schema(table)]
        columns = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in fields}
    else:
        columns = {
            name: pa.string() if isinstance(value, str) else pa.int64() for name, value in rows[0].items()
        }
    add_table(connection, table, columns, [[row.get(name) for name in columns] for row in rows])


@contextmanager
def tables(some: Iterable[Op]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with these operations, the batches, and what ties them."""
    rows: dict[str, list[Row]] = {table: [] for table in DEVICE_TABLES}
    for op in some:
        launch_start, launch_end = op.launch or (None, None)
        rows[DEVICE_TABLES[op.kind]].append({
            "node": "node-0", "server": "server-0", "gpu_uuid": f"GPU-{op.gpu}", "process": op.process, "device": 0,
            "context": 1, "stream": op.stream, "start_ns": op.start, "end_ns": op.end, "recorded_by": "nsys",
            "launch_start_ns": launch_start, "launch_end_ns": launch_end, "instance_device": -1,
            "instance": "ab"[op.batch // 4] if op.batch >= 0 else "", "batch_id": op.batch if op.batch >= 0 else None,
            "name": f"k{op.stream}", "full_name": f"k{op.stream}()", "grid_x": 1, "grid_y": 1, "grid_z": 1,
        })  # fmt: skip
    with query.over({}) as connection:
        for table, own in rows.items():
            add(connection, table, own)
        add(connection, "batch_costs", [
            {"phase": "warm" if row == 3 else "burst", "server": "server-0", "instance": "ab"[row // 4], "model": "m",
             "node": "node-0", "tie": "range", "instance_device": -1, "process": row // 4, "batch_id": row,
             "start_ns": start, "end_ns": end}
            for row, (start, end) in enumerate(SPANS)
        ])  # fmt: skip
        pick(connection)
        add_lanes(connection, DEVICE_TABLES)
        assert add_operations(connection, DEVICE_TABLES, "both")
        yield connection


def by_instance(connection: duckdb.DuckDBPyConnection, rows: dict[int, T]) -> dict[str, T]:
    """The rows of phase burst by name of the instance."""
    names = connection.execute("SELECT grp, instance FROM instances WHERE phase = 'burst'").fetchall()
    return {name: rows[grp] for grp, name in names if grp in rows}


def covered(spans: list[tuple[int, int]]) -> set[int]:
    """The steps that any span covers."""
    return {step for start, end in spans for step in range(start // STEP_NS, end // STEP_NS)}


def runs(steps: set[int]) -> list[int]:
    """Lengths in ns of the runs of consecutive steps, ascending."""
    lengths: list[int] = []
    for step in sorted(steps):
        if step - 1 in steps:
            lengths[-1] += STEP_NS
        else:
            lengths.append(STEP_NS)
    return sorted(lengths)


def figures_of_gaps(lengths: list[int]) -> Row:
    middle = lengths[(len(lengths) - 1) // 2] if lengths else None
    return {
        "n": len(lengths), "total_ns": sum(lengths), "p50_ns": middle, "max_ns": max(lengths, default=None)
    }  # fmt: skip


@few
@example(
    [Op(KERNEL, 0, 0, 0, step * STEP_NS, (step + 2) * STEP_NS, None, -1) for step in (1, 4, 9, 18)], 0, 16
)
@given(ops(), st.integers(0, 20), st.integers(1, 20))
def test_gpu_times_and_gaps_equal_those_counted_step_by_step(some: list[Op], first: int, width: int) -> None:
    some = [op for op in some if op.end > op.start] or [Op(KERNEL, 0, 0, 0, 0, STEP_NS, None, -1)]
    cells = {"one": (first, first + width), "two": (first + width + 3, first + 2 * width + 3)}
    with tables(some) as connection:
        add(connection, "cells", [
            {"cell": n, "phase": name, "start_ns": first * STEP_NS, "end_ns": last * STEP_NS}
            for n, (name, (first, last)) in enumerate(cells.items())
        ])  # fmt: skip
        found = gpu_activity(connection, sorted({f"GPU-{op.gpu}" for op in some}))
        assert found.keys() == {(name, f"GPU-{op.gpu}") for name in cells for op in some}
        for (name, uuid), row in found.items():
            within = set(range(*cells[name]))
            own = [op for op in some if f"GPU-{op.gpu}" == uuid]
            busy, kernels, copies = (
                covered([(op.start, op.end) for op in own if op.kind in kinds]) & within
                for kinds in ((KERNEL, COPY, SET), (KERNEL,), (COPY,))
            )
            streams = [
                covered([(op.start, op.end) for op in own if (op.process, op.stream) == one]) & within
                for one in {(op.process, op.stream) for op in own}
            ]
            inner = {step for step in within - kernels if kernels and min(kernels) < step < max(kernels)}
            expected = {
                "profiled_ns": width * STEP_NS, "busy_ratio": len(busy) / width, "kernel_ratio": len(kernels) / width,
                "copy_ratio": len(copies) / width, "copy_ns": len(copies) * STEP_NS,
                "copy_overlap_ratio": len(kernels & copies) / len(copies) if copies else None,
                "streams_mean": sum(map(len, streams)) / len(busy) if busy else None,
                "idle_gaps": figures_of_gaps(runs(within - busy)), "compute_gaps": figures_of_gaps(runs(inner)),
                "n_compute_bursts": bool(kernels) + sum(gap >= 10_000 for gap in runs(inner)),
            }  # fmt: skip
            assert not disagreements(row, expected)


ON_TWO_GPUS = [
    Op(KERNEL, gpu, process, 0, 0, end, None, batch)
    for process, end, batch in ((0, STEP_NS, 0), (2, LAST_NS, -1)) for gpu in (0, 1)
]  # fmt: skip


@few
@example(ON_TWO_GPUS)  # what runs on both at once counts once
@given(ops(n_gpus=3))
def test_foreign_time_is_that_of_other_processes_within_batches(some: list[Op]) -> None:
    with tables(some) as connection:
        found = by_instance(connection, foreign_ns(connection))
        for process, (name, rows) in enumerate(ROWS.items()):
            uses = {op.gpu for op in some if op.process == process}
            foreign = covered([(op.start, op.end) for op in some if op.process != process and op.gpu in uses])
            assert found.get(name, 0) == sum(len(foreign & covered([SPANS[row]])) for row in rows) * STEP_NS


ONE_AFTER_ANOTHER = [
    Op(KERNEL, 0, 0, 0, start * STEP_NS, (start + 1) * STEP_NS, (launch * STEP_NS, launched * STEP_NS), 0)
    for launch, launched, start in [(0, 1, 10), (2, 3, 12), (4, 5, 14), (11, 15, 16)]
]  # fmt: skip


@few
@example(ONE_AFTER_ANOTHER)
@given(ops())
def test_launches_and_gaps_of_batches_equal_those_of_lists(some: list[Op]) -> None:
    with tables(some) as connection:
        for name, row in by_instance(connection, launch_figures(connection)).items():
            assert not disagreements(row, brute_force(some, list(ROWS[name])))


def middle(values: list[int]) -> float | None:
    return statistics.median(values) if values else None


def nearest(values: list[int], percent: int) -> int | None:
    return sorted(values)[-(-percent * len(values) // 100) - 1] if values else None


def brute_force(some: list[Op], rows: list[int]) -> Row:
    interval, lengths, waiting, idle = [], [], [], dict.fromkeys(CAUSES, 0)
    for row in rows:
        own = [op for op in some if op.batch == row]
        launches = sorted({op.launch[0] for op in own if op.launch})
        interval += [b - a for a, b in pairwise(launches)]
        for at in launches:
            nodes = [op for op in own if op.launch and op.launch[0] == at]
            lengths += (
                [len(covered([(op.start, op.end) for op in nodes])) * STEP_NS] if at > launches[0] else []
            )
            starts = [op.start for op in nodes if op.kind == KERNEL]
            waiting += [(at, min(starts))] if starts else []
        for place, op in enumerate(own[1:], 1):
            end = max(before.end for before in own[:place])
            if op.start > end:
                idle[cause(op, end)] += op.start - end
    waited_ns, nonempty_ns = sum(b - a for a, b in waiting), len(covered(waiting)) * STEP_NS
    span_ns = max(b for _, b in waiting) - min(a for a, _ in waiting) if waiting else 0
    to_start = [b - a for a, b in waiting]
    quantiles = {f"p{percent}_ns": nearest(to_start, percent) for percent in (50, 95)}
    return {
        "issue_interval_p50_ns": middle(interval), "op_p50_ns": middle(lengths),
        "launch_to_start": {"n": len(to_start), **quantiles, "max_ns": max(to_start, default=None)},
        "body_idle_by_cause": {cause: {"ns": ns} for cause, ns in idle.items()},
        "launch_depth": {
            "max": max((sum(a <= at < b for a, b in waiting) for at, _ in waiting), default=0),
            "mean": over(waited_ns, span_ns), "nonempty_ratio": over(nonempty_ns, span_ns),
            "nonempty_mean": over(waited_ns, nonempty_ns),
        },
    }  # fmt: skip


def cause(op: Op, idle_from: int) -> str:
    if op.launch is None:
        return "not_recorded"
    if op.launch[0] > idle_from:
        return "host_wait"
    if op.launch[1] > idle_from:
        return "launch_in_flight"
    return "back_to_back" if op.start - idle_from < BACK_TO_BACK_NS else "other"


@few
@given(ops())
def test_kernels_are_counted_by_configuration(some: list[Op]) -> None:
    with tables(some) as connection:
        for name, row in by_instance(connection, kernel_figures(connection, {})).items():
            lengths: dict[str, list[int]] = {}
            for op in some:
                if op.kind == KERNEL and op.batch in ROWS[name]:
                    lengths.setdefault(f"k{op.stream}", []).append(op.end - op.start)
            every = [one for own in lengths.values() for one in own]
            assert not disagreements(row, {
                "n": len(every), "total_ns": sum(every), "max_ns": max(every, default=None), "median_ns": middle(every)
            })  # fmt: skip
            top = {one["name"]: [one[key] for key in ("n", "total_ns", "median_ns")] for one in row["top"]}
            assert top == {key: [len(own), sum(own), statistics.median(own)] for key, own in lengths.items()}


CLASSES = {
    "below_10us": (0, 10_000), "10us_to_100us": (10_000, 100_000), "100us_to_1ms": (100_000, 1_000_000),
    "1ms_or_more": (1_000_000, 1 << 62),
}  # fmt: skip


@few
@given(st.lists(st.integers(0, 2_000_000), max_size=60))
def test_quantiles_and_classes_of_length_are_those_of_the_values(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert median(array) == middle(values)
    assert [rank_value(array, percent / 100) for percent in (50, 95, 99)] == [
        nearest(values, percent) for percent in (50, 95, 99)
    ]
    row = gap_figures(array)
    of_class = {
        name: [value for value in values if low <= value < high] for name, (low, high) in CLASSES.items()
    }
    assert row["classes"].keys() == CLASSES.keys()
    assert not disagreements(row, {
        "n": len(values), "total_ns": sum(values), "p50_ns": nearest(values, 50), "max_ns": max(values, default=None),
        "classes": {
            name: {"n": len(own), "ns": sum(own), "time_ratio": over(sum(own), sum(values))}
            for name, own in of_class.items()
        },
    })  # fmt: skip


H200 = DeviceLimits(132, 64, 65_536, 233_472, 32, 9)


@pytest.mark.parametrize(
    ("launch", "limiter", "blocks", "occupancy"),
    [
        (Launch(88, 384, 168, 218_000), "registers", 1, 12 / 64),  # cuBLAS's nvjet: by shared memory as well
        (Launch(128, 128, 33, 0), "registers", 12, 0.75),
        (Launch(16_384, 128, 32, 0), "warps", 16, 1.0),
        (Launch(10, 32, 16, 0), "blocks", 32, 0.5),
        (Launch(10, 256, 32, 100_000), "shared memory", 2, 0.25),
    ],
)
def test_what_limits_the_blocks_of_an_sm(launch: Launch, limiter: str, blocks: int, occupancy: float) -> None:
    found = filling(launch, H200)
    assert found is not None
    assert (found.limiter, found.blocks_per_sm, found.occupancy_ratio) == (limiter, blocks, occupancy)
    assert found.waves_count == launch.n_blocks / (blocks * 132)
    assert found.sm_cover_ratio == min(1.0, launch.n_blocks / 132)


@pytest.mark.parametrize("launch", [Launch(0, 0, 0, 0), Launch(1, 1024, 255, 0)])
def test_a_graph_or_a_launch_that_no_sm_holds_fills_nothing(launch: Launch) -> None:
    """255 registers for 32 warps are more than an SM has."""
    assert filling(launch, H200) is None


ON_TENSOR_CORES = """
nvjet_sm90_hsh_64x8_64x16_4x2_h_bz_bias_TNT
ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn
turing_fp16_s1688gemm_fp16_256x64_sliced1x2_ldg8_f2f_tn
volta_h884gemm_128x128_ldg8_tn
void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2>(T1::Params)
sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4
"""
ELSEWHERE = """
void at::native::vectorized_elementwise_kernel<(int)8, at::native::launch_clamp_scalar>
void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::Half, float, (bool)0>(int, T2)
ampere_sgemm_128x64_tn
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>
"""


def test_names_say_which_kernels_run_on_tensor_cores() -> None:
    for names, is_on in ((ON_TENSOR_CORES, True), (ELSEWHERE, False)):
        for name in names.strip().splitlines():
            assert bool(re.search(TENSOR_CORES, name, re.IGNORECASE)) == is_on, name
