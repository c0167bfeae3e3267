"""Self-checks over `joined` and `batch_costs`: causes come before effects, and every sum is what it is the sum of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.findings.rules.shares import LATENCY
from squall.analysis.findings.self_checks.self_check import SelfCheck, at_most

if TYPE_CHECKING:
    import duckdb

RESIDUAL_RATIO = 0.05
"""Median residual of the time accounting over the latency: more, and the parts explain too little to be ranked."""

_BATCH_PARTS = "kernel_busy_ns + copy_exposed_ns + sync_wait_ns + launch_idle_ns + head_ns + tail_ns"
_PARTS = "coalesce(lag_ns, 0) + network_ns + queue_ns + input_ns + handover_ns + compute_ns + output_ns + residual_ns"
_KEY = "server, instance, instance_device, batch_id"
_WHOLE = f"""
WITH shares AS (
    SELECT {_KEY}, sum(kernel_share_ns) AS shares_ns, count(*) AS n
    FROM joined WHERE kernel_share_ns IS NOT NULL AND batch_id IS NOT NULL GROUP BY ALL)
SELECT count(*), sum(abs(shares_ns - kernel_ns)) FROM shares JOIN batch_costs USING ({_KEY})
WHERE n = n_requests
"""


def request_checks(
    connection: duckdb.DuckDBPyConnection | None,
    n_cached: int = 0,
    is_recorded: bool = True,
    has_cached_steps: bool = False,
) -> list[SelfCheck]:
    """Checks over view `joined`; None if it is absent. Rows that did not end ok may have been given up before.

    `n_cached`: requests that the response cache answered, which nothing else served. `is_recorded`: every server was to
    record its batches; else a server of which nothing is joined has nothing that could be. `has_cached_steps`: the
    cache answered for steps of an ensemble too, of which nothing else is known, so that the residual is not assessed.
    """
    n_early = n_late = n_off = unjoined = residual = None
    if connection is not None:
        ((n, n_known, n_early, n_late, n_summed, n_off, unjoined, residual),) = connection.execute(f"""
            SELECT count(*), count(clock_error_ns),
                count(*) FILTER (sent_ns > batch_start_ns + clock_error_ns),
                count(*) FILTER (batch_end_ns > done_ns + clock_error_ns),
                count({_PARTS}) + count({_BATCH_PARTS}),
                count(*) FILTER ({_PARTS} <> {LATENCY} OR {_BATCH_PARTS} <> compute_ns),
                greatest(0, count(*) FILTER (join_level = 'none' AND is_joinable) - {n_cached})
                    / nullif(count(*) FILTER (is_joinable), 0),
                quantile_disc(abs(residual_ns) / {LATENCY}::DOUBLE, 0.5) FILTER ({LATENCY} > 0)
            FROM (SELECT *, request_kind <> '' AND ({is_recorded} OR target IN (
                SELECT target FROM joined WHERE join_level <> 'none')) AS is_joinable FROM joined)
            WHERE outcome = 'ok'""").fetchall()
        n_early, n_late = (n_early, n_late) if n_known else (None, None)
        n_off = n_off if n_summed else None
        unjoined = unjoined if n else None
        residual = None if has_cached_steps else residual
    return [
        at_most(
            "sent before batch", n_early, 0, "count", "ok requests whose batch began before they were sent"
        ),
        at_most(
            "batch before reply", n_late, 0, "count", "ok requests answered before the end of their batch"
        ),
        at_most(
            "unjoined", unjoined, 0.0, "ratio", "ok requests of a model of which nothing that served them is known"
        ),
        at_most(
            "parts add up", n_off, 0, "count", "ok requests whose parts do not add up to their latency, to 1 ns"
        ),
        at_most(
            "residual", residual, RESIDUAL_RATIO, "ratio", "median of the unexplained part of the latency, over it"
        ),
    ]  # fmt: skip


def share_check(connection: duckdb.DuckDBPyConnection | None) -> SelfCheck:
    """Kernel shares of the requests of whole batches against these batches' kernels, over views joined and
    batch_costs."""
    off_ns = None
    if connection is not None:
        ((n, off_ns),) = connection.execute(_WHOLE).fetchall()
        off_ns = float(off_ns) if n else None
    meaning = "kernel time of whole batches that the shares of their requests do not add up to"
    return at_most("kernel shares", off_ns, 0, "ns", meaning)
