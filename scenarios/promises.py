"""Promises: what a service is held to, as a scenario states it, and how many late requests a plan allows.

`promises:` of a scenario, metrics with tags and conditions after k6's thresholds:

    promises:
      response{phase:burst}: [p(95)<50ms, {threshold: p(99)<120ms, at: 300/s}]
      failures: rate<0.1%
      goodput{within:100ms,server:server-0}: rate>0.99
      service: {threshold: p(99)<80ms, abortOnFail: true, delayAbortEval: 10s}

A bare number of a time is ms, as k6 has it. Every promise is made a count: of the n requests of its scope, n_late are
not as promised and `n_allowed(n)` may be.

    p(q) < L     of times, by nearest rank X(k), k = ceil(q n):  X(k) < L  <=>  #{x >= L} <= n - k
    rate < r     of failures:                                    n_late / n < r
    rate > r     of goodput, what is not good being late:        (n - n_late) / n > r

A request that failed, or was never sent, is infinitely slow. Shares are decimal and all arithmetic is exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal, cast, get_args

from squall.scenarios.errors import placed, refuse, way_out
from squall.scenarios.records import Frozen
from squall.scenarios.units import (
    NS_PER_MS,
    NS_PER_S,
    format_duration,
    format_rate,
    parse_duration,
    parse_rate,
)

Metric = Literal[
    "response", "first_response", "gap", "mean_gap", "service", "send_lag", "failures", "goodput"
]
Burst = Literal["in", "out", "each"]
Sign = Literal["<", "<=", ">", ">="]

OF_RESPONSES: tuple[Metric, ...] = ("first_response", "gap", "mean_gap")
"""Of requests that are answered response by response: to the first, the longest and the mean time from each response of
a request to the next."""
TIMES: tuple[Metric, ...] = ("response", *OF_RESPONSES, "service", "send_lag")
METRICS: tuple[Metric, ...] = get_args(Metric)
BURSTS: tuple[Burst, ...] = get_args(Burst)
TAGS = ("phase", "model", "server", "gpu", "burst", "window", "within")
"""In the order of the fields of `PromiseScope`."""
DECIDED = "decided"
"""The detail of arrivals that were not sent since the outcome of the promises was certain."""

MOST_PROMISES = 100
_KEY = re.compile(r"([A-Za-z_]+)\s*(?:\{(.*)\})?", re.ASCII)
_CONDITION = re.compile(r"([a-z]+)\s*(?:\(([^)]*)\))?\s*(===?|!=|<=|>=|<|>)\s*(\S.*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_OPTIONS = ("at", "abortOnFail", "delayAbortEval")
_OF_TIMES = ("p", "med", "max")
"""Statistics of times. There is no mean: a failed request is infinitely slow, and a mean with it."""


class LateLimit(Frozen):
    """What makes a request late: `span` is as long as `late_from_ns` or longer, or it did not end ok; without a limit
    the latter alone. `send_lag` asks whether it was sent, not how it ended."""

    span: Literal["response", "service", "send_lag"]
    late_from_ns: int | None


class PromiseScope(Frozen):
    """Which measured requests a promise is about; None each: all.

    `burst`: those scheduled within bursts of the plan, outside them, or each burst by itself; `window_ns`: each stretch
    of that length of a phase by itself. `gpu`: a GPU's UUID or how it begins. `within_ns`, of goodput alone: the
    response time, in a closed loop the service time, up to which a request is good.
    """

    phase: str | None = None
    model: str | None = None
    server: str | None = None
    gpu: str | None = None
    burst: Burst | None = None
    window_ns: int | None = None
    within_ns: int | None = None

    @property
    def is_each(self) -> bool:
        """Whether every burst, or every window, must keep it by itself."""
        return self.burst == "each" or self.window_ns is not None

    @property
    def is_counted(self) -> bool:
        """Whether late requests are counted while the load runs: by phase and server they are, by model, GPU, burst and
        window they are not."""
        return not (self.model or self.gpu or self.burst or self.window_ns)

    @property
    def text(self) -> str:
        """`{phase:burst,window:1s}`; empty for all."""
        given = [
            f"{tag}:{value if isinstance(value, str) else _time_text(value)}"
            for tag, value in zip(TAGS, astuple(self), strict=True)
            if value is not None
        ]
        return f"{{{','.join(given)}}}" if given else ""


class Promise(Frozen):
    """One promise, as `parse_promises` reads it.

    `statistic`: `p` with `q` in (0, 1), or `max`, of times; `rate` or `count` of failures; `rate` of goodput. `limit`:
    ns of times, a share of rates, else a number. `at_hz`: the load at which it is promised, None: any.
    `aborts_on_fail`: the load ends once it is certain to be broken, `delay_ns` after its first phase began at the
    earliest.
    """

    metric: Metric
    scope: PromiseScope
    statistic: Literal["p", "max", "rate", "count"]
    sign: Sign
    limit: Decimal
    q: Decimal | None = None
    at_hz: float | None = None
    aborts_on_fail: bool = False
    delay_ns: int = 0

    @property
    def key(self) -> str:
        """Metric and scope, as the scenario's key has them: `response{phase:burst}`."""
        return f"{self.metric}{self.scope.text}"

    @property
    def condition(self) -> str:
        """`p(95)<50ms`."""
        limit = _time_text(int(self.limit)) if self.is_of_times else _plain(self.limit)
        return f"{self.statistic_text}{self.sign}{limit}"

    @property
    def text(self) -> str:
        """The whole promise: `response{phase:burst} p(95)<50ms at 300/s`."""
        at = "" if self.at_hz is None else f" at {format_rate(self.at_hz)}"
        return f"{self.key} {self.condition}{at}"

    @property
    def statistic_text(self) -> str:
        """`p(99.9)`, `max`, `rate` or `count`."""
        return f"p({_plain(100 * self.q)})" if self.q is not None else self.statistic

    @property
    def is_of_times(self) -> bool:
        """Whether it bounds a time."""
        return self.metric in TIMES

    @property
    def late_from_ns(self) -> int | None:
        """The shortest time that is late; None where no time is bounded."""
        if self.scope.within_ns is not None:
            return self.scope.within_ns + 1
        if not self.is_of_times:
            return None
        return int(self.limit) + (self.sign == "<=")

    @property
    def late_limit(self) -> LateLimit:
        """What makes a request late."""
        span = self.metric if self.metric in ("service", "send_lag") else "response"
        return LateLimit(span, self.late_from_ns)

    @property
    def is_counted(self) -> bool:
        """Whether its late requests are counted while the load runs; those of single responses are not."""
        return self.scope.is_counted and self.metric not in OF_RESPONSES

    @property
    def is_of_each_run(self) -> bool:
        """Whether one run that breaks it breaks it: of the longest time, a count, each burst, each window, and where
        none may be late. Of the others the share of late requests is what is promised, over all that the process of
        arrivals may bring."""
        return self.statistic in ("max", "count") or self.scope.is_each or self.allowed_ratio == 0

    @property
    def _allowed_share(self) -> Decimal | None:
        """Share of requests that may be late; None of `max` and `count`."""
        if self.q is not None:
            return 1 - self.q
        if self.statistic != "rate":
            return None
        return 1 - self.limit if self.metric == "goodput" else self.limit

    @property
    def allowed_ratio(self) -> float | None:
        """Share of requests that may be late; None of `max` and `count`."""
        return None if self._allowed_share is None else float(self._allowed_share)

    def n_allowed(self, n: int) -> int:
        """How many of `n` requests, 1 or more, may be late; -1 where even none is one too many."""
        share = self._allowed_share
        if share is None:
            return int(self.limit) - (self.sign == "<") if self.statistic == "count" else 0
        n_late = Fraction(share) * n
        is_strict = self.statistic == "rate" and self.sign in ("<", ">")
        return math.ceil(n_late) - 1 if is_strict else math.floor(n_late)


def parse_promises(value: object) -> tuple[Promise, ...] | None:
    """The promises of the mapping `value`, in its order; a tuple, as this returns it, and None as they are."""
    if value is None or isinstance(value, tuple):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping such as response: p(95)<50ms")
    promises: list[Promise] = []
    for key, stated in value.items():
        with placed(key):
            is_list = isinstance(stated, list | tuple) and stated
            promises += [_promise(key, condition) for condition in (stated if is_list else [stated])]
    if not promises:
        raise ValueError("promises nothing: name a metric, or leave it out")
    if len(promises) > MOST_PROMISES:
        raise ValueError(f"{len(promises)} promises are above the {MOST_PROMISES} of a scenario")
    _refuse_contradictions(promises)
    return tuple(promises)


def format_promises(promises: Sequence[Promise] | None) -> dict[str, list[Any]] | None:
    """As `parse_promises` reads them."""
    if promises is None:
        return None
    by_key: dict[str, list[Any]] = {}
    for promise in promises:
        options = {
            "at": None if promise.at_hz is None else format_rate(promise.at_hz),
            "abortOnFail": promise.aborts_on_fail,
            "delayAbortEval": promise.delay_ns and format_duration(promise.delay_ns),
        }
        stated = {key: value for key, value in options.items() if value}
        whole = {"threshold": promise.condition, **stated} if stated else promise.condition
        by_key.setdefault(promise.key, []).append(whole)
    return by_key


def _promise(key: object, stated: object) -> Promise:
    match = _KEY.fullmatch(key.strip()) if isinstance(key, str) else None
    if match is None:
        raise ValueError("is not a metric with tags such as response{phase:burst}")
    metric = cast("Metric", _known(match[1], METRICS, "metric"))
    scope = _scope(metric, match[2])
    options = dict(stated) if isinstance(stated, Mapping) else {"threshold": stated}
    condition = options.pop("threshold", None)
    match = _CONDITION.fullmatch(condition.strip()) if isinstance(condition, str) else None
    if match is None:
        raise ValueError(f"{condition!r} is not a condition such as p(95)<50ms or rate<0.001")
    with placed(condition):
        return _conditioned(metric, scope, match, options)


def _conditioned(
    metric: Metric, scope: PromiseScope, match: re.Match[str], options: Mapping[Any, Any]
) -> Promise:
    """`options`: what a mapping says beside its `threshold`."""
    for name in options:
        _known(str(name), _OPTIONS, "key")
    at, delay = options.get("at"), options.get("delayAbortEval")
    aborts_on_fail = options.get("abortOnFail", False)
    refuse({
        "abortOnFail is true or false": not isinstance(aborts_on_fail, bool),
        "at is the load of whole phases, and the tags name parts of them": (
            "at" in options and (scope.burst or scope.window_ns)
        ),
        "delayAbortEval is for abortOnFail: true": "delayAbortEval" in options and not aborts_on_fail,
    })  # fmt: skip
    with placed("at"):
        at_hz = parse_rate(at) if "at" in options else None
    with placed("delayAbortEval"):
        delay_ns = _time_ns(str(delay)) if "delayAbortEval" in options else 0
    statistic, argument, sign, limit = match.groups()
    known = {"goodput": ("rate",), "failures": ("rate", "count")}.get(metric, _OF_TIMES)
    _known(statistic, known, f"statistic of {metric}")
    signs = (">", ">=") if metric == "goodput" else ("<", "<=")
    refuse({
        f"{metric} is promised with {' or '.join(signs)}": sign not in signs,
        "p takes a percentage, p(95), and nothing else does": (statistic == "p") != (argument is not None),
    })  # fmt: skip
    q = _quantile(argument.strip()) if statistic == "p" else Decimal("0.5") if statistic == "med" else None
    promise = Promise(
        metric=metric,
        scope=scope,
        statistic=cast("Literal['p', 'max', 'rate', 'count']", "p" if q is not None else statistic),
        sign=cast("Sign", sign),
        limit=_limit(statistic, limit.strip()),
        q=q,
        at_hz=at_hz,
        aborts_on_fail=aborts_on_fail,
        delay_ns=delay_ns,
    )
    refuse({
        "no run can keep it": promise.n_allowed(1) < 0 or promise.late_from_ns == 0,
        "every run keeps it: a rate is a share of the requests, from 0 to 1": (
            statistic == "rate" and promise.n_allowed(1) > 0
        ),
        "abortOnFail: late requests are counted by phase and server while the load runs, not by model, gpu, burst or"
        " window, and not response by response": aborts_on_fail and not promise.is_counted,
    })  # fmt: skip
    return promise


def _scope(metric: Metric, text: str | None) -> PromiseScope:
    tags: dict[str, Any] = {}
    for part in text.split(",") if text is not None else ():
        tag, _, value = (word.strip() for word in part.partition(":"))
        if not value:
            raise ValueError(f"{part.strip()!r} is not a tag such as phase:burst")
        if _known(tag, TAGS, "tag") in tags:
            raise ValueError(f"tag {tag} stands twice")
        tags[tag] = _time_ns(value) if tag in ("window", "within") else value
        if tags[tag] == 0:
            raise ValueError(f"{tag} must be above 0")
    if "burst" in tags:
        _known(tags["burst"], BURSTS, "burst")
    refuse({
        "tag within is the time up to which a request is good: goodput needs it, goodput{within:100ms}, and other"
        " metrics have their limit in the condition, p(95)<50ms": (metric == "goodput") != ("within" in tags),
        "tags burst and window exclude each other": {"burst", "window"} <= tags.keys(),
    })  # fmt: skip
    return PromiseScope(*map(tags.get, TAGS))


def _quantile(percentage: str) -> Decimal:
    if not _NUMBER.fullmatch(percentage) or not 0 < Decimal(percentage) < 100:
        raise ValueError("p takes a percentage between 0 and 100, such as p(99.9)")
    return Decimal(percentage) / 100


def _limit(statistic: str, text: str) -> Decimal:
    if statistic in _OF_TIMES:
        return Decimal(_time_ns(text))
    is_count = statistic == "count"
    number = text if is_count else text.removesuffix("%").strip()
    if not _NUMBER.fullmatch(number) or (is_count and Decimal(number) % 1):
        form = "a whole number" if is_count else "a share such as 0.001 or 0.1%"
        raise ValueError(f"{text!r} is not {form}")
    return Decimal(number) / (100 if number != text else 1)


def _time_ns(text: str) -> int:
    """A duration; a bare number is ms."""
    return parse_duration(f"{text}ms" if _NUMBER.fullmatch(text) else text)


def _refuse_contradictions(promises: Sequence[Promise]) -> None:
    """Two limits of one figure, and a tighter limit of a higher quantile, beside which the lower says nothing."""
    for pair in combinations(promises, 2):
        low, high = sorted(pair, key=lambda promise: promise.q or 1)
        if (low.key, low.at_hz) != (high.key, high.at_hz):
            continue
        both = f"{low.key}: {high.condition} and {low.condition}"
        if low.statistic_text == high.statistic_text:
            raise ValueError(f"{both} are two limits of one figure, keep one of them")
        if low.is_of_times and (high.late_from_ns or 0) < (low.late_from_ns or 0):
            raise ValueError(
                f"{both}: the first contradicts the second, {low.statistic_text} is never above {high.statistic_text}"
            )


def _known(word: str, known: Sequence[str], what: str) -> str:
    if word in known:
        return word
    raise ValueError(f"unknown {what} {word!r}, {way_out(word, known, 'use ' + ', '.join(known))}")


def _time_text(ns: int) -> str:
    """Exact, as people write limits: `50ms`, `6.5ms`, `800us`; whole seconds and what is below 1 us as anywhere."""
    if ns % NS_PER_S == 0 or ns < 1_000:
        return format_duration(ns)
    unit, unit_ns = ("ms", NS_PER_MS) if ns >= NS_PER_MS else ("us", 1_000)
    return f"{_plain(Decimal(ns) / unit_ns)}{unit}"


def _plain(number: Decimal) -> str:
    """Without an exponent, without zeros behind."""
    return f"{number.normalize():f}"
