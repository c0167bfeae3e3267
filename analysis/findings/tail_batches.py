"""The batches that served the p99 requests, and of their measures those that the rules of the body ask for.

Definitions are those of docs/metrics.md. What needs the whole device, contention and GPM's samples, stays that of all
batches; the events of the other batches are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.findings.rule import Measures
from analysis.findings.shares import Key
from analysis.findings.tail import Tail
from analysis.metrics.batch_figures import batch_measures, batch_sums
from analysis.metrics.measures import instance_key, ratio
from analysis.ops import OPERATIONS

if TYPE_CHECKING:
    import duckdb

_KEY = "server, instance, instance_device, batch_id"
_OWNER = "phase, server, instance, instance_device, model"
_CHOSEN = f"""
CREATE OR REPLACE TEMP TABLE chosen AS
SELECT DISTINCT {_KEY} FROM joined WHERE batch_id IS NOT NULL AND instance <> '' AND ({{where}})
"""
_PICKED = f"""
CREATE OR REPLACE TEMP TABLE picked AS SELECT * FROM batch_costs SEMI JOIN chosen USING ({_KEY})
"""
_OWN = f"""
SELECT b.phase, b.server, b.instance, b.instance_device, b.model, b.batch_id, '{{kind}}' AS kind, o.start_ns, o.end_ns,
    o.launch_start_ns, o.launch_end_ns
FROM (SELECT * FROM {{table}} WHERE batch_id IN (SELECT batch_id FROM picked) AND end_ns >= start_ns) o
JOIN picked b USING ({_KEY})
"""
"""By the number first: texts are compared for what is left."""
_LAUNCHES = f"""
CREATE OR REPLACE TEMP TABLE launches AS
SELECT {_OWNER}, batch_id, launch_start_ns, min(start_ns) FILTER (kind = 'kernel') AS first_ns,
    sum(greatest(0, end_ns - greatest(start_ns, coalesce(before_ns, start_ns))))::BIGINT AS op_ns
FROM (SELECT *, max(end_ns) OVER (PARTITION BY {_KEY}, launch_start_ns ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns FROM own WHERE launch_start_ns IS NOT NULL)
GROUP BY ALL
"""
"""What one call launches is one operation: the nodes of a graph, which take their union."""
_COPIES = f"""
SELECT {_OWNER}, sum(end_ns - start_ns) FILTER (kind = 'copy')::DOUBLE,
    sum(end_ns - start_ns) FILTER (kind = 'kernel')::DOUBLE
FROM own GROUP BY ALL
"""
_ISSUE = f"""
SELECT {_OWNER}, median(interval_ns), median(op_ns) FILTER (interval_ns IS NOT NULL)
FROM (SELECT *, launch_start_ns - lag(launch_start_ns) OVER (
        PARTITION BY {_KEY} ORDER BY launch_start_ns) AS interval_ns FROM launches)
GROUP BY ALL
"""
_IDLE = f"""
SELECT {_OWNER}, coalesce(sum(start_ns - before_ns) FILTER (launch_start_ns > before_ns), 0)::DOUBLE,
    sum(start_ns - before_ns)::DOUBLE
FROM (SELECT *, max(end_ns) OVER (PARTITION BY {_KEY} ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns FROM own)
WHERE start_ns > before_ns GROUP BY ALL
"""
_DEPTH = f"""
SELECT {_OWNER}, sum(begin_ns - launch_start_ns)::DOUBLE,
    sum(greatest(0, begin_ns - greatest(launch_start_ns, coalesce(before_ns, launch_start_ns))))::DOUBLE
FROM (SELECT *, max(begin_ns) OVER (PARTITION BY {_OWNER} ORDER BY launch_start_ns, begin_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM (SELECT *, greatest(first_ns, launch_start_ns) AS begin_ns FROM launches WHERE first_ns IS NOT NULL))
GROUP BY ALL
"""

_QUOTIENTS = (
    (_COPIES, "copy_to_kernel_ratio"),
    (_IDLE, "host_wait_of_idle_ratio"),
    (_DEPTH, "launch_depth_nonempty_mean"),
)


def tail_measures(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], ends: Mapping[Key, Tail | int]
) -> dict[Key, Measures]:
    """Measures over the batches of the tails' requests, by phase and instance key; empty where there are none.

    Views `joined`, `batch_costs` and those of OPERATIONS that are in `tables`. Batches without a record have no
    instance, and are left out.
    """
    filters = [f"({end.where})" for end in ends.values() if isinstance(end, Tail)]
    return measures_where(connection, tables, " OR ".join(filters)) if filters else {}


def measures_where(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], where: str
) -> dict[Key, Measures]:
    """The same over the batches of the requests that `where` holds of: SQL over `joined`."""
    connection.execute(_CHOSEN.format(where=where))
    connection.execute(_PICKED)
    return batches_measures(connection, tables)


def batches_measures(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> dict[Key, Measures]:
    """The same over the batches in table `picked`, whose columns are those of `batch_costs`."""
    found = {key: batch_measures(sums) for key, sums in batch_sums(connection).items()}
    own = [_OWN.format(kind=kind, table=table) for table, kind in OPERATIONS.items() if table in tables]
    if not own:
        return {**found}
    connection.execute(f"CREATE OR REPLACE TEMP TABLE own AS {' UNION ALL '.join(own)}")
    connection.execute(_LAUNCHES)
    for *owner, interval_ns, op_ns in connection.execute(_ISSUE).fetchall():
        issue = {"issue_interval_ns": interval_ns, "op_median_ns": op_ns}
        found[_key(owner)] |= {**issue, "issue_to_op_ratio": ratio(interval_ns, op_ns)}
    for query, name in _QUOTIENTS:
        for *owner, part_ns, whole_ns in connection.execute(query).fetchall():
            found[_key(owner)][name] = ratio(part_ns, whole_ns)
    for table in ("launches", "own"):
        connection.execute(f"DROP TABLE {table}")
    return {**found}


def _key(owner: Sequence[Any]) -> Key:
    phase, *instance = owner
    return phase, instance_key(*instance)
