"""What became of promises, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.decisions.figures import BROKEN, INVALID, KEPT, PromiseFigures, worst_verdict
from squall.analysis.tables.manifest import DecidedFacts
from squall.analysis.wording import count_text, duration_text, figure_text, share_text

SIGNS = {KEPT: "promises kept", BROKEN: "PROMISE BROKEN", INVALID: "promises not judged"}


def promise_lines(promises: Sequence[PromiseFigures]) -> list[str]:
    """A line for each promise, and behind a broken one where, when and why."""
    return [line for one in promises for line in (promise_text(one), *breach_lines(one))]


def promise_text(one: PromiseFigures) -> str:
    """`kept: response p(95)<50ms: 13.6 ms; late 12 of 1,000 requests, 24 % of the 50 that it allows`."""
    if one.reason:
        return f"{one.verdict}: {one.promise}: {one.reason}"
    return f"{one.verdict}: {one.promise}: {value_text(one)}; {budget_text(one)}"


def value_text(one: PromiseFigures) -> str:
    """The figure that is promised; `failed` where it is infinite."""
    if one.is_infinite:
        return "infinite, for it falls on failures"
    text = figure_text(one.value, one.unit)
    if one.n_unsent and one.value is not None:
        is_least = (one.verdict == BROKEN) != (one.metric == "goodput")
        return f"at {'least' if is_least else 'most'} {text}"
    interval = one.interval
    if interval is None or interval.interval_reason or interval.is_refused:
        return text
    low, high = (duration_text(ns) if ns is not None else "?" for ns in (interval.low_ns, interval.high_ns))
    return f"{text} ({low} … {high} in this one run)"


def budget_text(one: PromiseFigures) -> str:
    """Late requests, and how much of what is allowed they are."""
    used = f", {share_text(one.used_ratio)} of the {count_text(one.n_allowed)} that it allows"
    allowed = used if one.used_ratio is not None else ", and it allows none"
    where = ""
    if one.worst is not None and _is_of_parts(one):
        kind = "burst" if "burst:" in one.scope else "window"
        broke = f"{count_text(one.n_parts_broken)} of {count_text(one.n_parts)} {kind}s broke it"
        where = f" in the {kind} at {duration_text(one.worst.offset_ns)} of {one.worst.phase}; {broke}"
    return f"late {count_text(one.n_late)} of {count_text(one.n)}{allowed}{where}"


def _is_of_parts(one: PromiseFigures) -> bool:
    """Whether each burst or window must keep it."""
    return "burst:each" in one.scope or "window:" in one.scope


def breach_lines(one: PromiseFigures) -> list[str]:
    """When it was certain, where it was worst, and what the late requests have in common; of a promise that is not
    broken the first alone."""
    told = []
    if one.certain is not None:
        after = duration_text(one.certain.offset_ns)
        told.append(f"certain {after} into {one.certain.phase}, at request {one.certain.request_id}")
    if one.verdict != BROKEN:
        return told
    if one.worst is not None and not _is_of_parts(one):
        told.append(
            f"worst second at {duration_text(one.worst.offset_ns)} of {one.worst.phase}: {count_text(one.worst.n_late)}"
            f" of {count_text(one.worst.n)} late"
        )
    told += _late_models(one)
    why = [cold_part(one)] if one.cold is not None else []
    if one.late is not None:
        why.append(
            f"the late: {one.late.grew_most} grows most, {share_text(one.late.share_ratio)} of the gap to those in time"
        )
    if one.n_failed:
        why.append(f"{count_text(one.n_failed)} failed: {one.failure}")
    return [line for line in ("; ".join(told), "; ".join(why)) if line]


def cold_part(one: PromiseFigures) -> str:
    """`cold: the first 900 ms of burst hold 64 % of the late; kept without them, 7.10 ms`."""
    cold = one.cold
    assert cold is not None
    value = "infinite" if cold.is_infinite else figure_text(cold.value, one.unit)
    share = share_text(cold.n_cold_late / one.n_late if one.n_late else None)
    return f"{cold.kind}: {cold.what} hold {share} of the late; {cold.verdict} without them, {value}"


def _late_models(one: PromiseFigures) -> list[str]:
    """Which of several models most of the late requests ask."""
    for name, most in one.late_by_model.items():
        n_late = sum(of_model.n_late for of_model in one.late_by_model.values())
        return [
            f"most late ask {name}: {count_text(most.n_late)} of {count_text(n_late)}, of {count_text(most.n)} that do"
        ]
    return []


def decided_line(one: DecidedFacts | None) -> str:
    """Why the load ended before its time; empty where it did not."""
    if one is None:
        return ""
    first_ns = min((phase.start_ns for phase in one.phases), default=one.at_ns)
    what = f"{one.promise} was broken" if one.verdict == BROKEN else "all promises were kept"
    certain = ""
    if one.certain_ns is not None:
        at = duration_text(one.certain_ns - first_ns)
        certain = f" with request {one.request_id}, {at} after the start"
        if one.verdict == KEPT:
            certain = f", last {one.promise}{certain}"
    end = duration_text(one.at_ns - first_ns)
    return f"{what} for certain{certain}: the load ended at {end}, {count_text(one.n_unsent)} arrivals were not sent"


def outcome_text(promises: Sequence[PromiseFigures]) -> str:
    """All promises in one line: `promises kept: all 3`, or which are not."""
    whole = worst_verdict([one.verdict for one in promises])
    concerned = [one.promise for one in promises if one.verdict == whole]
    if whole == KEPT:
        named = promises[0].promise if len(promises) == 1 else f"all {len(promises)}"
        return f"{SIGNS[KEPT]}: {named}"
    sign = SIGNS.get(whole, "promises undecided")
    rest = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
    reason = next((f": {one.reason}" for one in promises if one.verdict == whole and one.reason), "")
    cold = next(
        (f"; {cold_part(one)}" for one in promises if whole == BROKEN and one.verdict == whole and one.cold),
        "",
    )
    return f"{sign}: {concerned[0]}{rest}{reason}{cold}"
