"""What the instances of a model carry at most: full batches, one after another. From table `batch_costs`.

    full      a batch that a request of mean size no longer fits into: rows + rows of a request > max_batch_size
    cycle     mean length of full batches, and lower quartile of the gaps between two in succession, of
              which the longer ones may lack a request
    ceiling   rows of full batches / cycle, over rows of a request: requests/s of an instance

Not assessed where the largest batch is not known, or where fewer than LEAST_FULL batches were full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from squall.analysis.findings.shares import Key
from squall.analysis.metrics.measures import instance_key
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.parquet import literal
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

LEAST_FULL = 10
"""Full batches; of fewer, one odd one moves the ceiling by more than a tenth."""


class Ceiling(Frozen):
    """Of an instance in a phase: `exec_ns` is the length of all its batches; of its full batches mean rows, length and
    gap between two in succession, and `rate_hz`, requests/s that it carries at most: None where too few were full.
    `n_alike` instances of the model at its server carry `all_hz`."""

    server: str
    model: str
    exec_ns: int
    full_rows: float | None
    full_exec_ns: float | None
    full_gap_ns: float
    is_largest_known: bool
    rate_hz: float | None
    n_alike: int
    all_hz: float | None


_CEILINGS = f"""
WITH own AS (
    SELECT phase, server, instance, instance_device, model, rows, n_requests, start_ns, end_ns - start_ns AS exec_ns,
        gap_before_ns, n_most, sum(rows) OVER w / nullif(sum(n_requests) OVER w, 0)::DOUBLE AS request_rows
    FROM batch_costs LEFT JOIN (VALUES {{largest}}) largest(server, model, n_most) USING (server, model)
    WHERE phase <> ''
    WINDOW w AS (PARTITION BY phase, server, instance, instance_device, model)),
told AS (SELECT *, rows + ceil(request_rows - 1e-9) > n_most AS is_full FROM own),
follow AS (
    SELECT *, lag(is_full) OVER (
        PARTITION BY phase, server, instance, instance_device, model ORDER BY start_ns) AS is_behind_full
    FROM told),
instances AS (
    SELECT phase, server, instance, instance_device, model, CAST(sum(exec_ns) AS BIGINT) AS exec_ns,
        CASE WHEN count(*) FILTER (is_full) >= {LEAST_FULL} THEN avg(rows) FILTER (is_full) END AS full_rows,
        avg(exec_ns) FILTER (is_full) AS full_exec_ns,
        coalesce(quantile_cont(gap_before_ns, 0.25) FILTER (is_full AND is_behind_full), 0) AS full_gap_ns,
        any_value(n_most) IS NOT NULL AS is_largest_known,
        nullif(full_rows, 0) / coalesce(nullif(any_value(request_rows), 0), 1)
            / (nullif(full_exec_ns, 0) + full_gap_ns) * 1e9 AS rate_hz
    FROM follow GROUP BY phase, server, instance, instance_device, model)
SELECT phase, instance, instance_device, server, model, exec_ns, full_rows, full_exec_ns, full_gap_ns,
    is_largest_known, rate_hz, count(*) OVER alike, count(*) OVER alike * avg(rate_hz) OVER alike
FROM instances WINDOW alike AS (PARTITION BY phase, server, model)
"""


def ceilings(connection: duckdb.DuckDBPyConnection, manifest: Manifest) -> dict[Key, Ceiling]:
    """By phase and instance, of a connection with `batch_costs`."""
    largest = [
        f"({literal(server)}, {literal(model)}, {most})"
        for server, facts in manifest.servers.items()
        for model in sorted({one.model for one in facts.models if one.model} | set(facts.serving))
        if (most := _largest(manifest, server, model)) is not None
    ]
    query = _CEILINGS.format(largest=", ".join(largest) or "(NULL, NULL, NULL::BIGINT)")
    return {
        (phase, instance_key(server, instance, device, model)): Ceiling(server, model, *figures)
        for phase, instance, device, server, model, *figures in connection.execute(query).fetchall()
    }


def _largest(manifest: Manifest, server: str, model: str) -> int | None:
    """Rows of the largest batch, as the server says it, else the scenario."""
    serving = manifest.servers[server].serving.get(model)
    if serving is not None:
        return max(serving.max_batch_size, 1)
    stated: Mapping[str, object] = manifest.stated_models.get(model, {})
    most = stated.get("max_batch_size")
    return most if isinstance(most, int) else None
