"""The queries over operations against brute force over lists."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.metrics.activity import used_gpus
from squall.analysis.metrics.batches import pick
from squall.analysis.metrics.gpus import foreign_ns, gap_figures, gpu_activity
from squall.analysis.metrics.kernels import TENSOR_CORES, kernel_figures
from squall.analysis.metrics.launches import BACK_TO_BACK_NS, CAUSES, launch_figures
from squall.analysis.metrics.operations import (
    add_operations,
    add_table,
    median,
    quantile,
    tie_operations,
)
from squall.analysis.occupancy import DeviceLimits, Launch, filling
from squall.analysis.schema import arrow_schema
from squall.analysis.tables.nsys import DEVICE_TABLES
from tests.many_examples import examples

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


BATCH_COLUMNS = {
    **dict.fromkeys(("phase", "server", "instance", "model", "node", "tie"), pa.string()),
    **dict.fromkeys(("instance_device", "process", "batch_id", "start_ns", "end_ns"), pa.int64()),
}
SPANS = [(10 * (row % 4) * STEP_NS, (10 * (row % 4) + 9) * STEP_NS) for row in range(8)]
"""Start and end of each batch."""
ROWS = {"a": range(3), "b": range(4, 8)}
"""Batches of each of two instances in the phase that counts; batch 3 is of another."""


def tables(some: Iterable[Op]) -> duckdb.DuckDBPyConnection:
    """A connection with these operations, the batches, and what ties them."""
    connection = duckdb.connect()
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in DEVICE_TABLES}
    for op in some:
        launch_start, launch_end = op.launch or (None, None)
        own = {
            "node": "node-0", "server": "server-0", "gpu_uuid": f"GPU-{op.gpu}", "process": op.process,
            "stream": op.stream, "start_ns": op.start, "end_ns": op.end, "launch_start_ns": launch_start,
            "launch_end_ns": launch_end, "recorded_by": "nsys", "instance": "", "instance_device": -1,
            "name": f"k{op.stream}", "full_name": f"k{op.stream}()", "grid_x": 1, "grid_y": 1, "grid_z": 1,
        }  # fmt: skip
        if op.batch >= 0:
            own |= {"instance": "ab"[op.batch // 4], "batch_id": op.batch}
        rows[DEVICE_TABLES[op.kind]].append(own)
    for table, own_rows in rows.items():
        schema = pa.schema([pa.field(field.name, plain(field.type)) for field in arrow_schema(table)])
        filled = [{**dict.fromkeys(schema.names, None), "device": 0, "context": 1, **row} for row in own_rows]
        columns = {field.name: field.type for field in schema}
        add_table(connection, table, columns, [[row[name] for name in columns] for row in filled])
    batches = [
        ("warm" if row == 3 else "burst", "server-0", "ab"[row // 4], "m", "node-0", "range", -1, row // 4, row, *span)
        for row, span in enumerate(SPANS)
    ]  # fmt: skip
    add_table(connection, "batch_costs", BATCH_COLUMNS, batches)
    pick(connection)
    assert add_operations(connection, DEVICE_TABLES)
    used_gpus(connection)
    tie_operations(connection)
    return connection


def plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


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


def figures_of_gaps(lengths: list[int]) -> list[Any]:
    return [
        len(lengths),
        sum(lengths),
        lengths[(len(lengths) - 1) // 2] if lengths else None,
        max(lengths, default=None),
    ]


@few
@given(ops(), st.integers(0, 20), st.integers(1, 20))
def test_gpu_times_and_gaps_equal_those_counted_step_by_step(some: list[Op], first: int, width: int) -> None:
    some = [op for op in some if op.end > op.start] or [Op(KERNEL, 0, 0, 0, 0, STEP_NS, None, -1)]
    cells = {"one": (first, first + width), "two": (first + width + 3, first + 2 * width + 3)}
    connection = tables(some)
    rows = [(n, name, a * STEP_NS, b * STEP_NS) for n, (name, (a, b)) in enumerate(cells.items())]
    columns = {"cell": pa.int64(), "phase": pa.string(), "start_ns": pa.int64(), "end_ns": pa.int64()}
    add_table(connection, "cells", columns, rows)
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
        n_streams = sum(map(len, streams)) / len(busy) if busy else None
        assert row["profiled_ns"] == width * STEP_NS
        ratios = [row[one] for one in ("busy_ratio", "kernel_ratio", "copy_ratio", "streams_mean")]
        assert ratios == [len(busy) / width, len(kernels) / width, len(copies) / width, n_streams]
        assert row["copy_ns"] == len(copies) * STEP_NS
        assert row["copy_overlap_ratio"] == (len(kernels & copies) / len(copies) if copies else None)
        gaps = [row["idle_gaps"][one] for one in ("n", "total_ns", "p50_ns", "max_ns")]
        assert gaps == figures_of_gaps(runs(within - busy))
        inner = {step for step in within - kernels if kernels and min(kernels) < step < max(kernels)}
        gaps = [row["compute_gaps"][one] for one in ("n", "total_ns", "p50_ns", "max_ns")]
        assert gaps == figures_of_gaps(runs(inner))
        assert row["n_compute_bursts"] == bool(kernels) + sum(gap >= 10_000 for gap in runs(inner))


@few
@given(ops(n_gpus=3))
def test_foreign_time_is_that_of_other_processes_within_batches(some: list[Op]) -> None:
    connection = tables(some)
    found = by_instance(connection, foreign_ns(connection))
    for process, (name, rows) in enumerate(ROWS.items()):
        uses = {op.gpu for op in some if op.process == process}
        foreign = covered([(op.start, op.end) for op in some if op.process != process and op.gpu in uses])
        assert found.get(name, 0) == sum(len(foreign & covered([SPANS[row]])) for row in rows) * STEP_NS


def test_foreign_time_on_two_gpus_of_a_process_counts_once() -> None:
    own = [Op(KERNEL, gpu, 0, 0, 0, STEP_NS, None, 0) for gpu in (0, 1)]
    connection = tables([*own, *(Op(KERNEL, gpu, 2, 0, 0, LAST_NS, None, -1) for gpu in (0, 1))])
    expected = sum(end - start for start, end in SPANS[:3])
    assert by_instance(connection, foreign_ns(connection))["a"] == expected


@few
@given(ops())
def test_launches_and_gaps_of_batches_equal_those_of_lists(some: list[Op]) -> None:
    connection = tables(some)
    for name, row in by_instance(connection, launch_figures(connection)).items():
        expected = brute_force(some, list(ROWS[name]))
        for figure, what in (("issue_interval_p50_ns", "interval"), ("op_p50_ns", "op")):
            assert row[figure] == (median(expected[what]) if expected[what] else None)
        starts = sorted(expected["to_start"])
        figures = [row["launch_to_start"][one] for one in ("n", "p50_ns", "p95_ns", "max_ns")]
        ranks = [
            starts[-(-percent * len(starts) // 100) - 1] if starts else None for percent in (50, 95, 100)
        ]
        assert figures == [len(starts), *ranks]
        assert [cause["ns"] for cause in row["body_idle_by_cause"].values()] == expected["idle"]
        waiting_ns, nonempty_ns = expected["depth"]
        assert row["launch_depth"]["nonempty_mean"] == (waiting_ns / nonempty_ns if nonempty_ns else None)


def brute_force(some: list[Op], rows: list[int]) -> dict[str, Any]:
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
    depth = sum(b - a for a, b in waiting), len(covered(waiting)) * STEP_NS
    to_start = [b - a for a, b in waiting]
    return {
        "interval": interval, "op": lengths, "to_start": to_start, "idle": list(idle.values()), "depth": depth,
    }  # fmt: skip


def cause(op: Op, idle_from: int) -> str:
    if op.launch is None:
        return "not_recorded"
    if op.launch[0] > idle_from:
        return "host_wait"
    if op.launch[1] > idle_from:
        return "launch_in_flight"
    return "back_to_back" if op.start - idle_from < BACK_TO_BACK_NS else "other"


def test_the_depth_of_the_queue_is_the_most_that_waited_at_once() -> None:
    some = [Op(KERNEL, 0, 0, 0, start, start + 1, (launch, launch + 1), 0)
            for launch, start in [(0, 50), (10, 60), (20, 70), (55, 80)]]  # fmt: skip
    connection = tables(some)
    depth = by_instance(connection, launch_figures(connection))["a"]["launch_depth"]
    assert depth == {"max": 3, "mean": 175 / 80, "nonempty_ratio": 1.0, "nonempty_mean": 175 / 80}


@few
@given(ops())
def test_kernels_are_counted_by_configuration(some: list[Op]) -> None:
    connection = tables(some)
    for name, row in by_instance(connection, kernel_figures(connection, {})).items():
        lengths: dict[str, list[int]] = {}
        for op in some:
            if op.kind == KERNEL and op.batch in ROWS[name]:
                lengths.setdefault(f"k{op.stream}", []).append(op.end - op.start)
        every = [one for own in lengths.values() for one in own]
        assert (row["n"], row["total_ns"], row["max_ns"]) == (
            len(every),
            sum(every),
            max(every, default=None),
        )
        assert row["median_ns"] == (statistics.median(every) if every else None)
        top = {one["name"]: [one[key] for key in ("n", "total_ns", "median_ns")] for one in row["top"]}
        assert top == {key: [len(own), sum(own), statistics.median(own)] for key, own in lengths.items()}


@few
@given(st.lists(st.integers(0, 2_000_000), max_size=60))
def test_quantiles_and_classes_of_length_are_those_of_the_values(values: list[int]) -> None:
    array, ordered = np.array(values, np.int64), sorted(values)
    assert median(array) == (statistics.median(values) if values else None)
    for per_mille in (500, 950, 990):
        rank = -(-per_mille * len(values) // 1000)
        assert quantile(array, per_mille) == (ordered[rank - 1] if values else None)
    row = gap_figures(array)
    assert (row["n"], row["total_ns"], row["max_ns"]) == (len(values), sum(values), max(values, default=None))
    classes = {"below_10us": (0, 10_000), "10us_to_100us": (10_000, 100_000),
               "100us_to_1ms": (100_000, 1_000_000), "1ms_or_more": (1_000_000, 1 << 62)}  # fmt: skip
    assert row["classes"].keys() == classes.keys()
    for name, (low, high) in classes.items():
        own = [value for value in values if low <= value < high]
        ratio = sum(own) / sum(values) if sum(values) else None
        assert row["classes"][name] == {"n": len(own), "ns": sum(own), "time_ratio": ratio}


H200 = DeviceLimits(132, 64, 65_536, 233_472, 32, 9)


@pytest.mark.parametrize(
    ("launch", "limiter", "blocks", "occupancy"),
    [
        (
            Launch(88, 384, 168, 218_000),
            "registers",
            1,
            12 / 64,
        ),  # cuBLAS's nvjet: 1 block by shared memory as well
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


def test_a_graph_or_a_launch_that_no_sm_holds_fills_nothing() -> None:
    assert filling(Launch(0, 0, 0, 0), H200) is None
    assert filling(Launch(1, 1024, 255, 0), H200) is None, (
        "255 registers for 32 warps are more than an SM has"
    )


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_hsh_64x8_64x16_4x2_h_bz_bias_TNT",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn",
        "turing_fp16_s1688gemm_fp16_256x64_sliced1x2_ldg8_f2f_tn",
        "volta_h884gemm_128x128_ldg8_tn",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2>(T1::Params)",
        "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4",
    ],
)
def test_names_that_say_tensor_cores(name: str) -> None:
    assert re.search(TENSOR_CORES, name, re.IGNORECASE)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::launch_clamp_scalar>",
        "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::Half, float, (bool)0>(int, T2)",
        "ampere_sgemm_128x64_tn",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not re.search(TENSOR_CORES, name, re.IGNORECASE)
