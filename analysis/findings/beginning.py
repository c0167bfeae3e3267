"""The finding about how a phase began: cold, with leftovers of the phase before, or slower towards its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.findings.confidence import Reason, RunState
from squall.analysis.findings.finding import Evidence, Finding, Rows, Scope, link, lowered, stated
from squall.analysis.findings.shares import LATENCY
from squall.analysis.requests.cold import BATCHES, DRIFT, RESPONSES, ColdFigures
from squall.analysis.requests.cold_words import advice_text, cold_text
from squall.analysis.storage.parquet import literal
from squall.analysis.wording import count_text, share_text

if TYPE_CHECKING:
    import duckdb

LEVEL = "beginning"
_NOT_SHOWN = {
    True: "What made it slower: see the other findings, and heat, memory and other processes of its node over time.",
    False: "That a later start of this server would be as cold: its model may have been compiled or cached by then.",
}


def beginning_finding(
    connection: duckdb.DuckDBPyConnection | None, one: ColdFigures, start_ns: int, state: RunState
) -> Finding:
    """Of a phase that is stated to be cold, to begin with leftovers, or to drift. `connection`: with view `joined`,
    None where the run has none; `start_ns`: of the phase."""
    is_drift = one.kind == DRIFT
    advice = advice_text(one.advice)
    step = (
        "Measure longer: the figures of this phase are of no steady state."
        if is_drift
        else f"{advice[:1].upper()}{advice[1:]}, then measure again: what is late after it is slow."
    )
    text = cold_text(one).partition(": ")[2]
    found = Finding(
        rule=one.kind,
        level=LEVEL,
        scope=Scope(one.phase, ""),
        claim=f"{text[:1].upper()}{text[1:]}.",
        next_step=step,
        evidence=_evidence(one),
        not_shown=_NOT_SHOWN[is_drift],
        rows=None if is_drift or connection is None else _rows(connection, one, start_ns),
    )
    told: list[Reason] = []
    if one.source == RESPONSES:
        told = [("low", "only response times tell of it: no batch of the phase is recorded")]
    elif one.source != BATCHES:
        told = [("medium", "Triton's statistics tell of it: no batch of the phase is recorded")]
    return lowered(found, [*told, *state.reasons])


def weakened(finding: Finding, one: ColdFigures) -> Finding:
    """A finding of a phase that is stated to be cold: medium at most, for it is over the cold stretch too."""
    reason = (
        "the phase gets slower towards its end"
        if one.kind == DRIFT
        else f"{share_text(one.late_ratio)} of the late requests lie in what is {one.kind}"
    )
    return lowered(finding, [("medium", reason)])


def _evidence(one: ColdFigures) -> tuple[Evidence, ...]:
    if one.kind == DRIFT:
        assert one.drift_ratio is not None
        return (Evidence("drift_ratio", one.drift_ratio, f"{one.drift_ratio:.2f} times"),)
    found = [
        stated("late_ratio", one.late_ratio),
        stated("length_ns", one.length_ns),
        stated("n_inherited", one.inherited.n),
        stated("inherited_oldest_ns", one.inherited.oldest_ns),
    ]
    if one.slow_ratio is not None:
        found.append(Evidence("slow_ratio", one.slow_ratio, f"{one.slow_ratio:.2f} times"))
        found.append(stated("excess_ns", one.excess_ns))
    if one.n_first:
        n_slow = f"{count_text(one.n_first_slow)} of {one.n_first}"
        found.append(Evidence("n_first_slow", one.n_first_slow, n_slow))
        found.append(stated("first_excess_ns", one.first_excess_ns))
    return tuple(found)


def _rows(connection: duckdb.DuckDBPyConnection, one: ColdFigures, start_ns: int) -> Rows:
    """The requests of the stretches, the slowest first."""
    began = "coalesce(scheduled_ns, sent_ns)"
    spans = [
        f"{began} >= {start_ns + begin_ns} AND {began} < {start_ns + end_ns}"
        for begin_ns, end_ns in one.stretches
    ]
    where = f"phase = {literal(one.phase)} AND ({' OR '.join(spans)})"
    return link(connection, where, "joined", LATENCY, ("request_id", "batch_id"))
