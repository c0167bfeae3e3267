"""The rows of `requests` by the method and name that Locust counts them under: what its statistics are held to.

Over the whole run, since Locust's statistics know no phases. Quantiles have Locust's own rank, so that what differs is
its rounding alone: of n sorted response times the one with ⌊q n⌋ before it
(`calculate_response_time_percentile` of its stats.py), failed requests among them.
"""

from __future__ import annotations

from typing import Any

from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.scenarios.records import Frozen

QUANTILES = (0.5, 0.95, 0.99)

_BEYOND = 1e-11
"""DuckDB takes the value with ⌈q n⌉ - 1 before it, one less than Locust where q n is whole: beyond q by so little both
are one, of up to 10^9 requests, since these quantiles are whole hundredths."""
_COUNTS = f"""
-- by method and name, and behind these all together, of which neither is known
WITH timed AS (
    SELECT coalesce(method, '') AS method, coalesce(name, '') AS name, outcome, request_kind,
        done_ns - sent_ns AS response_ns
    FROM requests)
SELECT coalesce(method, ''), coalesce(name, ''), count(response_ns), CAST(coalesce(sum(response_ns), 0) AS BIGINT),
    count(*) FILTER (request_kind = ''), count(*), count(*) FILTER (outcome <> 'ok'),
    sum(response_ns) / count(response_ns),
    {", ".join(f"quantile_disc(response_ns, {q + _BEYOND!r}::DOUBLE)" for q in QUANTILES)}, max(response_ns)
FROM timed GROUP BY GROUPING SETS ((method, name), ()) HAVING count(*) > 0 ORDER BY grouping(method), method, name
"""


class Timed(Frozen):
    """Requests of a name over the whole run, and their response times, of failed ones too. None of none, and where
    Locust did not say it."""

    n_requests: int
    n_failures: int
    mean_ns: float | None
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None


class NamedRows(Frozen):
    """Rows of one method and name, or all together; the sum of the response times of the `n_timed` that have one;
    `n_plain`: those that ask no model that squall knows."""

    method: str
    name: str
    n_timed: int
    total_ns: int
    n_plain: int
    figures: Timed


class RowsByName(Frozen):
    """By method and name, in that order; `total`: all together, None of none."""

    names: tuple[NamedRows, ...]
    total: NamedRows | None


def rows_by_name(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> RowsByName:
    """Those of a run. Raises `MissingTable` if it has no requests."""
    with connect(store, ["requests"], memory_limit_bytes) as connection:
        found: list[tuple[Any, ...]] = connection.execute(_COUNTS).fetchall()
    rows = [
        NamedRows(method, name, n_timed, total_ns, n_plain, Timed(*timed))
        for method, name, n_timed, total_ns, n_plain, *timed in found
    ]
    return RowsByName(tuple(rows[:-1]), rows[-1] if rows else None)
