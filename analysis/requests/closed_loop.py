"""Little's law over the measure phases of a closed-loop run: is every user accounted for?

Over a phase in which each user is in the system from its first instant on,

    users = throughput · (service + think) + users inside the load generator

since a user is at any instant in service, thinking, or held up by the client. The first two are known, so that the
rest is what the client itself took: a self-check that needs no clock but the worker's own. It is stated as time: the
users' time is the sum of the three parts, each over the length of the phases (J. D. C. Little, Operations Research
9(3), 1961, without a limit: an identity over a finite window).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.requests.requests import Requests
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import over
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.arrivals.users import ClosedArrivals
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S


class UserFigures(Frozen):
    """Little's law as it came out: users = throughput · (service + think) + inside the client."""

    users_mean_count: float
    throughput_hz: float
    service_mean_ns: int
    think_mean_ns: int
    inside_client_mean_count: float
    gap_ratio: float
    gap_error_ratio: float


class UserTime(Frozen):
    """Where the users' time went in the measure phases, summed over users; `n_done` replies came in them."""

    duration_ns: int
    present_ns: int
    service_ns: int
    think_ns: float
    think_error_ns: float
    """Standard error of `think_ns`: the think times were drawn, and only their law is known here."""
    n_done: int

    @property
    def gap_ratio(self) -> float:
        """Share of the users' time that is neither service nor think: inside the load generator, if positive."""
        return (self.present_ns - self.service_ns - self.think_ns) / self.present_ns

    @property
    def gap_error_ratio(self) -> float:
        """Standard error of `gap_ratio`."""
        return self.think_error_ns / self.present_ns

    def figures(self) -> UserFigures:
        """Per instant and per reply, as the summary holds them."""
        per_request = self.n_done or 1
        return UserFigures(
            users_mean_count=self.present_ns / self.duration_ns,
            throughput_hz=self.n_done * NS_PER_S / self.duration_ns,
            service_mean_ns=round(self.service_ns / per_request),
            think_mean_ns=round(self.think_ns / per_request),
            inside_client_mean_count=self.gap_ratio * self.present_ns / self.duration_ns,
            gap_ratio=self.gap_ratio,
            gap_error_ratio=self.gap_error_ratio,
        )


def user_time(everything: Requests, spans: Sequence[RunPhase], manifest: Manifest) -> UserTime | None:
    """The users' time over the phases `spans`; None where the manifest does not state users and think time.

    `everything` has all phases: a user may still be in service from the phase before.
    """
    n_users = manifest.plan.n_users or 0
    configs = [_closed_arrivals(manifest, span.name) for span in spans]
    if n_users < 1 or not spans:
        return None
    parts = []
    for span, config in zip(spans, configs, strict=True):
        if config is None:
            return None
        parts.append(_phase_time(everything, span, config, n_users))
    duration_ns, present_ns, service_ns, think_ns, variance, n_done = map(sum, zip(*parts, strict=True))
    return UserTime(duration_ns, present_ns, service_ns, think_ns, math.sqrt(variance), n_done)


def _closed_arrivals(manifest: Manifest, phase: str) -> ClosedArrivals | None:
    """The closed loop of a phase, from the resolved scenario in the manifest."""
    for one in (manifest.scenario or {}).get("phases", []):
        if one["name"] == phase and (one.get("arrivals") or {}).get("kind") == "closed":
            return ClosedArrivals.model_validate(one["arrivals"])
    return None


_USERS = """
-- of each user of a phase how long it is there, what of that its requests take, those that end of the phase's own, and
-- when it began the think that the end cuts off: 0 where it is in service then
WITH users AS (SELECT number, $start + $ramp * number // $users AS first_ns FROM range($users) AS each (number))
SELECT $end - first_ns AS present_ns, count(*) FILTER (is_over) AS n_done,
    coalesce(sum(greatest(least(done_ns, $end) - greatest(sent_ns, first_ns), 0)) FILTER (is_done), 0)::BIGINT
        AS service_ns,
    CASE WHEN count(*) FILTER (is_own AND NOT is_over) > 0 THEN 0
        ELSE coalesce(max(done_ns) FILTER (is_over), 0) END AS begun_ns
FROM users LEFT JOIN (
    SELECT *, phase = $phase AS is_own, is_own AND is_done AND done_ns < $end AS is_over FROM requests)
    ON request_id % $n = number
GROUP BY number, first_ns ORDER BY number
"""


def _phase_time(
    everything: Requests, span: RunPhase, config: ClosedArrivals, n_users: int
) -> tuple[int, int, int, float, float, int]:
    """The fields of `UserTime` over one phase, with the square of the error.

    Think time is that of every think begun in it, less what of the last ones lies behind its end. By Wald's identity
    the think times begun sum up to n · mean on average, those cut off by the end included; of these the rest beyond the
    end is `mean_excess_ns` of what has passed. Its spread is at most that of n draws.
    """
    given = {"start": span.start_ns, "end": span.end_ns, "phase": span.name, "n": n_users}
    requests = everything.table("request_id", "phase", "sent_ns", "done_ns", "is_done")
    with over({"requests": requests}) as connection:
        found = connection.execute(
            _USERS, {**given, "users": config.users, "ramp": config.ramp_ns}
        ).fetchnumpy()
    n_done, mean_ns = int(found["n_done"].sum()), config.think.mean_ns
    begun_ns = found["begun_ns"][found["begun_ns"] > 0]
    excess_ns = config.think.mean_excess_ns(span.end_ns - begun_ns)
    return (
        span.end_ns - span.start_ns,
        int(found["present_ns"].sum()),
        int(found["service_ns"].sum()),
        n_done * mean_ns - float(excess_ns.sum()),
        n_done * (config.think.cv * mean_ns) ** 2,
        n_done,
    )
