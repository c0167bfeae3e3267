"""The plan: one schedule for a seed, dealt and merged without a byte lost."""

from __future__ import annotations

import hashlib
import json
import pickle
import resource
import tempfile
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.arrays import pieces
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.deal import DealRule, affinity_of, workers_of
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.plan import Plan, deal
from squall.scenarios.strict_yaml import parse_yaml
from tests.many_examples import examples
from tests.merged_plans import is_in_file, merge

S = 1_000_000_000
COLUMNS = ("seq", "offset_ns", "phase", "rows", "variant")
RULES: tuple[DealRule, ...] = ("sequence", "hash", "session")
SCENARIO = """
name: test
seed: 0
model: {name: head}
clients: {rows: {kind: uniform, low: 1, high: 9}}
phases:
- {name: warm, kind: warmup, duration: 1s, arrivals: {kind: constant, rate: 10/s}}
- {name: calm, kind: measure, duration: 2s, arrivals: {kind: poisson, rate: 50/s}}
- name: burst
  kind: measure
  duration: 3s
  arrivals: {kind: envelope, preset: nasa-web, bin: 50ms, rate: 60/s}
- {name: drain, kind: drain, duration: 1s}
"""


def scenario(phases: dict[int, dict[str, Any]] | None = None, seed: int = 0, **clients: Any) -> Scenario:
    """`SCENARIO` with other keys in some of its phases, another seed, and other keys of its clients."""
    mapping: Any = parse_yaml(SCENARIO, "test") | {"seed": seed}
    mapping["clients"] |= clients
    for index, keys in (phases or {}).items():
        mapping["phases"][index] |= keys
    return scenario_from_mapping(mapping, "test")


def planned(phases: dict[int, dict[str, Any]] | None = None, seed: int = 0, **clients: Any) -> Plan:
    return plan_scenario(scenario(phases, seed, **clients))


def of_trace(path: Path, **keys: Any) -> dict[str, Any]:
    return {"arrivals": {"kind": "trace", "file": str(path), **keys}}


def dealt_by(plan: Plan, rule: DealRule) -> Plan:
    """The same schedule under another rule; for sessions, 20 of them at random."""
    sessions = np.random.default_rng(1).integers(0, 20, len(plan))
    return replace(plan, deal=rule, affinity=affinity_of(sessions, plan.seq) if rule == "session" else None)


def assert_same(plan: Plan, other: Plan) -> None:
    for name in COLUMNS:
        assert getattr(plan, name).tobytes() == getattr(other, name).tobytes()
    assert plan.spans == other.spans
    assert plan.sha256() == other.sha256()


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Plans of more than 7 arrivals are kept in files of this folder."""
    monkeypatch.setattr("squall.scenarios.plan.growing.MOST_ROWS_IN_MEMORY", 7)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_plan_is_sorted_numbered_and_inside_its_phases_which_are_laid_end_to_end() -> None:
    plan = planned()
    assert [astuple(span) for span in plan.spans] == [
        ("warm", "warmup", 0, S), ("calm", "measure", S, 3 * S), ("burst", "measure", 3 * S, 6 * S),
        ("drain", "drain", 6 * S, 7 * S),
    ]  # fmt: skip
    assert plan.seq.tolist() == list(range(len(plan)))
    assert (np.diff(plan.offset_ns) >= 0).all()
    starts, ends = np.array([(span.start_ns, span.end_ns) for span in plan.spans])[plan.phase].T
    assert ((plan.offset_ns >= starts) & (plan.offset_ns < ends)).all()
    assert plan.offset_ns[plan.phase == 0].tolist() == [i * S // 10 for i in range(10)]
    assert set(plan.phase.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("n_variants", "n_bytes"), [(256, 1), (257, 2), (65_536, 2)])
def test_more_variants_take_a_wider_column(n_variants: int, n_bytes: int) -> None:
    plan = planned(payload_variants=n_variants)
    assert plan.variant.itemsize == n_bytes
    assert_same(merge(deal(plan, 3)), plan)


@pytest.mark.parametrize("rule", RULES)
@given(
    st.integers(1, 40) | st.just(400),
    st.integers(0, 2**32),
    st.sampled_from((1, 2_000, 2**27)),
    st.randoms(use_true_random=False),
)
@examples(12)
def test_the_union_of_the_parts_is_the_plan_byte_for_byte_however_many_are_made_at_a_time(
    rule: DealRule, n_workers: int, seed: int, at_once_bytes: int, shuffle: Any
) -> None:
    plan = dealt_by(planned(seed=seed), rule)
    with patch("squall.scenarios.plan.plan._AT_ONCE_BYTES", at_once_bytes):
        parts = list(deal(plan, n_workers))
    workers = workers_of(rule, plan.seq, plan.affinity, n_workers)
    assert [part.seq.tolist() for part in parts] == [
        np.flatnonzero(workers == worker).tolist() for worker in range(n_workers)
    ]
    shuffle.shuffle(parts)
    assert_same(merge(parts), plan)


@pytest.mark.parametrize("rule", RULES)
def test_a_plan_in_files_is_dealt_as_one_in_memory_and_its_parts_travel(
    in_files: Path, rule: DealRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed = planned()
    assert all(is_in_file(getattr(filed, name)) for name in COLUMNS)
    assert not any(in_files.iterdir())  # the files have no names, so nothing is left of a killed process
    dealt = [list(deal(dealt_by(filed, rule), n_workers)) for n_workers in (1, 2, 7)]
    part = dealt[1][0]
    assert not any(is_in_file(getattr(part, name)) for name in COLUMNS)
    assert_same(pickle.loads(pickle.dumps(part)), part)
    monkeypatch.undo()
    plan = planned()
    assert not any(is_in_file(getattr(plan, name)) for name in COLUMNS)
    for other in (filed, *map(merge, dealt)):
        assert_same(other, plan)


def test_a_disk_without_room_is_one_error(in_files: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # a write beyond 100 bytes fails
    try:
        with pytest.raises(
            ScenarioError, match=f"{in_files}: a temporary file of the plan cannot be written: File"
        ):
            planned()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("in_files")
def test_a_plan_of_many_pieces_is_drawn_checked_and_digested_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(pieces(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(pieces(0)) == []
    one_kind: dict[str, Any] = {"rows": {"kind": "constant", "value": 3}, "payload_variants": 1}
    whole = planned(**one_kind)
    monkeypatch.setattr("squall.scenarios.plan.drafting.PIECE_ROWS", 16)
    monkeypatch.setattr("squall.scenarios.plan.plan.pieces", lambda n_rows: pieces(n_rows, 16))
    for most_rows in (7, 100, 10**6):  # from the first piece on in files, from a later one on, not at all
        monkeypatch.setattr("squall.scenarios.plan.growing.MOST_ROWS_IN_MEMORY", most_rows)
        again = planned(**one_kind)
        assert is_in_file(again.seq) == (most_rows < len(whole))
        assert_same(again, whole)
    assert_same(merge(deal(whole, 3)), whole)
    for place in (15, 16, 17):  # around the border of two pieces
        offsets = whole.offset_ns.copy()
        offsets[place] = offsets[place - 1] - 1
        with pytest.raises(ValueError, match="a plan is sorted"):
            replace(whole, offset_ns=offsets)


def test_a_hash_shares_arrivals_out_evenly_and_without_a_pattern() -> None:
    n, n_workers = 200_000, 10
    workers = workers_of("hash", np.arange(n), None, n_workers)
    # chi-square of 9 degrees of freedom: mean 9, sd sqrt(18) = 4.2; below 9 + 5 sd = 30. Turn-taking gives 0.
    expected = n / n_workers
    chi2 = ((np.bincount(workers, minlength=n_workers) - expected) ** 2 / expected).sum()
    assert 0.1 < chi2 < 30
    # the next one goes to the same worker 1 time in 10: sd sqrt(n * 0.1 * 0.9) = 134; in turn it never does
    assert abs((workers[1:] == workers[:-1]).sum() - n / 10) < 4 * 134


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50), st.integers(1, 9))
@examples(40)
def test_a_session_stays_with_one_worker_and_an_arrival_without_one_is_its_own(
    sessions: list[int], n_workers: int
) -> None:
    session = np.array(sessions * 3, np.int64)
    seq = np.arange(session.size)
    workers = workers_of("session", seq, affinity_of(session, seq), n_workers)
    assert workers[: len(sessions)].tolist() * 3 == workers.tolist()
    assert ((workers >= 0) & (workers < n_workers)).all()
    alone = affinity_of(np.full_like(session, -1), seq).tolist()
    assert len(set(alone)) == seq.size
    assert alone == affinity_of(None, seq).tolist()


def test_dealing_by_session_needs_arrivals_that_have_sessions(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"clients\.deal: the arrivals of phase 'calm' have no sessions; use hash"
    ):
        planned(deal="session")
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,session\n" + "".join(f"{i / 100},user-{i % 7}\n" for i in range(200)))
    plan = planned({1: of_trace(path), 2: of_trace(path)}, deal="session")
    assert plan.deal == "session"
    assert plan.affinity is not None
    measured = plan.affinity[plan.phase == 1]
    of_user = [set(measured[user::7].tolist()) for user in range(7)]
    assert [len(affinities) for affinities in of_user] == [1] * 7
    assert len(set.union(*of_user)) == 7
    assert len(set(plan.affinity[plan.phase == 0].tolist())) == 10  # of the warm-up each is its own


def test_a_change_to_one_stream_or_phase_moves_no_other() -> None:
    plan = planned({2: {"arrivals": {"kind": "poisson", "rate": "50/s"}}})
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"rows": {"kind": "constant", "value": 2}}, {"rows"}),
        ({"payload_variants": 256}, {"variant"}),
        ({"phases": {0: {"arrivals": {"kind": "constant", "rate": "77/s"}}}}, set()),
    ]
    for keys, moved in cases:
        other = planned(**keys)
        for name in ("offset_ns", "rows", "variant"):
            ours, theirs = (getattr(one, name)[one.phase == 1].tolist() for one in (plan, other))
            assert (ours != theirs) == (name in moved)
    first, second = (np.flatnonzero(plan.phase == phase) for phase in (1, 2))
    assert (plan.offset_ns[first] - S)[:20].tolist() != (plan.offset_ns[second] - 3 * S)[:20].tolist()
    assert plan.rows[first][:40].tolist() != plan.rows[second][:40].tolist()


def test_the_digest_is_that_of_the_formula_and_sees_every_column_and_the_phases() -> None:
    plan = planned()
    types = {"seq": None, "offset_ns": "<i8", "phase": "u1", "rows": "<i4", "variant": "u1"}
    columns = {
        name: dtype and hashlib.sha256(np.asarray(getattr(plan, name), dtype).tobytes()).hexdigest()
        for name, dtype in types.items()
    }
    spans = [list(astuple(span)) for span in plan.spans]
    content = json.dumps({"n": len(plan), "spans": spans, "columns": columns})
    assert plan.sha256() == hashlib.sha256(content.encode()).hexdigest()
    changed = [replace(plan, spans=plan.spans[:3])]
    for name, place in zip(COLUMNS, (-1, -1, 5, 5, 5), strict=True):
        column = getattr(plan, name).copy()
        column[place] += 1
        changed.append(replace(plan, **{name: column}))
    assert len({plan.sha256(), *(other.sha256() for other in changed)}) == 7


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("offset_ns", lambda column: column[::-1], "a plan is sorted by offset_ns"),
        ("seq", np.zeros_like, "a plan is sorted by offset_ns"),
        ("rows", lambda column: column[1:], "plan column rows must be <i4"),
        ("rows", lambda column: column.astype(np.int64), "plan column rows must be <i4"),
        ("variant", lambda column: column.astype(np.uint64), "plan column variant must be <u4"),
        ("variant", lambda column: column.astype(np.int8), "plan column variant must be <u1"),
    ],
)
def test_a_plan_that_is_unsorted_or_ragged_is_refused(name: str, wrong: Any, told: str) -> None:
    plan = planned()
    with pytest.raises(ValueError, match=told):
        replace(plan, **{name: wrong(getattr(plan, name))})


def test_a_trace_is_planned_from_its_phase_on_and_rows_follow_its_arrivals(tmp_path: Path) -> None:
    path, plain = tmp_path / "trace.csv", planned()
    with pytest.raises(ScenarioError, match=r"trace\.csv: no such trace file"):
        planned({1: of_trace(path)})
    path.write_text("timestamp,tokens\n0,100\n0.5,0\n0.75,129\n1.5,9000\n")
    rows = {"kind": "trace", "size": "tokens", "per_row": 64.0, "max": 20}
    plan = planned({1: {**of_trace(path, start="500ms"), "rows": rows}})
    in_phase = plan.phase == 1
    assert plan.offset_ns[in_phase].tolist() == [S, S + S // 4, 2 * S]
    assert plan.rows[in_phase].tolist() == [1, 3, 20]
    assert plan.rows[plan.phase == 2].tolist() == plain.rows[plain.phase == 2].tolist()


def test_a_trace_that_changes_between_two_phases_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n1\n")
    replayed = scenario({1: of_trace(path), 2: of_trace(path)})
    assert len(plan_scenario(replayed)) == 10 + 2 + 2
    states = iter([(0, 0, 0, 0)] * 2 + [(0, 0, 1, 0)] * 2)  # before and after each of the two reads
    monkeypatch.setattr("squall.scenarios.arrivals.replay.file_state", lambda _: next(states))
    with pytest.raises(ScenarioError, match=r"trace\.txt: the trace changed while it was read"):
        plan_scenario(replayed)


def test_a_phase_of_too_many_arrivals_is_refused_and_one_of_none_is_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n0.001\n")
    monkeypatch.setattr("squall.scenarios.plan.drafting.LARGEST_ARRIVAL_COUNT", 1_999)
    with pytest.raises(
        ScenarioError, match=r"phase 'calm' has more than the 1,999 requests that a plan takes"
    ):
        planned({1: of_trace(path, loop=True)})
    plan = planned()
    empty = replace(plan, **{name: getattr(plan, name)[:0] for name in COLUMNS})
    assert merge(deal(empty, 2)).sha256() == empty.sha256()
