"""The plan: one schedule for a seed, dealt and merged without a byte lost."""

from __future__ import annotations

import hashlib
import json
import pickle
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.deal import DealRule, affinity_of, workers_of
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.growing import pieces
from squall.scenarios.plan.plan import PhaseSpan, Plan, deal, stream
from tests.merged_plans import is_in_file, merge

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


@pytest.mark.parametrize(("n_variants", "n_bytes"), [(256, 22), (257, 23), (65_536, 23)])
def test_more_than_256_payload_variants_take_a_byte_more(n_variants: int, n_bytes: int) -> None:
    plan = plan_scenario(scenario(payload_variants=n_variants))
    assert plan.n_bytes == n_bytes * len(plan)
    assert n_variants // 3 < plan.variant.max() < n_variants
    parts = list(deal(plan, 3))
    assert_same(merge(parts), plan)
    assert merge(parts).variant.dtype == plan.variant.dtype


@given(st.integers(0, 2**64))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_plan(seed: int) -> None:
    assert plan_scenario(scenario(), seed).sha256() == plan_scenario(scenario(), seed).sha256()


def test_seed_0_is_a_seed_like_any_other() -> None:
    zero = plan_scenario(scenario(), 0)
    assert zero.sha256() == plan_scenario(scenario()).sha256()  # the scenario says 0
    assert zero.sha256() != plan_scenario(scenario(), 1).sha256()
    assert zero.offset_ns.tolist() != plan_scenario(scenario(), 1).offset_ns.tolist()


RULES: tuple[DealRule, ...] = ("sequence", "hash", "session")


def dealt_by(plan: Plan, rule: DealRule) -> Plan:
    """The same schedule under another rule; for sessions, 20 of them at random."""
    sessions = np.random.default_rng(1).integers(0, 20, len(plan))
    return replace(plan, deal=rule, affinity=affinity_of(sessions, plan.seq) if rule == "session" else None)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Plans of more than 7 arrivals are kept in files of this folder."""
    monkeypatch.setattr("squall.scenarios.plan.growing.MOST_ROWS_IN_MEMORY", 7)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def assert_same(plan: Plan, other: Plan) -> None:
    for name in COLUMNS:
        assert getattr(plan, name).tobytes() == getattr(other, name).tobytes()
    assert plan.spans == other.spans
    assert plan.sha256() == other.sha256()


@pytest.mark.parametrize("rule", RULES)
@given(st.integers(1, 40), st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=12)
def test_the_union_of_the_parts_is_the_plan_byte_for_byte(
    rule: DealRule, n_workers: int, seed: int, shuffle: Any
) -> None:
    plan = dealt_by(plan_scenario(scenario(), seed), rule)
    parts = list(deal(plan, n_workers))
    workers = workers_of(rule, plan.seq, plan.affinity, n_workers)
    assert [part.seq.tolist() for part in parts] == [
        np.flatnonzero(workers == worker).tolist() for worker in range(n_workers)
    ]
    shuffle.shuffle(parts)
    assert_same(merge(parts), plan)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n_workers", [1, 2, 7])
def test_a_plan_in_files_is_dealt_as_one_in_memory(
    in_files: Path, rule: DealRule, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed = plan_scenario(scenario())
    assert all(is_in_file(getattr(filed, name)) for name in COLUMNS)
    assert not any(in_files.iterdir())  # the files have no names, so nothing is left of a killed process
    merged = merge(deal(dealt_by(filed, rule), n_workers))
    monkeypatch.undo()
    plan = plan_scenario(scenario())
    assert not any(is_in_file(getattr(plan, name)) for name in COLUMNS)
    assert_same(filed, plan)
    assert_same(merged, plan)


@pytest.mark.usefixtures("in_files")
def test_a_part_of_a_plan_in_files_travels_as_what_it_is() -> None:
    _, part, _ = deal(plan_scenario(scenario()), 3)
    assert not any(is_in_file(getattr(part, name)) for name in COLUMNS)
    assert_same(pickle.loads(pickle.dumps(part)), part)


def test_a_disk_without_room_is_one_error(in_files: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # a write beyond 100 bytes fails
    try:
        with pytest.raises(
            ScenarioError, match=f"{in_files}: a temporary file of the plan cannot be written: File"
        ):
            plan_scenario(scenario())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("rule", RULES)
def test_parts_made_a_few_at_a_time_are_the_same(rule: DealRule, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = dealt_by(plan_scenario(scenario()), rule)
    together = list(deal(plan, 7))
    for n_at_once in (1, 3):
        monkeypatch.setattr("squall.scenarios.plan.plan._AT_ONCE_BYTES", (n_at_once * plan.n_bytes + 6) // 7)
        for part, worker in zip(deal(plan, 7), range(7), strict=True):
            assert_same(part, together[worker])


def test_a_hash_shares_arrivals_out_evenly_and_without_a_pattern() -> None:
    n, n_workers = 200_000, 10
    workers = workers_of("hash", np.arange(n), None, n_workers)
    # chi-square of 9 degrees of freedom: mean 9, sd sqrt(18) = 4.2; below 9 + 5 sd = 30. Turn-taking gives 0.
    expected = n / n_workers
    chi2 = ((np.bincount(workers, minlength=n_workers) - expected) ** 2 / expected).sum()
    assert 0.1 < chi2 < 30
    # the next one goes to the same worker 1 time in 10: sd sqrt(n * 0.1 * 0.9) = 134; in turn it never does
    assert abs((workers[1:] == workers[:-1]).sum() - n / 10) < 4 * 134
    turns = workers_of("sequence", np.arange(n), None, n_workers)
    assert not (turns[1:] == turns[:-1]).any()


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50), st.integers(1, 9))
@settings(max_examples=40)
def test_a_session_stays_with_one_worker(sessions: list[int], n_workers: int) -> None:
    session = np.array(sessions * 3, np.int64)
    affinity = affinity_of(session, np.arange(session.size))
    workers = workers_of("session", np.arange(session.size), affinity, n_workers)
    assert workers[: len(sessions)].tolist() * 3 == workers.tolist()
    assert ((workers >= 0) & (workers < n_workers)).all()


def test_arrivals_without_a_session_are_dealt_one_by_one() -> None:
    seq = np.arange(1_000)
    affinity = affinity_of(np.full(1_000, -1), seq)
    assert len(set(affinity.tolist())) == 1_000
    assert affinity.tolist() == affinity_of(None, seq).tolist()


def test_dealing_by_session_needs_arrivals_that_have_sessions(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"clients\.deal: the arrivals of phase 'calm' have no sessions; use hash"
    ):
        plan_scenario(scenario(deal="session"))
    mapping = scenario(deal="session").to_mapping()
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,session\n" + "".join(f"{i / 100},user-{i % 7}\n" for i in range(200)))
    for index in (1, 2):
        mapping["phases"][index]["arrivals"] = {"kind": "trace", "file": str(path)}
    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    assert plan.deal == "session"
    assert plan.affinity is not None
    measured = np.flatnonzero(plan.phase == 1)
    of_user = [set(plan.affinity[measured[user::7]].tolist()) for user in range(7)]
    assert [len(affinities) for affinities in of_user] == [1] * 7
    assert len(set.union(*of_user)) == 7
    assert len(set(plan.affinity[plan.phase == 0].tolist())) == 10  # of the warm-up each is its own
    with pytest.raises(ValueError, match="needs the affinity"):
        list(deal(replace(plan, affinity=None), 2))


def test_more_workers_than_arrivals_leave_some_without_work() -> None:
    plan = plan_scenario(scenario())
    parts = list(deal(plan, len(plan) + 3))
    assert [len(part) for part in parts[-4:]] == [1, 0, 0, 0]
    assert merge(parts).sha256() == plan.sha256()


def test_a_plan_is_dealt_to_one_worker_at_least() -> None:
    with pytest.raises(ValueError, match="dealt to 1 or more workers, not 0"):
        next(deal(plan_scenario(scenario()), 0))


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


def test_the_digest_is_that_of_the_formula() -> None:
    plan = plan_scenario(scenario())
    columns: dict[str, str | None] = {
        name: hashlib.sha256(np.asarray(getattr(plan, name), dtype).tobytes()).hexdigest()
        for name, dtype in {
            "seq": "<i8",
            "offset_ns": "<i8",
            "phase": "u1",
            "rows": "<i4",
            "variant": "u1",
        }.items()
    }
    columns["seq"] = None
    spans = [["warm", "warmup", 0, S], ["calm", "measure", S, 3 * S], ["burst", "measure", 3 * S, 6 * S]]
    spans += [["drain", "drain", 6 * S, 7 * S]]
    content = json.dumps({"n": len(plan), "spans": spans, "columns": columns})
    assert plan.sha256() == hashlib.sha256(content.encode()).hexdigest()


def test_a_plan_of_many_pieces_is_drawn_checked_and_digested_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"kind": "constant", "value": 3}
    whole = plan_scenario(scenario(rows=rows, payload_variants=1))
    monkeypatch.setattr("squall.scenarios.plan.growing.PIECE_ROWS", 16)
    monkeypatch.setattr("squall.scenarios.plan.drafting.pieces", lambda columns: pieces(columns, 16))
    monkeypatch.setattr("squall.scenarios.plan.plan.pieces", lambda columns: pieces(columns, 16))
    assert_same(plan_scenario(scenario(rows=rows, payload_variants=1)), whole)
    assert_same(merge(deal(whole, 3)), whole)
    assert [set((part.seq % 3).tolist()) for part in deal(whole, 3)] == [{0}, {1}, {2}]
    for place in (15, 16, 17):  # around the border of two pieces
        offsets = whole.offset_ns.copy()
        offsets[place] = offsets[place - 1] - 1
        with pytest.raises(ValueError, match="a plan is sorted"):
            replace(whole, offset_ns=offsets)


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


def test_rows_of_a_trace_follow_its_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,tokens\n0,100\n0.5,0\n0.75,129\n1.5,9000\n")
    mapping = scenario().to_mapping()
    rows = {"kind": "trace", "size": "tokens", "per_row": 64.0, "max": 20}
    mapping["phases"][1] |= {"arrivals": {"kind": "trace", "file": str(path), "start": "500ms"}, "rows": rows}
    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    in_phase = plan.phase == 1
    assert plan.offset_ns[in_phase].tolist() == [S, S + S // 4, 2 * S]
    assert plan.rows[in_phase].tolist() == [1, 3, 20]
    before = plan_scenario(scenario())
    assert plan.rows[plan.phase == 2].tolist() == before.rows[before.phase == 2].tolist()


def test_a_trace_that_changes_between_two_phases_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n1\n")
    mapping = scenario().to_mapping()
    for index in (1, 2):
        mapping["phases"][index]["arrivals"] = {"kind": "trace", "file": str(path)}
    replayed = scenario_from_mapping(mapping, "test")
    assert len(plan_scenario(replayed)) == 10 + 2 + 2
    states = iter([(0, 0, 0, 0)] * 2 + [(0, 0, 1, 0)] * 2)  # before and after each of the two reads
    monkeypatch.setattr("squall.scenarios.arrivals.replay.file_state", lambda _: next(states))
    with pytest.raises(ScenarioError, match=r"trace\.txt: the trace changed while it was read"):
        plan_scenario(replayed)


def test_a_phase_of_too_many_arrivals_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n0.001\n")
    mapping = scenario().to_mapping()
    mapping["phases"][1]["arrivals"] = {"kind": "trace", "file": str(path), "loop": True}
    monkeypatch.setattr("squall.scenarios.plan.drafting.LARGEST_ARRIVAL_COUNT", 1_999)
    with pytest.raises(
        ScenarioError, match=r"phase 'calm' has more than the 1,999 requests that a plan takes"
    ):
        plan_scenario(scenario_from_mapping(mapping, "test"))


def test_a_plan_without_arrivals_is_a_plan() -> None:
    empty = np.empty(0, dtype=np.int64)
    small, rows = empty.astype(np.uint8), empty.astype(np.int32)
    plan = Plan(seq=empty, offset_ns=empty, phase=small, rows=rows, variant=small, spans=())
    assert len(plan) == 0
    assert merge(deal(plan, 2)).sha256() == plan.sha256()
