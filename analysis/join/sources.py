"""What the slices of the join read beside the run's own tables: Parquet files in a folder, made once, in order.

    executed                    row of `placed` with its costs and the state of its GPU, by place
    members                     request that a batch names, by request_id: its batch, and the rows of that before it
    stepped                     request that passed several executions and one of them, by request_id
    traces                      request with a batch, by request_id: instants of its trace
    while_there                 request without a batch of its own, by request_id: what the GPU did meanwhile
    second_means, phase_means   model_place and second or phase: means of the parts of a request

A source that the run has not makes an empty one. What does not fit in memory spills.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa

from squall.analysis.clocks.errors import ClockErrors
from squall.analysis.join.children import find_children
from squall.analysis.join.executions import add_executions, add_named
from squall.analysis.join.meanwhile import GPU_STATE, GPU_STATES, NO_GPU_STATES, NOT_THERE, add_while_there
from squall.analysis.join.named_ids import id_spans, n_repeated
from squall.analysis.join.server_parts import (
    NO_TRACES,
    NO_TRITON_SUMS,
    PHASE_MEANS,
    SECOND_MEANS,
    SERVED_SUMS,
    TRACES,
    TRITON_SUMS,
)
from squall.analysis.recorded import add_windows
from squall.analysis.storage.parquet import literal, read_parquet
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.columns import NO_DEVICE
from squall.analysis.tables.deployed import NodeFacts, ServerFacts
from squall.analysis.tables.derived import DEVICE_COSTS
from squall.analysis.tables.manifest import Manifest

_USED = ("batches", "batch_costs", "triton_samples", "triton_traces", "gpu_samples", "kernels")
_COSTS = ", ".join(f"b.{column.name}" for column in DEVICE_COSTS)

_MODELS = """
-- Model of a server, by number.
CREATE TEMP TABLE models AS
SELECT server, model, row_number() OVER (ORDER BY server, model) AS model_place
FROM (SELECT DISTINCT server, model FROM placed)
"""

_CLOCKS = """
-- Instant from which a node's clock has an error, to its next row.
CREATE TEMP TABLE clocks AS FROM clock_rows
"""
_SERVER_GPUS = """
-- GPU that a server sees by its own ordinal, and by none where it sees one alone.
CREATE TEMP TABLE server_gpus(server VARCHAR, instance_device BIGINT, gpu_uuid VARCHAR)
"""
_STATES = f"""
-- Place: the error of its node's clock, and the state of its GPU at its start. That is the GPU of its kernels, else the
-- one that its server knows by the ordinal of its instance, else, of a server that may see all of its node's, the only
-- one that was sampled there.
CREATE TEMP TABLE states AS
SELECT c.place, k.error_ns, {GPU_STATE.format(at="c.start_ns")}
FROM (
    SELECT p.place, p.node, p.start_ns, coalesce(nullif(b.gpu_uuid, ''), v.gpu_uuid, o.gpu_uuid) AS sampled_uuid
    FROM placed p LEFT JOIN batch_costs b USING (server, model, version, instance, instance_device, batch_id)
    LEFT JOIN server_gpus v ON v.server = p.server AND v.instance_device = p.instance_device
    LEFT JOIN (SELECT DISTINCT node, gpu_uuid FROM gpu_states WHERE is_only) o
        ON o.node = p.node AND p.server NOT IN (SELECT server FROM server_gpus)) c
ASOF LEFT JOIN clocks k ON k.node = c.node AND c.start_ns >= k.from_ns
ASOF LEFT JOIN gpu_states g ON g.node = c.node AND g.gpu_uuid = c.sampled_uuid AND c.start_ns <= g.t_ns
"""
_EXECUTED = f"""
SELECT s.*, p.node, p.server, p.model, p.version, m.model_place, p.instance, p.instance_device, p.batch_id,
    p.start_ns, p.end_ns, p.rows, p.n_requests, p.source, coalesce(b.tie, 'none') AS tie, b.gap_before_ns,
    coalesce(b.gpu_uuid, '') AS gpu_uuid, {_COSTS}
FROM placed p JOIN states s USING (place) JOIN models m USING (server, model)
LEFT JOIN batch_costs b USING (server, model, version, instance, instance_device, batch_id)
ORDER BY place
"""

FIRST = ("sent_ns", "done_ns", "worker", "scheduled_ns")
"""Order of the rows of one request id, nulls last."""
_FIRST_ROWS = f"""
-- A request id that stands in several rows was served once: its first row counts.
CREATE TEMP VIEW first_rows AS
SELECT DISTINCT ON (request_id) request_id, phase, target, request_kind, sent_ns, done_ns, rows, outcome FROM requests
ORDER BY request_id, {", ".join(f"{name} NULLS LAST" for name in FIRST)}
"""
_ROWS = "CREATE TEMP VIEW first_rows AS FROM requests"

_SERVED = """
-- Request that a batch names; ok ones were sent and ended.
CREATE TEMP TABLE served AS
SELECT n.request_id, n.place, r.request_kind, r.rows, r.phase, r.sent_ns, r.done_ns,
    r.outcome = 'ok' AND r.sent_ns IS NOT NULL AND r.done_ns IS NOT NULL AS is_ok
FROM named n JOIN first_rows r USING (request_id)
"""
_MEMBERS = """
SELECT request_id, place, CAST(sum(rows) OVER own AS BIGINT) - rows AS rows_before
FROM served WINDOW own AS (PARTITION BY place ORDER BY request_id ROWS UNBOUNDED PRECEDING)
ORDER BY request_id
"""

_CHILDREN = """
-- Execution that names no request, and the one of another model that holds it, by place.
CREATE TEMP TABLE children(place BIGINT, parent_place BIGINT)
"""
_STEPPED = """
SELECT request_id, place, is_on_path, is_joined, is_by_time FROM (
    SELECT *, count(*) OVER (PARTITION BY request_id) AS n_steps FROM (
        SELECT *, false AS is_by_time FROM passed
        UNION ALL
        SELECT p.request_id, c.place, false, false, true FROM passed p JOIN children c ON c.parent_place = p.place)
    SEMI JOIN requests USING (request_id))
WHERE n_steps > 1 ORDER BY request_id, place
"""
"""What a request passed, with the executions that name nobody within."""


@dataclass(frozen=True)
class Sources:
    """The folder of files, and the slices: first and last request_id of each, in order. Pickles."""

    folder: Path
    spans: tuple[tuple[int, int], ...]
    step_spans: tuple[tuple[int, int], ...] = ()
    """Likewise of `steps`; none where no request passed several executions."""

    def path(self, name: str) -> Path:
        """Path of one of the files above."""
        return self.folder / f"{name}.parquet"


def write_sources(store: RunStore, folder: Path, rows_per_slice: int, memory_limit_bytes: int) -> Sources:
    """Writes the files into `folder`, which is there and empty. Raises `MissingTable` for a run without requests."""
    there = [table for table in _USED if store.has(table)]
    with connect(store, ["requests", *there], memory_limit_bytes) as connection:
        add_executions(connection, store)
        add_named(connection, store)
        _add_first_rows(connection)
        _add_children(connection, store.manifest if "batches" in there else None)
        _add_clocks(connection, store.manifest.nodes)
        _add_server_gpus(connection, store.manifest.servers)
        add_windows(connection, store)
        connection.execute(_SERVED)
        connection.execute(_MODELS)
        connection.execute(NO_GPU_STATES)
        if "gpu_samples" in there:
            connection.execute(GPU_STATES)
        connection.execute(_STATES)
        connection.execute(SERVED_SUMS)
        connection.execute(NO_TRITON_SUMS)
        if "triton_samples" in there:
            connection.execute(_triton_sums(connection))
        files = {
            "executed": _EXECUTED,
            "members": _MEMBERS,
            "stepped": _STEPPED,
            "traces": TRACES if "triton_traces" in there else NO_TRACES,
            "while_there": add_while_there(connection) if "kernels" in there else NOT_THERE,
            "second_means": SECOND_MEANS,
            "phase_means": PHASE_MEANS,
        }
        sources = Sources(folder, id_spans(connection, "requests", rows_per_slice))
        for name, query in files.items():
            _write(connection, sources.path(name), query)
        stepped = read_parquet([sources.path("stepped")])
        return replace(sources, step_spans=id_spans(connection, stepped, rows_per_slice))


def _add_first_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """View `first_rows`: `requests` with one row an id."""
    connection.execute(_FIRST_ROWS if n_repeated(connection, "requests") else _ROWS)


def _add_children(connection: duckdb.DuckDBPyConnection, manifest: Manifest | None) -> None:
    """Table `children`; None of a run without batches."""
    connection.execute(_CHILDREN)
    for one in find_children(connection, manifest, is_placed=True) if manifest is not None else ():
        rows = pa.table({"place": one.place, "parent_place": one.parent_place})
        connection.register("child_rows", rows)
        connection.execute("INSERT INTO children SELECT * FROM child_rows")
        connection.unregister("child_rows")


def _write(connection: duckdb.DuckDBPyConnection, path: Path, query: str) -> None:
    """Small row groups: a slice reads a narrow stretch of executions and members."""
    how = "FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480"
    connection.execute(f"COPY ({query}) TO {literal(str(path))} ({how})")


def _add_server_gpus(connection: duckdb.DuckDBPyConnection, servers: Mapping[str, ServerFacts]) -> None:
    """Table `server_gpus`."""
    connection.execute(_SERVER_GPUS)
    for server, facts in servers.items():
        own = [*enumerate(facts.gpus), *((NO_DEVICE, uuid) for uuid in facts.gpus if len(facts.gpus) == 1)]
        for device, uuid in own:
            connection.execute("INSERT INTO server_gpus VALUES ($1, $2, $3)", [server, device, uuid])


def _add_clocks(connection: duckdb.DuckDBPyConnection, nodes: Mapping[str, NodeFacts]) -> None:
    """Table `clocks`: from which instant on the run clock a node's clock has which error, to its next row."""
    rows = [(node, ClockErrors.from_node(facts)) for node, facts in nodes.items()]
    found = pa.table(
        {
            "node": pa.array([node for node, one in rows for _ in one.from_ns], pa.string()),
            "from_ns": pa.array([at for _, one in rows for at in one.from_ns.tolist()], pa.int64()),
            "error_ns": pa.array(
                [error for _, one in rows for error in one.error_ns.to_pylist()], pa.int64()
            ),
        }
    )
    connection.register("clock_rows", found)
    connection.execute(_CLOCKS)
    connection.unregister("clock_rows")


def _triton_sums(connection: duckdb.DuckDBPyConnection) -> str:
    """The query over view `triton_samples`; those of an earlier squall do not count what the cache answered."""
    columns = {name for name, *_ in connection.execute("DESCRIBE triton_samples").fetchall()}
    return TRITON_SUMS.format(cached="coalesce(cache_hit_count, 0)" if "cache_hit_count" in columns else "0")
