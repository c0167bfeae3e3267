"""Copies of the batches of an instance: how many, how large, how fast, from and to which memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from squall.analysis.metrics.figures.batch_figures import GroupKey
from squall.analysis.metrics.measures import Measures, instance_key, ratio

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

_COPIES = """
SELECT b.phase, server, instance, instance_device, b.model, copy_kind, source_kind, destination_kind, count(*) AS n,
    CAST(sum(bytes) AS BIGINT) AS bytes, CAST(sum(m.end_ns - m.start_ns) AS BIGINT) AS device_ns,
    CAST(sum(launch_end_ns - launch_start_ns) AS BIGINT) AS call_ns, count(launch_start_ns) AS n_calls
FROM memcpys m JOIN picked b USING (server, instance, instance_device, batch_id)
WHERE m.end_ns >= m.start_ns GROUP BY ALL ORDER BY ALL
"""


def copy_figures(connection: duckdb.DuckDBPyConnection) -> dict[GroupKey, list[Row]]:
    """By phase and instance, a row for each kind of copy and of memory; copies of the batches in `picked`."""
    found: dict[GroupKey, list[Row]] = {}
    for row in connection.execute(_COPIES).fetchall():
        phase, *owner = row[:5]
        kind, source, destination, n, bytes_, device_ns, call_ns, n_calls = row[5:]
        found.setdefault((phase, instance_key(*owner)), []).append({
            "copy_kind": kind, "source_kind": source, "destination_kind": destination, "n": n, "bytes": bytes_,
            "mean_bytes": bytes_ / n, "device_ns": device_ns, "device_mean_ns": device_ns / n,
            "bytes_per_s": ratio(bytes_ * 1e9, device_ns), "call_ns": call_ns,
            "call_mean_ns": ratio(call_ns, n_calls),
            "is_pageable": "pageable" in (source, destination),
        })  # fmt: skip
    return found


def copy_measures(rows: Sequence[Row], kernel_ns: int | None) -> Measures:
    """The measures of the copies of an instance whose batches are tied to the profile; none of no copies."""
    bytes_ = sum(row["bytes"] for row in rows)
    n = sum(row["n"] for row in rows)
    device_ns = sum(row["device_ns"] for row in rows)
    pageable = sum(row["bytes"] for row in rows if row["is_pageable"])
    return {
        "copy_mean_bytes": ratio(bytes_, n),
        "pageable_bytes_ratio": ratio(pageable, bytes_),
        "copy_to_kernel_ratio": ratio(device_ns, kernel_ns),
    }
