"""Queue and compute of the requests that batches served, batch sizes, and how deep the queue was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from squall.analysis.metrics.operations import OWNER, Row, by_group, pieces
from squall.analysis.storage.query import rows

if TYPE_CHECKING:
    import duckdb

# Requests with the key of their batch. `joined` has no model: the batch of an instance has one, else the request.
_BATCHED = f"""
CREATE TEMP VIEW batched AS
SELECT server, instance, instance_device, batch_id, j.outcome, j.response_ns, j.lag_ns, j.compute_ns, j.queue_ns,
    j.input_ns, j.handover_ns, j.output_ns, j.idle_wait_ns, coalesce(m.model, j.request_kind) AS model
FROM joined j
LEFT JOIN (SELECT DISTINCT {OWNER} FROM batch_costs WHERE instance <> '') m
    USING (server, instance, instance_device)
WHERE j.batch_id IS NOT NULL
"""
_WAITS = f"""
-- By batch: how long one of its requests waited while the instance was idle.
CREATE TEMP TABLE waits AS
SELECT {OWNER}, batch_id, max(idle_wait_ns) AS idle_wait_ns
FROM batched WHERE idle_wait_ns IS NOT NULL GROUP BY ALL
"""
_NO_WAITS = """
CREATE TEMP TABLE waits(
    server VARCHAR, instance VARCHAR, instance_device BIGINT, model VARCHAR, batch_id BIGINT, idle_wait_ns BIGINT)
"""

IS_UNSERVED = "batch_id IS NULL AND outcome <> 'ok' AND sent_ns IS NOT NULL"
"""Of a row of `joined`: it was sent, no batch took it, and it did not end ok."""

IS_ANSWERED = "outcome IN ('rejected', 'server_error', 'bad_reply')"
"""Of such a row: the server did answer, with an error or not as the model promises."""

_OUT = f"""
SELECT target AS server, request_kind AS model, sent_ns AS start_ns, done_ns AS end_ns
FROM joined WHERE {IS_UNSERVED} AND done_ns > sent_ns
"""
_UNSERVED = f"CREATE TEMP TABLE unserved AS {pieces(_OUT, 'server, model')}"
_NO_UNSERVED = """
CREATE TEMP TABLE unserved(server VARCHAR, model VARCHAR, from_ns BIGINT, to_ns BIGINT, before_ns BIGINT)
"""

_BY_INSTANCE = f"""
WITH served AS (
    SELECT b.phase, {OWNER}, quantile_disc(queue_ns, 0.5) AS queue_p50_ns,
        quantile_disc(queue_ns + input_ns + handover_ns + j.compute_ns + output_ns, 0.5) AS server_p50_ns,
        avg(queue_ns) AS queue_mean_ns, avg(j.compute_ns) AS compute_mean_ns, sum(lag_ns) AS lag_ns,
        sum(response_ns) AS response_ns
    FROM batched j JOIN picked b USING ({OWNER}, batch_id) WHERE outcome = 'ok' GROUP BY ALL)
SELECT grp, queue_p50_ns::DOUBLE AS queue_p50_ns, queue_p50_ns / nullif(server_p50_ns, 0) AS queue_share_ratio,
    queue_mean_ns, compute_mean_ns, lag_ns / nullif(response_ns, 0) AS client_lag_share_ratio
FROM served JOIN instances USING (phase, {OWNER})
"""

PARTS = (
    "wait_ns",
    "network_ns",
    "queue_ns",
    "input_ns",
    "handover_ns",
    "compute_ns",
    "output_ns",
    "reply_ns",
)
# One column at a time: a quantile holds its values.
_PART = """
SELECT phase, server, n, mean_ns, quantiles[1] AS p50_ns, quantiles[2] AS p95_ns, quantiles[3] AS p99_ns
FROM (
    SELECT phase, server, count(*) AS n, avg({part}) AS mean_ns, quantile_disc({part}, [0.5, 0.95, 0.99]) AS quantiles
    FROM joined WHERE outcome = 'ok' AND server IS NOT NULL AND {part} IS NOT NULL GROUP BY ALL)
"""
# Requests in the queue by Little's law; their time in it over their time in batches.
_QUEUED = """
SELECT phase, server, sum(queue_ns) / any_value(length_ns) AS depth_mean,
    sum(queue_ns) / nullif(sum(compute_ns), 0) AS queue_to_compute_ratio
FROM joined JOIN spans USING (phase) WHERE server IS NOT NULL AND queue_ns IS NOT NULL GROUP BY ALL
"""
_SIZES = """
SELECT phase, server, list({'rows': rows, 'n': n, 'exec_mean_ns': exec_ns / n} ORDER BY rows) AS batch_rows
FROM (
    SELECT phase, server, rows, count(*) AS n, sum(end_ns - start_ns) AS exec_ns FROM batch_costs GROUP BY ALL)
GROUP BY ALL ORDER BY ALL
"""
# Models of a server are read at one instant each time; the pending requests of all of them count.
_PENDING = """
SELECT phase, server, avg(pending) AS mean, max(pending) AS max, count(*) AS n FROM (
    SELECT phase, server, t_ns, sum(pending_count) AS pending FROM triton_samples
    WHERE pending_count IS NOT NULL GROUP BY ALL)
GROUP BY ALL
"""


def add_requests(connection: duckdb.DuckDBPyConnection, has_joined: bool) -> None:
    """Makes view `batched` where the run has `joined`; tables `waits` and `unserved`: by server and model the stretches
    in which requests that were never served were out, from their send until they were given up, as `operations.pieces`
    has them."""
    if has_joined:
        connection.execute(_BATCHED)
    connection.execute(_WAITS if has_joined else _NO_WAITS)
    connection.execute(_UNSERVED if has_joined else _NO_UNSERVED)


def request_measures(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """The measures of the ok requests of the batches in `picked`, by group. Needs view `batched`."""
    return by_group(connection, _BY_INSTANCE)


def server_figures(
    connection: duckdb.DuckDBPyConnection, tables: Collection[str]
) -> dict[tuple[str, str], Row]:
    """By phase and server. `tables`: those that the run has."""
    found: dict[tuple[str, str], Row] = defaultdict(
        lambda: {"batch_rows": (), "parts": {}, "queue": None, "pending": None}
    )
    has_joined = "joined" in tables
    for row in rows(connection, _SIZES):
        found[row["phase"], row["server"]]["batch_rows"] = row["batch_rows"]
    for part in PARTS if has_joined else ():
        for row in rows(connection, _PART.format(part=part)):
            found[row["phase"], row["server"]]["parts"][part.removesuffix("_ns")] = row
    for row in rows(connection, _QUEUED) if has_joined else ():
        found[row["phase"], row["server"]]["queue"] = row
    for row in rows(connection, _PENDING) if "triton_samples" in tables else ():
        found[row["phase"], row["server"]]["pending"] = row
    return found
