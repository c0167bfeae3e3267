"""Where the time of a run's requests went: sums of real tables, and that parts and mix add up, whatever they are."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.compare.pairs.change import SAME
from squall.analysis.compare.pairs.compared import evaluate
from squall.analysis.compare.pairs.pairing import Pair, pair_runs
from squall.analysis.compare.pairs.why import batch_change, parts_change
from squall.analysis.compare.pairs.words import causes
from squall.analysis.compare.run_account import PARTS, PartMeans, RunAccount, SizeSums, kernel_name
from squall.analysis.compare.run_row import RunRow, read_row
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.storage.store import RunStore
from tests.regime_runs import Op, Phase, write_regime_run

MARGIN = math.log(1.03)


def regime(parent: Path, phase: Phase) -> Path:
    """A run of that phase, derived."""
    parent.mkdir(parents=True, exist_ok=True)
    store = write_regime_run(
        parent, [phase], scenario={"name": "r"}, plan={"load": "open", "n_arrivals": phase.n_batches}
    )
    write_batch_costs(store)
    write_joined(store)
    return store.run_dir


def of_seed(run: Path, seed: int, started_ns: int) -> Path:
    """A copy of the run beside it, whose schedule is said to be that of its seed."""
    copy = Path(shutil.copytree(run, run.with_name(f"{run.name}-{seed}")))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest |= {"seed": seed, "started_ns": started_ns}
    manifest["scenario"]["seed"] = seed
    manifest["plan"]["sha256"] = f"plan {seed}"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def sides(tmp_path: Path, of_a: Phase, of_b: Phase) -> tuple[list[RunRow], list[RunRow]]:
    found = list[list[RunRow]]()
    for place, phase in enumerate((of_a, of_b)):
        run = regime(tmp_path / "ab"[place], phase)
        copies = [of_seed(run, seed, 2 * seed + (place if seed % 2 else -place)) for seed in (1, 2, 3)]
        found.append([read_row(copy) for copy in copies])
    return found[0], found[1]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunRow], list[RunRow]]:
    """20 kernels of 5 us, launched every 30 us and then every 6: nothing else differs."""
    ops = tuple(Op(5.0) for _ in range(20))
    slow, quick = (Phase("m", ops, issue_us=issue_us, period_us=1_500.0) for issue_us in (30.0, 6.0))
    return sides(tmp_path_factory.mktemp("launches"), slow, quick)


def test_sums_of_a_run_are_those_of_its_tables(tmp_path: Path) -> None:
    ops = tuple(Op(5.0) for _ in range(20))
    run_dir = regime(tmp_path, Phase("m", ops, issue_us=30.0, period_us=1_500.0))
    run, store = read_row(run_dir), RunStore.open(run_dir)
    joined = store.read(
        "joined", ["outcome", "response_ns", "service_ns", "compute_ns", "batch_rows"]
    ).to_pylist()
    ok = [row for row in joined if row["outcome"] == "ok"]
    assert run.account.every is not None
    assert run.account.every.latency_ns == pytest.approx(np.mean([row["response_ns"] for row in ok]))
    assert run.account.every.ns["compute"] == pytest.approx(np.mean([row["compute_ns"] for row in ok]))
    assert run.account.tail is not None
    edge = sorted(row["response_ns"] for row in ok)[-(-9 * len(ok) // 10) - 1]
    own = [row["response_ns"] for row in ok if row["response_ns"] >= edge]
    assert run.account.tail.n == len(own)
    assert run.account.tail.latency_ns == pytest.approx(np.mean(own))
    (recorded,) = run.account.recorded
    costs = store.read("batch_costs", ["start_ns", "end_ns", "n_kernels"]).to_pylist()
    assert sum(recorded.ns.values()) == pytest.approx(sum(row["end_ns"] - row["start_ns"] for row in costs))
    assert sum(n for n, _ in recorded.kernels.values()) == sum(row["n_kernels"] for row in costs)


def test_launches_that_came_quicker_are_named_and_kernels_are_the_same(
    launches: tuple[list[RunRow], list[RunRow]],
) -> None:
    found = evaluate("eager", "graphs", pair_runs(*launches))
    assert found.gpu is not None
    assert found.gpu.parts[0].what == "launch idle"
    assert found.gpu.parts[0].change == pytest.approx(found.gpu.length.change, rel=0.1)
    assert math.fsum(one.change for one in found.gpu.parts) == pytest.approx(found.gpu.length.change)
    assert found.gpu.kernel_time is not None
    assert found.gpu.kernel_time.verdict == SAME
    assert any("launch idle" in one for one in causes(found))


@pytest.mark.slow
def test_kernels_are_told_as_added_gone_and_by_calls(tmp_path: Path) -> None:
    a, b = sides(tmp_path, Phase("m", (Op(5.0), Op(5.0))), Phase("m", (Op(5.0), Op(5.0), Op(5.0), Op(9.0))))
    found = evaluate("a", "b", pair_runs(a, b))
    assert found.gpu is not None
    calls = sum(one.calls.change for one in found.gpu.kernels)
    time_ns = sum(one.time_ns.change for one in found.gpu.kernels)
    assert calls == pytest.approx(2.0)
    assert time_ns == pytest.approx(14_000, rel=0.01)


def test_serial_numbers_of_a_compiler_are_no_part_of_a_name() -> None:
    names = ("triton_poi_fused_add_0", "triton_poi_fused_add_17", "gemm_128x64")
    assert [kernel_name(one) for one in names] == [
        "triton_poi_fused_add",
        "triton_poi_fused_add",
        "gemm_128x64",
    ]


NS = st.floats(-1e9, 1e9)
MEANS = st.lists(NS, min_size=len(PARTS), max_size=len(PARTS)).map(
    lambda values: PartMeans(9, dict(zip(PARTS, values, strict=True)))
)


@given(st.lists(st.tuples(MEANS, MEANS), min_size=1, max_size=5))
def test_changes_of_parts_add_up_to_the_change_of_the_mean(both: list[tuple[PartMeans, PartMeans]]) -> None:
    pairs = [
        Pair(*(RunRow("r", "VALID", account=RunAccount(means, means)) for means in pair)) for pair in both
    ]
    found = parts_change(pairs, False, 0.05)
    assert found is not None
    assert math.fsum(one.change for one in found.parts) == pytest.approx(found.latency.change, abs=1e-3)
    unexplained = [one.change for one in found.parts if one.what in ("residual", "unjoined")]
    assert found.residual_ns == pytest.approx(math.fsum(unexplained), abs=1e-3)


SIZES = st.dictionaries(
    st.integers(1, 8), st.tuples(st.integers(1, 1_000), st.floats(1.0, 1e9)), min_size=1, max_size=8
).map(lambda sizes: tuple(SizeSums(rows, n, total) for rows, (n, total) in sorted(sizes.items())))


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4))
def test_equal_size_and_mix_add_up_to_the_change_of_compute(
    both: list[tuple[tuple[SizeSums, ...], tuple[SizeSums, ...]]],
) -> None:
    pairs = [Pair(*(RunRow("r", "VALID", account=RunAccount(sizes=one)) for one in pair)) for pair in both]
    found = batch_change(pairs, MARGIN, 0.05)
    assert found is not None
    parts = found.at_equal_size.change + found.by_mix.change
    assert parts == pytest.approx(found.compute.change, rel=1e-6, abs=1e-3)


def test_slower_batches_of_one_mix_are_no_mix_and_another_mix_is_no_slower_batch() -> None:
    sizes = {1: (100, 1.0), 4: (300, 4.0)}

    def run(scale: float, counts: dict[int, int]) -> RunRow:
        own = tuple(
            SizeSums(rows, counts[rows], counts[rows] * ns * scale) for rows, (_, ns) in sizes.items()
        )
        return RunRow("r", "VALID", account=RunAccount(sizes=own))

    few, many = {1: 300, 4: 100}, {1: 100, 4: 300}
    slower = batch_change([Pair(run(1.0, few), run(1.1, few))] * 2, MARGIN, 0.05)
    mixed = batch_change([Pair(run(1.0, few), run(1.0, many))] * 2, MARGIN, 0.05)
    assert slower is not None
    assert mixed is not None
    assert (slower.by_mix.change, mixed.at_equal_size.change) == (0.0, 0.0)
    assert slower.at_equal_size.change == pytest.approx(0.1 * (300 + 400) / 400)
    assert mixed.by_mix.change == pytest.approx((100 + 1_200) / 400 - (300 + 400) / 400)
    assert slower.equal is not None
    assert slower.equal.ratio == pytest.approx(1.1)


def test_states_of_gpu_and_cpu_are_those_of_the_measured_phase(tmp_path: Path) -> None:
    phase = Phase("m", (Op(5.0),), throttled_ratio=0.5, cpu={"others": 4.0})
    states = read_row(regime(tmp_path, phase)).states
    assert states["others_ratio"] == pytest.approx(4.0 / 16, rel=0.01)
    assert states["throttled_ratio"] == pytest.approx(0.5)
