"""Operations of the GPUs, kernels, copies and sets, as relations; unions of intervals as queries, quantiles.

    operations  ├────────┤      ├──┤
                   ├───────┤
    pieces      [────────)[─)   [──)      the part of each beyond all that start before it: disjoint, in order
    gaps                     ───          from the end that those before it reached to its start

The lengths of the pieces add up to the union.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.columns import NO_DEVICE
from squall.analysis.metrics.measures import INSTANCE
from squall.analysis.storage.nsys import OPERATIONS
from squall.analysis.storage.query import rows

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
CREATE TEMP {{}} tied AS
SELECT grp, batch, kind, o.start_ns, o.end_ns, launch_start_ns, launch_end_ns
FROM operations o JOIN numbered b USING ({KEY}) WHERE {IS_WHOLE}
"""


NONE_NS = -(1 << 62)
"""Stands for an instant that is not known, in arrays."""
ROWS_AT_ONCE = 1 << 17
"""Of a query, worked on as arrays: they stay in the caches."""


def add_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, Any],
    values: Iterable[Sequence[Any]],
) -> None:
    """Makes a temporary table; `columns`: name and type of Arrow of each."""
    made = [dict(zip(columns, row, strict=True)) for row in values]
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


def tie_operations(connection: duckdb.DuckDBPyConnection, is_read_again: bool = False) -> None:
    """Makes `tied`, the operations of `numbered` batches of which all were recorded; `is_read_again`: as a table."""
    connection.execute(_TIED.format("TABLE" if is_read_again else "VIEW"))


def by_group(connection: duckdb.DuckDBPyConnection, query: str) -> dict[int, Row]:
    """Rows by their column `grp`."""
    return {row["grp"]: row for row in rows(connection, query)}


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


def arrays_of(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[list[Any]]:
    """The columns of a query as arrays, some rows at a time."""
    for rows_here in connection.sql(query).to_arrow_reader(ROWS_AT_ONCE):
        yield [one.to_numpy(zero_copy_only=False) for one in rows_here.columns]


def runs_of_rows(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a query, in pieces of one value of their first column: that value, and arrays of the other columns.
    Rows of one value may come in several pieces."""
    for first, *columns in arrays_of(connection, query):
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(first)) + 1), len(first)]):
            yield int(first[start]), [column[start:end] for column in columns]


def median(values: Int64s) -> float | None:
    """The mean of the middle two."""
    return float(np.median(values)) if len(values) else None
