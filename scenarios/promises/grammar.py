"""`promises:` of a scenario, metrics with tags and conditions after k6's thresholds, to promises and back.

    promises:
      response{phase:burst}: [p(95)<50ms, {threshold: p(99)<120ms, at: 300/s}]
      failures: rate<0.1%
      goodput{within:100ms,server:server-0}: rate>0.99
      service: {threshold: p(99)<80ms, abortOnFail: true, delayAbortEval: 10s}

A bare number of a time is ms, as k6 has it. Every failure is a ValueError of one line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any, Literal, cast

from squall.scenarios.promises.promise import (
    BURSTS,
    METRICS,
    OF_RESPONSES,
    TAGS,
    Metric,
    Promise,
    PromiseScope,
    Sign,
)
from squall.scenarios.units import format_duration, format_rate, parse_duration, parse_rate

MOST_PROMISES = 100
_KEY = re.compile(r"([A-Za-z_]+)\s*(?:\{(.*)\})?", re.ASCII)
_CONDITION = re.compile(r"([a-z]+)\s*(?:\(([^)]*)\))?\s*(===?|!=|<=|>=|<|>)\s*(\S.*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_STATISTICS = {
    "response": ("p", "med", "max"),
    "first_response": ("p", "med", "max"),
    "gap": ("p", "med", "max"),
    "mean_gap": ("p", "med", "max"),
    "service": ("p", "med", "max"),
    "send_lag": ("p", "med", "max"),
    "failures": ("rate", "count"),
    "goodput": ("rate",),
}
_NO_MEAN = "a failed request is infinitely slow, and a mean with it: use p(95), med or max"


def parse_promises(value: object) -> tuple[Promise, ...] | None:
    """The promises of the mapping `value`, in its order; what this returned before, and None, as they are."""
    if value is None or (isinstance(value, tuple) and all(isinstance(one, Promise) for one in value)):
        return cast("tuple[Promise, ...] | None", value)
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping such as response: p(95)<50ms")
    found = tuple(promise for key, conditions in value.items() for promise in _of_key(key, conditions))
    if not found:
        raise ValueError("promises nothing: name a metric, or leave it out")
    if len(found) > MOST_PROMISES:
        raise ValueError(f"{len(found)} promises are above the {MOST_PROMISES} of a scenario")
    _refuse_contradictions(found)
    return found


def format_promises(promises: Sequence[Promise] | None) -> dict[str, list[Any]] | None:
    """As `parse_promises` reads them."""
    if promises is None:
        return None
    found: dict[str, list[Any]] = {}
    for one in promises:
        beside: dict[str, Any] = {}
        if one.at_hz is not None:
            beside["at"] = format_rate(one.at_hz)
        if one.aborts_on_fail:
            beside["abortOnFail"] = True
        if one.delay_ns:
            beside["delayAbortEval"] = format_duration(one.delay_ns)
        told = {"threshold": one.condition, **beside} if beside else one.condition
        found.setdefault(one.key, []).append(told)
    return found


def _of_key(key: object, conditions: object) -> Iterable[Promise]:
    match = _KEY.fullmatch(key.strip()) if isinstance(key, str) else None
    if match is None:
        raise ValueError(f"{key!r} is not a metric with tags such as response{{phase:burst}}")
    metric = cast("Metric", _known(match[1], METRICS, f"{key}: unknown metric"))
    scope = _scope(str(key), metric, match[2])
    listed = conditions if isinstance(conditions, list | tuple) else [conditions]
    if not listed:
        raise ValueError(f"{key}: has no condition, such as p(95)<50ms")
    return [_promise(str(key), metric, scope, one) for one in listed]


def _scope(key: str, metric: Metric, text: str | None) -> PromiseScope:
    tags: dict[str, Any] = {}
    for part in text.split(",") if text is not None else ():
        tag, colon, value = (word.strip() for word in part.partition(":"))
        if not colon or not value:
            raise ValueError(f"{key}: {part.strip()!r} is not a tag such as phase:burst")
        _known(tag, TAGS, f"{key}: unknown tag")
        name = f"{tag}_ns" if tag in ("window", "within") else tag
        if name in tags:
            raise ValueError(f"{key}: tag {tag} stands twice")
        tags[name] = _tag_value(key, tag, value)
    if (metric == "goodput") != ("within_ns" in tags):
        raise ValueError(
            f"{key}: goodput needs the time up to which a request is good, goodput{{within:100ms}}"
            if metric == "goodput"
            else f"{key}: tag within is of goodput; write the limit into the condition, p(95)<50ms"
        )
    if "burst" in tags and "window_ns" in tags:
        raise ValueError(f"{key}: tags burst and window exclude each other")
    return PromiseScope(**tags)


def _tag_value(key: str, tag: str, value: str) -> str | int:
    if tag in ("window", "within"):
        length_ns = _time_ns(key, value)
        if length_ns == 0:
            raise ValueError(f"{key}: {tag} must be above 0")
        return length_ns
    return _known(value, BURSTS, f"{key}: unknown burst") if tag == "burst" else value


def _promise(key: str, metric: Metric, scope: PromiseScope, condition: object) -> Promise:
    beside: dict[str, Any] = {}
    if isinstance(condition, Mapping):
        beside = _beside(key, scope, condition)
        condition = condition.get("threshold")
    match = _CONDITION.fullmatch(condition.strip()) if isinstance(condition, str) else None
    if match is None:
        raise ValueError(f"{key}: {condition!r} is not a condition such as p(95)<50ms or rate<0.001")
    statistic, argument, sign, limit = match.groups()
    where = f"{key}: {condition.strip() if isinstance(condition, str) else condition}"
    if statistic in ("avg", "min") and metric in _STATISTICS and "p" in _STATISTICS[metric]:
        raise ValueError(f"{where}: {statistic} is not judged; {_NO_MEAN}")
    _known(statistic, _STATISTICS[metric], f"{where}: unknown statistic of {metric}")
    wanted = (">", ">=") if metric == "goodput" else ("<", "<=")
    if sign not in wanted:
        raise ValueError(f"{where}: {metric} is promised with {' or '.join(wanted)}")
    if (statistic == "p") != (argument is not None):
        raise ValueError(f"{where}: p takes a percentage, p(95), and nothing else does")
    q = _quantile(where, argument) if statistic == "p" else Decimal("0.5") if statistic == "med" else None
    found = Promise(
        metric=metric,
        scope=scope,
        statistic=cast("Literal['p', 'max', 'rate', 'count']", "p" if q is not None else statistic),
        sign=cast("Sign", sign),
        limit=_limit(where, metric, statistic, limit.strip()),
        q=q,
        **beside,
    )
    _refuse_empty(where, found)
    if found.aborts_on_fail and metric in OF_RESPONSES:
        raise ValueError(f"{where}: abortOnFail: {metric} is not counted while the load runs")
    return found


def _beside(key: str, scope: PromiseScope, told: Mapping[Any, Any]) -> dict[str, Any]:
    """What a mapping says beside its `threshold`, as `Promise` has it."""
    for name in told:
        _known(str(name), ("threshold", "at", "abortOnFail", "delayAbortEval"), f"{key}: unknown key")
    found: dict[str, Any] = {}
    if "at" in told:
        try:
            found["at_hz"] = parse_rate(told["at"])
        except ValueError as error:
            raise ValueError(f"{key}: at: {error}") from error
        if scope.burst is not None or scope.window_ns is not None:
            raise ValueError(f"{key}: at is the load of whole phases, and the tags name parts of them")
    aborts = told.get("abortOnFail", False)
    if not isinstance(aborts, bool):
        raise ValueError(f"{key}: abortOnFail is true or false")
    if aborts and any(one is not None for one in (scope.model, scope.gpu, scope.burst, scope.window_ns)):
        raise ValueError(
            f"{key}: abortOnFail: late requests are counted by phase and server while the load runs, not by model, gpu,"
            " burst or window"
        )
    found["aborts_on_fail"] = aborts
    if "delayAbortEval" in told:
        if not aborts:
            raise ValueError(f"{key}: delayAbortEval is for abortOnFail: true")
        found["delay_ns"] = _time_ns(f"{key}: delayAbortEval", str(told["delayAbortEval"]))
    return found


def _quantile(where: str, argument: str) -> Decimal:
    if not _NUMBER.fullmatch(argument.strip()) or not 0 < Decimal(argument.strip()) < 100:
        raise ValueError(f"{where}: p takes a percentage between 0 and 100, such as p(99.9)")
    return Decimal(argument.strip()) / 100


def _limit(where: str, metric: Metric, statistic: str, text: str) -> Decimal:
    if statistic in ("p", "med", "max"):
        return Decimal(_time_ns(where, text))
    number, percent = text.removesuffix("%").strip(), text.endswith("%")
    if not _NUMBER.fullmatch(number) or (percent and statistic == "count"):
        form = "a whole number" if statistic == "count" else "a share such as 0.001 or 0.1%"
        raise ValueError(f"{where}: {text!r} is of another unit, {statistic} of {metric} is {form}")
    value = Decimal(number) / (100 if percent else 1)
    if statistic == "count" and value != value.to_integral_value():
        raise ValueError(f"{where}: {text!r} is not a whole number")
    return value


def _time_ns(where: str, text: str) -> int:
    """A duration; a bare number is ms."""
    try:
        return parse_duration(f"{text}ms" if _NUMBER.fullmatch(text) else text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _refuse_empty(where: str, one: Promise) -> None:
    """What no run can keep, and what every run keeps."""
    if one.is_of_times or one.statistic == "count":
        if one.limit == 0 and one.sign == "<":
            raise ValueError(f"{where}: nothing is below 0, no run can keep it")
        return
    if one.limit > 1:
        raise ValueError(f"{where}: a rate is a share of the requests, from 0 to 1")
    is_impossible = one.limit == (1 if one.metric == "goodput" else 0) and one.sign in ("<", ">")
    is_empty = one.limit == (0 if one.metric == "goodput" else 1) and one.sign in ("<=", ">=")
    if is_impossible or is_empty:
        raise ValueError(f"{where}: {'no run can keep it' if is_impossible else 'every run keeps it'}")


def _refuse_contradictions(promises: Sequence[Promise]) -> None:
    """Two limits of one figure, and a tighter limit of a higher quantile, beside which the lower says nothing."""
    for one, other in combinations(promises, 2):
        if (one.key, one.at_hz) != (other.key, other.at_hz):
            continue
        if one.statistic_text == other.statistic_text:
            raise ValueError(
                f"{one.key}: {one.condition} and {other.condition} are two limits of one figure, keep one of them"
            )
        low, high = sorted((one, other), key=_rank)
        if one.is_of_times and (high.late_from_ns or 0) < (low.late_from_ns or 0):
            raise ValueError(
                f"{one.key}: {high.condition} contradicts {low.condition}: {low.statistic_text} is never above"
                f" {high.statistic_text}, so the looser limit promises nothing"
            )


def _rank(one: Promise) -> Decimal:
    return Decimal(1) if one.q is None else one.q


def _known(word: str, known: Sequence[str], problem: str) -> str:
    if word in known:
        return word
    guess = next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)
    hint = f"did you mean {guess!r}?" if guess else f"use {', '.join(known)}"
    raise ValueError(f"{problem} {word!r}, {hint}")
