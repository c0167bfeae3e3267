"""Promises held to planted requests: verdicts, budgets, when it was certain and where it was worst."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.arrays import Int64s
from squall.analysis.compare.figures import BROKEN, KEPT, UNDECIDED, Certainty, PlaceInRun, PromiseFigures
from squall.analysis.compare.judged import hold
from squall.analysis.report.templates import sentences
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.requests.streams import ResponseTimes
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.promises import Promise, parse_promises
from tests.known import known

S, MS = 1_000_000_000, 1_000_000
MAIN, NEXT = RunPhase("main", "measure", 100 * S, 110 * S), RunPhase("next", "measure", 110 * S, 120 * S)


def requests(at_ns: Int64s, response_ns: Int64s, outcome: Int64s | None = None, **changes: Any) -> Requests:
    """Sent at their time; `outcome` 0: ok, 1: rejected, 2: unsent, 3: timeout without an end."""
    n = len(at_ns)
    outcome = np.zeros(n, np.int64) if outcome is None else outcome
    none = Labels(np.zeros(n, np.int64), ("",))
    columns: dict[str, Any] = {
        "is_open": True, "request_id": np.arange(n), "worker": np.zeros(n, np.int64), "node": none,
        "phase": Labels((at_ns >= NEXT.start_ns).astype(np.int64), ("main", "next")), "scheduled_ns": at_ns,
        "sent_ns": np.where(outcome == 2, 0, at_ns), "is_sent": outcome != 2,
        "done_ns": np.where(outcome < 2, at_ns + response_ns, 0), "is_done": outcome < 2, "rows": np.ones(n, np.int64),
        "outcome": Labels(outcome, ("ok", "rejected", "unsent", "timeout")),
        "detail": Labels((outcome == 1).astype(np.int64), ("", "503 full")),
        "target": Labels(np.arange(n) % 2, ("server-0", "server-1")), "request_kind": none,
    }  # fmt: skip
    return Requests(**{**columns, **changes})


def evenly(
    n: int, slow: dict[int, int] | None = None, outcome: dict[int, int] | None = None, over_ns: int = 10 * S
) -> Requests:
    """`n` requests from the start of `MAIN` on that take 10 ms, or ns by place in `slow`."""
    at_ns = MAIN.start_ns + np.arange(n) * (over_ns // max(1, n))
    response_ns, outcomes = np.full(n, 10 * MS), np.zeros(n, np.int64)
    for place, value in (slow or {}).items():
        response_ns[place] = value
    for place, value in (outcome or {}).items():
        outcomes[place] = value
    return requests(at_ns, response_ns, outcomes)


def held(key: str, condition: object, found: Requests, **more: Any) -> PromiseFigures:
    (promise,) = parse_promises({key: condition}) or ()
    return hold(promise, found, [MAIN, NEXT], **more).figures


def cut(found: Requests, from_place: int) -> Requests:
    """What was not sent from there on, for the promises were decided."""
    is_cut = np.arange(len(found)) >= from_place
    codes = np.where(is_cut, 2, found.outcome.codes)
    detail = Labels(is_cut.astype(np.int64), ("", "decided"))
    return requests(found.scheduled_ns, found.response_ns, codes, detail=detail)._without_decided()


CONDITIONS: tuple[tuple[str, str], ...] = (
    ("response", "p(90)<4ms"), ("response", "p(50)<=3ms"), ("response{phase:next}", "max<6ms"),
    ("response{server:server-1}", "p(75)<4ms"), ("service", "p(80)<3ms"), ("send_lag", "p(70)<1ms"),
    ("failures", "rate<20%"), ("failures{phase:main}", "count<3"), ("goodput{within:3ms}", "rate>=0.8"),
    ("failures", "count<1000"),
)  # fmt: skip
"""That are counted while the load runs."""
OTHERS = (
    ("first_response", "p(60)<2ms"), ("gap", "p(60)<=2ms"), ("mean_gap", "max<3ms"), ("response{model:m}", "p(50)<4ms"),
    ("failures{model:o}", "rate<40%"),
)  # fmt: skip


class Ended(NamedTuple):
    """A request in plain numbers: -1 where it has no such instant. `first_ns`: 0 without a response."""

    due_ns: int
    sent_ns: int
    done_ns: int
    is_ok: bool
    first_ns: int = 0
    gap_ns: int = 0
    mean_gap_ns: int = 0

    def time_ns(self, one: Promise) -> float:
        """What the promise bounds, infinite where there is none."""
        if one.metric == "send_lag":
            return self.sent_ns - self.due_ns if self.sent_ns >= 0 else math.inf
        if one.metric == "first_response":
            return self.first_ns - self.due_ns if self.first_ns else math.inf
        if not self.is_ok:
            return math.inf
        if one.metric in ("gap", "mean_gap"):
            return self.gap_ns if one.metric == "gap" else self.mean_gap_ns
        return self.done_ns - (self.sent_ns if one.metric == "service" else self.due_ns)

    def is_late(self, one: Promise) -> bool:
        """Without a limit of time it is what failed."""
        return self.time_ns(one) >= (math.inf if one.late_from_ns is None else one.late_from_ns)

    def known_ns(self, one: Promise) -> int:
        """When a late one is known to be late."""
        begun_ns = self.sent_ns if self.sent_ns >= 0 else self.due_ns
        has_failed = self.done_ns >= 0 and not self.is_ok
        if one.metric in ("gap", "mean_gap") or one.late_from_ns is None:
            is_ended = self.done_ns >= 0 and (has_failed or one.metric in ("gap", "mean_gap"))
            return self.done_ns if is_ended else begun_ns
        overdue_ns = one.late_from_ns + (begun_ns if one.metric == "service" else self.due_ns)
        return min(overdue_ns, self.done_ns) if has_failed and one.metric != "send_lag" else overdue_ns


ROWS = st.tuples(
    st.integers(0, 19_999), st.integers(0, 2), st.integers(0, 6), st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
    st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 1, 2]),
)  # fmt: skip
"""Due, ms from the start; lag and time of service, ms; how it ended; ms to the first response, and between two; which
of `MODELS` it asks."""
MODELS = ("m", "o", "")


@given(rows=st.lists(ROWS, min_size=1, max_size=40), condition=st.sampled_from([*CONDITIONS, *OTHERS]))
def test_figures_are_those_of_a_loop_over_the_requests(
    rows: list[tuple[int, ...]], condition: tuple[str, str]
) -> None:
    (one,) = parse_promises(dict([condition])) or ()
    at, lag, took, outcome, first, gap, model = np.array(sorted(rows), np.int64).T
    due_ns = MAIN.start_ns + at * MS
    sent_ns = np.where(outcome == 2, 0, due_ns + lag * MS)
    first_ns = np.where(first == 3, 0, due_ns + first * MS)
    found = requests(due_ns, (lag + took) * MS, outcome, sent_ns=sent_ns, request_kind=Labels(model, MODELS))
    answers = (first_ns, gap * MS, gap * MS // 2)
    figures = held(*condition, found, responses=ResponseTimes(*answers))
    ended = {
        row: Ended(
            int(due_ns[row]), int(sent_ns[row]) or -1, int(found.done_ns[row]) or -1, bool(outcome[row] == 0),
            *(int(column[row]) for column in answers),
        )
        for row in range(len(rows))
        if one.scope.phase in (None, "next" if due_ns[row] >= NEXT.start_ns else "main")
        and one.scope.server in (None, f"server-{row % 2}")
        and (one.scope.model is None or MODELS[model[row]] in (one.scope.model, ""))
    }  # fmt: skip
    unknown = [row for row in ended if one.scope.model and not MODELS[model[row]]]
    n, late = len(ended), [row for row, each in ended.items() if each.is_late(one) and row not in unknown]
    assert (figures.n, figures.n_late, figures.n_unknown) == (n, len(late), len(unknown))
    assert figures.n_failed == sum(not ended[row].is_ok for row in late)
    if all(each.sent_ns < 0 for each in ended.values()):
        assert figures.verdict == UNDECIDED
        return
    n_allowed = one.n_allowed(n)
    not_broken = KEPT if len(late) + len(unknown) <= n_allowed else UNDECIDED
    assert (figures.verdict, figures.n_allowed) == (
        BROKEN if len(late) > n_allowed else not_broken,
        n_allowed,
    )
    if figures.verdict == UNDECIDED:
        assert figures.reason == f"of {len(unknown)} requests it is not known which model they ask"
    asked, ask_late = (Counter(MODELS[model[row]] for row in rows) for rows in (ended, late))
    by_model = {name: (asked[name], ask_late[name]) for name in asked if name and len(asked) > 1}
    found_by_model = {name: (each.n, each.n_late) for name, each in figures.late_by_model.items()}
    assert found_by_model == (by_model if figures.verdict == BROKEN else {})
    assert [*found_by_model] == sorted(found_by_model, key=lambda name: (-ask_late[name], name))
    share = len(late) / n
    value = {"count": len(late), "rate": 1 - share if one.metric == "goodput" else share}.get(one.statistic)
    if value is None:
        rank = n if one.q is None else math.ceil(float(one.q) * n - 1e-9)
        value = sorted(each.time_ns(one) for each in ended.values())[rank - 1]
    assert (figures.value, figures.is_infinite) == ((None, True) if value == math.inf else (value, False))
    certain = None
    if figures.verdict == BROKEN:
        known_ns, row = sorted((ended[row].known_ns(one), row) for row in late)[n_allowed]
        span = NEXT if ended[row].due_ns >= NEXT.start_ns else MAIN
        certain = Certainty(span.name, known_ns - span.start_ns, row)
    assert figures.certain == certain
    seconds = [(each.due_ns - MAIN.start_ns) // S for each in ended.values()]
    of_late = Counter((ended[row].due_ns - MAIN.start_ns) // S for row in late)
    if late:
        most = min(second for second, count in of_late.items() if count == max(of_late.values()))
        place = PlaceInRun(
            "next" if most >= 10 else "main", most % 10 * S, S, seconds.count(most), of_late[most]
        )
        assert figures.worst == place


CASES = yaml.safe_load((Path(__file__).parent / "promises.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
def test_a_promise_is_held_to_planted_requests(case: dict[str, Any]) -> None:
    (key, condition), *_ = case["promise"].items()
    slow, failed = (
        {row: value for first, last, value in case.get(name, ()) for row in range(first, last + 1)}
        for name in ("slow", "failed")
    )
    found = evenly(case.get("n", 200), slow, failed, case.get("over_ns", 10 * S))
    figures = held(key, condition, cut(found, case["cut"]) if "cut" in case else found)
    made: dict[str, Callable[..., Any]] = {"certain": Certainty, "worst": PlaceInRun}
    for name, value in case["expect"].items():
        assert getattr(figures, name) == (made[name](*value) if isinstance(value, list) else value), name


@pytest.mark.parametrize(("metric", "text"), [("failures", "at least"), ("goodput{within:50ms}", "at most")])
def test_what_is_promised_is_a_bound_where_the_rest_was_not_sent(metric: str, text: str) -> None:
    condition = "rate<0.05" if metric == "failures" else "rate>0.95"
    found = held(metric, condition, cut(evenly(200, outcome=dict.fromkeys(range(12), 1)), 60))
    assert found.verdict == BROKEN
    assert sentences("promised", found)[0].startswith(text)


def test_bursts_are_judged_together_apart_and_each() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(MAIN.start_ns, MAIN.end_ns, 3_000)]
    parts += [rng.integers(MAIN.start_ns + at * S, MAIN.start_ns + (at + 1) * S, 2_000) for at in (2, 7)]
    at_ns = np.sort(np.concatenate(parts))
    second = (at_ns - MAIN.start_ns) // S
    found = requests(at_ns, np.where(second == 7, 80 * MS, 10 * MS))  # the second burst is slow
    out, inside, each = (
        held(f"response{{burst:{which}}}", "p(95)<50ms", found) for which in ("out", "in", "each")
    )
    assert [one.verdict for one in (out, inside, each)] == [KEPT, BROKEN, BROKEN]
    assert inside.n == len(at_ns) - out.n == int(np.isin(second, (2, 7)).sum())
    assert (each.n_parts, each.n_parts_broken, known(each.worst).offset_ns) == (2, 1, 7 * S)


def test_a_gpu_is_judged_for_all_that_may_have_run_on_it() -> None:
    gpus = Labels(np.arange(200) % 2, ("GPU-a1", "GPU-b2", ""))
    unknown = replace(gpus, codes=np.where(np.arange(200) < 20, 2, gpus.codes))
    found = evenly(200, dict.fromkeys(range(1, 200, 2), 60 * MS))  # all of GPU-b2
    for gpu, of, verdict in (
        ("GPU-a", gpus, KEPT), ("GPU-b2", gpus, BROKEN), ("GPU-a", unknown, UNDECIDED), ("GPU-b", unknown, BROKEN)
    ):  # fmt: skip
        told = held(f"response{{gpu:{gpu}}}", "p(95)<50ms", found, gpus=of)
        assert (told.verdict, told.n_unknown) == (verdict, 20 * (of is unknown))
        assert told.reason == (
            "of 20 requests it is not known which GPU they ran on" * (verdict == UNDECIDED)
        )


def test_a_closed_loop_is_judged_by_service_times() -> None:
    base = evenly(100, {0: 60 * MS, 1: 60 * MS})
    closed = replace(base, is_open=False, scheduled_ns=np.zeros(100, np.int64))
    assert held("service", "p(99)<50ms", closed).certain == Certainty("main", 100 * MS + 50 * MS, 1)
    assert held("goodput{within:50ms}", "rate>=0.98", closed).verdict == KEPT
