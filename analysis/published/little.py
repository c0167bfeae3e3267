"""Little's law over the rows of an article, and over ours: what of a user's cycle lies outside any request.

    users / throughput = cycle = response + outside (J. D. C. Little, Operations Research 9(3), 1961)

Closed-loop users are in a request, thinking, or held up by the load generator. A published row states users,
throughput and a mean response; what its cycle has beyond the mean was thought or lost in the client. 1,000 users at
1,151 requests/s have cycles of 869 ms: with a mean of 441 ms half of each was spent outside any request. Where no mean
was published its median stands in, and that is said: the mean of a skewed latency is larger, so that less may have been
outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from squall.analysis.limits import LIMITS
from squall.analysis.wording import duration_text, share_text
from squall.scenarios.published.file import PublishedFile, Stated
from squall.scenarios.units import NS_PER_S

OUTSIDE_LIMIT_RATIO = LIMITS.user_gap_ratio
"""Share of the users' time that a run of ours may have outside of requests and think time."""
PUBLISHED, OURS = "published", "ours"
CLIENT_BOUND = "client-bound"


@dataclass(frozen=True)
class Cycle:
    """A row by Little's law. `whose`: published or ours. `response_ns`: its mean, or its p50, as `response_name` says.
    `outside_ratio`: of the cycle; below 0 where figures do not belong together. `claim`: what that says."""

    row: str
    whose: str
    users_count: float
    throughput_hz: float
    cycle_ns: float
    response_ns: float
    response_name: str
    outside_ratio: float
    claim: str


def cycle_of(
    row: str,
    whose: str,
    users_count: float,
    throughput_hz: float,
    response_ns: float,
    response_name: str = "mean",
) -> Cycle:
    """The cycle of a row from its users, requests/s and response time."""
    cycle_ns = users_count / throughput_hz * NS_PER_S
    outside = 1.0 - response_ns / cycle_ns
    claim = _claim(outside, cycle_ns, response_ns, response_name)
    return Cycle(row, whose, users_count, throughput_hz, cycle_ns, response_ns, response_name, outside, claim)


def _claim(outside: float, cycle_ns: float, response_ns: float, response_name: str) -> str:
    cycle, response = duration_text(cycle_ns), f"{response_name} {duration_text(response_ns)}"
    if outside > OUTSIDE_LIMIT_RATIO:
        return (
            f"client-bound or thinking: {share_text(outside)} of a cycle of {cycle} lies outside any request"
            f" ({response})"
        )
    if outside < -OUTSIDE_LIMIT_RATIO:
        return f"the figures do not belong together: {response} in a cycle of {cycle}"
    return f"accounted for: a cycle of {cycle} is the request ({response})"


def published_cycles(file: PublishedFile) -> list[Cycle]:
    """Of every row that states throughput, a mean or median, and whose users are known; in their order."""
    found = []
    for row in file.rows:
        users = _one(row.published.get("users_count")) or stated_users(file)
        throughput = _one(row.published.get("throughput_hz"))
        mean, middle = (_one(row.published.get(name)) for name in ("mean_ns", "p50_ns"))
        response = mean or middle
        if users and throughput and response:
            name = "mean" if mean else "p50, for want of a mean"
            found.append(cycle_of(row.name, PUBLISHED, users, throughput, response, name))
    return found


def our_cycle(row: str, figures: Mapping[str, float]) -> Cycle | None:
    """Of a row of ours, from its mean figures; None where one is missing.

    The share outside of requests is what was measured over the very time in which users were there
    (`squall.analysis.published.figures.user_figures`), and not what users / throughput leaves of the mean: of requests
    that began before the phase, or ended behind it, the mean has none.
    """
    names = ("users_count", "throughput_hz", "mean_ns", "outside_ratio")
    users, throughput, mean, outside = (figures.get(name) for name in names)
    if not users or not throughput or not mean or outside is None:
        return None
    cycle_ns = users / throughput * NS_PER_S
    claim = _claim(outside, cycle_ns, mean, "measured; mean")
    return Cycle(row, OURS, users, throughput, cycle_ns, mean, "mean", outside, claim)


def stated_users(file: PublishedFile) -> float | None:
    """Users that any row of the article states, else those of the scenario's closed loop."""
    for row in file.rows:
        if (users := _one(row.published.get("users_count"))) is not None:
            return users
    for phase in (file.scenario or {}).get("phases", ()):
        arrivals = phase.get("arrivals") if isinstance(phase, Mapping) else None
        users = arrivals.get("users") if isinstance(arrivals, Mapping) else None
        if isinstance(users, int | float) and users > 0:
            return float(users)
    return None


def _one(value: Stated | None) -> float | None:
    """A stated number, the middle of a range; None of a text."""
    if isinstance(value, tuple):
        return sum(value) / len(value)
    return None if value is None or isinstance(value, str) else float(value)
