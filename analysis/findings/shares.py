"""Finer shares of an instance than its measures have: of its wall by cause of idling, and of the latency by part.

    wall_kernel_busy_ratio, wall_copy_exposed_ratio    wall_gpu_busy_ratio, split as the batches' own sums are
    wall_sync_wait_ratio, wall_launch_idle_ratio       wall_body_idle_ratio likewise
    body_<part>_ratio      kernel_busy, copy_exposed, sync_wait, launch_idle over their sum: the body
    body_idle_ratio        the latter two together, which is known without the calls that tell them apart
    kernel_mean_ns         mean length of a kernel
    copy_bytes_per_s       bytes of copies over the sum of their durations
    response_<part>_ratio  sum of the part over the sum of the latency, of the ok requests that have the part

    cpu_taken_ratio             of the CPU that the server could have used, what others had (`verdict.cpu_shares`)
    cpu_consequence_ratio       of the response times, what that explains
    cpu_taken_by_others_ratio   of that, what was not this run's: others and other guests of the hypervisor
    cpu_throttled_ratio         periods of the server's CPU quota in which it was used up; 0 without a quota
    gpu_foreign_ratio           of the GPU's time what other processes had (`verdict.gpu_shares`)
    gpu_consequence_ratio       of the response times, what that explains
    gpu_is_bound                1 where that is the most that it can explain, with nothing to compare with; else 0
    gpu_server_ratio            of the GPU's time, what the server's own processes had

    response_idle_wait_ratio            idle_wait_ns likewise, as far as it lies in queue, input and hand-over
    response_idle_beside_queue_ratio    the same, as far as it can lie in input and hand-over

Latency is response time, in a closed loop service time. Parts are those of table `joined`; a batch's part counts for
each of its requests, since all of them wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from squall.analysis.findings.rule import Measures
from squall.analysis.metrics.batches import BODY_IDLE
from squall.analysis.metrics.measures import instance_key
from squall.analysis.storage.manifest import Manifest
from squall.analysis.verdict.cpu_shares import OWN, CpuShares
from squall.analysis.verdict.gpu_shares import BOUND, GpuShares, is_on_cpu

if TYPE_CHECKING:
    import duckdb

BODY_PARTS = ("kernel_busy", "copy_exposed", "sync_wait", "launch_idle")
PARTS = (
    "lag", "network", "queue", "input", "handover", *BODY_PARTS, "head", "tail", "output", "residual",
)  # fmt: skip
"""Parts of a latency by their columns of `joined`, <part>_ns; the batch's six stand for compute_ns."""


def _least(one: str, other: str) -> str:
    """SQL: the lesser of both, null where either is."""
    return f"CASE WHEN {one} <= {other} THEN {one} WHEN {other} < {one} THEN {other} END"


_SPANS = {
    **{part: f"{part}_ns" for part in (*PARTS, "compute")},
    "idle_wait": _least("idle_wait_ns", "queue_ns + input_ns + handover_ns"),
    "idle_beside_queue": _least("idle_wait_ns", "input_ns + handover_ns"),
}
"""What each response_<name>_ratio is of."""
LATENCY = "coalesce(response_ns, service_ns)"
"""Latency of a row of `joined`: a closed loop has no response time."""

_MODEL = "CASE WHEN instance = '' THEN request_kind ELSE '' END"
"""What the key of an instance without a name is made of."""

Key = tuple[str, str]
"""Phase and instance key."""


class Sums(NamedTuple):
    """What the batches of an instance in a phase add up to; None where none was profiled.

    `measures`: those that follow from their sums alone; `of_wall`: of the measure of the wall that it is a part of, the
    share of each of BODY_PARTS.
    """

    instance: str
    model: str
    n_tied: int
    n_operations: int | None
    n_launches: int | None
    measures: Measures
    of_wall: Mapping[str, float | None]


_OF_WALL = {
    "kernel_busy": "gpu_busy", "copy_exposed": "gpu_busy", "sync_wait": "body_idle", "launch_idle": "body_idle",
}  # fmt: skip
_BODIES = f"""
-- Without the calls that tell waits from launches `idle` is what both are together.
WITH sums AS (
    SELECT phase, server, instance, instance_device, model, count(*) FILTER (tie <> 'none') AS n_tied,
        sum(n_kernels + n_copies) AS n_operations, sum(n_launches) AS n_launches,
        {", ".join(f"sum({part}_ns)::DOUBLE AS {part}" for part in BODY_PARTS)},
        sum({BODY_IDLE})::DOUBLE AS idle, nullif(kernel_busy + copy_exposed + idle, 0) AS body,
        kernel_busy + copy_exposed AS gpu_busy, sync_wait + launch_idle AS body_idle,
        sum(kernel_ns)::DOUBLE / nullif(sum(n_kernels), 0) AS kernel_mean_ns,
        sum(h2d_bytes + d2h_bytes)::DOUBLE / nullif(sum(h2d_ns + d2h_ns), 0) * 1e9 AS copy_bytes_per_s
    FROM batch_costs WHERE phase <> '' GROUP BY phase, server, instance, instance_device, model)
SELECT phase, server, instance, instance_device, model, n_tied, n_operations, n_launches,
    {{{", ".join(f"'body_{part}_ratio': {part} / body" for part in (*BODY_PARTS, "idle"))},
        'kernel_mean_ns': kernel_mean_ns, 'copy_bytes_per_s': copy_bytes_per_s}},
    {{{", ".join(f"'{part}': CASE WHEN {of} = 0 THEN 0 ELSE {part} / {of} END" for part, of in _OF_WALL.items())}}}
FROM sums
"""


def body_sums(connection: duckdb.DuckDBPyConnection) -> dict[Key, Sums]:
    """Sums over view `batch_costs`, by phase and instance."""
    return {
        (phase, instance_key(server, instance, device, model)): Sums(instance, model, *sums)
        for phase, server, instance, device, model, *sums in connection.execute(_BODIES).fetchall()
    }


def response_shares(connection: duckdb.DuckDBPyConnection) -> dict[Key, dict[str, float | None]]:
    """`response_<part>_ratio` over view `joined`, by phase and instance."""
    columns = ", ".join(
        f"sum({span})::DOUBLE / nullif(sum({LATENCY}) FILTER (({span}) IS NOT NULL), 0)::DOUBLE"
        for span in _SPANS.values()
    )
    rows = connection.execute(f"""
        SELECT phase, server, instance, instance_device, {_MODEL}, {columns} FROM joined
        WHERE outcome = 'ok' AND server IS NOT NULL AND phase <> '' GROUP BY ALL""").fetchall()
    return {
        (phase, instance_key(*owner)): {
            f"response_{name}_ratio": value for name, value in zip(_SPANS, values, strict=True)
        }
        for phase, *owner, values in ((*row[:5], row[5:]) for row in rows)
    }


def device_shares(measures: Measures, sums: Sums | None) -> dict[str, float | None]:
    """The finer shares of the wall and of the body, from the measures and the sums of its batches."""
    found = dict(sums.measures) if sums is not None else {}
    for part, of in _OF_WALL.items():
        wall, share = measures.get(f"wall_{of}_ratio"), sums.of_wall[part] if sums is not None else None
        found[f"wall_{part}_ratio"] = None if wall is None or share is None else wall * share
    return found


def is_cpu(sums: Sums | None, server: str, manifest: Manifest, has_cuda: bool | None) -> float | None:
    """1 if the instance computes on the CPU, 0 if on a GPU, None if nothing says.

    `has_cuda`: whether any operation of its server on a GPU was recorded. A node without a GPU settles it; so do
    operations of its batches, profiled batches without any on a server that has some, and a model that the scenario
    places on the CPU.
    """
    if sums is not None and sums.n_operations:
        return 0.0
    if manifest.is_without_gpu(server) or (sums is not None and sums.n_tied and has_cuda):
        return 1.0
    model = manifest.stated_models.get(sums.model) if sums is not None else None
    if model is not None:
        return 1.0 if is_on_cpu(model) else None
    return None


def cpu_measures(own: CpuShares | None) -> dict[str, float | None]:
    """The measures of the server's node in a phase; none of them where it is not known who had the CPU."""
    if own is None or own.taken is None or own.taken_ratio is None:
        return {}
    others = sum(share for name, share in own.taken.items() if name not in OWN)
    return {
        "cpu_taken_ratio": own.taken_ratio,
        "cpu_taken_by_others_ratio": others / own.taken_ratio if own.taken_ratio else 0.0,
        "cpu_consequence_ratio": own.consequence_ratio,
        "cpu_throttled_ratio": own.throttled_ratio or 0.0,
        "cpu_wait_ratio": own.server_wait_ratio,
    }


def gpu_measures(found: Sequence[GpuShares], phase: str, server: str, uuid: str) -> dict[str, float | None]:
    """The measures of the GPU of an instance in a phase, of the server's GPU that others used most where it is not
    known which is the instance's; none of them where nothing is known of it."""
    own = [one for one in found if one.phase == phase and server in one.servers]
    own = [one for one in own if one.gpu_uuid == uuid] or own
    known = [one for one in own if one.foreign_ratio is not None]
    if not known:
        return {}
    most = max(known, key=lambda one: (one.consequence_ratio or 0.0, one.foreign_ratio or 0.0))
    return {
        "gpu_foreign_ratio": most.foreign_ratio,
        "gpu_consequence_ratio": most.consequence_ratio or 0.0,
        "gpu_is_bound": float(most.compared == BOUND),
        "gpu_server_ratio": most.server_ratio,
    }
