"""Where the time of a run's requests went: sums of real tables, and that parts and mix add up, whatever they are."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.compare.change import SAME
from squall.analysis.compare.compared import Comparison, evaluate
from squall.analysis.compare.pairing import Pair, pair_runs
from squall.analysis.compare.run_account import KERNEL_NAME, PARTS, PartMeans, RunAccount, SizeSums
from squall.analysis.compare.run_row import RunRow, read_row
from squall.analysis.compare.why import BatchChange, batch_change, parts_change
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.report.compare_words import causes
from squall.analysis.storage.store import RunStore
from tests.known import known
from tests.regime_runs import Op, Phase, write_regime_run

OPS = tuple(Op(5.0) for _ in range(20))
SLOW, QUICK = (Phase("m", OPS, issue_us=issue_us, period_us=1_500.0) for issue_us in (30.0, 6.0))
"""20 kernels of 5 us, launched every 30 us and every 6."""


def regime(parent: Path, phase: Phase) -> Path:
    """A run of that phase, derived."""
    parent.mkdir(parents=True, exist_ok=True)
    plan = {"load": "open", "n_arrivals": phase.n_batches}
    store = write_regime_run(parent, [phase], scenario={"name": "r"}, plan=plan)
    write_batch_costs(store)
    write_joined(store)
    return store.run_dir


def of_seed(run: Path, seed: int, started_ns: int) -> RunRow:
    """A copy of the run beside it, whose schedule is said to be that of its seed."""
    copy = Path(shutil.copytree(run, run.with_name(f"{run.name}-{seed}")))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest |= {"seed": seed, "started_ns": started_ns}
    manifest["scenario"]["seed"] = seed
    manifest["plan"]["sha256"] = f"plan {seed}"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return read_row(copy)


def compared(tmp_path: Path, *phases: Phase) -> Comparison:
    sides = []
    for place, phase in enumerate(phases):
        run = regime(tmp_path / "ab"[place], phase)
        sides.append([of_seed(run, seed, 2 * seed + (place if seed % 2 else -place)) for seed in (1, 2, 3)])
    return evaluate("a", "b", pair_runs(*sides))


def test_sums_of_a_run_are_those_of_its_tables(tmp_path: Path) -> None:
    run_dir = regime(tmp_path, SLOW)
    account, store = read_row(run_dir).account, RunStore.open(run_dir)
    joined = store.read("joined", ["outcome", "response_ns", "compute_ns"]).to_pylist()
    ok = sorted(row["response_ns"] for row in joined if row["outcome"] == "ok")
    slowest = [one for one in ok if one >= ok[-(-9 * len(ok) // 10) - 1]]
    every, tail = known(account.every), known(account.tail)
    assert (every.latency_ns, tail.latency_ns) == pytest.approx((np.mean(ok), np.mean(slowest)))
    assert (every.n, tail.n) == (len(ok), len(slowest))
    compute_ns = [row["compute_ns"] for row in joined if row["outcome"] == "ok"]
    assert every.ns["compute"] == pytest.approx(np.mean(compute_ns))
    (recorded,) = account.recorded
    costs = store.read("batch_costs", ["start_ns", "end_ns", "n_kernels"]).to_pylist()
    assert sum(recorded.ns.values()) == pytest.approx(sum(row["end_ns"] - row["start_ns"] for row in costs))
    assert sum(n for n, _ in recorded.kernels.values()) == sum(row["n_kernels"] for row in costs)


def test_launches_that_came_quicker_are_named_and_kernels_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, SLOW, QUICK)
    gpu = known(found.gpu)
    assert gpu.parts[0].what == "launch idle"
    assert gpu.parts[0].change == pytest.approx(gpu.length.change, rel=0.1)
    assert math.fsum(one.change for one in gpu.parts) == pytest.approx(gpu.length.change)
    assert known(gpu.kernel_time).verdict == SAME
    assert any("launch idle" in one for one in causes(found))


@pytest.mark.slow
def test_kernels_are_told_as_added_gone_and_by_calls(tmp_path: Path) -> None:
    of_a = (Op(5.0), Op(5.0))
    gpu = known(compared(tmp_path, Phase("m", of_a), Phase("m", (*of_a, Op(5.0), Op(9.0)))).gpu)
    assert sum(one.calls.change for one in gpu.kernels) == pytest.approx(2.0)
    assert sum(one.time_ns.change for one in gpu.kernels) == pytest.approx(14_000, rel=0.01)


def test_serial_numbers_of_a_compiler_are_no_part_of_a_name() -> None:
    found = duckdb.execute(
        f"SELECT DISTINCT {KERNEL_NAME} AS kernel FROM unnest($1) AS one(name) ORDER BY 1",
        [["triton_poi_fused_add_0", "triton_poi_fused_add_17", "gemm_128x64"]],
    ).fetchall()
    assert found == [("gemm_128x64",), ("triton_poi_fused_add",)]


def pair_of(*accounts: RunAccount) -> Pair:
    return Pair(*(RunRow("r", "VALID", account=one) for one in accounts))


MEANS = st.lists(st.floats(-1e9, 1e9), min_size=len(PARTS), max_size=len(PARTS)).map(
    lambda values: PartMeans(9, dict(zip(PARTS, values, strict=True)))
)


@given(st.lists(st.tuples(MEANS, MEANS), min_size=1, max_size=5))
def test_changes_of_parts_add_up_to_the_change_of_the_mean(both: list[tuple[PartMeans, PartMeans]]) -> None:
    found = known(
        parts_change([pair_of(*(RunAccount(one, one) for one in pair)) for pair in both], False, 0.05)
    )
    assert math.fsum(one.change for one in found.parts) == pytest.approx(found.latency.change, abs=1e-3)
    unexplained = [one.change for one in found.parts if one.what in ("residual", "unjoined")]
    assert found.residual_ns == pytest.approx(math.fsum(unexplained), abs=1e-3)


Sizes = Mapping[int, tuple[int, float]]
"""By rows: requests, and the sum of the lengths of their batches."""
SIZES = st.dictionaries(
    st.integers(1, 8), st.tuples(st.integers(1, 1_000), st.floats(1.0, 1e9)), min_size=1, max_size=8
)


def batches(both: list[tuple[Sizes, Sizes]]) -> BatchChange:
    accounts = [
        [RunAccount(sizes=tuple(SizeSums(rows, *sums) for rows, sums in sorted(one.items()))) for one in pair]
        for pair in both
    ]
    return known(batch_change([pair_of(*one) for one in accounts], math.log(1.03), 0.05))


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4))
def test_equal_size_and_mix_add_up_to_the_change_of_compute(both: list[tuple[Sizes, Sizes]]) -> None:
    found = batches(both)
    parts = found.at_equal_size.change + found.by_mix.change
    assert parts == pytest.approx(found.compute.change, rel=1e-6, abs=1e-3)


def test_slower_batches_of_one_mix_are_no_mix_and_another_mix_is_no_slower_batch() -> None:
    few: Sizes = {1: (300, 300.0), 4: (100, 400.0)}
    slower = batches([(few, {1: (300, 330.0), 4: (100, 440.0)})] * 2)
    mixed = batches([(few, {1: (100, 100.0), 4: (300, 1_200.0)})] * 2)
    assert (slower.by_mix.change, mixed.at_equal_size.change) == pytest.approx((0.0, 0.0))
    assert slower.at_equal_size.change == pytest.approx(0.1 * 700 / 400)
    assert mixed.by_mix.change == pytest.approx((1_300 - 700) / 400)
    assert known(slower.equal).ratio == pytest.approx(1.1)


def test_states_of_gpu_and_cpu_are_those_of_the_measured_phase(tmp_path: Path) -> None:
    phase = Phase("m", (Op(5.0),), throttled_ratio=0.5, cpu={"others": 4.0})
    states = read_row(regime(tmp_path, phase)).states
    assert states["others_ratio"] == pytest.approx(4.0 / 16, rel=0.01)
    assert states["throttled_ratio"] == pytest.approx(0.5)
