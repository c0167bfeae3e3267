"""One finding, as summary.json holds it: what limits an instance in a phase, on one level, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from squall.analysis.findings.rules.classifier import Assessment, Classification, clauses_hold
from squall.analysis.findings.rules.confidence import LEVELS, NO_RULE, RunState, confidence_of
from squall.analysis.findings.rules.facts import total
from squall.analysis.findings.rules.rule import QUOTIENTS, Measures, Rule
from squall.analysis.record import Number
from squall.analysis.tables.columns import NO_DEVICE
from squall.analysis.wording import count_text, figure_text

UNASSESSED = "not assessed"


@dataclass(frozen=True)
class Scope:
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


@dataclass(frozen=True)
class Evidence:
    """A measure of a finding. `comparison`, `threshold` and `holds` are None for one that is only stated."""

    measure: str
    value: Number | None
    text: str
    comparison: str | None = None
    threshold: Number | None = None
    holds: bool | None = None


@dataclass(frozen=True)
class RunnerUp:
    """The next rule that holds, or the nearest miss; `evidence`: its conditions."""

    rule: str
    holds: bool
    margin: float | None
    claim: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Untried:
    """A rule that could not be tried, for want of the measures `missing`."""

    rule: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Bound:
    """The most that removing the cause can save; None where not assessed.

    `wall_ratio`: of the instance's wall. `response_ratio`: of the mean latency, without the queue that it feeds;
    `with_queue_ratio`: with all of that queue gone too, which nothing guarantees.
    """

    wall_ratio: float | None = None
    response_ratio: float | None = None
    with_queue_ratio: float | None = None


@dataclass(frozen=True)
class Rows:
    """Where to look: rows of `table` that `where` (SQL over the Parquet files) holds of, `worst` first."""

    table: str
    where: str
    order_by: str
    worst: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Finding:
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
    confidence: str
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
    unnamed = Finding(
        rule=found.status,
        level=level,
        scope=scope,
        claim=_no_name(level, found, measures),
        next_step=_no_step(found),
        confidence=LEVELS[-1],
        confidence_reasons=(NO_RULE,),
        evidence=evidence_of(found.runner_up.rule, measures) if found.runner_up is not None else (),
        shares=dict(shares),
        runner_up=_runner_up(found.runner_up, measures),
        not_assessed=tuple(Untried(one.rule.name, one.missing) for one in found.unassessed),
    )
    return unnamed if found.named is None else _named(unnamed, found, found.named, measures, state, rows)


def _named(
    unnamed: Finding,
    found: Classification,
    named: Assessment,
    measures: Measures,
    state: RunState,
    rows: Rows | None,
) -> Finding:
    rule = named.rule
    confidence = confidence_of(found, measures, state)
    held = [one for one in rule.details if clauses_hold(one.clauses, measures)]
    closer = [_sentence(filled(one.claim, measures)) for one in held]
    return replace(
        unnamed,
        rule=rule.name,
        claim=". ".join([filled(rule.claim, measures).rstrip("."), *closer]) + ".",
        next_step=" ".join([rule.next_step, *(one.next_step for one in held)]),
        confidence=confidence.level,
        confidence_reasons=tuple(confidence.reasons),
        margin=named.margin,
        evidence=evidence_of(rule, measures),
        details=tuple(one.name for one in held),
        give_back=give_back(rule, measures),
        also=tuple(one.rule.name for one in found.assessments if one.holds and one is not named),
        not_shown=rule.not_shown,
        rows=rows,
    )


def evidence_of(rule: Rule, measures: Measures) -> tuple[Evidence, ...]:
    """Every measure of the rule: its conditions with their thresholds, then what it states beside them."""
    tried = [
        replace(
            _stated(one.measure, measures),
            comparison=one.comparison,
            threshold=one.threshold,
            holds=one.holds(measures),
        )
        for one in rule.conditions
    ]
    stated = rule.measures[len({one.measure for one in tried}) :]
    return (*tried, *(_stated(name, measures) for name in stated))


def _stated(name: str, measures: Measures) -> Evidence:
    return Evidence(name, measures.get(name), measure_text(name, measures.get(name)))


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


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if text else text


def _runner_up(one: Assessment | None, measures: Measures) -> RunnerUp | None:
    if one is None:
        return None
    evidence = tuple(piece for piece in evidence_of(one.rule, measures) if piece.threshold is not None)
    return RunnerUp(one.rule.name, bool(one.holds), one.margin, filled(one.rule.claim, measures), evidence)


def _no_name(level: str, found: Classification, measures: Measures) -> str:
    near = found.runner_up
    nearest = ""
    if near is not None and near.margin is not None:
        nearest = f" Nearest: {near.rule.name}, which misses by a margin of {-near.margin:.3f}."
    if found.status == UNASSESSED:
        if level == "body" and measures.get("body_busy_ratio") is None:
            return "Not assessed: there is no CUDA trace of this instance in the phase."
        missing = "; ".join(
            f"{one.rule.name} for want of {', '.join(one.missing)}" for one in found.unassessed
        )
        return f"Not assessed: {missing}.{nearest}"
    return f"No rule of this level holds.{nearest}"


def _no_step(found: Classification) -> str:
    if found.status == UNASSESSED:
        return (
            "Record what is missing: nsys with CUDA and NVTX, Triton's statistics, NVML; "
            "`squall doctor` says what a node lacks."
        )
    return "See where the time goes in the shares, and what the nearest rule says."
