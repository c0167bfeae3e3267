"""Counts over request ids: how many stand twice, which that batches name are not ours, and spans of about as many.

Ids are positions in a schedule, and so dense: a bit for each id of their span tells what a grouping would, in a
seventh of its time for ten million ids. Where they are not, or any id stands twice, they are grouped.
"""

from __future__ import annotations

import duckdb

_MOST_BITS_PER_ROW = 64
_MOST_BITS = 10**9
"""What DuckDB's bitstring_agg takes."""

_N_BUCKETS = 4096
_BUCKETS = """
SELECT request_id // {width} AS bucket, min(request_id), max(request_id), count(*)
FROM {table} GROUP BY bucket ORDER BY bucket
"""

_SPAN = "SELECT count(*), min(request_id), max(request_id) FROM {table}"
_BITS = "bitstring_agg(request_id, {least}, {greatest})"

_NAMED = "(SELECT unnest(request_ids) AS request_id FROM batches)"
_NAMED_BITS = f"""
SELECT n_in, n_out, bit_count(named), bit_count(named & ~ours)
FROM (SELECT count(*) AS n_in, {_BITS} AS named FROM {_NAMED} WHERE request_id BETWEEN {{least}} AND {{greatest}}),
    (SELECT count(*) AS n_out FROM {_NAMED} WHERE request_id NOT BETWEEN {{least}} AND {{greatest}}),
    (SELECT {_BITS} AS ours FROM joined)
"""
_NAMED_GROUPS = """
SELECT count(DISTINCT request_id) FILTER (n > 1), coalesce(sum(n) FILTER (o.request_id IS NULL), 0)
FROM (
    SELECT request_id, count(*) AS n
    FROM (SELECT server, model, version, unnest(request_ids) AS request_id FROM batches)
    WHERE request_id IS NOT NULL GROUP BY server, model, version, request_id) g
LEFT JOIN (SELECT DISTINCT request_id FROM joined) o USING (request_id)
"""


def n_repeated(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    """Rows of `table` beyond the first of their request_id."""
    n_rows, bits = _dense(connection, table)
    distinct = f"bit_count({bits})" if bits else "count(DISTINCT request_id)"
    ((n_ids,),) = connection.execute(f"SELECT {distinct} FROM {table}").fetchall()
    return int(n_rows - (n_ids or 0))


def count_named(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Of the request ids in `batches`: how many are named more than once by one model, and how many entries are not in
    `joined`, with those that the record itself calls foreign."""
    ((n_foreign,),) = connection.execute("SELECT coalesce(sum(n_foreign), 0) FROM batches").fetchall()
    _, bits = _dense(connection, "joined")
    if bits:
        ((_, least, greatest),) = connection.execute(_SPAN.format(table="joined")).fetchall()
        query = _NAMED_BITS.format(least=least, greatest=greatest)
        ((n_in, n_out, n_ids, n_strange),) = connection.execute(query).fetchall()
        if n_out == 0 and n_in == (n_ids or 0):
            return 0, int(n_foreign + (n_strange or 0))
    ((n_twice, n_strange),) = connection.execute(_NAMED_GROUPS).fetchall()
    return int(n_twice), int(n_foreign + n_strange)


def _dense(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[int, str]:
    """Rows of `table`, and the aggregate that gives a bit for each of its ids; empty where they are too far apart."""
    ((n_rows, least, greatest),) = connection.execute(_SPAN.format(table=table)).fetchall()
    if not n_rows or greatest - least >= min(_MOST_BITS, n_rows * _MOST_BITS_PER_ROW):
        return n_rows, ""
    return n_rows, _BITS.format(least=least, greatest=greatest)


def id_spans(
    connection: duckdb.DuckDBPyConnection, table: str, rows_per_span: int
) -> tuple[tuple[int, int], ...]:
    """First and last ids of spans of about so many rows of `table`, in order: cut between buckets of ids, which are
    dense, so that these hold as many each. All rows of an id are in one span."""
    ((_, least, greatest),) = connection.execute(_SPAN.format(table=table)).fetchall()
    if least is None:
        return ()
    spans: list[tuple[int, int]] = []
    n_left = 0
    width = (greatest - least) // _N_BUCKETS + 1
    for _, first, last, n_rows in connection.execute(_BUCKETS.format(width=width, table=table)).fetchall():
        if n_left < n_rows or not spans:
            spans.append((first, last))
            n_left = rows_per_span
        else:
            spans[-1] = (spans[-1][0], last)
        n_left -= n_rows
    return tuple(spans)
