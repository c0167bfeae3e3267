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
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.decisions.certainty import Count, certain_verdict, outcome
from squall.analysis.decisions.figures import BROKEN, KEPT, UNDECIDED
from squall.analysis.decisions.judged import hold
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.schema import OUTCOME_CODE
from squall.cluster.driver.deciding import MARGIN_NS, Deciding, clipped
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.promises import Promise, parse_promises
from tests.many_examples import examples
from tests.unit.analysis.decisions.test_judged import MAIN, NEXT, evenly, held, requests
from tests.unit.scenarios.test_promises import scenario

MS, S = 1_000_000, 1_000_000_000
START_NS = 77 * S
LENGTH_NS = 40 * MS
SPANS = (
    PhaseSpan("warm", "warmup", 0, 5 * MS),
    PhaseSpan("main", "measure", 5 * MS, 20 * MS),
    PhaseSpan("next", "measure", 20 * MS, LENGTH_NS),
)
CONDITIONS: tuple[tuple[str, str], ...] = (
    ("response", "p(90)<4ms"), ("response", "p(50)<=3ms"), ("response{phase:next}", "max<6ms"),
    ("response{server:server-1}", "p(75)<4ms"), ("service", "p(80)<3ms"), ("send_lag", "p(70)<1ms"),
    ("failures", "rate<20%"), ("failures{phase:main}", "count<3"), ("goodput{within:3ms}", "rate>=0.8"),
    ("failures", "count<1000"),
)  # fmt: skip


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
    n = len(records)
    codes = np.array(records["outcome"], np.int64)
    sent, done = np.array(records["sent_ns"]), np.array(records["done_ns"])
    cut = np.zeros(n, np.bool_) if is_cut is None else is_cut
    codes[cut] = OUTCOME_CODE["unsent"]
    sent[cut] = done[cut] = NEVER
    words = tuple(sorted(OUTCOME_CODE, key=lambda name: OUTCOME_CODE[name]))
    found = Requests(
        is_open=True, request_id=np.array(records["request_id"]), worker=np.zeros(n, np.int64),
        node=Labels(np.zeros(n, np.int64), ("node-0",)), scheduled_ns=np.array(records["scheduled_ns"]),
        phase=Labels(np.array(records["phase"], np.int64), tuple(span.name for span in SPANS)),
        sent_ns=np.where(sent < 0, 0, sent), is_sent=sent >= 0, done_ns=np.where(done < 0, 0, done), is_done=done >= 0,
        rows=np.ones(n, np.int64), outcome=Labels(codes, words), detail=Labels(cut.astype(np.int64), ("", "decided")),
        target=Labels(np.array(records["target"], np.int64), ("server-0", "server-1")),
        request_kind=Labels(np.zeros(len(records), np.int64), ("m",)),
    )  # fmt: skip
    return found._without_decided()


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
            if not (records["sent_ns"][cells] >= 0).any():
                continue  # none was sent: such a run is INVALID, and judged nothing
            known = _known(one, records, is_open, cells, look_ns)
            assert count == known, one.text
            if verdict is not None:
                assert _ends(one, known) == {verdict} == {figures.verdict}, (one.text, count)
            elif known.n_in_time:
                assert _ends(one, known) == {KEPT, BROKEN}, (one.text, count)
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
        record = records[row]
        sent, due, done = (int(record[name]) for name in ("sent_ns", "scheduled_ns", "done_ns"))
        if is_open[row]:
            can_be_overdue = one.late_limit.span == "response" and one.late_from_ns is not None
            n_late += can_be_overdue and look_ns - due >= (one.late_from_ns or 0)
            continue
        is_ok = record["outcome"] == OUTCOME_CODE["ok"]
        if one.metric == "send_lag":
            is_late = sent < 0 or sent - due >= (one.late_from_ns or 0)
        elif one.late_from_ns is None:
            is_late = not is_ok
        else:
            is_late = not is_ok or done - (sent if one.metric == "service" else due) >= one.late_from_ns
        n_late += is_late
        n_in_time += not is_late
    return Count(int(is_own.sum()), int(n_late), n_in_time)


def _ends(one: Promise, known: Count) -> set[str]:
    """The verdicts of an end with all that is not known in time, and of one with all of it late."""
    n_open = known.n - known.n_late - known.n_in_time
    return {KEPT if known.n_late + n <= one.n_allowed(known.n) else BROKEN for n in (0, n_open)}


def test_nothing_is_certain_of_nothing() -> None:
    one = promise("failures", "count<1000")
    assert certain_verdict(one, Count(0, 0, 0)) is None
    assert certain_verdict(one, Count(10, 0, 0)) is None, "none of its requests was in time yet"
    assert certain_verdict(one, Count(10, 0, 1)) == KEPT


def test_the_load_ends_where_one_that_aborts_is_broken_or_where_all_are_kept() -> None:
    both = [promise("response", "p(90)<4ms"), promise("failures", "count<3")]
    broken, kept, open_ = Count(100, 11, 0), Count(100, 0, 98), Count(100, 10, 89)
    found = outcome(both, [broken, kept], [True, False], False)
    assert found is not None
    assert (found.verdict, found.promise) == (BROKEN, both[0])
    assert outcome(both, [broken, kept], [False, True], False) is None
    found = outcome(both, [Count(100, 9, 91), kept], [True, True], True)
    assert found is not None
    assert (found.verdict, found.promise) == (KEPT, both[1]), "the one that was certain last"
    assert outcome(both, [open_, kept], [True, True], True) is None
    assert outcome(both, [None, kept], [True, True], True) is None, "one is known at its end alone"
    assert outcome(both, [None, Count(100, 4, 0)], [True, True], True) is not None


def plan_of(n: int, phase: int = 1) -> Plan:
    at = np.linspace(SPANS[phase].start_ns, SPANS[phase].end_ns - 1, n).astype(np.int64)
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=at, phase=np.full(n, phase, np.uint8), rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8), spans=SPANS,
    )  # fmt: skip


def deciding_of(condition: dict[str, Any], n: int = 100) -> tuple[Deciding, Plan]:
    spans = tuple(replace(span, start_ns=span.start_ns * 1_000, end_ns=span.end_ns * 1_000) for span in SPANS)
    plan = plan_of(n)
    plan = replace(plan, spans=spans, offset_ns=plan.offset_ns * 1_000)
    config = scenario({"response": condition}, server={"url": "http://127.0.0.1:8000"})
    return Deciding(config, plan, ("server-0",)), plan


def look(deciding: Deciding, n_late: int, at_ns: int) -> Any:
    counts = Lateness(deciding._limits, plan_of(0), 1).counts
    counts.n_late[0, 1, 0] = n_late
    return deciding.look([counts], at_ns)


def test_a_delay_keeps_the_load_going_that_long_into_the_phase() -> None:
    aborting = {"threshold": "p(90)<4ms", "abortOnFail": True}
    deciding, _ = deciding_of(aborting)
    assert look(deciding, 10, 6 * S) is None
    assert look(deciding, 11, 6 * S).count == Count(100, 11, 0)
    assert look(deciding, 11, 4 * S) is None, "before the first measured phase"
    assert look(deciding, 11, LENGTH_NS * 1_000 - MARGIN_NS) is None, "it is over anyway"
    late, _ = deciding_of({**aborting, "delayAbortEval": "2s"})
    assert look(late, 11, 6 * S) is None
    assert look(late, 11, 7 * S) is not None


def test_a_load_below_that_of_the_promise_decides_nothing() -> None:
    # 100 arrivals in 35 s of measured phases are 2.9/s
    aborting = {"threshold": "p(90)<4ms", "abortOnFail": True}
    assert look(deciding_of({**aborting, "at": "2/s"})[0], 11, 6 * S) is not None
    assert look(deciding_of({**aborting, "at": "4/s"})[0], 11, 6 * S) is None


def test_phases_end_with_the_load() -> None:
    assert clipped(PHASES, PHASES[1].start_ns + 3) == (
        PHASES[0],
        PHASES[1]._replace(end_ns=PHASES[1].start_ns + 3),
    )
    assert clipped(PHASES, PHASES[2].start_ns) == tuple(PHASES[:2])


def cut(found: Requests, from_place: int) -> Requests:
    """What was not sent from there on, for the promises were decided."""
    n = len(found)
    is_cut = np.arange(n) >= from_place
    codes = np.where(is_cut, 2, found.outcome.codes)
    return requests(
        found.scheduled_ns, found.response_ns, codes, detail=Labels(is_cut.astype(np.int64), ("", "decided"))
    )._without_decided()


def test_a_stopped_run_is_judged_over_all_that_was_planned() -> None:
    slow = dict.fromkeys(range(20, 31), 60 * MS)
    found = held("response", "p(95)<50ms", cut(evenly(200, slow), 60))
    assert (found.verdict, found.n, found.n_late, found.n_unsent, found.n_allowed) == (
        BROKEN,
        200,
        11,
        140,
        10,
    )
    assert (found.value, found.is_infinite, found.interval) == (60 * MS, False, None)
    assert found.certain is not None
    assert found.certain.request_id == 30
    found = held("response", "p(50)<50ms", cut(evenly(200), 120))
    assert (found.verdict, found.n_unsent, found.value) == (KEPT, 80, 10 * MS)
    assert found.certain is not None
    assert found.certain.request_id == 99, "the hundredth in time leaves no more than may be late"
    found = held("response", "p(95)<50ms", cut(evenly(200), 120))
    assert (found.verdict, found.value) == (UNDECIDED, None)
    assert found.reason == "the load ended before, another promise being broken"


def test_a_phase_that_never_came_is_of_the_schedule() -> None:
    at_ns = np.concatenate(
        [MAIN.start_ns + np.arange(50) * 100 * MS, NEXT.start_ns + np.arange(50) * 100 * MS]
    )
    found = cut(requests(at_ns, np.full(100, 10 * MS)), 30)
    assert found.phase.counts() == {"main": 30, "": 70}
    figures = held("failures{phase:next}", "rate<0.1", found)
    assert (figures.n, figures.n_unsent, figures.verdict) == (50, 50, UNDECIDED)


@pytest.mark.parametrize(("metric", "text"), [("failures", "at least"), ("goodput{within:50ms}", "at most")])
def test_what_is_promised_is_a_bound_where_the_rest_was_not_sent(metric: str, text: str) -> None:
    from squall.analysis.render.templates import sentences

    condition = "rate<0.05" if metric == "failures" else "rate>0.95"
    found = held(metric, condition, cut(evenly(200, outcome=dict.fromkeys(range(12), 1)), 60))
    assert found.verdict == BROKEN
    assert sentences("promised", found)[0].startswith(text)
