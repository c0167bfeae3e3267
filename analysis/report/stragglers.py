"""Servers that answer more slowly than the others of their run, and what of them is otherwise than of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from squall.analysis.metrics.measures import NO_CLOCK_LIMIT
from squall.analysis.report.sampled import HostFigures
from squall.analysis.requests.by_server import QUANTILES, ServerLoad, ServersFigures, served_models
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import in_memory
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.wording import macros
from squall.scenarios.records import Frozen, GpuPlace

P95_BEYOND = 1.1
"""Times the median p95 of the others, by the lower end of its interval: what is less is no reason to look."""
LOAD_BEYOND = 1.05
CLOCK_BELOW = 0.97
"""Of the others' SM clock: a GPU that is not held back differs by less from its like."""
THROTTLED_BEYOND = 0.05
FOREIGN_BEYOND = 0.05
"""Of the GPU's time, beyond the others'."""
BUSY_BEYOND = 0.2
"""Ratio of the CPU of its node, beyond the others'."""
_P95 = QUANTILES.index(0.95)
_LANE_RATES = {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 32}
"""Of a PCIe lane, relative to the first generation (PCI Express Base Specification)."""

_NUMBERS = (
    "p95_ns", "low_ns", "high_ns", "least_p95_ratio", "failed_ratio", "planned_ratio", "foreign_ratio", "pcie",
    "busy_ratio",
)  # fmt: skip
_SCHEMA = pa.schema(
    {
        "server": pa.string(),
        "is_infinite": pa.bool_(),
        **dict.fromkeys(_NUMBERS, pa.float64()),
        "gpus": pa.list_(pa.string()),
        "numa_nodes": pa.list_(pa.int64()),
    }
)
"""What servers are told apart by: see `_server`."""
_SLOWER = f"""
-- p95 over the median of the others', where it is beyond it and not by chance: its interval is above theirs, or where
-- there is none its least ratio section by section is; null where it falls on failures, and theirs do not
SELECT own.server, own.p95_ns / median(other.p95_ns) AS p95_ratio
FROM servers own JOIN servers other ON own.server <> other.server
GROUP BY own.place, own.server, own.is_infinite, own.p95_ns, own.low_ns, own.least_p95_ratio
HAVING CASE WHEN own.is_infinite THEN count(other.p95_ns) = count(*)
    WHEN own.p95_ns IS NULL OR count(other.p95_ns) = 0 THEN false
    WHEN own.low_ns IS NULL OR count(other.high_ns) = 0 THEN coalesce(own.least_p95_ratio, 0) > {P95_BEYOND}
    ELSE own.low_ns > greatest({P95_BEYOND} * median(other.p95_ns), median(other.high_ns)) END
ORDER BY own.place
"""
_REASONS = f"""
WITH clocks AS ( -- of its GPUs: mean SM clock, and share of samples with a reason that holds clocks back
    SELECT server, avg(sm_clock_hz)::DOUBLE AS clock_hz,
        count(*) FILTER (throttle_reasons & ~{NO_CLOCK_LIMIT} <> 0) / nullif(count(throttle_reasons), 0)
            AS throttled_ratio
    FROM servers JOIN gpu_samples ON list_contains(gpus, gpu_uuid) GROUP BY server),
figures AS (
    UNPIVOT (FROM servers LEFT JOIN clocks USING (server))
    ON failed_ratio, planned_ratio, foreign_ratio, clock_hz, throttled_ratio, pcie, busy_ratio
    INTO NAME figure VALUE value),
-- how a figure differs: beyond so many times the median of the others' and so much more, below it where that is less;
-- what stands for theirs where none has it, most direct first
differences(place, figure, times, more, is_less, unknown) AS (VALUES
    (1, 'failed_ratio', 1, 0, false, NULL), (2, 'planned_ratio', {LOAD_BEYOND}, 0, false, NULL),
    (3, 'foreign_ratio', 1, {FOREIGN_BEYOND}, false, 0), (4, 'clock_hz', {CLOCK_BELOW}, 0, true, NULL),
    (5, 'throttled_ratio', 1, {THROTTLED_BEYOND}, false, 0), (6, 'pcie', 1, 0, true, NULL),
    (8, 'busy_ratio', 1, {BUSY_BEYOND}, false, NULL)),
beside AS (
    SELECT own.server, own.figure, own.value, median(other.value) AS rest
    FROM figures own LEFT JOIN figures other ON own.figure = other.figure AND own.server <> other.server
    GROUP BY own.server, own.figure, own.value)
SELECT place, server, figure, value, rest FROM beside JOIN differences USING (figure)
WHERE CASE WHEN is_less THEN value < times * coalesce(rest, unknown)
    ELSE value > times * coalesce(rest, unknown) + more END
UNION ALL
SELECT 7, own.server, list_aggregate(own.numa_nodes, 'string_agg', ', '), NULL, NULL
FROM servers own JOIN servers other ON own.server <> other.server GROUP BY own.server, own.numa_nodes
HAVING len(own.numa_nodes) > 0 AND bool_and(len(other.numa_nodes) > 0 AND other.numa_nodes <> own.numa_nodes)
ORDER BY ALL
"""


class Straggler(Frozen):
    """`p95_ratio`: its p95 over the median of the others', None where it has none for its failures. `reasons`: how it
    differs from the others, most direct first; empty: nothing that was recorded tells it apart."""

    server: str
    p95_ratio: float | None
    reasons: tuple[str, ...]


def stragglers(
    figures: ServersFigures | None,
    samples: pa.Table | None,
    shares: Sequence[GpuShares],
    hosts: Mapping[str, HostFigures] | None,
    manifest: Manifest,
) -> tuple[Straggler, ...]:
    """Of a run of several servers those whose p95 is beyond the others', and not by chance. `samples`: rows of
    gpu_samples of the measure phases; `shares`: of each GPU in them; `hosts`: by node, of the same.
    """
    if figures is None or len(set(served_models(list(figures.servers), manifest).values())) > 1:
        return ()
    servers = [_server(*one, shares, hosts or {}, manifest) for one in figures.servers.items()]
    with in_memory(gpu_samples=samples) as connection:
        table = pa.Table.from_pylist(servers, schema=_SCHEMA)
        connection.register("servers", table.append_column("place", pa.array(range(len(servers)))))
        slower = connection.execute(_SLOWER).fetchall()
        reasons = connection.execute(_REASONS).fetchall() if slower else []
    say = macros("squall.analysis.report", "stragglers.j2").reason
    return tuple(
        Straggler(server, p95_ratio, tuple(say(*words) for _, of, *words in reasons if of == server))
        for server, p95_ratio in slower
    )


def _server(
    server: str,
    load: ServerLoad,
    shares: Sequence[GpuShares],
    hosts: Mapping[str, HostFigures],
    manifest: Manifest,
) -> dict[str, Any]:
    """A row of `_SCHEMA`; None where it is not known. Of its GPUs: the largest share of the time of one that other
    processes had, slowest PCIe link, NUMA nodes."""
    facts = manifest.servers.get(server)
    node = manifest.nodes.get(facts.node) if facts is not None else None
    host = hosts.get(facts.node) if facts is not None else None
    of_node = {one.uuid: one for one in node.gpu_places} if node is not None else {}
    uuids = list(facts.gpus if facts is not None and facts.gpus else of_node)
    places = [of_node[one] for one in uuids if one in of_node]
    foreign = [one.foreign_ratio for one in shares if server in one.servers and one.foreign_ratio is not None]
    p95 = load.quantiles[_P95]
    return {
        **vars(p95),
        "p95_ns": p95.value_ns,
        "least_p95_ratio": load.least_p95_ratio,
        "server": server,
        "gpus": uuids,
        "failed_ratio": load.n_failed / load.n if load.n else 0.0,
        "planned_ratio": load.planned_ratio or 0.0,
        "foreign_ratio": max(foreign, default=None),
        "pcie": min(filter(None, map(_pcie, places)), default=None),
        "numa_nodes": sorted({one.numa_node for one in places if one.numa_node is not None}),
        "busy_ratio": host.cpu_busy_mean if host is not None else None,
    }


def _pcie(place: GpuPlace) -> int:
    """Of all lanes together; 0 where it is not known."""
    return _LANE_RATES.get(place.pcie_generation or 0, 0) * (place.pcie_lanes or 0)
