"""The sweeps over operations against brute force over lists, in slices of any size."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.intervals import NEVER, reached_by_group
from squall.analysis.metrics.sweeps.batch_sweep import BACK_TO_BACK_NS, CAUSES, BatchSweep
from squall.analysis.metrics.sweeps.batches import Batches, Group, Instance
from squall.analysis.metrics.sweeps.device_ops import COPY, KERNEL, Ops
from squall.analysis.metrics.sweeps.foreign import ForeignSweep
from squall.analysis.metrics.sweeps.gpu_sweep import GpuSweep
from squall.analysis.metrics.sweeps.kernel_sweep import TENSOR_CORES, KernelSweep
from squall.analysis.metrics.sweeps.numbering import Numbering, present
from squall.analysis.metrics.sweeps.tally import Distribution, Tally
from squall.analysis.occupancy import DeviceLimits, Launch, filling
from squall.analysis.storage.row_groups import NULL
from tests.many_examples import examples

STEP_NS = 700
"""Instants are multiples of this, so that they meet; two steps are less than back to back, three are more."""
LAST_NS = 60 * STEP_NS
few = examples(30)


class Op(NamedTuple):
    """An operation of a test; times in ns. `launch` is None where it was not recorded."""

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
    return sorted(found, key=lambda op: (op.start, op.end))


@st.composite
def ops_of_batches_in_turn(draw: st.DrawFn) -> list[Op]:
    """`ops`, of which an instance executes one batch after another: what it launches for one, it launches once all
    operations of those before have started."""
    found = draw(ops())
    for process in (0, 1):
        places = [place for place, op in enumerate(found) if op.batch >= 0 and op.process == process]
        numbers = sorted(found[place].batch for place in places)
        last_start = floor = found[0].start - LAST_NS
        for place, batch, before in zip(places, numbers, [-1, *numbers], strict=False):
            op = found[place]
            floor = last_start if batch != before else floor
            last_start = op.start
            launch = None if op.launch is None else (max(op.launch[0], floor), max(op.launch[1], floor))
            found[place] = op._replace(batch=batch, launch=launch)
    return found


def arrays(some: list[Op]) -> Ops:
    columns = [
        [op.kind for op in some],
        [op.gpu for op in some],
        [op.process for op in some],
        [op.process * 10 + op.stream for op in some],
        [op.start for op in some],
        [op.end for op in some],
        [NULL if op.launch is None else op.launch[0] for op in some],
        [NULL if op.launch is None else op.launch[1] for op in some],
        [op.batch for op in some],
        [op.kind * 100 + op.stream if op.kind == KERNEL else -1 for op in some],
    ]
    return Ops(*(np.array(column, np.int64) for column in columns))


def slices(some: list[Op], n: int) -> list[Ops]:
    """Slices of `n`, but that what starts together stays together, as the reader of row groups has it."""
    pieces: list[list[Op]] = []
    for op in some:
        if pieces and (len(pieces[-1]) < n or pieces[-1][-1].start == op.start):
            pieces[-1].append(op)
        else:
            pieces.append([op])
    return [arrays(piece) for piece in pieces]


def covered(spans: list[tuple[int, int]]) -> set[int]:
    """The steps that any span covers."""
    return {step for start, end in spans for step in range(start // STEP_NS, end // STEP_NS)}


def batches(closed_ns: list[int]) -> Batches:
    """Eight batches of two instances in turn, of one group each; batch 3 does not count."""
    instances = [Instance("server-0", name, -1, "model", "node-0") for name in ("a", "b")]
    start = np.array([(10 * (row % 4)) * STEP_NS for row in range(8)], np.int64)
    group = np.array([0, 0, 0, -1, 1, 1, 1, 1])
    return Batches(
        [Group("burst", one) for one in instances], instances, np.array([0, 4, 8]),
        np.array([0, 1, 2, 3] * 2), start, start + 9 * STEP_NS, group, group,
        np.array([0] * 4 + [1] * 4), np.array(closed_ns, np.int64),
    )  # fmt: skip


def closed(some: list[Op]) -> Batches:
    """`batches`, closed when their last operation has started."""
    last = [max((op.start for op in some if op.batch == row), default=0) for row in range(8)]
    return batches(last)


@few
@given(ops(), st.integers(1, 5), st.integers(0, 20), st.integers(1, 20))
def test_gpu_times_and_gaps_equal_those_counted_step_by_step(
    some: list[Op], n: int, first: int, width: int
) -> None:
    some = [op for op in some if op.end > op.start] or [Op(KERNEL, 0, 0, 0, 0, STEP_NS, None, -1)]
    cells = [(first, first + width), (first + width + 3, first + 2 * width + 3)]
    sweep = GpuSweep([a * STEP_NS for a, _ in cells], [b * STEP_NS for _, b in cells], with_gaps=True)
    for piece in slices(some, n):
        sweep.add(piece)
    times = sweep.times()
    assert set(times) == {op.gpu for op in some}
    for gpu, found in times.items():
        own = [op for op in some if op.gpu == gpu]
        busy = covered([(op.start, op.end) for op in own])
        kernels = covered([(op.start, op.end) for op in own if op.kind == KERNEL])
        copies = covered([(op.start, op.end) for op in own if op.kind == COPY])
        streams = {(op.process, op.stream) for op in own}
        by_stream = [
            covered([(op.start, op.end) for op in own if (op.process, op.stream) == one]) for one in streams
        ]
        for cell, (a, b) in enumerate(cells):
            within = set(range(a, b))
            assert found.any_ns[cell] == len(busy & within) * STEP_NS
            assert found.kernel_ns[cell] == len(kernels & within) * STEP_NS
            assert found.copy_ns[cell] == len(copies & within) * STEP_NS
            assert found.overlap_ns[cell] == len(kernels & copies & within) * STEP_NS
            assert found.stream_ns[cell] == sum(len(one & within) for one in by_stream) * STEP_NS
            assert listed(found.idle[cell]) == runs(within - busy)
            inner = [step for step in within if kernels & within and min(kernels & within) < step]
            expected = runs({s for s in inner if s < max(kernels & within)} - kernels)
            if a - 1 in kernels or b in kernels:
                continue  # a kernel that crosses the edge of a cell ends no gap of its own
            assert listed(found.between_kernels[cell]) == expected


def listed(tally: Tally) -> list[int]:
    values, counts = tally.counted()
    return [int(one) for value, n in zip(values, counts, strict=True) for one in [value] * n]


def runs(steps: set[int]) -> list[int]:
    """Lengths in ns of the runs of consecutive steps, ascending."""
    lengths: list[int] = []
    for step in sorted(steps):
        if step - 1 in steps:
            lengths[-1] += STEP_NS
        else:
            lengths.append(STEP_NS)
    return sorted(lengths)


@few
@given(ops(n_gpus=3), st.integers(1, 5))
def test_foreign_time_is_that_of_other_processes_within_batches(some: list[Op], n: int) -> None:
    known = closed(some)
    sweep = ForeignSweep(known, {("node-0", 0): [0, 1, 2], ("node-0", 1): [4, 5, 6, 7]})
    processes = [("node-0", number) for number in range(3)]
    for piece in slices(some, n):
        sweep.add(piece, processes, ["node-0"] * 3)
    foreign_ns = sweep.finish(processes)
    for group, (process, rows) in enumerate([(0, range(3)), (1, range(4, 8))]):
        uses = {op.gpu for op in some if op.process == process}
        foreign = covered([(op.start, op.end) for op in some if op.process != process and op.gpu in uses])
        spans = [(int(known.start_ns[row]), int(known.end_ns[row])) for row in rows]
        assert foreign_ns[group] == sum(len(foreign & covered([span])) for span in spans) * STEP_NS


def test_foreign_time_on_two_gpus_of_a_process_counts_once() -> None:
    own = [Op(KERNEL, gpu, 0, 0, 0, STEP_NS, None, 0) for gpu in (0, 1)]
    some = sorted(
        [*own, *(Op(KERNEL, gpu, 2, 0, 0, LAST_NS, None, -1) for gpu in (0, 1))], key=lambda op: op.end
    )
    known = closed(some)
    sweep = ForeignSweep(known, {("node-0", 0): [0, 1, 2]})
    processes = [("node-0", number) for number in range(3)]
    sweep.add(arrays(some), processes, ["node-0"] * 2)
    lengths = known.end_ns[:3] - known.start_ns[:3]
    assert sweep.finish(processes)[0] == lengths.sum()


@few
@given(ops_of_batches_in_turn(), st.integers(1, 5))
def test_launches_and_gaps_of_batches_equal_those_of_lists(some: list[Op], n: int) -> None:
    known = closed(some)
    sweep = BatchSweep(len(known.groups), known.group, known.closed_ns)
    for piece in slices(some, n):
        sweep.add(piece)
    sweep.finish()
    for group, issue in enumerate(sweep.issues):
        rows = [row for row in range(8) if known.group[row] == group]
        expected = brute_force(some, rows)
        assert listed(issue.interval) == sorted(expected["interval"])
        assert listed(issue.op) == sorted(expected["op"])
        assert listed(issue.to_start) == sorted(expected["to_start"])
        assert issue.idle_by_cause_ns.tolist() == expected["idle"]
        assert (issue.depth.waiting_ns, issue.depth.nonempty_ns) == expected["depth"]


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
    for n in (1, 4):
        known = closed(some)
        sweep = BatchSweep(len(known.groups), known.group, known.closed_ns)
        for piece in slices(some, n):
            sweep.add(piece)
        sweep.finish()
        depth = sweep.issues[0].depth
        assert (depth.most, depth.waiting_ns, depth.nonempty_ns, depth.span_ns) == (3, 175, 80, 80)


@few
@given(ops(), st.integers(1, 5))
def test_kernels_are_counted_by_configuration(some: list[Op], n: int) -> None:
    known = closed(some)
    sweep = KernelSweep(known)
    for piece in slices(some, n):
        sweep.add(piece)
    found = {
        (group, config): [int(v) for v in np.repeat(one.values, one.counts)]
        for group, by_config in sweep.durations().items()
        for config, one in by_config.items()
    }
    expected: dict[tuple[int, int], list[int]] = {}
    for op in some:
        if op.kind == KERNEL and op.batch >= 0 and known.group[op.batch] >= 0:
            expected.setdefault((int(known.group[op.batch]), op.stream), []).append(op.end - op.start)
    assert found == {key: sorted(lengths) for key, lengths in expected.items()}


@few
@given(st.lists(st.lists(st.integers(0, 200_000), max_size=30), min_size=1, max_size=4), st.integers(1, 999))
def test_a_tally_has_the_quantiles_of_its_values(pieces: list[list[int]], permille: int) -> None:
    tally = Tally()
    for piece in pieces:
        tally.add(np.array(piece, np.int64))
    values = sorted(value for piece in pieces for value in piece)
    found = Distribution.of(tally)
    assert (found.n, found.total) == (len(values), sum(values))
    assert found.median == (median(values) if values else None)
    assert found.quantile(permille) == (values[-(-permille * len(values) // 1000) - 1] if values else None)
    for limit in (0, 10_000, 150_000):
        assert found.n_below(limit) == sum(value < limit for value in values)
        assert found.total_below(limit) == sum(value for value in values if value < limit)


@few
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), st.integers(-(2**62), 2**62)), max_size=30),
    st.integers(1, 6),
)
def test_numbering_tells_rows_apart_over_slices(rows: list[tuple[int, int, int]], n: int) -> None:
    numbering = Numbering(3)
    numbers: list[int] = []
    for first in range(0, len(rows), n):
        columns = np.array(rows[first : first + n], np.int64).T
        numbers += numbering.encode(list(columns)).tolist()
    assert [tuple(numbering.rows[number].tolist()) for number in numbers] == rows
    assert len(numbering.rows) == len(set(rows))


@pytest.mark.parametrize("codes", [[], [-1], [3], [5, 2, 5], [-1, 0, 7]])
def test_present_codes(codes: list[int]) -> None:
    assert present(np.array(codes, np.int64)) == sorted({code for code in codes if code >= 0})


@pytest.mark.parametrize("far", [1, 1 << 61])
def test_groups_far_apart_do_not_reach_into_each_other(far: int) -> None:
    group = np.array([0, 0, 0, 1, 1, 2], np.int64)
    end = np.array([5, 3, 9, 2, 1, 7], np.int64)
    shifted = np.where(group == 2, end + far, end)
    assert reached_by_group(group, shifted).tolist() == [NEVER, 5, 5, NEVER, 2, NEVER]


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
    assert TENSOR_CORES.search(name)


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
    assert not TENSOR_CORES.search(name)
