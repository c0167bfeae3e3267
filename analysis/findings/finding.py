"""One finding, as summary.json holds it: what limits an instance in a phase, on one level, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from squall.analysis.columns import NO_DEVICE
from squall.analysis.findings.confidence import LEVELS, Reason, RunState, reasons_of
from squall.analysis.findings.facts import total
from squall.analysis.findings.rule import (
    QUOTIENTS,
    Assessment,
    Classification,
    Measures,
    Rule,
    clauses_hold,
)
from squall.analysis.record import Number
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import rows
from squall.analysis.wording import count_text, figure_text
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

UNASSESSED = "not assessed"
N_WORST = 5
"""Rows that a finding lists itself."""


class Scope(Frozen):
    """What a finding is about. `requests`: all, or p99: those at or beyond the p99 of the latency among the ok.

    `instance`: of the model, empty for all of a server; `instance_device` as in table `batches`. `model`: of several
    under load the one that the requests ask, else empty; an instance has its own.
    """

    phase: str
    server: str
    instance: str = ""
    requests: str = "all"
    instance_device: int = NO_DEVICE
    model: str = ""


class Evidence(Frozen):
    """A measure of a finding. `comparison`, `threshold` and `holds` are None for one that is only stated."""

    measure: str
    value: Number | None
    text: str
    comparison: str | None = None
    threshold: Number | None = None
    holds: bool | None = None


class RunnerUp(Frozen):
    """The next rule that holds, or the nearest miss; `evidence`: its conditions."""

    rule: str
    holds: bool
    margin: float | None
    claim: str
    evidence: tuple[Evidence, ...]


class Untried(Frozen):
    """A rule that could not be tried, for want of the measures `missing`."""

    rule: str
    missing: tuple[str, ...]


class Bound(Frozen):
    """The most that removing the cause can save; None where not assessed.

    `wall_ratio`: of the instance's wall. `response_ratio`: of the mean latency, without the queue that it feeds;
    `with_queue_ratio`: with all of that queue gone too, which nothing guarantees.
    """

    wall_ratio: float | None = None
    response_ratio: float | None = None
    with_queue_ratio: float | None = None


class Rows(Frozen):
    """Where to look: rows of `table` that `where` (SQL over the Parquet files) holds of, `worst` first."""

    table: str
    where: str
    order_by: str
    worst: tuple[dict[str, Any], ...] = ()


class Finding(Frozen):
    """`rule` is the name of the regime, `none` where no rule holds, `not assessed` where some could not be tried.

    `shares` add up to 1: of the wall (level window), the body (body) or the latency (tail). `runner_up` is the next
    rule that holds, or the nearest miss with its margin. `also`: all other rules that hold, which of a queue-bound
    instance say what saturates it.
    """

    rule: str
    level: str
    scope: Scope
    claim: str
    next_step: str
    confidence: str = LEVELS[0]
    confidence_reasons: tuple[str, ...] = ()
    margin: float | None = None
    evidence: tuple[Evidence, ...] = ()
    details: tuple[str, ...] = ()
    shares: Mapping[str, float | None] = field(default_factory=dict)
    give_back: Bound = Bound()
    runner_up: RunnerUp | None = None
    also: tuple[str, ...] = ()
    not_assessed: tuple[Untried, ...] = ()
    not_shown: str = ""
    rows: Rows | None = None


def measure_text(name: str, value: float | None) -> str:
    """The value of measure `name` for people; `-` for None."""
    if value is None:
        return "-"
    if name in QUOTIENTS:
        return f"{figure_text(value, 'count') if value >= 10 else f'{value:.2f}'} times"
    for suffix, unit in (("_ns", "ns"), ("_ratio", "ratio")):
        if name.endswith(suffix):
            return figure_text(value, unit)
    if name.endswith("_bytes"):
        return f"{count_text(round(value))} bytes"
    return count_text(value)


def lowered(found: Finding, reasons: Iterable[Reason]) -> Finding:
    """`found` with the confidence that these leave it at most."""
    told = tuple(reasons)
    return replace(
        found,
        confidence=max([found.confidence, *(level for level, _ in told)], key=LEVELS.index),
        confidence_reasons=(*found.confidence_reasons, *(reason for _, reason in told)),
    )


def make_finding(
    level: str,
    scope: Scope,
    found: Classification,
    measures: Measures,
    state: RunState,
    shares: Mapping[str, float | None],
    rows: Rows | None = None,
) -> Finding:
    """The finding that a classification amounts to."""
    named = found.named
    claim, step = _no_name(level, found, measures)
    unnamed = Finding(
        rule=found.status,
        level=level,
        scope=scope,
        claim=claim,
        next_step=step,
        evidence=evidence_of(found.runner_up.rule, measures) if found.runner_up is not None else (),
        shares=dict(shares),
        runner_up=_runner_up(found.runner_up, measures),
        not_assessed=tuple(Untried(one.rule.name, one.missing) for one in found.unassessed),
    )
    reasons = reasons_of(found, measures, state)
    if named is None:
        return lowered(unnamed, reasons)
    rule = named.rule
    closer = [one for one in rule.details if clauses_hold(one.clauses, measures)]
    claims = [
        filled(rule.claim, measures).rstrip("."),
        *(f"{text[:1].upper()}{text[1:]}" for text in (filled(one.claim, measures) for one in closer)),
    ]
    finding = replace(
        unnamed,
        claim=". ".join(claims) + ".",
        next_step=" ".join([rule.next_step, *(one.next_step for one in closer)]),
        margin=named.margin,
        evidence=evidence_of(rule, measures),
        details=tuple(one.name for one in closer),
        give_back=give_back(rule, measures),
        also=tuple(one.rule.name for one in found.assessments if one.holds and one is not named),
        not_shown=rule.not_shown,
        rows=rows,
    )
    return lowered(finding, reasons)


def stated(name: str, value: Number | None) -> Evidence:
    """A measure that is only stated."""
    return Evidence(name, value, measure_text(name, value))


def evidence_of(rule: Rule, measures: Measures) -> tuple[Evidence, ...]:
    """Every measure of the rule: its conditions with their thresholds, then what it states beside them."""
    tried = [
        replace(
            stated(one.measure, measures.get(one.measure)),
            comparison=one.comparison,
            threshold=one.threshold,
            holds=one.holds(measures),
        )
        for one in rule.conditions
    ]
    return (*tried, *(stated(name, measures.get(name)) for name in rule.stated))


def give_back(rule: Rule, measures: Measures) -> Bound:
    """What removing the cause could save at most: a component saves no more than its own share."""
    own = with_queue = total(measures, rule.give_back.response)
    if rule.give_back.feeds_queue:
        names = rule.give_back.beside_queue or rule.give_back.response
        with_queue = total(measures, (*names, "response_queue_ratio"))
    return Bound(total(measures, rule.give_back.wall), own, with_queue)


def filled(text: str, measures: Measures) -> str:
    """`text` with each measure in braces written out."""
    return text.format_map(_Texts(measures))


class _Texts(dict[str, str]):
    def __init__(self, measures: Measures) -> None:
        known = {name: value for name, value in measures.items() if value is not None}
        super().__init__({name: measure_text(name, value) for name, value in known.items()})

    def __missing__(self, name: str) -> str:
        """In words, where a rule holds without this measure."""
        if name in QUOTIENTS:
            return "an unknown number of times"
        kind = "share" if name.endswith("_ratio") else "time" if name.endswith("_ns") else "number"
        return f"an unknown {kind}"


def _runner_up(one: Assessment | None, measures: Measures) -> RunnerUp | None:
    if one is None:
        return None
    evidence = tuple(piece for piece in evidence_of(one.rule, measures) if piece.threshold is not None)
    return RunnerUp(one.rule.name, bool(one.holds), one.margin, filled(one.rule.claim, measures), evidence)


def _no_name(level: str, found: Classification, measures: Measures) -> tuple[str, str]:
    """Claim and next step where no rule is named."""
    near = found.runner_up
    nearest = ""
    if near is not None and near.margin is not None:
        nearest = f" Nearest: {near.rule.name}, which misses by a margin of {-near.margin:.3f}."
    if found.status != UNASSESSED:
        step = "See where the time goes in the shares, and what the nearest rule says."
        return f"No rule of this level holds.{nearest}", step
    missing = "; ".join(f"{one.rule.name} for want of {', '.join(one.missing)}" for one in found.unassessed)
    claim = f"Not assessed: {missing}.{nearest}"
    if level == "body" and measures.get("body_busy_ratio") is None:
        claim = "Not assessed: there is no CUDA trace of this instance in the phase."
    return claim, (
        "Record what is missing: nsys with CUDA and NVTX, Triton's statistics, NVML; "
        "`squall doctor` says what a node lacks."
    )


def scope_filter(table: str, scope: Scope, model: str | None = None) -> str:
    """SQL condition for the rows of `scope` in `batch_costs` or `joined`.

    `model`: where the instance is known by its model's name alone, as from Triton's trace.
    """
    parts = [f"phase = {literal(scope.phase)}", f"server = {literal(scope.server)}"]
    if scope.instance and scope.instance == model:
        column = "model" if table == "batch_costs" else "request_kind"
        parts.append(f"instance = '' AND {column} = {literal(scope.instance)}")
    elif scope.instance:
        parts.append(f"instance = {literal(scope.instance)} AND instance_device = {scope.instance_device}")
    return " AND ".join(parts)


def link(
    connection: duckdb.DuckDBPyConnection, where: str, table: str, order: str, shown: Sequence[str]
) -> Rows:
    """The rows of a view that `where` holds of; the worst come first by `order`, equal ones by what is shown."""
    places = ", ".join(str(place + 1) for place in range(len(shown)))
    ordered = f"ORDER BY {order} DESC NULLS LAST, {places} LIMIT {N_WORST}"
    worst = rows(connection, f"SELECT {', '.join(shown)} FROM {table} WHERE {where} {ordered}")
    return Rows(table, where, f"{order} DESC", tuple(worst))
