"""The plan: one schedule for a seed, dealt and merged without a byte lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.errors import ScenarioError
from scenarios.loader import scenario_from_mapping
from scenarios.plan import PhaseSpan, Plan, deal, merge, plan_scenario, stream
from scenarios.scenario import Scenario

S = 1_000_000_000
COLUMNS = ("seq", "offset_ns", "phase", "rows", "variant")


def scenario(**clients: Any) -> Scenario:
    phases = [
        {
            "name": "warm",
            "kind": "warmup",
            "duration": "1s",
            "arrivals": {"kind": "constant", "rate": "10/s"},
        },
        {
            "name": "calm",
            "kind": "measure",
            "duration": "2s",
            "arrivals": {"kind": "poisson", "rate": "50/s"},
        },
        {
            "name": "burst",
            "kind": "measure",
            "duration": "3s",
            "arrivals": {"kind": "envelope", "preset": "nasa-web", "bin": "50ms", "rate": "60/s"},
        },
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    rows = {"kind": "uniform", "low": 1, "high": 9}
    return scenario_from_mapping(
        {
            "name": "test",
            "seed": 0,
            "model": {"name": "head"},
            "clients": {"rows": rows, **clients},
            "phases": phases,
        },
        "test",
    )


def test_a_plan_is_sorted_numbered_and_inside_its_phases() -> None:
    plan = plan_scenario(scenario())
    assert plan.seq.tolist() == list(range(len(plan)))
    assert (np.diff(plan.offset_ns) >= 0).all()
    starts = np.array([span.start_ns for span in plan.spans])[plan.phase]
    ends = np.array([span.end_ns for span in plan.spans])[plan.phase]
    assert ((plan.offset_ns >= starts) & (plan.offset_ns < ends)).all()
    assert plan.offset_ns[:10].tolist() == [i * S // 10 for i in range(10)]
    assert np.bincount(plan.phase, minlength=4)[3] == 0


def test_phases_are_laid_end_to_end() -> None:
    assert plan_scenario(scenario()).spans == (
        PhaseSpan("warm", "warmup", 0, S),
        PhaseSpan("calm", "measure", S, 3 * S),
        PhaseSpan("burst", "measure", 3 * S, 6 * S),
        PhaseSpan("drain", "drain", 6 * S, 7 * S),
    )


def test_an_arrival_takes_22_bytes() -> None:
    plan = plan_scenario(scenario())
    assert sum(getattr(plan, name).nbytes for name in COLUMNS) == 22 * len(plan)


@given(st.integers(0, 2**64))
@settings(max_examples=20, deadline=None)
def test_the_same_seed_gives_the_same_plan(seed: int) -> None:
    assert plan_scenario(scenario(), seed).sha256() == plan_scenario(scenario(), seed).sha256()


def test_seed_0_is_a_seed_like_any_other() -> None:
    zero = plan_scenario(scenario(), 0)
    assert zero.sha256() == plan_scenario(scenario()).sha256()  # the scenario says 0
    assert zero.sha256() != plan_scenario(scenario(), 1).sha256()
    assert zero.offset_ns.tolist() != plan_scenario(scenario(), 1).offset_ns.tolist()


@given(st.integers(1, 7), st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_union_of_the_parts_is_the_plan_byte_for_byte(n_workers: int, seed: int, shuffle: Any) -> None:
    plan = plan_scenario(scenario(), seed)
    parts = list(deal(plan, n_workers))
    assert [set((part.seq % n_workers).tolist()) for part in parts] == [{i} for i in range(n_workers)]
    shuffle.shuffle(parts)
    merged = merge(parts)
    for name in COLUMNS:
        assert getattr(merged, name).tobytes() == getattr(plan, name).tobytes()
    assert merged.spans == plan.spans
    assert merged.sha256() == plan.sha256()


def test_more_workers_than_arrivals_leave_some_without_work() -> None:
    plan = plan_scenario(scenario())
    parts = deal(plan, len(plan) + 3)
    assert [len(part) for part in parts[-4:]] == [1, 0, 0, 0]
    assert merge(parts).sha256() == plan.sha256()


def test_a_part_that_is_missing_or_there_twice_is_refused() -> None:
    parts = deal(plan_scenario(scenario()), 3)
    with pytest.raises(ValueError, match="seq 1 is in no plan"):
        merge([parts[0], parts[2]])
    with pytest.raises(ValueError, match="seq 1 is in more than one plan"):
        merge([*parts, parts[1]])
    with pytest.raises(ValueError, match="of the same phases"):
        merge([parts[0], replace(parts[1], spans=parts[1].spans[:1]), parts[2]])
    with pytest.raises(ValueError, match="one or more"):
        merge([])
    with pytest.raises(ValueError, match="dealt to 1 or more workers, not 0"):
        deal(parts[0], 0)


def test_a_change_to_one_stream_moves_no_other() -> None:
    plan = plan_scenario(scenario())
    other_rows = plan_scenario(scenario(rows={"kind": "constant", "value": 2}))
    assert other_rows.offset_ns.tolist() == plan.offset_ns.tolist()
    assert other_rows.variant.tolist() == plan.variant.tolist()
    assert other_rows.rows.tolist() != plan.rows.tolist()
    other_variants = plan_scenario(scenario(payload_variants=256))
    assert other_variants.rows.tolist() == plan.rows.tolist()
    assert other_variants.offset_ns.tolist() == plan.offset_ns.tolist()
    assert other_variants.variant.max() > 3


def test_a_change_to_one_phase_moves_no_other() -> None:
    mapping = scenario().to_mapping()
    mapping["phases"][0]["arrivals"]["rate"] = "77/s"
    before, after = plan_scenario(scenario()), plan_scenario(scenario_from_mapping(mapping, "test"))
    for name in ("offset_ns", "rows", "variant"):
        kept = getattr(before, name)[before.phase > 0].tolist()
        assert getattr(after, name)[after.phase > 0].tolist() == kept


def test_two_phases_of_the_same_load_have_different_arrivals() -> None:
    mapping = scenario().to_mapping()
    mapping["phases"][2] = {**mapping["phases"][1], "name": "again"}
    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    first, second = plan.phase == 1, plan.phase == 2
    assert (plan.offset_ns[first] - S)[:20].tolist() != (plan.offset_ns[second] - 3 * S)[:20].tolist()
    assert plan.rows[first][:40].tolist() != plan.rows[second][:40].tolist()


def test_the_streams_of_a_seed_are_the_same_in_every_release() -> None:
    # numpy guarantees the raw output of SeedSequence and PCG64 (NEP 19), not that of distributions
    raw = [stream(3, name, 1).bit_generator.random_raw() for name in ("arrivals", "rows", "variants")]
    assert raw == [2614492101929968573, 4602101962811718783, 17440011063207195280]


def test_the_digest_sees_every_column_and_the_phases() -> None:
    plan = plan_scenario(scenario())
    changed = [replace(plan, spans=plan.spans[:3])]
    for name in ("phase", "rows", "variant"):
        column = getattr(plan, name).copy()
        column[5] += 1
        changed.append(replace(plan, **{name: column}))
    for name in ("seq", "offset_ns"):
        column = getattr(plan, name).copy()
        column[-1] += 1
        changed.append(replace(plan, **{name: column}))
    assert len({plan.sha256(), *(other.sha256() for other in changed)}) == 7


def test_a_plan_that_is_unsorted_or_ragged_is_refused() -> None:
    plan = plan_scenario(scenario())
    with pytest.raises(ValueError, match="a plan is sorted by offset_ns"):
        replace(plan, offset_ns=plan.offset_ns[::-1])
    with pytest.raises(ValueError, match="a plan is sorted by offset_ns"):
        replace(plan, seq=np.zeros(len(plan), dtype=np.int64))
    with pytest.raises(ValueError, match="plan column rows must be <i4"):
        replace(plan, rows=plan.rows[1:])
    with pytest.raises(ValueError, match="plan column rows must be <i4"):
        replace(plan, rows=plan.rows.astype(np.int64))


def test_a_trace_is_planned_from_its_phase_on_and_a_missing_one_is_named(tmp_path: Path) -> None:
    mapping = scenario().to_mapping()
    mapping["phases"][1]["arrivals"] = {"kind": "trace", "file": str(tmp_path / "trace.txt")}
    replayed = scenario_from_mapping(mapping, "test")
    with pytest.raises(ScenarioError, match=r"trace\.txt: no such trace file"):
        plan_scenario(replayed)
    (tmp_path / "trace.txt").write_text("100\n100.5\n103\n")
    plan = plan_scenario(replayed)
    assert plan.offset_ns[plan.phase == 1].tolist() == [S, S + S // 2]


def test_a_plan_without_arrivals_is_a_plan() -> None:
    empty = np.empty(0, dtype=np.int64)
    small, rows = empty.astype(np.uint8), empty.astype(np.int32)
    plan = Plan(seq=empty, offset_ns=empty, phase=small, rows=rows, variant=small, spans=())
    assert len(plan) == 0
    assert merge(deal(plan, 2)).sha256() == plan.sha256()
