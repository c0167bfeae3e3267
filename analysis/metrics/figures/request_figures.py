"""Queue and compute of the requests that batches served, batch sizes, and how deep the queue was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from squall.analysis.intervals import joined_up
from squall.analysis.metrics.figures.batch_figures import GroupKey
from squall.analysis.metrics.measures import INSTANCE, Measures, instance_key, ratio
from squall.analysis.metrics.spans import PhaseSpan

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

_BATCHED = """
CREATE TEMP VIEW batched AS
SELECT server, instance, instance_device, batch_id, j.outcome, j.response_ns, j.lag_ns, j.compute_ns, j.queue_ns,
    j.input_ns, j.handover_ns, j.output_ns, j.idle_wait_ns, coalesce(m.model, j.request_kind) AS model
FROM joined j
LEFT JOIN (SELECT DISTINCT server, instance, instance_device, model FROM batch_costs WHERE instance <> '') m
    USING (server, instance, instance_device)
WHERE j.batch_id IS NOT NULL
"""
"""Requests with the key of their batch. `joined` has no model: the batch of an instance has one, else the request."""

_NO_WAITS = """
-- By batch: how long one of its requests waited while the instance was idle.
CREATE TEMP TABLE waits(
    server VARCHAR, instance VARCHAR, instance_device BIGINT, model VARCHAR, batch_id BIGINT, idle_wait_ns BIGINT)
"""
_WAITS = """
INSERT INTO waits SELECT server, instance, instance_device, model, batch_id, max(idle_wait_ns)
FROM batched WHERE idle_wait_ns IS NOT NULL GROUP BY ALL
"""

IS_UNSERVED = "batch_id IS NULL AND outcome <> 'ok' AND sent_ns IS NOT NULL"
"""Of a row of `joined`: it was sent, no batch took it, and it did not end ok."""

IS_ANSWERED = "outcome IN ('rejected', 'server_error', 'bad_reply')"
"""Of such a row: the server did answer, with an error or not as the model promises."""

_NO_UNSERVED = """
-- Stretch in which requests were out that were never served; before_ns: length of the stretches before.
CREATE TEMP TABLE unserved(server VARCHAR, model VARCHAR, from_ns BIGINT, to_ns BIGINT, before_ns BIGINT)
"""
_UNSERVED = f"""
SELECT sent_ns, done_ns FROM joined
WHERE {IS_UNSERVED} AND done_ns > sent_ns AND target = $server AND request_kind = $model ORDER BY sent_ns
"""
_SLICE_ROWS = 500_000

_BY_INSTANCE = """
SELECT b.phase, server, instance, instance_device, model, count(*) AS n, quantile_disc(queue_ns, 0.5) AS queue_p50_ns,
    quantile_disc(queue_ns + input_ns + handover_ns + j.compute_ns + output_ns, 0.5) AS server_p50_ns,
    avg(queue_ns) AS queue_mean_ns, avg(j.compute_ns) AS compute_mean_ns,
    CAST(sum(lag_ns) AS DOUBLE) AS lag_ns, CAST(sum(response_ns) AS DOUBLE) AS response_ns
FROM batched j JOIN picked b USING (server, instance, instance_device, model, batch_id)
WHERE outcome = 'ok' GROUP BY ALL
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
SELECT phase, server, count({part}), avg({part}), quantile_disc({part}, [0.5, 0.95, 0.99])
FROM joined WHERE outcome = 'ok' AND server IS NOT NULL AND {part} IS NOT NULL GROUP BY ALL
"""
_QUEUED = """
SELECT phase, server, CAST(sum(queue_ns) AS DOUBLE), CAST(sum(compute_ns) AS DOUBLE) FROM joined
WHERE server IS NOT NULL AND queue_ns IS NOT NULL GROUP BY ALL
"""
_SIZES = """
SELECT phase, server, rows, count(*), CAST(sum(end_ns - start_ns) AS BIGINT) FROM batch_costs
GROUP BY ALL ORDER BY ALL
"""
# Models of a server are read at one instant each time; the pending requests of all of them count.
_PENDING = """
SELECT phase, server, avg(pending), max(pending), count(*) FROM (
    SELECT phase, server, t_ns, sum(pending_count) AS pending FROM triton_samples
    WHERE pending_count IS NOT NULL GROUP BY ALL)
GROUP BY ALL
"""


def add_waits(connection: duckdb.DuckDBPyConnection, has_joined: bool) -> None:
    """Makes `waits`, and view `batched` where the run has `joined`."""
    connection.execute(_NO_WAITS)
    if has_joined:
        connection.execute(_BATCHED)
        connection.execute(_WAITS)


def add_unserved(connection: duckdb.DuckDBPyConnection, has_joined: bool) -> None:
    """Makes table `unserved`: by server and model the stretches in which requests that were never served were out, from
    their send until they were given up; `before_ns`: length of the stretches before."""
    connection.execute(_NO_UNSERVED)
    if not has_joined:
        return
    keys = connection.execute(
        f"SELECT DISTINCT target, request_kind FROM joined WHERE {IS_UNSERVED}"
    ).fetchall()
    for server, model in keys:
        found = connection.sql(_UNSERVED, params={"server": server, "model": model})
        pieces = [
            joined_up(piece["sent_ns"].to_numpy(), piece["done_ns"].to_numpy())
            for piece in found.to_arrow_reader(_SLICE_ROWS)
            if len(piece)
        ]
        if not pieces:
            continue
        from_ns, to_ns = joined_up(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
        before_ns = np.cumsum(to_ns - from_ns) - (to_ns - from_ns)
        rows = pa.table({"from_ns": from_ns, "to_ns": to_ns, "before_ns": before_ns})
        connection.register("unserved_rows", rows)
        connection.execute("INSERT INTO unserved SELECT $1, $2, * FROM unserved_rows", [server, model])
        connection.unregister("unserved_rows")


def instance_requests(connection: duckdb.DuckDBPyConnection) -> dict[GroupKey, Row]:
    """The ok requests of the batches in `picked`, by phase and instance. Needs view `batched`."""
    cursor = connection.execute(_BY_INSTANCE)
    names = [one[0] for one in cursor.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {(row["phase"], instance_key(*(row[name] for name in INSTANCE))): row for row in rows}


def request_measures(row: Mapping[str, Any] | None) -> Measures:
    """The measures of the requests of an instance; none without requests."""
    if row is None:
        return {}
    return {
        "queue_p50_ns": _number(row["queue_p50_ns"]),
        "queue_share_ratio": ratio(row["queue_p50_ns"], row["server_p50_ns"]),
        "queue_mean_ns": _number(row["queue_mean_ns"]),
        "compute_mean_ns": _number(row["compute_mean_ns"]),
        "client_lag_share_ratio": ratio(row["lag_ns"], row["response_ns"]),
    }


@dataclass(frozen=True)
class BatchRows:
    """Batches of `rows` rows: how many, and their mean length."""

    rows: int
    n: int
    exec_mean_ns: float


@dataclass(frozen=True)
class PartFigures:
    """One part of the latency, over the ok requests that have it."""

    n: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int


@dataclass(frozen=True)
class QueueFigures:
    """`depth_mean`: requests in the queue, by Little's law; `queue_to_compute_ratio`: their time in it over their time
    in batches."""

    depth_mean: float | None
    queue_to_compute_ratio: float | None


@dataclass(frozen=True)
class PendingFigures:
    """Triton's own count of waiting requests, over `n` samples."""

    mean: float
    max: int
    n: int


@dataclass(frozen=True)
class ServerMetrics:
    """A server in a phase: batch sizes, the parts of its requests by name, queue depth. `queue`: None where no request
    tells of it; `pending`: where no sample of Triton does."""

    batch_rows: tuple[BatchRows, ...]
    parts: Mapping[str, PartFigures]
    queue: QueueFigures | None
    pending: PendingFigures | None


_Owner = tuple[str, str]
"""Phase and server."""


def server_figures(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[PhaseSpan], tables: Sequence[str]
) -> dict[str, dict[str, ServerMetrics]]:
    """By phase and server. `tables`: those that the run has."""
    has_joined = "joined" in tables
    sizes = _sizes(connection)
    parts = _parts(connection) if has_joined else {}
    queues = _queues(connection, phases) if has_joined else {}
    pending = _pending(connection) if "triton_samples" in tables else {}
    found: dict[str, dict[str, ServerMetrics]] = {phase.name: {} for phase in phases}
    for phase, server in dict.fromkeys([*sizes, *parts, *queues, *pending]):
        if phase in found:
            key = phase, server
            found[phase][server] = ServerMetrics(
                batch_rows=tuple(sizes.get(key, ())),
                parts=parts.get(key, {}),
                queue=queues.get(key),
                pending=pending.get(key),
            )
    return found


def _sizes(connection: duckdb.DuckDBPyConnection) -> dict[_Owner, list[BatchRows]]:
    found: dict[_Owner, list[BatchRows]] = {}
    for phase, server, rows, n, total_ns in connection.execute(_SIZES).fetchall():
        found.setdefault((phase, server), []).append(BatchRows(rows, n, total_ns / n))
    return found


def _parts(connection: duckdb.DuckDBPyConnection) -> dict[_Owner, dict[str, PartFigures]]:
    found: dict[_Owner, dict[str, PartFigures]] = {}
    for part in PARTS:
        for phase, server, n, mean, (p50, p95, p99) in connection.execute(_PART.format(part=part)).fetchall():
            own = found.setdefault((phase, server), {})
            own[part.removesuffix("_ns")] = PartFigures(n, mean, p50, p95, p99)
    return found


def _queues(connection: duckdb.DuckDBPyConnection, phases: Iterable[PhaseSpan]) -> dict[_Owner, QueueFigures]:
    length_ns = {phase.name: phase.end_ns - phase.start_ns for phase in phases}
    return {
        (phase, server): QueueFigures(ratio(queue_ns, length_ns.get(phase)), ratio(queue_ns, compute_ns))
        for phase, server, queue_ns, compute_ns in connection.execute(_QUEUED).fetchall()
    }


def _pending(connection: duckdb.DuckDBPyConnection) -> dict[_Owner, PendingFigures]:
    return {
        (phase, server): PendingFigures(float(mean), int(most), n)
        for phase, server, mean, most, n in connection.execute(_PENDING).fetchall()
    }


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
