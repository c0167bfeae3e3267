"""Promises held to the requests of one run: counts against what the plan's number of requests allows. No estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import numpy as np

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.compare.figures import (
    BROKEN,
    KEPT,
    UNDECIDED,
    Certainty,
    LateOfModel,
    PlaceInRun,
    PromiseFigures,
)
from squall.analysis.limits import LIMITS
from squall.analysis.requests.burst_spans import find_bursts
from squall.analysis.requests.failures import failure_words, failures_of
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.requests.streams import ResponseTimes
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.wording import count_text, rate_text
from squall.scenarios.promises import OF_RESPONSES, Promise
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

WINDOW_NS = NS_PER_S
"""Of the worst window of a promise that is not of windows."""


class Held(Frozen, eq=False):
    """A promise's figures with the requests they are of: those of its scope, and which are late, (n,) each."""

    figures: PromiseFigures
    request_id: Int64s
    is_late: Bools

    def without_requests(self) -> Held:
        """The figures alone."""
        return Held(self.figures, self.request_id[:0], self.is_late[:0])


class _Rows(Frozen, eq=False):
    """The requests of a scope in order of `begin_ns`, (n,) each. `time_ns`: what is bounded, infinite of failures;
    `known_ns`: when a late one is known to be late."""

    requests: Requests
    begin_ns: Int64s
    time_ns: Floats
    is_late: Bools
    is_unknown: Bools
    known_ns: Int64s

    def take(self, rows: Int64s | Bools | slice) -> _Rows:
        return _Rows(self.requests.take(rows), *(getattr(self, one.name)[rows] for one in fields(self)[1:]))


class _Part(Frozen, eq=False):
    """What must keep the promise by itself, and where it lies: everything, a burst, a window."""

    rows: _Rows
    place: PlaceInRun | None
    n: int
    n_late: int
    n_unknown: int
    n_allowed: int
    n_unsent: int = 0

    @property
    def verdict(self) -> str:
        if self.n_late > self.n_allowed:
            return BROKEN
        return KEPT if self.n_late + self.n_unknown <= self.n_allowed else UNDECIDED

    @property
    def rank(self) -> tuple[bool, float]:
        """The larger, the nearer to broken, or the further beyond."""
        return self.verdict == BROKEN, (self.n_late + 1) / (self.n_allowed + 1)


def hold(
    promise: Promise,
    requests: Requests,
    spans: Sequence[RunPhase],
    gpus: Labels | None = None,
    responses: ResponseTimes | None = None,
) -> Held:
    """The promise held to the `requests` of a run; `spans` are its measured phases. `gpus`: UUID of each request, empty
    where none is known; needed where the promise names a GPU. `responses`: of each request; needed where the promise is
    about these."""
    own = [span for span in spans if promise.scope.phase in (None, span.name)]
    rows = _scope_rows(promise, requests, own, gpus, responses)
    parts = [] if not len(rows.requests) else list(_parts(promise, rows, own))
    worst = max(parts, key=lambda part: part.rank, default=_Part(rows, None, 0, 0, 0, 0))
    verdict, reason = _verdict(promise, rows, parts, own)
    value, is_infinite = _value(promise, worst) if parts else (None, False)
    late = rows.requests.take(rows.is_late)
    figures = PromiseFigures(
        promise=promise.text,
        metric=promise.metric,
        scope=promise.scope.text,
        phase=promise.scope.phase or "",
        condition=promise.condition,
        verdict=verdict,
        reason=reason,
        is_of_each_run=promise.is_of_each_run,
        allowed_ratio=promise.allowed_ratio,
        n=worst.n,
        n_late=worst.n_late,
        n_unknown=worst.n_unknown - worst.n_unsent,
        n_unsent=worst.n_unsent,
        n_failed=int((~worst.rows.requests.is_ok & worst.rows.is_late).sum()),
        n_allowed=worst.n_allowed if parts else None,
        late_ratio=worst.n_late / worst.n if parts else None,
        used_ratio=worst.n_late / worst.n_allowed if worst.n_allowed > 0 else None,
        value=value,
        unit="ns" if promise.is_of_times else "count" if promise.statistic == "count" else "ratio",
        is_infinite=is_infinite,
        interval=_interval(promise, rows)
        if parts and not promise.scope.is_each and not worst.n_unsent
        else None,
        n_parts=len(parts),
        n_parts_broken=sum(part.verdict == BROKEN for part in parts),
        certain=_certain_of(parts, verdict, own),
        worst=worst.place if promise.scope.is_each and parts else _worst_window(rows, own),
        failure=_failure(late),
        late=None,
        late_by_model=_late_by_model(rows) if verdict == BROKEN else {},
    )
    return Held(figures, rows.requests.request_id, rows.is_late)


def _scope_rows(
    promise: Promise,
    requests: Requests,
    own: Sequence[RunPhase],
    gpus: Labels | None,
    responses: ResponseTimes | None,
) -> _Rows:
    scope = promise.scope
    is_own = requests.planned_phase.is_any_of([span.name for span in own])
    if scope.server is not None:
        is_own &= requests.target.is_any_of([scope.server])
    is_unknown = requests.is_decided
    if scope.model is not None:
        is_nobodys = requests.request_kind.is_any_of([""])
        is_own &= requests.request_kind.is_any_of([scope.model]) | is_nobodys
        is_unknown = is_unknown | is_nobodys
    if scope.gpu is not None:
        assert gpus is not None
        wanted = scope.gpu
        is_unknown = is_unknown | gpus.is_any_of([""])
        is_own &= gpus.is_any_of([word for word in gpus.words if word.startswith(wanted)]) | is_unknown
    kept = np.flatnonzero(is_own)
    taken = requests.take(kept)
    last_ns = max((span.end_ns for span in own), default=0)
    begin_ns = np.where(taken.has_begun, taken.begin_ns, last_ns)
    time_ns, is_late = _times(promise, taken, None if responses is None else responses.take(kept))
    known_ns = _known_ns(promise, taken, begin_ns)
    rows = _Rows(taken, begin_ns, time_ns, is_late & ~is_unknown[kept], is_unknown[kept], known_ns)
    in_time = rows.take(np.argsort(begin_ns, kind="stable"))
    if scope.burst not in ("in", "out"):
        return in_time
    is_inside = np.zeros(len(kept), dtype=np.bool_)
    for _, inside in _stretches(in_time, own, None):
        is_inside[inside] = True
    return in_time.take(is_inside == (scope.burst == "in"))


def _known_ns(promise: Promise, taken: Requests, begin_ns: Int64s) -> Int64s:
    """When a late request is known to be late: overdue, or at its failure if that comes before."""
    sent_ns = np.where(taken.is_sent, taken.sent_ns, begin_ns)
    is_told = taken.is_done & ~taken.is_ok
    if promise.late_from_ns is None:
        return np.where(is_told, taken.done_ns, sent_ns)
    if promise.metric in ("gap", "mean_gap"):  # known at the end of the request
        return np.where(taken.is_done, taken.done_ns, sent_ns)
    overdue_ns = (sent_ns if promise.metric == "service" else begin_ns) + promise.late_from_ns
    if promise.metric == "send_lag":
        return overdue_ns
    return np.where(is_told, np.minimum(overdue_ns, taken.done_ns), overdue_ns)


def _times(promise: Promise, taken: Requests, responses: ResponseTimes | None) -> tuple[Floats, Bools]:
    """What the promise bounds, ns, infinite where there is none; and which are late."""
    if promise.metric in OF_RESPONSES:
        assert responses is not None
        if promise.metric == "first_response":
            has_any = responses.first_ns > 0
            of_each = np.where(has_any, (responses.first_ns - taken.begin_ns).astype(np.float64), np.inf)
        else:
            gaps_ns = responses.gap_ns if promise.metric == "gap" else responses.mean_gap_ns
            of_each = np.where(taken.is_ok, gaps_ns.astype(np.float64), np.inf)
        return of_each, of_each >= (promise.late_from_ns or 0)
    if promise.metric == "send_lag":
        time_ns = np.where(taken.is_sent, taken.lag_ns.astype(np.float64), np.inf)
    else:
        taken_ns = taken.service_ns if promise.metric == "service" else taken.latency_ns
        time_ns = np.where(taken.is_ok, taken_ns.astype(np.float64), np.inf)
    if promise.late_from_ns is None:
        return time_ns, ~taken.is_ok
    return time_ns, time_ns >= promise.late_from_ns


def _parts(promise: Promise, rows: _Rows, own: Sequence[RunPhase]) -> Iterator[_Part]:
    """What is to keep it by itself and has requests: each burst, each window, or all together."""
    if not promise.scope.is_each:
        yield _part(promise, rows, None)
        return
    for place, inside in _stretches(rows, own, promise.scope.window_ns):
        if len(inside):
            yield _part(promise, rows.take(inside), place)


def _part(promise: Promise, rows: _Rows, place: PlaceInRun | None) -> _Part:
    n = len(rows.requests)
    n_unsent = int(rows.requests.is_decided.sum())
    n_late, n_unknown = int(rows.is_late.sum()), int(rows.is_unknown.sum())
    return _Part(rows, place, n, n_late, n_unknown, promise.n_allowed(n), n_unsent)


def _stretches(
    rows: _Rows, own: Sequence[RunPhase], window_ns: int | None
) -> Iterator[tuple[PlaceInRun, Int64s]]:
    """Windows of that length of each phase, or its bursts, with the places of the requests that begin in them."""
    for span in own:
        in_phase = np.flatnonzero(rows.requests.planned_phase.is_any_of([span.name]))
        at_ns = rows.begin_ns[in_phase]
        begins: Iterable[int] = ()
        ends: Iterable[int] = ()
        if window_ns is not None:
            begins = range(span.start_ns, span.end_ns, window_ns)
            ends = [min(begin_ns + window_ns, span.end_ns) for begin_ns in begins]
        else:
            found = find_bursts(at_ns, span, LIMITS)
            if found is not None and found.is_burst:
                begins, ends = found.begins_ns.tolist(), found.ends_ns.tolist()
        for begin_ns, end_ns in zip(begins, ends, strict=True):  # [begin, end)
            first, end = np.searchsorted(at_ns, (begin_ns, end_ns)).tolist()
            inside = in_phase[first:end]
            n_late = int(rows.is_late[inside].sum())
            yield (
                PlaceInRun(span.name, begin_ns - span.start_ns, end_ns - begin_ns, len(inside), n_late),
                inside,
            )


def _verdict(
    promise: Promise, rows: _Rows, parts: Sequence[_Part], own: Sequence[RunPhase]
) -> tuple[str, str]:
    """Kept, broken or undecided, and why undecided."""
    if not parts:
        what = "burst" if promise.scope.burst in ("in", "each") else "request"
        return UNDECIDED, f"the run has no {what} that it is about"
    is_stopped = any(part.n_unsent and part.verdict == BROKEN for part in parts)
    if not rows.requests.is_sent.any() and not is_stopped:
        return UNDECIDED, "none of its requests was sent"
    if promise.at_hz is not None:
        n = len(rows.requests)
        rate_hz = n * NS_PER_S / sum(span.end_ns - span.start_ns for span in own)
        if rate_hz < promise.at_hz * (1 - LIMITS.overall_ratio):
            told, asked = rate_text(rate_hz), rate_text(promise.at_hz)
            return UNDECIDED, f"the load was {told}, and it is promised at {asked}"
    verdicts = {part.verdict for part in parts}
    if BROKEN in verdicts:
        return BROKEN, ""
    if UNDECIDED in verdicts:
        if any(part.n_unsent for part in parts):
            return UNDECIDED, "the load ended before, another promise being broken"
        n_unknown = sum(part.n_unknown for part in parts)
        what = "which GPU they ran on" if promise.scope.gpu is not None else "which model they ask"
        return UNDECIDED, f"of {count_text(n_unknown)} requests it is not known {what}"
    return KEPT, ""


def _value(promise: Promise, part: _Part) -> tuple[float | None, bool]:
    """The figure that is promised; whether it is infinite. With requests that were not sent since it was decided: the
    least that it can be where it is broken, the most where it is kept, none else."""
    if part.n_unsent and part.verdict == UNDECIDED:
        return None, False
    n_late = part.n_late + (part.n_unsent if part.verdict == KEPT else 0)
    if promise.statistic == "count":
        return float(n_late), False
    if promise.statistic == "rate":
        share = n_late / part.n
        return (1.0 - share if promise.metric == "goodput" else share), False
    rank = part.n if promise.q is None else part.n - promise.n_allowed(part.n)
    time_ns = part.rows.time_ns
    if part.n_unsent and part.verdict == BROKEN:
        time_ns = np.where(part.rows.requests.is_decided, 0.0, time_ns)
    value = float(np.partition(time_ns, rank - 1)[rank - 1])
    return (None, True) if np.isinf(value) else (value, False)


def _interval(promise: Promise, rows: _Rows) -> Quantile | None:
    """Of the quantile over all of the scope, in order of time; None where none is promised."""
    if promise.q is None:
        return None
    is_infinite = np.isinf(rows.time_ns)
    values_ns = np.where(is_infinite, 0, rows.time_ns).astype(np.int64)
    return quantiles(values_ns, [float(promise.q)], is_infinite)[0]


def _certain_of(parts: Sequence[_Part], verdict: str, own: Sequence[RunPhase]) -> Certainty | None:
    """The first part to be broken for certain, at the late request that is one more than all of the part may be. Of a
    run that ended when it was kept the last part to be so, at the request in time that leaves no more than may be
    late."""
    found = list[tuple[int, Certainty]]()
    is_kept = verdict == KEPT and any(part.n_unsent for part in parts)
    for part in parts:
        rows = part.rows
        if verdict == BROKEN and part.verdict == BROKEN:
            late = np.flatnonzero(rows.is_late)
            found.append(_certainty(rows, late, rows.known_ns, part.n_allowed, own))
        in_time = np.flatnonzero(~rows.is_late & ~rows.is_unknown)
        if is_kept and len(in_time):
            place = max(0, part.n - part.n_allowed - 1)
            found.append(_certainty(rows, in_time, rows.requests.done_ns, place, own))
    found.sort(key=lambda pair: pair[0], reverse=is_kept)
    return found[0][1] if found else None


def _certainty(
    rows: _Rows, of: Int64s, known_ns: Int64s, place: int, own: Sequence[RunPhase]
) -> tuple[int, Certainty]:
    """The request that is the `place`-th, from 0, of those `of` to be known, and the instant when it is."""
    row = int(of[np.argsort(known_ns[of], kind="stable")[place]])
    phase = rows.requests.planned_phase
    span = next(span for span in own if span.name == phase.words[int(phase.codes[row])])
    at_ns = int(known_ns[row])
    return at_ns, Certainty(span.name, at_ns - span.start_ns, int(rows.requests.request_id[row]))


def _worst_window(rows: _Rows, own: Sequence[RunPhase]) -> PlaceInRun | None:
    """The second of the schedule in which most requests of the scope were late, the first of several."""
    best = None
    for span in own:
        in_phase = rows.requests.planned_phase.is_any_of([span.name])
        windows = (rows.begin_ns[in_phase] - span.start_ns) // WINDOW_NS
        is_within = (windows >= 0) & (windows * WINDOW_NS < span.end_ns - span.start_ns)
        late = np.bincount(windows[is_within & rows.is_late[in_phase]])
        if not late.size or (best is not None and late.max() <= best.n_late):
            continue
        window = int(late.argmax())
        offset_ns = window * WINDOW_NS
        length_ns = min(WINDOW_NS, span.end_ns - span.start_ns - offset_ns)
        n = int((windows == window).sum())
        best = PlaceInRun(span.name, offset_ns, length_ns, n, int(late[window]))
    return best


def _late_by_model(rows: _Rows) -> dict[str, LateOfModel]:
    """Of a scope of several models what of each was late, the most late first; nothing of one."""
    n = rows.requests.request_kind.counts()
    late = rows.requests.take(rows.is_late).request_kind.counts()
    if len(n) < 2:
        return {}
    found = {name: LateOfModel(n[name], late.get(name, 0)) for name in n if name}
    return dict(sorted(found.items(), key=lambda item: (-item[1].n_late, item[0])))


def _failure(late: Requests) -> str:
    """The commonest way in which late requests failed, in the server's words; empty of none."""
    failures = failures_of(late)
    return "".join(f"{count_text(one.n)} x {failure_words(one)}" for one in failures.groups[:1])
