"""Checks of users: Little's law of any closed loop, and of Locust's users whether they were there, woke in time, and
are counted alike by Locust and by the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.limits import Limits
from squall.analysis.locust.asked import GRACE_NS, asked_mean
from squall.analysis.locust.named_rows import RowsByName
from squall.analysis.locust.statistics import is_aggregate, unreported
from squall.analysis.locust.user_watch import LocustTime, count_before, locust_time, per_second
from squall.analysis.locust.users import is_locust_load, reported_mean_ns, seen_mean_ns
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.tables.locust import LocustFacts
from squall.analysis.tables.manifest import Manifest
from squall.analysis.verdict.check import Check, held_to, not_assessed
from squall.analysis.wording import count_text, duration_text, names_text, share_text

USERS_CHECK = "users accounted for"
SIDE_BY_SIDE = "users have requests side by side, so that these take more than the users' time"
LATE_CHECK = "late users"
MORE_WORKERS = "add client workers or nodes"
MORE_LOCUST_WORKERS = "add clients.workers_per_node or nodes: a Locust worker has one core"


def more_workers(manifest: Manifest) -> str:
    """What helps a client that is full."""
    return MORE_LOCUST_WORKERS if is_locust_load(manifest) else MORE_WORKERS


@dataclass(frozen=True, eq=False)
class LocustRecord:
    """What is known of Locust beside its requests; None where the table is absent."""

    samples: pa.Table | None
    rows: RowsByName | None


def users_accounted(users: UserTime, limits: Limits, manifest: Manifest) -> Check:
    """Little's law; the limit allows for the think times, where only their law is known. Users of Locust that have more
    than one request at once take more time than there is, which says nothing of the client."""
    limit = limits.user_gap_ratio + limits.user_gap_errors * users.gap_error_ratio
    meaning = "difference of users from throughput x (service + think), of the users"
    advice = f"requests spent that time inside the load generator; {more_workers(manifest)}"
    if is_locust_load(manifest):
        advice = (
            f"{seen_text(users)}: the rest passed inside Locust, or in code of the users that is no request; "
        )
        advice += more_workers(manifest)
    elif users.gap_ratio < 0:
        advice = "users sent sooner than their think time allows"
    check = held_to(USERS_CHECK, abs(users.gap_ratio), limit, "ratio", meaning, advice)
    is_beside = is_locust_load(manifest) and users.gap_ratio < 0
    return check.unless(SIDE_BY_SIDE if is_beside else "")


def seen_text(users: UserTime) -> str:
    """`requests took their users 416 ms, of which Locust's response times hold 41 ms`."""
    seen, reported = duration_text(seen_mean_ns(users)), duration_text(reported_mean_ns(users))
    return f"requests took their users {seen}, of which Locust's response times hold {reported}"


def locust_checks(
    record: LocustRecord | None, manifest: Manifest, spans: Sequence[RunPhase], limits: Limits
) -> list[Check]:
    """The checks of a run whose load was Locust's."""
    samples = record.samples if record is not None else None
    watched = locust_time(samples, spans) if samples is not None and samples.num_rows else None
    return [
        _users_present(watched, samples, manifest, spans, limits),
        _late_users(watched, manifest.locust, limits),
        _counts(record.rows if record is not None else None, manifest.locust),
    ]


def _users_present(
    watched: LocustTime | None,
    samples: pa.Table | None,
    manifest: Manifest,
    spans: Sequence[RunPhase],
    limits: Limits,
) -> Check:
    """Mean users present against those asked for; users that Locust may still be spawning are not missed."""
    name, limit = "users present", limits.missing_users_ratio
    meaning = "share of the users asked for that were missing, mean of the measure phases"
    facts = manifest.locust
    if facts is None or watched is None or samples is None:
        return held_to(name, None, limit, "ratio", meaning, "")
    asked = asked_mean(facts, spans, GRACE_NS)
    if not asked:
        why = "Locust was asked for no users in the measure phases"
        why = why if facts.is_whole else "Locust's master was lost, and with it how many users it asked for"
        return not_assessed(name, None, limit, "ratio", meaning, why)
    present = watched.present_ns / watched.duration_ns
    missing = max(0.0, 1.0 - present / asked)
    found = f"{count_text(round(present, 1))} of {count_text(round(asked, 1))} on average"
    return held_to(name, missing, limit, "ratio", meaning, f"{found}; {_why_missing(facts, samples, spans)}")


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


def _late_users(watched: LocustTime | None, facts: LocustFacts | None, limits: Limits) -> Check:
    """A user that is woken late waited for its turn in a process that was busy with others."""
    limit = limits.late_users_ratio
    late = duration_text(facts.late_ns if facts is not None else None)
    meaning = f"share of the users' wakes that came more than {late} after the instant that they asked for"
    ratio = watched.late_ratio if watched is not None else None
    if watched is not None and watched.n_wakes < limits.least_samples:
        few = f"{count_text(round(watched.n_wakes))} wakes, it takes {limits.least_samples}"
        return not_assessed(LATE_CHECK, ratio, limit, "ratio", meaning, few)
    return held_to(LATE_CHECK, ratio, limit, "ratio", meaning, MORE_LOCUST_WORKERS)


def waited_texts(
    users: UserTime | None,
    samples: pa.Table | None,
    manifest: Manifest,
    spans: Sequence[RunPhase],
    unmet: Sequence[str],
) -> list[str]:
    """What users of Locust waited for it, as the checks that are not met say, in clauses:
    `12 % of the users' wakes were more than 10 ms late`."""
    told = [seen_text(users)] if users is not None and USERS_CHECK in unmet else []
    if LATE_CHECK in unmet and samples is not None and manifest.locust is not None:
        share, late = (
            share_text(locust_time(samples, spans).late_ratio),
            duration_text(manifest.locust.late_ns),
        )
        told.append(f"{share} of the users' wakes were more than {late} late")
    return told


def _counts(rows: RowsByName | None, facts: LocustFacts | None) -> Check:
    """By method and name over the whole run: rows without a count, counts without a row, and failures likewise."""
    name, meaning = "Locust's counts", "difference of rows and failures by name from Locust's statistics"
    advice = "Locust saw requests that have no row, or the other way round: see logs/, and run again"
    if rows is None or facts is None:
        return held_to(name, None, 0, "count", meaning, advice)
    found = {(one.method, one.name): (one.n, one.n_failed) for one in rows.names}
    said = {
        (one.method, one.name): (one.n_requests, one.n_failures)
        for one in facts.entries
        if not is_aggregate(one)
    }
    off = {
        key: sum(abs(a - b) for a, b in zip(found.get(key, (0, 0)), said.get(key, (0, 0)), strict=True))
        for key in {*found, *said}
    }
    n_off = sum(off.values())
    if why := unreported(facts):
        return not_assessed(name, n_off, 0, "count", meaning, why)
    wrong = sorted((key for key in off if off[key]), key=lambda key: -off[key])
    shown = names_text([" ".join(filter(None, key)) for key in wrong])
    return held_to(name, n_off, 0, "count", meaning, f"of {shown}; {advice}")
