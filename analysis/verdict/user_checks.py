"""Checks of users: Little's law of any closed loop, and of Locust's users whether they were there, woke in time, and
are counted alike by Locust and by the rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from squall.analysis.limits import LIMITS
from squall.analysis.requests.asked import GRACE_NS, asked_mean
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.requests.locust_statistics import is_aggregate, unreported
from squall.analysis.requests.user_watch import LocustTime, count_before, locust_time, per_second
from squall.analysis.requests.users import reported_mean_ns, seen_mean_ns
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.check import CLIENT, Check, Figure
from squall.analysis.verdict.client_checks import more_workers
from squall.analysis.verdict.run_view import RunView, has_users, is_locust
from squall.analysis.verdict.server_checks import UNREACHED_RATIO
from squall.analysis.wording import count_text, duration_text, names_text, share_text

LEAST_WAKES = 20
"""Below which one late wake alone is more than the share that may be late."""


def _users_accounted(view: RunView) -> Figure:
    """Little's law; the limit allows for the think times, where only their law is known. Users of Locust that have more
    than one request at once take more time than there is, which says nothing of the client."""
    users = view.users
    assert users is not None, "asked only of a run that has them"
    more, excuse = more_workers(view.manifest), ""
    advice = f"requests spent that time inside the load generator; {more}"
    if is_locust(view):
        advice = (
            f"{seen_text(users)}: the rest passed inside Locust, or in code of the users that is no request; "
        )
        advice += more
        if users.gap_ratio < 0:
            excuse = "users have requests side by side, so that these take more than the users' time"
    elif users.gap_ratio < 0:
        advice = "users sent sooner than their think time allows"
    if view.failures.n_unreached / view.failures.n > UNREACHED_RATIO:
        excuse = excuse or "users found no server"
    limit = LIMITS.user_gap_ratio + LIMITS.user_gap_errors * users.gap_error_ratio
    return Figure(abs(users.gap_ratio), limit, advice=advice, excuse=excuse)


def seen_text(users: UserTime) -> str:
    """`requests took their users 416 ms, of which Locust's response times hold 41 ms`."""
    seen, reported = duration_text(seen_mean_ns(users)), duration_text(reported_mean_ns(users))
    return f"requests took their users {seen}, of which Locust's response times hold {reported}"


def _watched(view: RunView) -> LocustTime | None:
    samples = view.samples.locust_users
    return locust_time(samples, view.spans) if samples is not None and samples.num_rows else None


def _users_present(view: RunView) -> Figure:
    """Mean users present against those asked for; users that Locust may still be spawning are not missed."""
    facts, watched, samples = view.manifest.locust, _watched(view), view.samples.locust_users
    if facts is None or watched is None or samples is None:
        return Figure(None)
    asked = asked_mean(facts, view.spans, GRACE_NS)
    if not asked:
        why = "Locust was asked for no users in the measure phases"
        why = why if facts.is_whole else "Locust's master was lost, and with it how many users it asked for"
        return Figure(None, not_assessed=why)
    present = watched.present_ns / watched.duration_ns
    found = f"{count_text(round(present, 1))} of {count_text(round(asked, 1))} on average"
    return Figure(
        max(0.0, 1.0 - present / asked), advice=f"{found}; {_why_missing(facts, samples, view.spans)}"
    )


def _why_missing(facts: LocustFacts, samples: pa.Table, spans: Sequence[RunPhase]) -> str:
    """Why there were fewer users than asked for, and what to do."""
    told = []
    end_ns = max(span.end_ns for span in spans)
    if n_died := count_before(samples, "n_died", end_ns):
        worst = max(facts.exceptions, key=lambda one: one.n, default=None)
        of_what = f" ({' '.join(worst.message.split())[:120]})" if worst is not None else ""
        told.append(f"{count_text(n_died)} died of an exception{of_what}: mend the locustfile")
    lost = [one for one in facts.workers if one.n_users_lost]
    if lost:
        n_lost = count_text(sum(one.n_users_lost for one in lost))
        names = names_text([f"worker {one.worker}" for one in lost])
        told.append(f"{n_lost} went with {names}: see logs/, and run again")
    gone = [one for one in facts.workers if one.n_requests is None and not one.n_users_lost]
    if gone:
        told.append(
            f"lost with {names_text([f'worker {one.worker}' for one in gone])}: see logs/, and run again"
        )
    if not facts.is_whole:
        told.append("the load ended with the Locust master: see logs/, and run again")
    t_ns, users = per_second(samples, "n_users")
    inside = users[(t_ns > spans[0].start_ns) & (t_ns <= end_ns)]
    if not told and len(inside) and inside[0] < inside[-1]:
        told.append(
            "they were still being spawned: lengthen the warmup, or ask for fewer users or a lower spawn_rate"
        )
    return "; ".join(told) or "they ended by themselves (StopUser), or were never spawned: see logs/"


def _late_users(view: RunView) -> Figure:
    """A user that is woken late waited for its turn in a process that was busy with others."""
    facts, watched = view.manifest.locust, _watched(view)
    late = duration_text(facts.late_ns if facts is not None else None)
    few = ""
    if watched is not None and watched.n_wakes < LEAST_WAKES:
        few = f"{count_text(round(watched.n_wakes))} wakes, it takes {LEAST_WAKES}"
    return Figure(
        watched.late_ratio if watched is not None else None,
        meaning=f"share of the users' wakes that came more than {late} after the instant that they asked for",
        advice=more_workers(view.manifest),
        not_assessed=few,
    )


def waited_texts(view: RunView) -> list[str]:
    """What users of Locust waited for it, as the checks that are not met say, in clauses:
    `12 % of the users' wakes were more than 10 ms late`."""
    unmet, facts, watched = view.unmet(), view.manifest.locust, _watched(view)
    told = [seen_text(view.users)] if view.users is not None and USERS_CHECK.name in unmet else []
    if LATE_CHECK.name in unmet and watched is not None and facts is not None:
        late = duration_text(facts.late_ns)
        told.append(f"{share_text(watched.late_ratio)} of the users' wakes were more than {late} late")
    return told


def _counts(view: RunView) -> Figure:
    """By method and name over the whole run: rows without a count, counts without a row, and failures likewise."""
    rows = view.samples.locust.rows if view.samples.locust is not None else None
    facts = view.manifest.locust
    if rows is None or facts is None:
        return Figure(None)
    found = {(one.method, one.name): (one.figures.n_requests, one.figures.n_failures) for one in rows.names}
    said = {
        (one.method, one.name): (one.n_requests, one.n_failures)
        for one in facts.entries
        if not is_aggregate(one)
    }
    off = {
        key: sum(abs(a - b) for a, b in zip(found.get(key, (0, 0)), said.get(key, (0, 0)), strict=True))
        for key in {*found, *said}
    }
    wrong = sorted((key for key in off if off[key]), key=lambda key: -off[key])
    shown = names_text([" ".join(filter(None, key)) for key in wrong])
    advice = (
        f"of {shown}; Locust saw requests that have no row, or the other way round: see logs/, and run again"
    )
    return Figure(sum(off.values()), advice=advice, not_assessed=unreported(facts))


USERS_CHECK = Check(
    name="users accounted for",
    figure=_users_accounted,
    limit=LIMITS.user_gap_ratio,
    unit="ratio",
    reason="a twentieth of the users' time, beyond 3 standard errors of the think time: more, and the client slowed its"
    " own users down",
    meaning="difference of users from throughput x (service + think), of the users",
    where=has_users,
    shows=CLIENT,
)
LATE_CHECK = Check(
    name="late users",
    figure=_late_users,
    limit=0.05,
    unit="ratio",
    reason="as samples of a full worker: more, and users waited for their turn in a full process, before a send that no"
    " response time holds",
    meaning="share of the users' wakes that came late",
    where=is_locust,
    shows=CLIENT,
)
LOCUST_CHECKS = (
    Check(
        name="users present",
        figure=_users_present,
        limit=0.01,
        unit="ratio",
        reason="as `delivered load`: users are the load",
        meaning="share of the users asked for that were missing, mean of the measure phases",
        where=is_locust,
    ),
    LATE_CHECK,
    Check(
        name="Locust's counts",
        figure=_counts,
        limit=0,
        unit="count",
        reason="both count the same requests, one by one",
        meaning="difference of rows and failures by name from Locust's statistics",
        where=is_locust,
    ),
)
