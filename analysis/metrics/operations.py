"""Operations of the GPUs, kernels, copies and sets, as relations; unions of intervals and quantiles as queries.

    operations  ├────────┤      ├──┤
                   ├───────┤
    pieces      [────────)[─)   [──)      the part of each beyond all that start before it: disjoint, in order
    gaps                     ───          from the end that those before it reached to its start

The lengths of the pieces add up to the union.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from squall.analysis.metrics.measures import INSTANCE
from squall.analysis.tables.columns import NO_DEVICE
from squall.analysis.tables.nsys import OPERATIONS

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

KEY = "server, instance, instance_device, batch_id"
OWNER = ", ".join(INSTANCE)
BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"

# Those that end before they start are left out. A GPU that the report does not name is the ordinal of its server, by
# which another server of the node may know another GPU.
_OPERATIONS = """
SELECT '{kind}' AS kind, node, server,
    CASE WHEN gpu_uuid <> '' THEN gpu_uuid ELSE server || '/device-' || device END AS gpu,
    process, context, stream, start_ns, end_ns, launch_start_ns, launch_end_ns, recorded_by,
    instance, instance_device, batch_id
FROM {table} WHERE end_ns >= start_ns
"""

# What figures are of: an instance in a phase. `key` as `measures.instance_key` makes it.
_INSTANCES = f"""
CREATE TEMP TABLE instances AS
SELECT row_number() OVER (ORDER BY phase, {OWNER}) AS grp, *,
    server || '/' || CASE WHEN instance <> '' THEN instance ELSE model END
        || CASE WHEN instance_device = {NO_DEVICE} THEN '' ELSE '@gpu' || instance_device END AS key
FROM (SELECT DISTINCT phase, {OWNER} FROM picked)
"""
_NUMBERED = f"""
CREATE TEMP TABLE numbered AS
SELECT row_number() OVER () AS batch, grp, node, process, start_ns, end_ns, tie, {KEY}
FROM picked JOIN instances USING (phase, {OWNER})
"""
IS_WHOLE = "(recorded_by <> 'library' OR tie <> 'none')"
"""SQL, of an event of a batch: no edge of a recorded window cuts that batch, all of its events were recorded."""
_TIED = f"""
CREATE TEMP TABLE tied AS
SELECT grp, batch, kind, o.start_ns, o.end_ns, launch_start_ns, launch_end_ns
FROM operations o JOIN numbered b USING ({KEY}) WHERE {IS_WHOLE}
"""


def read_rows(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: Mapping[str, Any] | None = None
) -> list[Row]:
    """The rows of a query, each a value by name."""
    cursor = connection.execute(query, parameters)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def add_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, Any],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Makes a temporary table; `columns`: name and type of Arrow of each."""
    made = [dict(zip(columns, row, strict=True)) for row in rows]
    connection.register("rows_to_add", pa.Table.from_pylist(made, pa.schema(dict(columns))))
    connection.execute(f"CREATE TEMP TABLE {name} AS FROM rows_to_add")
    connection.unregister("rows_to_add")


def add_operations(connection: duckdb.DuckDBPyConnection, tables: Collection[str]) -> bool:
    """Makes view `operations`; False where none of `tables` has any: it is not made then."""
    there = [
        _OPERATIONS.format(kind=kind, table=table) for table, kind in OPERATIONS.items() if table in tables
    ]
    if there:
        connection.execute(f"CREATE TEMP VIEW operations AS {' UNION ALL '.join(there)}")
    return bool(there)


def number_batches(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes of `picked` tables `instances`, by phase, and `numbered`, the batches with the number of each."""
    connection.execute(_INSTANCES)
    connection.execute(_NUMBERED)


def tie_operations(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes `tied`, the operations of `numbered` batches of which all were recorded."""
    connection.execute(_TIED)


def by_group(connection: duckdb.DuckDBPyConnection, query: str) -> dict[int, Row]:
    """Rows by their column `grp`."""
    return {row["grp"]: row for row in read_rows(connection, query)}


def pieces(source: str, owner: str) -> str:
    """Query: `from_ns` and `to_ns` of the pieces of the union of the intervals (owner, start_ns, end_ns) of each owner,
    and `before_ns`, the length of those before."""
    return f"""
SELECT {owner}, from_ns, end_ns AS to_ns,
    sum(end_ns - from_ns) OVER (PARTITION BY {owner} ORDER BY from_ns ROWS UNBOUNDED PRECEDING)::BIGINT
        - (end_ns - from_ns) AS before_ns
FROM (
    SELECT {owner}, end_ns,
        greatest(start_ns, max(end_ns) OVER (PARTITION BY {owner} ORDER BY start_ns, end_ns {BEFORE})) AS from_ns
    FROM ({source}))
WHERE end_ns > from_ns
"""


def covered(t_ns: str, piece: str) -> str:
    """SQL: length that pieces cover before an instant; `piece`: the last that begins by then, by ASOF LEFT JOIN."""
    return f"coalesce({piece}.before_ns + least({t_ns}, {piece}.to_ns) - {piece}.from_ns, 0)"


_CLASSES_NS = {
    "below_10us": "value < 10_000",
    "10us_to_100us": "value >= 10_000 AND value < 100_000",
    "100us_to_1ms": "value >= 100_000 AND value < 1_000_000",
    "1ms_or_more": "value >= 1_000_000",
}
_CLASS = """'{name}': {{
    'n': coalesce(sum(times) FILTER ({condition}), 0), 'ns': coalesce(sum(value * times) FILTER ({condition}), 0),
    'time_ratio': coalesce(sum(value * times) FILTER ({condition}), 0) / nullif(sum(value * times), 0)}}"""


def distributions(counted: str, keys: str, with_classes: bool = False) -> str:
    """Query: figures of each of `keys` over the values that `counted` (keys, value, times) has, each so many times.

    Exact, in memory that grows with the different values, and spilled. A quantile is the value of rank ceil(q n), the
    median the mean of the middle two. Rows of no times make a key without values known: n is 0, quantiles are null.
    """
    each = ", ".join(_CLASS.format(name=name, condition=one) for name, one in _CLASSES_NS.items())
    classes = f", {{{each}}} AS classes" if with_classes else ""
    return f"""
SELECT {keys}, sum(times) AS n, coalesce(sum(value * times), 0) AS total_ns, total_ns / nullif(n, 0) AS mean_ns,
    (min(value) FILTER (upto >= (whole + 1) // 2) + min(value) FILTER (upto >= whole // 2 + 1)) / 2 AS median_ns,
    min(value) FILTER (upto >= (500 * whole + 999) // 1000) AS p50_ns,
    min(value) FILTER (upto >= (950 * whole + 999) // 1000) AS p95_ns,
    min(value) FILTER (upto >= (990 * whole + 999) // 1000) AS p99_ns,
    min(value) AS min_ns, max(value) AS max_ns,
    coalesce(sum(times) FILTER (value < 10_000), 0) AS n_below_10us{classes}
FROM (
    SELECT *, sum(times) OVER (PARTITION BY {keys}) AS whole,
        sum(times) OVER (PARTITION BY {keys} ORDER BY value NULLS FIRST ROWS UNBOUNDED PRECEDING) AS upto
    FROM ({counted}))
GROUP BY {keys}
"""
