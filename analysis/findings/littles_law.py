"""Little's law in each measured phase: mean number in the system = rate · mean time in it, edges counted exactly.

Open loop. In the system from the scheduled instant to the reply. Over a phase [a, b) of length T, with n arrivals whose
response times are R:

    mean number in the system · T = ∑ R - (what of them lies at or beyond b) + (what of earlier ones lies within)

an identity over a finite window (J. D. C. Little, Operations Research 9(3), 1961). The left side comes from the
instants of `requests`; of the right side n is the plan's and the mean of R that of `joined`. A lost row (its count is
held to the plan's too), a phase or a response time that is wrong breaks it. Closed loop:
`squall.analysis.requests.closed_loop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.clocks.timeline import RunPhase, measure_spans
from squall.analysis.limits import LIMITS
from squall.analysis.locust.users import is_locust_load, users_of_run
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

_SYSTEM = """
-- Time in the system within the phase, and of its own arrivals and of earlier ones what lies beyond one of its ends.
SELECT sum(least(done_ns, $end_ns) - greatest(scheduled_ns, $start_ns))
        FILTER (done_ns > $start_ns AND scheduled_ns < $end_ns),
    sum(least(done_ns, $end_ns) - $start_ns)
        FILTER (phase <> $phase AND scheduled_ns < $start_ns AND done_ns > $start_ns),
    sum(done_ns - $end_ns) FILTER (phase = $phase AND done_ns > $end_ns)
FROM requests WHERE done_ns IS NOT NULL
"""
_ARRIVALS = "SELECT count(*), avg(coalesce(response_ns, 0)) FROM joined WHERE phase = ?"


def open_gap(store: RunStore, connection: duckdb.DuckDBPyConnection) -> tuple[float | None, str]:
    """Relative difference of the two sides, and the phase in which it is largest; views `requests` and `joined`."""
    planned = store.manifest.plan.n_by_phase
    gaps = {
        span.name: gap
        for span in measure_spans(store.manifest)
        if (gap := _gap(connection, span, planned.get(span.name))) is not None
    }
    where = max(gaps, key=lambda phase: gaps[phase], default="")
    return gaps.get(where), where


def _gap(connection: duckdb.DuckDBPyConnection, span: RunPhase, n_planned: int | None) -> float | None:
    """None without arrivals or without time in the system."""
    phase = {"phase": span.name, "start_ns": span.start_ns, "end_ns": span.end_ns}
    ((inside_ns, carried_in_ns, carried_out_ns),) = connection.execute(_SYSTEM, phase).fetchall()
    ((n_rows, mean_ns),) = connection.execute(_ARRIVALS, [span.name]).fetchall()
    if not inside_ns or not n_rows or not n_planned:
        return None
    expected_ns = n_planned * mean_ns - float(carried_out_ns or 0) + float(carried_in_ns or 0)
    gap = abs(float(inside_ns) - expected_ns) / float(inside_ns)
    return float(max(gap, abs(n_rows - n_planned) / n_planned))


def closed_gap(store: RunStore) -> tuple[float | None, float]:
    """Share of the users' time that is neither service nor think, and the most that it may be. Users of Locust that
    have requests side by side take more than their time: then it says nothing."""
    manifest = store.manifest
    samples = store.read("locust_samples") if store.has("locust_samples") else None
    users = users_of_run(Requests.read(store), measure_spans(manifest), manifest, samples)
    if users is None:
        return None, LIMITS.user_gap_ratio
    limit = LIMITS.user_gap_ratio + LIMITS.user_gap_errors * users.gap_error_ratio
    is_beside = is_locust_load(manifest) and users.gap_ratio < -limit
    return None if is_beside else abs(users.gap_ratio), limit
