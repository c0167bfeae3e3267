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

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from squall.analysis.columns import NO_DEVICE
from squall.analysis.join.critical_path import critical_paths
from squall.analysis.join.named_ids import id_spans
from squall.analysis.storage.query import attach
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError

if TYPE_CHECKING:
    import duckdb

_NEVER = 2**63 - 1
_RAW = ("batches", "triton_traces", "requests")

_DECOUPLED = """
-- Model of a server whose work goes on after its executions.
CREATE TEMP TABLE decoupled AS
SELECT server, unnest(models) AS model
FROM (SELECT unnest($servers::VARCHAR[]) AS server, unnest($models::VARCHAR[][]) AS models)
"""
_TRACED = f"""
-- Batch that only Triton's trace tells of: it has no instance, and batch_id counts the starts of its server, whatever
-- the model.
CREATE TEMP VIEW traced AS
SELECT *, '' AS instance, {NO_DEVICE}::BIGINT AS instance_device,
    row_number() OVER (PARTITION BY server ORDER BY compute_start_ns, model, version) - 1 AS batch_id
FROM (
    SELECT t.node, t.server, t.model, t.version, t.compute_start_ns, min(t.phase) AS phase,
        -- The model's own time lies between the hand-over of the inputs and the answer; a trace that lacks these
        -- instants gives the wider span, and one without an end says nothing of an execution.
        min(coalesce(t.compute_input_end_ns, t.compute_start_ns)) AS start_ns,
        max(coalesce(t.compute_output_start_ns, t.compute_end_ns)) AS end_ns,
        CAST(sum(coalesce(r.rows, 1)) AS BIGINT) AS rows, count(*) AS n_requests
    FROM triton_traces t LEFT JOIN (
        -- of several rows of one request the first that was sent counts, as in the join
        SELECT request_id, arg_min(rows, (coalesce(sent_ns, {_NEVER}), coalesce(done_ns, {_NEVER}), worker)) AS rows
        FROM requests SEMI JOIN triton_traces USING (request_id) GROUP BY request_id) r USING (request_id)
    WHERE t.compute_start_ns IS NOT NULL AND t.model <> '' AND t.server NOT IN (SELECT DISTINCT server FROM batches)
    GROUP BY t.node, t.server, t.model, t.version, t.compute_start_ns)
WHERE end_ns IS NOT NULL
"""
_TWO_NODES = """
SELECT server, min(node), max(node)
FROM (SELECT DISTINCT server, node FROM batches UNION ALL SELECT DISTINCT server, node FROM triton_traces)
GROUP BY server HAVING min(node) <> max(node) ORDER BY server LIMIT 1
"""
_TWICE = """
SELECT server, instance, instance_device, batch_id FROM batches GROUP BY ALL HAVING count(*) > 1
ORDER BY ALL LIMIT 1
"""
_EXECUTIONS = """
-- Batch that any server executed; with server, instance and its device batch_id is the key.
CREATE TEMP TABLE executions AS
SELECT node, server, model, version, instance, instance_device, batch_id, start_ns, end_ns, rows, n_requests, phase,
    CASE WHEN recorded_by IN ('library', 'hook') THEN recorded_by ELSE 'record' END AS source
FROM batches
UNION ALL
SELECT node, server, model, version, instance, instance_device, batch_id, start_ns, end_ns, rows, n_requests, phase,
    'trace'
FROM traced
"""

_PLACED = """
-- Execution with its costs and the order of its start as `place`, from 1: ten million numbers fit where names do not.
CREATE TEMP TABLE placed AS
SELECT * EXCLUDE (run),
    row_number() OVER (ORDER BY start_ns, server, instance, instance_device, batch_id, model) AS place
FROM batch_costs;

-- Request id and a batch that names it, at the server of the one that it belongs to, where a server executed several
-- models.
CREATE TEMP TABLE passed(request_id BIGINT, place BIGINT, is_on_path BOOLEAN, is_joined BOOLEAN);

-- Request id and a batch that names it.
CREATE TEMP VIEW names AS
SELECT unnest(b.request_ids) AS request_id, p.place
FROM batches b JOIN placed p USING (server, instance, instance_device, batch_id)
WHERE p.source <> 'trace'
UNION ALL
SELECT t.request_id, p.place
FROM triton_traces t JOIN traced b USING (node, server, model, version, compute_start_ns)
JOIN placed p ON p.server = b.server AND p.model = b.model AND p.batch_id = b.batch_id AND p.source = 'trace'
"""
_NAMED = """
-- Request id that any batch names, with the place of the one that it belongs to.
CREATE TEMP TABLE named AS
SELECT request_id, min(place) AS place FROM names WHERE request_id IS NOT NULL GROUP BY request_id
"""
_SEVERAL = """
SELECT server FROM placed GROUP BY server HAVING count(DISTINCT (model, version)) > 1
"""
_PAIRS = """
-- Request id and a batch that names it, of a run whose servers executed several models.
CREATE TEMP TABLE pairs AS
SELECT DISTINCT n.request_id, n.place, p.start_ns, p.end_ns, s.server_place FROM names n JOIN placed p USING (place)
JOIN (SELECT server, row_number() OVER () AS server_place FROM (SELECT DISTINCT server FROM placed)) s USING (server)
WHERE n.request_id IS NOT NULL
"""
_NAMED_BY_PATH = "CREATE TEMP TABLE named AS SELECT request_id, place FROM passed WHERE is_joined"
_PAIRS_AT_A_TIME = 1_000_000


def add_executions(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    """Makes tables `executions`, in no order, and `decoupled`.

    Raises AnalysisError where two batches have one key, or one server name is on two nodes: a server is one process
    tree of one node.
    """
    _add_raw(connection, store)
    for server, *nodes in connection.execute(_TWO_NODES).fetchall():
        where = " and on ".join(nodes)
        raise AnalysisError(
            f"two servers are named {server}, on {where}: run again with a name of its own for each server"
        )
    for server, instance, device, batch_id in connection.execute(_TWICE).fetchall():
        where = "" if device == NO_DEVICE else f" on GPU {device}"
        batch = f"batch {batch_id} of instance {instance}{where} of {server}"
        raise AnalysisError(f"{batch} is twice in the table batches: keep one row of it")
    connection.execute(_EXECUTIONS)


def _add_raw(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    attach(connection, store, _RAW)
    decoupled = {server: list(facts.decoupled) for server, facts in store.manifest.servers.items()}
    connection.execute(_DECOUPLED, {"servers": [*decoupled], "models": [*decoupled.values()]})
    connection.execute(_TRACED)


def add_named(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    """Makes `placed`, of the run's table `batch_costs`, `decoupled`, and `named`: a row per request id that any batch
    names, with the place of the one that starts first (of several at one instant: first by server, instance, its
    device, batch_id, model), or of its longest step where a server executed several models. Then `passed` has all of
    its executions at the server of that one, else no rows. Once in a connection.
    """
    _add_raw(connection, store)
    attach(connection, store, ["batch_costs"])
    connection.execute(_PLACED)
    if not connection.execute(_SEVERAL).fetchall():
        connection.execute(_NAMED)
        return
    connection.execute(_PAIRS)
    for span in id_spans(connection, "pairs", _PAIRS_AT_A_TIME):
        _add_passed(connection, span)
    connection.execute("DROP TABLE pairs")
    connection.execute(_NAMED_BY_PATH)


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
    _, first = np.unique(ids[longest], return_index=True)
    is_joined = np.zeros(len(ids), np.bool_)
    is_joined[longest[first]] = True
    kept = np.isin(owner, owner[is_joined])
    columns = {"request_id": ids, "place": place, "is_on_path": is_on_path, "is_joined": is_joined}
    connection.register("passed_rows", pa.table({name: values[kept] for name, values in columns.items()}))
    connection.execute("INSERT INTO passed FROM passed_rows")
