"""Little's law in each measured phase: mean number in the system = rate · mean time in it, edges counted exactly.

Open loop. In the system from the scheduled instant to the reply. Over a phase [a, b) of length T, with n arrivals whose
response times are R:

    mean number in the system · T = ∑ R - (what of them lies at or beyond b) + (what of earlier ones lies within)

an identity over a finite window (J. D. C. Little, Operations Research 9(3), 1961). The left side comes from the
instants of `requests`; of the right side n is the plan's and the mean of R that of `joined`. A lost row (its count is
held to the plan's too), a phase or a response time that is wrong breaks it. Closed loop:
`squall.analysis.requests.closed_loop`.

Beside it the same number is held to what the workers themselves counted: `n_in_flight` of each of their samples
against the rows that were in flight at that instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from squall.analysis.clocks.timeline import RunPhase, measure_spans
from squall.analysis.findings.self_checks.self_check import SelfCheck, at_most
from squall.analysis.limits import LIMITS
from squall.analysis.locust.users import is_locust_load, users_of_run
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.requests.requests import Requests, is_open_load
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

GAP_RATIO = 1e-6
"""Both sides are sums of whole nanoseconds: they differ by the rounding of two divisions, or by a fault."""
_MOST_ROWS = 2_000_000
"""Requests whose instants are held at once."""
IN_FLIGHT_RATIO = 0.05
"""A sample is stamped before or after the sends and replies that its turn of the event loop handles."""


def littles_law(store: RunStore, connection: duckdb.DuckDBPyConnection | None) -> SelfCheck:
    """The law in the worst phase. `connection` has views `requests` and `joined`; None if either is absent."""
    spans = measure_spans(store.manifest)
    if not is_open_load(store.manifest):
        return _closed(_users(store, spans), is_locust_load(store.manifest))
    meaning = "difference of the mean number in the system from rate x mean response, over it"
    gaps = {}
    if connection is not None:
        n_planned = store.manifest.plan.n_by_phase
        gaps = {span.name: _gap(connection, span, n_planned.get(span.name)) for span in spans}
    found = {phase: gap for phase, gap in gaps.items() if gap is not None}
    where = max(found, key=lambda phase: found[phase], default="")
    return at_most("Little's law", found.get(where), GAP_RATIO, "ratio", meaning, where)


def in_flight(connection: duckdb.DuckDBPyConnection | None) -> SelfCheck:
    """What workers counted against the rows in flight at the same instants, over all their samples."""
    meaning = "requests in flight as workers counted them against the rows, mean difference over the mean"
    if connection is None:
        return at_most("in flight", None, IN_FLIGHT_RATIO, "ratio", meaning)
    samples = connection.execute(
        "SELECT worker, t_ns, n_in_flight FROM worker_samples WHERE phase <> ''"
    ).fetchnumpy()
    off = counted = 0.0
    for workers in _groups(connection):
        rows = connection.execute(
            """SELECT worker, sent_ns, done_ns FROM requests
            WHERE list_contains($workers, worker) AND sent_ns IS NOT NULL AND done_ns IS NOT NULL""",
            {"workers": workers},
        ).fetchnumpy()
        for worker in workers:
            own, of_worker = samples["worker"] == worker, rows["worker"] == worker
            sent_ns, done_ns = np.sort(rows["sent_ns"][of_worker]), np.sort(rows["done_ns"][of_worker])
            t_ns = samples["t_ns"][own]
            by_rows = np.searchsorted(sent_ns, t_ns, "right") - np.searchsorted(done_ns, t_ns, "right")
            off += float(np.abs(by_rows - samples["n_in_flight"][own]).sum())
            counted += float(samples["n_in_flight"][own].sum())
    value = off / counted if counted else None
    return at_most("in flight", value, IN_FLIGHT_RATIO, "ratio", meaning)


def _groups(connection: duckdb.DuckDBPyConnection) -> Iterator[list[int]]:
    """The workers that have samples, in groups of at most `_MOST_ROWS` requests, or of one worker: the table is read
    once for each group, of which no more is held."""
    counts = connection.execute("""
        SELECT worker, coalesce(n, 0) FROM (SELECT DISTINCT worker FROM worker_samples WHERE phase <> '')
        LEFT JOIN (SELECT worker, count(*) AS n FROM requests GROUP BY worker) USING (worker) ORDER BY worker""")
    group: list[int] = []
    n_rows = 0
    for worker, n in counts.fetchall():
        if group and n_rows + n > _MOST_ROWS:
            yield group
            group, n_rows = [], 0
        group.append(worker)
        n_rows += n
    if group:
        yield group


def _gap(connection: duckdb.DuckDBPyConnection, span: RunPhase, n_planned: int | None) -> float | None:
    """Relative difference of the two sides in a phase; None without arrivals or without time in the system."""
    a, b = span.start_ns, span.end_ns
    (inside_ns, carried_in_ns, carried_out_ns), *_ = connection.execute(
        f"""SELECT sum(least(done_ns, {b}) - greatest(scheduled_ns, {a})) FILTER (done_ns > {a} AND scheduled_ns < {b}),
            sum(least(done_ns, {b}) - {a}) FILTER (phase <> $phase AND scheduled_ns < {a} AND done_ns > {a}),
            sum(done_ns - {b}) FILTER (phase = $phase AND done_ns > {b})
        FROM requests WHERE done_ns IS NOT NULL""",
        {"phase": span.name},
    ).fetchall()
    ((n_rows, mean_ns),) = connection.execute(
        "SELECT count(*), avg(coalesce(response_ns, 0)) FROM joined WHERE phase = ?", [span.name]
    ).fetchall()
    if not inside_ns or not n_rows or not n_planned:
        return None
    expected_ns = n_planned * mean_ns - float(carried_out_ns or 0) + float(carried_in_ns or 0)
    gap = abs(float(inside_ns) - expected_ns) / float(inside_ns)
    return float(max(gap, abs(n_rows - n_planned) / n_planned))


def _users(store: RunStore, spans: tuple[RunPhase, ...]) -> UserTime | None:
    samples = store.read("locust_samples") if store.has("locust_samples") else None
    return users_of_run(Requests.read(store), spans, store.manifest, samples)


def _closed(users: UserTime | None, is_locust: bool) -> SelfCheck:
    """Users of Locust that have requests side by side take more than their time: then it says nothing."""
    meaning = (
        "difference of users from throughput x (service + think), over them: time inside the load generator"
    )
    if users is None:
        return at_most("Little's law", None, LIMITS.user_gap_ratio, "ratio", meaning)
    limit = LIMITS.user_gap_ratio + LIMITS.user_gap_errors * users.gap_error_ratio
    is_beside = is_locust and users.gap_ratio < -limit
    return at_most("Little's law", None if is_beside else abs(users.gap_ratio), limit, "ratio", meaning)
