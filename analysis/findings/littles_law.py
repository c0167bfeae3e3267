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

from squall.analysis.limits import LIMITS
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.users import is_locust_load, users_of_run
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans

if TYPE_CHECKING:
    import duckdb

_GAPS = """
-- Relative difference of the two sides in each phase with arrivals, or of its rows from the plan where that is more.
WITH spans(phase, start_ns, end_ns, n_planned) AS (VALUES {spans}),
-- time in the system within the phase, and of earlier arrivals and of its own what lies beyond one of its ends
system AS (
    SELECT spans.phase,
        sum(least(done_ns, end_ns) - greatest(scheduled_ns, start_ns))
            FILTER (done_ns > start_ns AND scheduled_ns < end_ns)::DOUBLE AS inside_ns,
        coalesce(sum(least(done_ns, end_ns) - start_ns) FILTER (
            requests.phase <> spans.phase AND scheduled_ns < start_ns AND done_ns > start_ns), 0)::DOUBLE
            AS carried_in_ns,
        coalesce(sum(done_ns - end_ns) FILTER (requests.phase = spans.phase AND done_ns > end_ns), 0)::DOUBLE
            AS carried_out_ns
    FROM spans, requests WHERE done_ns IS NOT NULL GROUP BY spans.phase),
arrivals AS (SELECT phase, count(*) AS n_rows, avg(coalesce(response_ns, 0)) AS mean_ns FROM joined GROUP BY phase)
SELECT greatest(
    abs(inside_ns - (n_planned * mean_ns - carried_out_ns + carried_in_ns)) / inside_ns,
    abs(n_rows - n_planned) / n_planned::DOUBLE) AS gap, phase
FROM spans JOIN system USING (phase) JOIN arrivals USING (phase)
WHERE inside_ns <> 0 AND n_planned > 0 ORDER BY gap DESC, start_ns LIMIT 1
"""


def open_gap(store: RunStore, connection: duckdb.DuckDBPyConnection) -> tuple[float | None, str]:
    """Relative difference of the two sides, and the phase in which it is largest; views `requests` and `joined`."""
    planned = store.manifest.plan.n_by_phase
    spans = [
        f"({literal(span.name)}, {span.start_ns}, {span.end_ns}, {planned.get(span.name, 0)})"
        for span in measure_spans(store.manifest)
    ]
    query = _GAPS.format(spans=", ".join(spans) or "('', 0, 0, 0)")
    found = connection.execute(query).fetchall()
    gap, where = found[0] if found else (None, "")
    return gap, where


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
