"""Figures of the checks of users: Little's law of any closed loop, and of Locust's users whether they were there, woke
in time, and are counted alike by Locust and by the rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from squall.analysis.limits import LIMITS
from squall.analysis.requests.asked import GRACE_NS, asked_mean
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.requests.locust_statistics import is_aggregate, unreported
from squall.analysis.requests.user_watch import count_before, per_second
from squall.analysis.requests.users import reported_mean_ns, seen_mean_ns
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.check import Figure
from squall.analysis.verdict.client_checks import more_workers
from squall.analysis.verdict.run_view import RunView, is_locust
from squall.analysis.wording import count_text, duration_text, macros, names_text

LEAST_WAKES = 20
"""Below which one late wake alone is more than the share that may be late."""


def users_accounted(view: RunView) -> Figure:
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
    if view.unreached_ratio > LIMITS.unreached_ratio:
        excuse = excuse or "users found no server"
    limit = LIMITS.user_gap_ratio + LIMITS.user_gap_errors * users.gap_error_ratio
    return Figure(abs(users.gap_ratio), limit, advice=advice, excuse=excuse)


def seen_text(users: UserTime) -> str:
    """`requests took their users 416 ms, of which Locust's response times hold 41 ms`."""
    seen, reported = duration_text(seen_mean_ns(users)), duration_text(reported_mean_ns(users))
    return f"requests took their users {seen}, of which Locust's response times hold {reported}"


def users_present(view: RunView) -> Figure:
    """Mean users present against those asked for; users that Locust may still be spawning are not missed."""
    facts, watched, samples = view.manifest.locust, view.watched, view.samples.locust_users
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
    end_ns = max(span.end_ns for span in spans)
    t_ns, users = per_second(samples, "n_users")
    inside = users[(t_ns > spans[0].start_ns) & (t_ns <= end_ns)]
    silent = [one for one in facts.workers if one.n_requests is None and not one.n_users_lost]
    why = macros(__package__, "users.j2").missing(
        facts.is_whole,
        count_before(samples, "n_died", end_ns),
        max(facts.exceptions, key=lambda one: one.n, default=None),
        {f"worker {one.worker}": one.n_users_lost for one in facts.workers if one.n_users_lost},
        [f"worker {one.worker}" for one in silent],
        len(inside) > 0 and inside[0] < inside[-1],
    )
    return str(why)


def late_users(view: RunView) -> Figure:
    """A user that is woken late waited for its turn in a process that was busy with others."""
    facts, watched = view.manifest.locust, view.watched
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


def locust_counts(view: RunView) -> Figure:
    """By method and name over the whole run: rows without a count, counts without a row, and failures likewise."""
    rows, facts = view.samples.locust_rows, view.manifest.locust
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
