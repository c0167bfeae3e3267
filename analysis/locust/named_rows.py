"""The rows of `requests` by the method and name that Locust counts them under: what its statistics are held to.

Over the whole run, since Locust's statistics know no phases. Quantiles have Locust's own rank, so that what differs is
its rounding alone: of n sorted response times the one with ⌊q n⌋ before it
(`calculate_response_time_percentile` of its stats.py), failed requests among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

QUANTILES = (0.5, 0.95, 0.99)

_AT = ", ".join(
    f"max(ns) FILTER (place = least(floor(n * {q}::DOUBLE), n_timed - 1)) AS q_{at}"
    for at, q in enumerate(QUANTILES)
)
_COUNTS = f"""
WITH timed AS (SELECT {{method}} AS method, {{name}} AS name, outcome, done_ns - sent_ns AS ns FROM requests),
placed AS (
    SELECT *, row_number() OVER (PARTITION BY method, name ORDER BY ns NULLS LAST) - 1 AS place,
        count(*) OVER (PARTITION BY method, name) AS n, count(ns) OVER (PARTITION BY method, name) AS n_timed
    FROM timed)
SELECT method, name, count(*), count(*) FILTER (outcome <> 'ok'), count(ns),
    CAST(coalesce(sum(ns), 0) AS BIGINT), max(ns), {_AT}
FROM placed GROUP BY method, name ORDER BY method, name
"""


@dataclass(frozen=True)
class NamedRows:
    """Rows of one method and name, or all together: how many, failed ones, and of the `n_timed` with a response time
    their sum, the largest, and `QUANTILES`."""

    method: str
    name: str
    n: int
    n_failed: int
    n_timed: int
    total_ns: int
    max_ns: int | None
    quantiles_ns: tuple[int | None, ...]


@dataclass(frozen=True)
class RowsByName:
    """By method and name, in that order; `total`: all together, None of none."""

    names: tuple[NamedRows, ...]
    total: NamedRows | None


def rows_by_name(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> RowsByName:
    """Those of a run. Raises `MissingTable` if it has no requests."""
    with connect(store, ["requests"], memory_limit_bytes) as connection:
        names = _grouped(connection, "coalesce(method, '')", "coalesce(name, '')")
        total = _grouped(connection, "''", "''")
    return RowsByName(tuple(names), total[0] if total else None)


def _grouped(connection: duckdb.DuckDBPyConnection, method: str, name: str) -> list[NamedRows]:
    """`method`, `name`: what rows are counted under."""
    rows = connection.execute(_COUNTS.format(method=method, name=name)).fetchall()
    return [NamedRows(*[*row[:7], tuple(row[7:])]) for row in rows]
