"""Copies of the batches of an instance: how many, how large, how fast, from and to which memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.metrics.figures.batch_figures import GroupKey
from squall.analysis.metrics.measures import Measures, instance_key, ratio

if TYPE_CHECKING:
    import duckdb

_COPIES = """
SELECT b.phase, server, instance, instance_device, b.model, copy_kind, source_kind, destination_kind, count(*) AS n,
    CAST(sum(bytes) AS BIGINT) AS bytes, CAST(sum(m.end_ns - m.start_ns) AS BIGINT) AS device_ns,
    CAST(sum(launch_end_ns - launch_start_ns) AS BIGINT) AS call_ns, count(launch_start_ns) AS n_calls
FROM memcpys m JOIN picked b USING (server, instance, instance_device, batch_id)
WHERE m.end_ns >= m.start_ns AND (m.recorded_by <> 'library' OR b.tie <> 'none') GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True)
class CopyFigures:
    """Copies of one kind between two kinds of memory. `bytes_per_s`: over device time; `call_ns`: the calls' own."""

    copy_kind: str
    source_kind: str
    destination_kind: str
    n: int
    bytes: int
    mean_bytes: float
    device_ns: int
    device_mean_ns: float
    bytes_per_s: float | None
    call_ns: int | None
    call_mean_ns: float | None
    is_pageable: bool


def copy_figures(connection: duckdb.DuckDBPyConnection) -> dict[GroupKey, list[CopyFigures]]:
    """By phase and instance, figures of each kind of copy and of memory; copies of the batches in `picked`."""
    found: dict[GroupKey, list[CopyFigures]] = {}
    for phase, *row in connection.execute(_COPIES).fetchall():
        owner, (kind, source, destination, n, bytes_, device_ns, call_ns, n_calls) = row[:4], row[4:]
        one = CopyFigures(
            copy_kind=kind,
            source_kind=source,
            destination_kind=destination,
            n=n,
            bytes=bytes_,
            mean_bytes=bytes_ / n,
            device_ns=device_ns,
            device_mean_ns=device_ns / n,
            bytes_per_s=ratio(bytes_ * 1e9, device_ns),
            call_ns=call_ns,
            call_mean_ns=ratio(call_ns, n_calls),
            is_pageable="pageable" in (source, destination),
        )
        found.setdefault((phase, instance_key(*owner)), []).append(one)
    return found


def copy_measures(rows: Sequence[CopyFigures], kernel_ns: int | None) -> Measures:
    """The measures of the copies of an instance whose batches are tied to the profile; none of no copies."""
    bytes_ = sum(row.bytes for row in rows)
    n = sum(row.n for row in rows)
    device_ns = sum(row.device_ns for row in rows)
    pageable = sum(row.bytes for row in rows if row.is_pageable)
    return {
        "copy_mean_bytes": ratio(bytes_, n),
        "pageable_bytes_ratio": ratio(pageable, bytes_),
        "copy_to_kernel_ratio": ratio(device_ns, kernel_ns),
    }
