"""What each server executed, batch by batch, and which requests were in it: tables of a query, made of raw ones.

    record   row of `batches`: the model's own record, with the request ids of the batch
    library  row of `batches` likewise, by the batch library inside the server
    hook     row of `batches` likewise, by the hook in a Python model
    trace    requests of `triton_traces` that share (server, model, version, compute_start_ns): Triton starts all the
             requests of a batch at one instant

A server has its executions from rows of `batches`, if it has any, else from its trace.

A request that passes several models of a server, as the steps of an ensemble, is named by a batch of each. It belongs
to the longest step on its critical path (`squall.analysis.join.critical_path`). Where a server executed one model
only, to the batch that starts first.

A model that is decoupled (`ServerFacts.decoupled`) works on after its executions: what the GPU did within one is not
its batch's alone, nor is what time says of the others of its server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from squall.analysis.join.critical_path import critical_paths
from squall.analysis.join.named_ids import id_spans
from squall.analysis.storage.query import attach
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.columns import NO_DEVICE
from squall.scenarios.errors import AnalysisError

if TYPE_CHECKING:
    import duckdb

RAW = ("batches", "triton_traces", "requests")
"""Tables of the run that executions and members are made of; each may be absent."""

_COLUMNS = """
node, server, model, version, instance, instance_device, batch_id, start_ns, end_ns, rows, n_requests, phase, source
"""
_EXECUTIONS = """
-- Batch that any server executed; with server, instance and its device batch_id is the key.
CREATE TEMP TABLE executions(
    node VARCHAR, server VARCHAR, model VARCHAR, version VARCHAR, instance VARCHAR, instance_device BIGINT,
    batch_id BIGINT, start_ns BIGINT, end_ns BIGINT, rows BIGINT, n_requests BIGINT, phase VARCHAR, source VARCHAR)
"""

TRACE = "trace"
"""`source` of an execution that no row of `batches` tells of."""
_RECORDED = f"INSERT INTO executions SELECT {_COLUMNS} FROM (SELECT *, {{source}} AS source FROM batches)"
_SOURCE = "CASE WHEN recorded_by IN ('library', 'hook') THEN recorded_by ELSE 'record' END"

# The model's own time lies between the hand-over of the inputs and the answer; a trace that lacks these instants gives
# the wider span, and one without an end says nothing of an execution.
_TRACED = f"""
-- Batch that only Triton's trace tells of: the columns of `executions`, and compute_start_ns.
CREATE TEMP TABLE traced AS
SELECT *, '' AS instance, {NO_DEVICE}::BIGINT AS instance_device, 'trace' AS source,
    row_number() OVER (PARTITION BY server ORDER BY compute_start_ns, model, version) - 1 AS batch_id
FROM (
    SELECT t.node, t.server, t.model, t.version, t.compute_start_ns, min(t.phase) AS phase,
        min(coalesce(t.compute_input_end_ns, t.compute_start_ns)) AS start_ns,
        max(coalesce(t.compute_output_start_ns, t.compute_end_ns)) AS end_ns,
        CAST(sum({{rows}}) AS BIGINT) AS rows, count(*) AS n_requests
    FROM triton_traces t {{requests}}
    WHERE t.compute_start_ns IS NOT NULL AND t.model <> ''
        AND t.server NOT IN (SELECT DISTINCT server FROM executions)
    GROUP BY t.node, t.server, t.model, t.version, t.compute_start_ns)
WHERE end_ns IS NOT NULL
"""
_NEVER = 2**63 - 1
# Of several rows of one request the first that was sent counts, as in the join.
_ROWS_OF = f"""
SELECT request_id,
    arg_min(rows, (coalesce(sent_ns, {_NEVER}), coalesce(done_ns, {_NEVER}), worker)) AS rows
FROM requests SEMI JOIN triton_traces USING (request_id) GROUP BY request_id
"""
_WITH_REQUESTS = {
    "rows": "coalesce(r.rows, 1)",
    "requests": f"LEFT JOIN ({_ROWS_OF}) r ON r.request_id = t.request_id",
}
_WITHOUT_REQUESTS = {"rows": "1", "requests": ""}

_DECOUPLED = """
-- Model with executions whose work goes on after them.
CREATE TEMP TABLE decoupled AS
SELECT DISTINCT server, model FROM executions SEMI JOIN stated USING (server, model)
"""

_TWICE = """
SELECT server, instance, instance_device, batch_id FROM batches GROUP BY ALL HAVING count(*) > 1
ORDER BY ALL LIMIT 1
"""
_NODES = """
SELECT server, min(node) AS first, max(node) AS last FROM ({tables})
GROUP BY server HAVING min(node) <> max(node) ORDER BY server LIMIT 1
"""

# Numbers instead of names while requests are counted: ten million of them fit.
_PLACED = """
-- Execution with the order of its start as `place`, from 1.
CREATE TEMP TABLE placed AS
SELECT *, row_number() OVER (ORDER BY start_ns, server, instance, instance_device, batch_id, model) AS place
FROM executions
"""
_NAMED = """
-- Request id that any batch names, with the place of the one that it belongs to.
CREATE TEMP TABLE named AS
SELECT request_id, min(place) AS place FROM ({pairs})
WHERE request_id BETWEEN $first AND $last GROUP BY request_id
"""
_PASSED = """
-- Request id and a batch that names it, at the server of the one that it belongs to.
CREATE TEMP TABLE passed(request_id BIGINT, place BIGINT, is_on_path BOOLEAN, is_joined BOOLEAN)
"""
_NAMED_BY_PATH = "CREATE TEMP TABLE named AS SELECT request_id, place FROM passed WHERE is_joined"
_SEVERAL = """
SELECT server FROM executions GROUP BY server HAVING count(DISTINCT (model, version)) > 1
"""
_PAIRS = """
-- Request id and a batch that names it, of a run whose servers executed several models.
CREATE TEMP TABLE pairs AS
SELECT DISTINCT n.request_id, n.place, p.start_ns, p.end_ns, s.server_place
FROM ({pairs}) n JOIN placed p USING (place)
JOIN (SELECT server, row_number() OVER () AS server_place FROM (SELECT DISTINCT server FROM placed)) s USING (server)
WHERE n.request_id BETWEEN $first AND $last
"""
_PAIRS_AT_A_TIME = 1_000_000
_NAMED_BY_RECORD = """
SELECT unnest(b.request_ids) AS request_id, p.place
FROM batches b JOIN placed p ON p.server = b.server AND p.instance = b.instance
    AND p.instance_device = b.instance_device AND p.batch_id = b.batch_id
WHERE p.source <> 'trace'
"""
_NAMED_BY_TRACE = """
SELECT t.request_id, p.place
FROM triton_traces t
JOIN traced b ON b.node = t.node AND b.server = t.server AND b.model = t.model AND b.version = t.version
    AND b.compute_start_ns = t.compute_start_ns
JOIN placed p ON p.server = b.server AND p.model = b.model AND p.batch_id = b.batch_id AND p.source = 'trace'
"""
_NAMED_BY_NONE = "SELECT NULL::BIGINT AS request_id, NULL::BIGINT AS place WHERE false"
ALL_REQUESTS = (-(2**63), 2**63 - 1)


def add_executions(connection: duckdb.DuckDBPyConnection, store: RunStore) -> int:
    """Makes table `executions`, in no order, and returns its rows; and `decoupled`.

    Of a trace, instance is empty, its device NO_DEVICE, and batch_id counts the starts of a server, whatever the model;
    rows is what its requests have in `requests`, one for each that has no row there. Raises AnalysisError where two
    batches have one key, or one server name is on two nodes.
    """
    there = attach(connection, store, RAW)
    connection.execute(_EXECUTIONS)
    _refuse_two_nodes(connection, [table for table in there if table != "requests"])
    if "batches" in there:
        _refuse_twins(connection)
        connection.execute(_RECORDED.format(source=_source(connection)))
    if "triton_traces" in there:
        parts = _WITH_REQUESTS if "requests" in there else _WITHOUT_REQUESTS
        connection.execute(_TRACED.format(**parts))
        connection.execute(f"INSERT INTO executions SELECT {_COLUMNS} FROM traced")
    _add_decoupled(connection, store)
    ((n_rows,),) = connection.execute("SELECT count(*) FROM executions").fetchall()
    return int(n_rows)


def _add_decoupled(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    facts = store.manifest.servers.items()
    stated = [(server, model) for server, one in facts for model in one.decoupled]
    names = (
        pa.array([one for one, _ in stated], pa.string()),
        pa.array([one for _, one in stated], pa.string()),
    )
    connection.register("stated", pa.table(dict(zip(("server", "model"), names, strict=True))))
    connection.execute(_DECOUPLED)
    connection.unregister("stated")


def _source(connection: duckdb.DuckDBPyConnection) -> str:
    """What `source` is made of; a run from before the library has models' own records alone."""
    names = {name for (name,) in connection.execute("SELECT column_name FROM (DESCRIBE batches)").fetchall()}
    return _SOURCE if "recorded_by" in names else "'record'"


def _refuse_two_nodes(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> None:
    """A server is one process tree of one node: its batches and traces come from there."""
    if not tables:
        return
    queries = " UNION ALL ".join(f"SELECT DISTINCT server, node FROM {table}" for table in tables)
    for server, *nodes in connection.execute(_NODES.format(tables=queries)).fetchall():
        where = " and on ".join(nodes)
        raise AnalysisError(
            f"two servers are named {server}, on {where}: run again with a name of its own for each server"
        )


def _refuse_twins(connection: duckdb.DuckDBPyConnection) -> None:
    for server, instance, device, batch_id in connection.execute(_TWICE).fetchall():
        where = "" if device == NO_DEVICE else f" on GPU {device}"
        batch = f"batch {batch_id} of instance {instance}{where} of {server}"
        raise AnalysisError(f"{batch} is twice in the table batches: keep one row of it")


def add_named(
    connection: duckdb.DuckDBPyConnection, store: RunStore, request_ids: tuple[int, int] = ALL_REQUESTS
) -> None:
    """Makes `placed`, and `named`: a row per request id from the first to the last of `request_ids` that any batch
    names, with the place of the one that starts first (of several at one instant: first by server, instance, its
    device, batch_id, model), or of its longest step where a server executed several models. Then `passed` has all
    of its executions at the server of that one, else no rows. Needs `executions` in the same connection; once in a
    connection.
    """
    there = attach(connection, store, RAW)
    sources = {"batches": _NAMED_BY_RECORD, "triton_traces": _NAMED_BY_TRACE}
    pairs = " UNION ALL ".join(
        [query for table, query in sources.items() if table in there] or [_NAMED_BY_NONE]
    )
    connection.execute(_PLACED)
    connection.execute(_PASSED)
    first, last = request_ids
    if connection.execute(_SEVERAL).fetchall():
        connection.execute(_PAIRS.format(pairs=pairs), {"first": first, "last": last})
        for span in id_spans(connection, "pairs", _PAIRS_AT_A_TIME):
            _add_passed(connection, span)
        connection.execute("DROP TABLE pairs")
        connection.execute(_NAMED_BY_PATH)
        return
    connection.execute(_NAMED.format(pairs=pairs), {"first": first, "last": last})


def _add_passed(connection: duckdb.DuckDBPyConnection, span: tuple[int, int]) -> None:
    """The executions of the requests from the first to the last of `span`; of several servers that name one, the first
    by the place of its longest step."""
    query = "SELECT * FROM pairs WHERE request_id BETWEEN ? AND ? ORDER BY request_id, server_place"
    found = connection.execute(query, span).fetchnumpy()
    ids, place = found["request_id"], found["place"]
    owner = np.zeros(len(ids), np.int64)
    owner[1:] = np.cumsum((np.diff(ids) != 0) | (np.diff(found["server_place"]) != 0))
    is_on_path, is_longest = critical_paths(owner, found["start_ns"], found["end_ns"], place)
    longest = np.flatnonzero(is_longest)
    longest = longest[np.lexsort((place[longest], ids[longest]))]
    is_first = np.ones(len(longest), np.bool_)
    is_first[1:] = np.diff(ids[longest]) != 0
    is_joined = np.zeros(len(ids), np.bool_)
    is_joined[longest[is_first]] = True
    kept = np.isin(owner, owner[is_joined])
    columns = {"request_id": ids, "place": place, "is_on_path": is_on_path, "is_joined": is_joined}
    rows = pa.table({name: pa.array(values[kept]) for name, values in columns.items()})
    connection.register("passed_rows", rows)
    connection.execute("INSERT INTO passed SELECT * FROM passed_rows")
    connection.unregister("passed_rows")
