"""What is certain of a promise before its end: held to every end by brute force, from records as workers write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.lateness import Lateness
from squall.actors.load.recorder import _RECORD, NEVER
from squall.analysis.compare.certainty import Count, Outcome, certain_verdict, outcome
from squall.analysis.compare.figures import BROKEN, KEPT, UNDECIDED
from squall.analysis.compare.judged import hold
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.storage.schema import OUTCOME_CODE, OUTCOMES
from squall.analysis.storage.timeline import RunPhase
from squall.cluster.driver.deciding import MARGIN_NS, Deciding, clipped
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.promises import Promise, parse_promises
from tests.many_examples import examples
from tests.unit.analysis.compare.test_judged import CONDITIONS, Ended, requests
from tests.unit.scenarios.test_promises import scenario

MS, S = 1_000_000, 1_000_000_000
START_NS = 77 * S
LENGTH_NS = 40 * MS
SPANS = (
    PhaseSpan("warm", "warmup", 0, 5 * MS),
    PhaseSpan("main", "measure", 5 * MS, 20 * MS),
    PhaseSpan("next", "measure", 20 * MS, LENGTH_NS),
)


def promise(key: str, condition: object) -> Promise:
    (found,) = parse_promises({key: condition}) or ()
    return found


def load_of(seed: int, n: int) -> tuple[Plan, np.ndarray[Any, Any]]:
    """A plan of `n` arrivals, and the record with which each of them ended."""
    rng = np.random.default_rng(seed)
    offsets = np.sort(rng.integers(0, LENGTH_NS, n))
    starts = [span.start_ns for span in SPANS]
    plan = Plan(
        seq=np.arange(n, dtype=np.int64) * 3, offset_ns=offsets.astype(np.int64),
        phase=(np.searchsorted(starts, offsets, side="right") - 1).astype(np.uint8), rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8), spans=SPANS, target=rng.integers(0, 2, n).astype(np.uint8),
    )  # fmt: skip
    records = np.zeros(n, _RECORD)
    records["request_id"], records["phase"], records["target"] = plan.seq, plan.phase, plan.target
    records["scheduled_ns"] = START_NS + plan.offset_ns
    records["sent_ns"] = records["scheduled_ns"] + rng.integers(0, rng.choice([1, 2 * MS]), n)
    records["done_ns"] = records["sent_ns"] + rng.integers(0, rng.choice([4, 9]) * MS, n)
    share = rng.choice([0.0, 0.05, 0.4])
    ends = rng.choice(["ok", "server_error", "unsent"], n, p=[1 - share, 0.7 * share, 0.3 * share]).tolist()
    records["outcome"] = [OUTCOME_CODE[end] for end in ends]
    is_unsent = np.array([end == "unsent" for end in ends])
    records["sent_ns"][is_unsent] = records["done_ns"][is_unsent] = NEVER
    return plan, records


def as_requests(records: np.ndarray[Any, Any], is_cut: np.ndarray[Any, Any] | None = None) -> Requests:
    """As analysis reads them; `is_cut`: not sent, since it was decided."""
    cut = np.zeros(len(records), np.bool_) if is_cut is None else is_cut
    sent, done = (np.where(cut, NEVER, records[name]) for name in ("sent_ns", "done_ns"))
    codes = {name: np.array(records[name], np.int64) for name in ("outcome", "phase", "target")}
    due = np.array(records["scheduled_ns"])
    return replace(
        requests(due, due), request_id=np.array(records["request_id"]),
        phase=Labels(codes["phase"], tuple(span.name for span in SPANS)),
        sent_ns=np.where(sent < 0, 0, sent), is_sent=sent >= 0, done_ns=np.where(done < 0, 0, done), is_done=done >= 0,
        outcome=Labels(np.where(cut, OUTCOME_CODE["unsent"], codes["outcome"]), tuple(OUTCOMES)),
        detail=Labels(cut.astype(np.int64), ("", "decided")), target=Labels(codes["target"], ("server-0", "server-1")),
    )._without_decided()  # fmt: skip


PHASES = [RunPhase(span.name, span.kind, START_NS + span.start_ns, START_NS + span.end_ns) for span in SPANS]
MEASURED = PHASES[1:]


def counted(
    plan: Plan, records: np.ndarray[Any, Any], looks_ns: list[int], limits: list[Any]
) -> list[tuple[int, Any]]:
    """What the worker publishes at each look: what ended by then is noted before, in pieces."""
    lateness = Lateness(limits, plan, 2)
    lateness.begin(START_NS)
    ended_ns = np.where(records["done_ns"] < 0, records["scheduled_ns"], records["done_ns"])
    found, before_ns = [], START_NS - 1
    for look_ns in looks_ns:
        new = records[(ended_ns > before_ns) & (ended_ns <= look_ns)]
        for piece in np.array_split(new, 2):
            lateness.note(piece)
        lateness.look(look_ns)
        found.append((look_ns, lateness.counts))
        before_ns = look_ns
    return found


@examples(50)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40))
def test_what_is_certain_is_the_verdict_of_every_end(seed: int, n: int) -> None:
    plan, records = load_of(seed, n)
    looks = [START_NS + at_ms * MS for at_ms in (7, 13, 21, 32, 45, 60)]
    promises = [promise(*one) for one in CONDITIONS]
    config = scenario(
        {"response": "p(90)<4ms"},
        stop_when="decided",
    ).model_copy(update={"promises": tuple(promises)})
    deciding = Deciding(config, plan, ("server-0", "server-1"))
    ended_ns = np.where(records["done_ns"] < 0, records["scheduled_ns"], records["done_ns"])
    whole = [hold(one, as_requests(records), MEASURED).figures for one in promises]
    for look_ns, counts in counted(plan, records, looks, list(deciding._limits)):
        is_open = ended_ns > look_ns
        for watched, one, figures in zip(deciding._watched, promises, whole, strict=True):
            count = deciding._count(watched, [counts])
            assert count is not None
            assert count.n == figures.n
            verdict = certain_verdict(one, count)
            cells = _cells(one, plan)
            assert cells.any() or verdict is None
            if not (records["sent_ns"][cells] >= 0).any():
                continue  # none was sent: such a run is INVALID, and judged nothing
            known = _known(one, records, is_open, cells, look_ns)
            assert count == known, one.text
            ends = _ends(one, known)
            is_certain = len(ends) == 1 and (known.n_in_time > 0 or ends == {BROKEN})
            assert verdict == (ends.pop() if is_certain else None), (one.text, count)
            assert verdict in (None, figures.verdict), (one.text, count)
            # a stop here: what was not due by then is not sent, and the verdict stands
            is_cut = (records["scheduled_ns"] > look_ns) & is_open
            stopped = hold(one, as_requests(records, is_cut), MEASURED).figures
            assert stopped.verdict in (
                {figures.verdict} if verdict is not None else {figures.verdict, UNDECIDED}
            )
            if verdict is not None and stopped.certain is not None:
                start = next(span.start_ns for span in MEASURED if span.name == stopped.certain.phase)
                # a row that was never sent has no instant of its own: it is taken for late once it is overdue
                is_unsent = bool((records["sent_ns"] < 0).any())
                assert start + stopped.certain.offset_ns <= look_ns + is_unsent * (one.late_from_ns or 0)


def _cells(one: Promise, plan: Plan) -> np.ndarray[Any, Any]:
    """Which arrivals it is about."""
    names = [span.name for span in SPANS]
    wanted = [one.scope.phase] if one.scope.phase else ["main", "next"]
    is_own = np.isin(plan.phase, [names.index(name) for name in wanted])
    if one.scope.server is not None:
        assert plan.target is not None
        is_own &= plan.target == int(one.scope.server.removeprefix("server-"))
    return np.asarray(is_own)


def _known(
    one: Promise, records: np.ndarray[Any, Any], is_open: np.ndarray[Any, Any], is_own: np.ndarray[Any, Any],
    look_ns: int,
) -> Count:  # fmt: skip
    """By loops: its requests, those late by then and those in time."""
    n_late = n_in_time = 0
    for row in np.flatnonzero(is_own):
        due_ns, sent_ns, done_ns = (
            int(records[row][name]) for name in ("scheduled_ns", "sent_ns", "done_ns")
        )
        if is_open[row]:
            can_be_overdue = one.late_limit.span == "response" and one.late_from_ns is not None
            n_late += can_be_overdue and look_ns - due_ns >= (one.late_from_ns or 0)
            continue
        is_ok = bool(records[row]["outcome"] == OUTCOME_CODE["ok"])
        is_late = Ended(due_ns, sent_ns, done_ns, is_ok).is_late(one)
        n_late += is_late
        n_in_time += not is_late
    return Count(int(is_own.sum()), n_late, n_in_time)


def _ends(one: Promise, known: Count) -> set[str]:
    """The verdicts of an end with all that is not known in time, and of one with all of it late."""
    n_open = known.n - known.n_late - known.n_in_time
    return {KEPT if known.n_late + n <= one.n_allowed(known.n) else BROKEN for n in (0, n_open)}


P90, COUNT = promise("response", "p(90)<4ms"), promise("failures", "count<3")
BROKEN_90, OPEN_90, KEPT_90 = Count(100, 11, 0), Count(100, 10, 89), Count(100, 9, 91)
KEPT_COUNT, EARLY = Count(100, 0, 98), Count(100, 0, 0)


@pytest.mark.parametrize(
    ("counts", "may_abort", "ends_when_kept", "expected"),
    [
        ([BROKEN_90, KEPT_COUNT], [True, False], False, (BROKEN, P90, BROKEN_90)),
        ([BROKEN_90, KEPT_COUNT], [False, True], False, None),
        (
            [KEPT_90, KEPT_COUNT],
            [True, True],
            True,
            (KEPT, COUNT, KEPT_COUNT),
        ),  # the one that was certain last
        ([KEPT_90, KEPT_COUNT], [True, True], False, None),
        ([OPEN_90, KEPT_COUNT], [True, True], True, None),
        ([None, KEPT_COUNT], [True, True], True, None),  # one is known at its end alone
        ([None, Count(100, 4, 0)], [True, True], True, (BROKEN, COUNT, Count(100, 4, 0))),
        ([KEPT_90, EARLY], [True, True], True, None),  # none of its requests was in time yet
    ],
)
def test_the_load_ends_where_one_that_aborts_is_broken_or_where_all_are_kept(
    counts: list[Count | None],
    may_abort: list[bool],
    ends_when_kept: bool,
    expected: tuple[str, Promise, Count] | None,
) -> None:
    assert outcome([P90, COUNT], counts, may_abort, ends_when_kept) == (expected and Outcome(*expected))


@pytest.mark.parametrize(
    ("options", "n_late", "at_ns", "is_ended"),
    [
        ({}, 10, 6 * S, False),
        ({}, 11, 6 * S, True),
        ({}, 11, 4 * S, False),  # before the first measured phase
        ({}, 11, LENGTH_NS * 1_000 - MARGIN_NS, False),  # it is over anyway
        ({"delayAbortEval": "2s"}, 11, 6 * S, False),
        ({"delayAbortEval": "2s"}, 11, 7 * S, True),
        # 100 arrivals in 35 s of measured phases are 2.9/s: a load below that of the promise decides nothing
        ({"at": "2/s"}, 11, 6 * S, True),
        ({"at": "4/s"}, 11, 6 * S, False),
    ],
)
def test_a_load_ends_where_it_is_decided(
    options: dict[str, str], n_late: int, at_ns: int, is_ended: bool
) -> None:
    plan, _ = load_of(0, 100)
    spans = tuple(replace(span, start_ns=span.start_ns * 1_000, end_ns=span.end_ns * 1_000) for span in SPANS)
    at = np.linspace(spans[1].start_ns, spans[1].end_ns - 1, 100).astype(np.int64)
    plan = replace(plan, spans=spans, offset_ns=at, phase=np.full(100, 1, np.uint8), target=None)
    condition = {"threshold": "p(90)<4ms", "abortOnFail": True, **options}
    config = scenario({"response": condition}, server={"url": "http://127.0.0.1:8000"})
    deciding = Deciding(config, plan, ("server-0",))
    counts = Lateness(deciding._limits, plan, 1).counts
    counts.n_late[0, 1, 0] = n_late
    ended = deciding.look([counts], at_ns)
    assert (ended and ended.count) == (Count(100, n_late, 0) if is_ended else None)


def test_phases_end_with_the_load() -> None:
    end_ns = PHASES[1].start_ns + 3
    assert clipped(PHASES, end_ns) == (PHASES[0], PHASES[1]._replace(end_ns=end_ns))
    assert clipped(PHASES, PHASES[2].start_ns) == tuple(PHASES[:2])
