"""How a phase began, in a line: for the screen, the report, promises and findings."""

from __future__ import annotations

from collections.abc import Mapping

from squall.analysis.requests.cold import (
    DRIFT,
    LEFTOVERS,
    NOTHING,
    ColdFigures,
    Stretch,
    WarmUpAdvice,
)
from squall.analysis.wording import count_text, counted_text, duration_text, rate_text, share_text


def cold_lines(cold: Mapping[str, ColdFigures] | None) -> list[str]:
    """A line for each phase whose beginning, or end, is unlike the rest."""
    return [cold_text(one) for one in (cold or {}).values() if one.is_stated]


def cold_text(one: ColdFigures) -> str:
    """`cold: the first 900 ms of burst hold 64.0 % of the late (1,212 of 1,888); without them p95 7.10 ms; …`."""
    if one.kind == NOTHING:
        return f"{one.phase}: nothing at its beginning is unlike the rest"
    if one.kind == DRIFT:
        assert one.drift_ratio is not None
        return (
            f"drift: executions of one size take {one.drift_ratio:.2f} times as long at the end of {one.phase} as at"
            " its beginning: it is not cold, it gets slower"
        )
    held = (
        f"{stretches_text(one.stretches, one.phase)} hold {share_text(one.late_ratio)} of the late"
        f" ({count_text(one.n_late)} of {count_text(one.n_late_of_phase)})"
    )
    parts = [inherited_text(one), held, without_text(one), why_text(one), advice_text(one.advice)]
    return f"{one.kind}: {'; '.join(filter(None, parts))}"


def stretches_text(stretches: tuple[Stretch, ...], phase: str = "") -> str:
    """`the first 900 ms of burst`, or `3 stretches of burst, 1.20 s in all,`."""
    of_phase = f" of {phase}" if phase else ""
    length = duration_text(sum(one.end_ns - one.begin_ns for one in stretches))
    if len(stretches) == 1 and stretches[0].begin_ns == 0:
        return f"the first {length}{of_phase}"
    return f"{counted_text(len(stretches), 'stretch', 'stretches')}{of_phase}, {length} in all,"


def inherited_text(one: ColdFigures) -> str:
    """What the phase before left in flight; empty where none of it was older than what is late."""
    inherited = one.inherited
    is_much = one.kind == LEFTOVERS or (
        one.late_from_ns is not None and inherited.oldest_ns >= one.late_from_ns
    )
    if not inherited.n or not is_much:
        return ""
    requests = counted_text(inherited.n, "request")
    age = duration_text(inherited.oldest_ns)
    return f"the phase began with {requests} of the one before in flight, the oldest {age} old"


def without_text(one: ColdFigures) -> str:
    """`without them p95 7.10 ms`; empty where the rest has no p95."""
    p95 = next((own for own in one.without if own.q == 0.95), None)
    if p95 is None or p95.is_refused:
        return ""
    return f"without them p95 {'infinite' if p95.is_infinite else duration_text(p95.value_ns)}"


def why_text(one: ColdFigures) -> str:
    """What the executions of the stretches were."""
    if one.is_of_first:
        first = f"{count_text(one.n_first_slow)} of {counted_text(one.n_first, 'first execution')} of a batch size"
        return f"{first} took {duration_text(one.first_excess_ns)} more than later ones"
    if one.slow_ratio is None:
        return ""
    what = {
        "batches": "executions of one batch size",
        "statistics": "executions, by Triton's statistics,",
        "responses": "answers, with as many in flight,",
    }[one.source]
    return f"{what} took {one.slow_ratio:.1f} times as long as in the rest until {duration_text(one.executed_ns)}"


def advice_text(one: WarmUpAdvice | None) -> str:
    """The warm-up that would have covered it."""
    if one is None:
        return ""
    length = duration_text(one.duration_ns)
    if not one.phase:
        rate = f" at {rate_text(one.rate_hz)}" if one.rate_hz is not None else ""
        return f"put a warm-up of {length}{rate} before it"
    if one.rate_hz is None:
        return f"lengthen {one.phase} to {length}"
    change = "lower" if one.is_lower else "raise"
    sizes = (
        f", so that it meets the {one.sizes_count} batch sizes measured"
        if one.sizes_count > 1 and not one.is_lower
        else ""
    )
    return f"{change} {one.phase} to {rate_text(one.rate_hz)} for {length}{sizes}"
