"""A promise: a bound on how many requests of a scope may be late or fail, and the number that a plan allows.

Every promise is made a count: of the n requests of its scope, n_late are not as promised and `n_allowed(n)` may be.

    p(q) < L     of times, by nearest rank X(k), k = ceil(q n):  X(k) < L  <=>  #{x >= L} <= n - k
    rate < r     of failures:                                    n_late / n < r
    rate > r     of goodput, what is not good being late:        (n - n_late) / n > r

A request that failed, or was never sent, is infinitely slow. Shares are decimal and all arithmetic is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from squall.scenarios.units import NS_PER_S, format_duration, format_rate

Metric = Literal[
    "response", "first_response", "gap", "mean_gap", "service", "send_lag", "failures", "goodput"
]
Burst = Literal["in", "out", "each"]
Sign = Literal["<", "<=", ">", ">="]

OF_RESPONSES: tuple[Metric, ...] = ("first_response", "gap", "mean_gap")
"""Of requests that are answered response by response: to the first, the longest and the mean time from each response of
a request to the next."""
TIMES: tuple[Metric, ...] = ("response", *OF_RESPONSES, "service", "send_lag")
METRICS: tuple[Metric, ...] = (*TIMES, "failures", "goodput")
BURSTS: tuple[Burst, ...] = ("in", "out", "each")
TAGS = ("phase", "model", "server", "gpu", "burst", "window", "within")
DECIDED = "decided"
"""The detail of arrivals that were not sent since the outcome of the promises was certain."""


@dataclass(frozen=True)
class LateLimit:
    """What makes a request late: `span` is as long as `late_from_ns` or longer, or it did not end ok; without a limit
    the latter alone. `send_lag` asks whether it was sent, not how it ended."""

    span: Literal["response", "service", "send_lag"]
    late_from_ns: int | None


@dataclass(frozen=True)
class PromiseScope:
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
    def text(self) -> str:
        """`{phase:burst,window:1s}`; empty for all."""
        tags = {
            "phase": self.phase,
            "model": self.model,
            "server": self.server,
            "gpu": self.gpu,
            "burst": self.burst,
            "window": None if self.window_ns is None else _time_text(self.window_ns),
            "within": None if self.within_ns is None else _time_text(self.within_ns),
        }
        given = [f"{tag}:{value}" for tag, value in tags.items() if value is not None]
        return f"{{{','.join(given)}}}" if given else ""


@dataclass(frozen=True)
class Promise:
    """One promise, as `squall.scenarios.promises.grammar` reads it.

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
    q: Decimal | None = field(default=None)
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
        return f"{self.statistic_text}{self.sign}{self.limit_text}"

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
    def limit_text(self) -> str:
        """The limit with its unit."""
        return _time_text(int(self.limit)) if self.is_of_times else _plain(self.limit)

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
        """Whether its late requests are counted while the load runs: by phase and server they are, by model, GPU,
        burst, window and of responses they are not."""
        scope = self.scope
        is_of_all = (
            scope.model is None and scope.gpu is None and scope.burst is None and scope.window_ns is None
        )
        return is_of_all and self.metric not in OF_RESPONSES

    @property
    def is_of_each_run(self) -> bool:
        """Whether one run that breaks it breaks it: of the longest time, a count, each burst, each window, and where
        none may be late. Of the others the share of late requests is what is promised, over all that the process of
        arrivals may bring."""
        return self.statistic in ("max", "count") or self.scope.is_each or self.allowed_ratio == 0

    @property
    def allowed_ratio(self) -> float | None:
        """Share of requests that may be late; None of `max` and `count`."""
        if self.q is not None:
            return float(1 - self.q)
        if self.statistic != "rate":
            return None
        return float(1 - self.limit if self.metric == "goodput" else self.limit)

    def n_allowed(self, n: int) -> int:
        """How many of `n` requests, 1 or more, may be late; -1 where even none is one too many."""
        if self.statistic == "max":
            return 0
        if self.statistic == "count":
            return int(self.limit) - (self.sign == "<")
        if self.q is not None:
            return n - math.ceil(Fraction(self.q) * n)
        share = Fraction(1 - self.limit if self.metric == "goodput" else self.limit)
        return math.ceil(share * n) - 1 if self.sign in ("<", ">") else math.floor(share * n)


def _time_text(ns: int) -> str:
    """Exact, as people write limits: `50ms`, `6.5ms`, `800us`; whole seconds and what is below 1 us as anywhere."""
    if ns % NS_PER_S == 0 or ns < 1_000:
        return format_duration(ns)
    return f"{_plain(Decimal(ns) / 1_000_000)}ms" if ns >= 1_000_000 else f"{_plain(Decimal(ns) / 1_000)}us"


def _plain(number: Decimal) -> str:
    """Without an exponent, without zeros behind."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
