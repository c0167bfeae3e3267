"""Who had the GPUs of a run's servers in a phase, and what that did to the requests. Pure.

A cause needs means and consequence, as for CPUs (`cpu_shares`). **Means**: the share of the time, in moments in which
the servers on a GPU had requests, in which kernels of processes that are not theirs ran there:

    foreign   sum of `sm_util` of other processes in a second (NVML, per process), weighed by the requests sent in it

A process is another's where NVML names it and it is none of the server's: the server's own are named too, so that ids
are those of this node; or it is one of this node that has the driver open, of a run that started its servers and so
knows all of their processes; or it was there before the run started its server. Else it is not known whose it is, as in
a container where the driver tells the ids of the host. Where NVML tells no use per process, or names no process, what
the GPU did while no request was in flight is foreign (GPM's `sm_util`, else nvidia-smi's `util`): in gaps of the phase,
else the lesser of before and behind it. So is what it did then beyond the use of all processes that NVML names, where
that is more: a container may see its own alone. A server that serves requests of others too is not idle then: not
assessed.

**Consequence**: of the response times, the share that this explains, the first of these that there is:

    moments   batches of equal model and size (rows) in seconds with against seconds without foreign work
    servers   batches of equal model and size on this GPU against those on a GPU of the same name without foreign work
    bound     none of both: foreign work was there all the time. It held up requests at most while it ran: `foreign`

    consequence = (1 - time of the batches without / time with) * share of requests sent with * in server

    in server   time in the server (queue and compute, Triton's statistics) over service time; 1 where not known: a
                queue before batches that take longer is longer by as much at least

MIG shares no SM between instances and NVML tells no use per process there: not assessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.requests.requests import Requests, in_order
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import in_memory, records
from squall.analysis.storage.timeline import RunPhase, measure_spans
from squall.analysis.wording import macros
from squall.scenarios.records import Frozen, GpuUse
from squall.scenarios.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

TABLES: Mapping[str, tuple[str, ...]] = {
    "gpu_samples": ("phase", "node", "gpu_uuid", "mig_instance", "t_ns", "interval_ns", "sm_util", "util"),
    "gpu_processes": (),
    "batches": (
        "phase", "node", "server", "model", "instance_device", "start_ns", "end_ns", "rows", "n_foreign",
    ),
    "triton_samples": ("phase", "server", "model", "success_ns"),
}  # fmt: skip
"""What is looked at, of all columns where none is named."""
WITH_RATIO, WITHOUT_RATIO = 0.10, 0.02
"""Foreign share of a second from which it is one with foreign work, and below which one without: a tenth is what a
batch is made longer by at most there, and NVML tells whole percents."""
LEAST_BATCHES = 30
"""Of equal size on either side, over all sizes: as the findings demand (`confidence.LEAST_BATCHES`)."""
LEAST_IDLE = 10
"""Samples without any request in flight before these say what the GPU does by itself: one second at 10 Hz."""
LEAST_IDLE_SECONDS = 2
"""The same of the samples of processes, at 1 Hz."""
LEAST_RATIO = 0.01
"""Foreign share below which nothing was taken: NVML tells whole percents."""
MOMENTS, SERVERS, BOUND = "moments", "servers", "bound"
PROCESSES, ACTIVITY = "processes", "activity"
_USES = f"""
-- The use of a GPU in a phase, of each of its seconds by processes of others and by the servers' own. What NVML tells
-- of a stretch counts in the second of its middle.
WITH of_node AS (SELECT *, t_ns - interval_ns // 2 AS middle_ns FROM gpu_processes WHERE node = $node),
own AS (
    SELECT *, (middle_ns - $start_ns) // {NS_PER_S} AS second,
        -- at any time: a process that came with a model is known some seconds later
        process IN (SELECT process FROM of_node WHERE is_server) AS is_own
    FROM of_node
    WHERE gpu_uuid = $uuid AND middle_ns >= $start_ns AND middle_ns < $end_ns),
told AS (
    SELECT *, (NOT is_own AND (
        -- NVML names the servers' own processes, so that its ids are those of this node, and all of them are known
        (SELECT bool_or(is_server) FROM of_node) AND ($is_started OR (SELECT bool_or(is_own) FROM own))
        -- one of this node has the driver open, and the run started its servers here
        OR uses_driver AND $is_here
        -- it was there before the run started its server
        OR list_contains($processes_before::BIGINT[], process)
    )) IS TRUE AS is_other
    FROM own),
seconds AS (
    SELECT second,
        least(1, coalesce(sum(sm_util) FILTER (is_other), 0) / count(DISTINCT t_ns)) AS foreign_ratio,
        least(1, coalesce(sum(sm_util) FILTER (is_own), 0) / count(DISTINCT t_ns)) AS server_ratio
    FROM told GROUP BY second),
held AS (SELECT sum(memory_used_bytes) FILTER (is_other) AS bytes FROM told GROUP BY t_ns)
SELECT list(coalesce(foreign_ratio, 0)::DOUBLE ORDER BY second) AS foreign_ratios,
    list(coalesce(server_ratio, 0)::DOUBLE ORDER BY second) AS server_ratios,
    (SELECT count(DISTINCT process) FROM told WHERE is_other) AS n_foreign,
    (SELECT count(DISTINCT process) FROM told WHERE NOT is_other AND NOT is_own) AS n_unknown,
    (SELECT nullif(max(bytes), 0) FROM held)::BIGINT AS foreign_memory_bytes,
    (SELECT bool_or(sm_util IS NOT NULL) FROM of_node) AS has_use,
    (SELECT coalesce(bool_or(is_server), false) FROM of_node) AS names_server
FROM range($n_seconds::BIGINT) every_second(second) LEFT JOIN seconds USING (second)
"""
_COMPARED = f"""
-- Batches in seconds with foreign work against those of equal model and rows in seconds without it; `beside` names a
-- GPU of which all batches are without it, in their place.
WITH timed AS (
    SELECT model, rows, (end_ns - start_ns)::DOUBLE AS ns,
        list_contains($servers::VARCHAR[], server) AND coalesce(uuid, $uuid) = $uuid AS is_own,
        CASE WHEN start_ns >= $start_ns THEN
            ($foreign_ratios::DOUBLE[])[((start_ns - $start_ns) // {NS_PER_S} + 1)::BIGINT] END AS foreign_ratio,
        (is_own AND foreign_ratio >= {WITH_RATIO}) IS TRUE AS is_with,
        CASE WHEN $beside = '' THEN (is_own AND foreign_ratio < {WITHOUT_RATIO}) IS TRUE
            ELSE list_contains($servers_beside::VARCHAR[], server) AND coalesce(uuid, $beside) = $beside
            END AS is_without
    FROM batches LEFT JOIN devices USING (server, instance_device) WHERE phase = $phase),
kinds AS (
    SELECT count(*) FILTER (is_own) AS n_own, count(*) FILTER (is_with) AS n_with,
        sum(ns) FILTER (is_with) AS with_ns, count(*) FILTER (is_without) AS n_without,
        avg(ns) FILTER (is_without) AS without_ns, n_with > 0 AND n_without > 0 AS is_compared
    FROM timed GROUP BY model, rows)
SELECT coalesce(sum(n_own), 0)::BIGINT AS n, coalesce(sum(n_with), 0)::BIGINT AS n_with,
    coalesce(sum(n_without), 0)::BIGINT AS n_without,
    coalesce(least(sum(n_with) FILTER (is_compared), sum(n_without) FILTER (is_compared)), 0)::BIGINT AS n_compared,
    -- each kind as often as it ran with
    sum(with_ns) FILTER (is_compared) / sum(n_with) FILTER (is_compared) AS with_ns,
    sum(without_ns * n_with) FILTER (is_compared) / sum(n_with) FILTER (is_compared) AS without_ns
FROM kinds
"""
_SAMPLES = """
SELECT count(*) FILTER (phase = $phase), coalesce(bool_or(mig_instance <> ''), false) FROM gpu_samples
WHERE node = $node AND gpu_uuid = $uuid
"""
_SERVES_OTHERS = """
SELECT coalesce(bool_or(n_foreign > 0), false) FROM batches WHERE list_contains($servers::VARCHAR[], server)
"""
_ACTIVITY = """
SELECT t_ns - interval_ns AS since_ns, t_ns, {measure}::DOUBLE AS use FROM gpu_samples
WHERE node = $node AND gpu_uuid = $uuid AND {measure} IS NOT NULL ORDER BY t_ns
"""
_NAMED = """
SELECT min(t_ns - interval_ns) AS since_ns, t_ns, coalesce(sum(sm_util), 0)::DOUBLE AS use FROM gpu_processes
WHERE node = $node AND gpu_uuid = $uuid GROUP BY t_ns ORDER BY t_ns
"""
_IN_SERVER = """
SELECT sum(success_ns) FROM triton_samples
WHERE phase = $phase AND list_contains($asked::VARCHAR[][], [server::VARCHAR, model::VARCHAR])
"""


class GpuShares(Frozen):
    """The use of a GPU of ours in a phase.

    `foreign_ratio`: see above, by `measured_by` (processes, activity); None where not assessed: then `reason` says why.
    `server_ratio`: the same of the servers' own processes. `n_foreign`, `n_unknown`: other processes, and those of
    which it is not known whose they are; `foreign_memory_bytes`: the most that the other ones held, None where not
    told. `before_ratio`: nvidia-smi's utilisation before the run started a server there. `idle_ratio`: activity while
    no request was in flight. `consequence_ratio`: of the response times, `compared` how (moments, servers, bound);
    `with_ns` and `without_ns`: mean length of the batches that were compared, each size counted as often as it ran with
    foreign work. Where `compared` is bound, `reason` says why nothing could be compared.
    """

    node: str
    phase: str
    gpu_uuid: str
    servers: tuple[str, ...]
    n_samples: int
    foreign_ratio: float | None = None
    server_ratio: float | None = None
    measured_by: str = ""
    n_foreign: int = 0
    n_unknown: int = 0
    foreign_memory_bytes: int | None = None
    before_ratio: float | None = None
    idle_ratio: float | None = None
    consequence_ratio: float | None = None
    compared: str = ""
    with_ns: float | None = None
    without_ns: float | None = None
    reason: str = ""

    STATED: ClassVar = ("is_used_by_others",)

    @property
    def is_used_by_others(self) -> bool:
        """Whether other processes, or activity that is not ours, had any share of it."""
        return (self.foreign_ratio or 0.0) >= LEAST_RATIO


def gpu_shares(
    tables: Mapping[str, pa.Table | None], requests: Requests, manifest: Manifest
) -> list[GpuShares]:
    """The shares of each GPU that a server of the run uses, in each measure phase; empty without samples of GPUs.
    `tables`: all of `TABLES`, None where one is absent."""
    if tables.get("gpu_samples") is None:
        return []
    with in_memory(**tables) as connection:
        run = _Run(connection, requests, manifest)
        found = []
        for span in measure_spans(manifest):
            own = [_Gpu(run, span, *place, servers) for place, servers in sorted(run.used.items())]
            found += [one.with_consequence(own) for one in own]
        return found


def gpu_lines(found: Sequence[GpuShares]) -> list[str]:
    """A line for each GPU that others used, or of which that is not known; of several phases each names its own."""
    has_phases = len({one.phase for one in found}) > 1
    lines = [
        (f"{one.phase}: " if has_phases else "", macros(__package__, "gpu_shares.j2").gpu(one))
        for one in found
    ]
    return [phase + line for phase, line in lines if line]


class _Run(Frozen, eq=False):
    """A run whose GPUs are looked at; `connection` has `TABLES`, and from `used` on `devices`."""

    connection: duckdb.DuckDBPyConnection
    requests: Requests
    manifest: Manifest

    @cached_property
    def used(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The servers that use each GPU, by node and UUID, as far as that can be told.

        By the device of their batches; else by NVML, where kernels of a process of theirs ran; else those that they
        were given, or the only one of the node. A model on the CPU uses none, though Triton opens every GPU that it
        sees.
        """
        known, servers = self._all_gpus(), self.manifest.servers
        devices = {
            (name, device): self.manifest.gpu_of(name, device)
            or next(iter(known.get(servers[name].node, [])[device : device + 1]), None)
            for name, device in self.rows("SELECT DISTINCT server, instance_device FROM batches")
            if name in servers and device is not None and device >= 0
        }
        names, numbers = [name for name, _ in devices], [device for _, device in devices]
        columns = (
            pa.array(names, pa.string()),
            pa.array(numbers, pa.int64()),
            pa.array(devices.values(), pa.string()),
        )
        self.connection.register("devices", pa.table(columns, ["server", "instance_device", "uuid"]))
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for name, server in servers.items():
            by_batch = {uuid for (own, _), uuid in devices.items() if own == name}
            for uuid in by_batch or self._without_batches(name, known.get(server.node, [])):
                if uuid:
                    found[server.node, uuid].add(name)
        return {place: tuple(sorted(own)) for place, own in found.items()}

    @cached_property
    def in_flight(self) -> dict[str, tuple[Int64s, Int64s]]:
        """Of each node with a GPU in use begins and ends of the requests that were sent to its servers, in order."""
        found = {}
        for node in {node for node, _ in self.used}:
            here = [name for name, server in self.manifest.servers.items() if server.node == node]
            sent = self.requests.take(self.requests.target.is_any_of(here) & self.requests.is_sent)
            ends = np.where(sent.is_done, sent.done_ns, sent.sent_ns)
            found[node] = in_order(sent.sent_ns), in_order(ends)
        return found

    def rows(self, query: str, **settings: Any) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        found: list[tuple[Any, ...]] = self.connection.execute(query, settings).fetchall()
        return found

    def _all_gpus(self) -> dict[str, list[str]]:
        """UUIDs of the GPUs of each node, in NVML's order where the manifest has it."""
        found = {
            name: [place.uuid for place in node.gpu_places] or [use.uuid for use in node.gpus_before]
            for name, node in self.manifest.nodes.items()
        }
        for node, uuid in self.rows("SELECT DISTINCT node, gpu_uuid FROM gpu_samples ORDER BY ALL"):
            if uuid not in found.setdefault(node, []):
                found[node].append(uuid)
        return found

    def _without_batches(self, name: str, here: Sequence[str]) -> Sequence[str]:
        servers, stated = self.manifest.servers, self.manifest.stated_models
        node = servers[name].node
        models = [stated.get(one.model or "") for one in servers[name].models]
        if models and all(one is not None and is_on_cpu(one) for one in models):
            return ()
        if len(here) == 1:
            return here
        if sum(one.node == node for one in servers.values()) == 1:
            query = (
                "SELECT DISTINCT gpu_uuid FROM gpu_processes WHERE node = $node AND is_server AND sm_util > 0"
            )
            if named := self.rows(query, node=node):
                return [uuid for (uuid,) in named]
        return servers[name].gpus

    def is_started(self, servers: Sequence[str], *unknown: str) -> bool:
        """Whether the run started all of these servers, none of them as one of `unknown`."""
        return not {None, "url", *unknown} & {self.manifest.servers[name].source for name in servers}


def is_on_cpu(model: Mapping[str, object]) -> bool:
    """Whether a model computes on the CPU, as the scenario states it."""
    return model.get("device") == "cpu" or (not model.get("device") and model.get("framework") == "numpy")


class _Gpu(Frozen, eq=False):
    """A GPU that servers of the run use, in a phase."""

    run: _Run
    span: RunPhase
    node: str
    uuid: str
    servers: tuple[str, ...]

    @cached_property
    def sent(self) -> Requests:
        """The requests that were sent to its servers, in any phase."""
        return self.run.requests.take(
            self.run.requests.target.is_any_of(self.servers) & self.run.requests.is_sent
        )

    @cached_property
    def uses(self) -> dict[str, Any]:
        """The row of `_USES`."""
        run, before = self.run, self._before
        is_started = run.is_started(self.servers)
        settings = {
            "node": self.node,
            "uuid": self.uuid,
            "start_ns": self.span.start_ns,
            "end_ns": self.span.start_ns + self._n_seconds * NS_PER_S,
            "n_seconds": self._n_seconds,
            "is_started": is_started,
            "is_here": run.is_started(self.servers, "container"),
            "processes_before": [one for use in before if is_started for one in use.processes or ()],
        }
        return records(run.connection.execute(_USES, settings))[0]

    @property
    def _n_seconds(self) -> int:
        return -(-max(1, self.span.end_ns - self.span.start_ns) // NS_PER_S)

    @property
    def _before(self) -> list[GpuUse]:
        """Its use before the run started its servers."""
        node = self.run.manifest.nodes.get(self.node)
        return [use for use in (node.gpus_before if node is not None else ()) if use.uuid == self.uuid]

    @cached_property
    def n_sent(self) -> Int64s:
        """How many requests were sent in each second of the phase."""
        edges = self.span.start_ns + NS_PER_S * np.arange(self._n_seconds + 1)
        return np.histogram(self.sent.sent_ns, edges)[0].astype(np.int64)

    @cached_property
    def shares(self) -> GpuShares:
        """Who used it, without the consequence."""
        run, uses = self.run, self.uses
        ((n_samples, is_mig),) = run.rows(_SAMPLES, phase=self.span.name, node=self.node, uuid=self.uuid)
        activity = (
            self._while_idle(_ACTIVITY.format(measure=one), LEAST_IDLE) for one in ("sm_util", "util")
        )
        idle = next((one for one in activity if any(part is not None for part in one)), (None, None))
        found = GpuShares(
            self.node,
            self.span.name,
            self.uuid,
            self.servers,
            n_samples,
            before_ratio=self._before[0].util if self._before and run.is_started(self.servers) else None,
            idle_ratio=next((one for one in idle if one is not None), None),
        )
        if is_mig:
            return replace(found, reason="MIG divides it, and NVML tells no use per process there")
        found = replace(
            found, **{name: uses[name] for name in ("n_foreign", "n_unknown", "foreign_memory_bytes")}
        )
        ((serves_others,),) = run.rows(_SERVES_OTHERS, servers=list(self.servers))
        if uses["has_use"] and (uses["names_server"] or uses["n_foreign"]):
            foreign = self._mean(uses["foreign_ratios"])
            found = replace(
                found,
                foreign_ratio=foreign,
                server_ratio=self._mean(uses["server_ratios"]) if uses["names_server"] else None,
                measured_by=PROCESSES,
            )
            named = self._while_idle(_NAMED, LEAST_IDLE_SECONDS)
            pairs = zip(idle, named, strict=True)
            hidden = next((one - rest for one, rest in pairs if one is not None and rest is not None), 0.0)
            if hidden < foreign + WITH_RATIO or serves_others:
                return found
            return replace(found, foreign_ratio=hidden, measured_by=ACTIVITY)
        if found.idle_ratio is not None and not serves_others:
            return replace(found, foreign_ratio=found.idle_ratio, measured_by=ACTIVITY)
        why = "NVML names no process of the server, as in a container where the driver hides processes"
        if uses["has_use"] is False:
            why = "NVML tells no use per process"
        rest = "there were too few samples without a request in flight"
        if found.idle_ratio is not None:
            rest = "the server serves requests of others, too"
        return replace(found, reason=f"{why}, and {rest}")

    def _mean(self, ratios: Sequence[float]) -> float:
        """Weighted by how many requests were sent in each second; plain where none was."""
        return float(np.average(ratios, weights=self.n_sent if self.n_sent.any() else None))

    def _while_idle(self, query: str, least: int) -> tuple[float | None, float | None]:
        """Mean use, of at least `least` samples, with no request in flight at any server of the node since a second
        before, as nvidia-smi's utilisation is over up to that: in gaps of the phase, and the lesser of before and
        behind it; None of too few."""
        found = self.run.connection.execute(query, {"node": self.node, "uuid": self.uuid}).fetchnumpy()
        since, at = found["since_ns"] - NS_PER_S, found["t_ns"]
        begins, ends = self.run.in_flight[self.node]
        # what was sent before its end was done before its begin
        is_idle = np.searchsorted(begins, at, "right") == np.searchsorted(ends, since, "left")
        within, before, behind = (
            float(found["use"][own].mean()) if len(begins) and int(own.sum()) >= least else None
            for own in (
                is_idle & (since >= self.span.start_ns) & (at <= self.span.end_ns),
                is_idle & (at <= self.span.start_ns),
                is_idle & (since >= self.span.end_ns),
            )
        )
        return within, min((one for one in (before, behind) if one is not None), default=None)

    def with_consequence(self, others: Sequence[_Gpu]) -> GpuShares:
        """Who used it, and what that did to the requests of its servers; `others`: all GPUs of the phase."""
        found = self.shares
        own = self.sent.in_phases([self.span.name])
        if not found.is_used_by_others or found.foreign_ratio is None or not len(own):
            return found
        in_server, use = self._in_server(own), self.uses["foreign_ratios"]
        times = self._compared(use)
        why = "when it ran is not known" if times["n"] else "no batch of the server is known"
        if times["n"] and found.measured_by == PROCESSES:
            is_with = np.array(use) >= WITH_RATIO
            share = float(self.n_sent[is_with].sum()) / max(1, int(self.n_sent.sum()))
            if times["n_compared"] >= LEAST_BATCHES:
                return _made(found, MOMENTS, times, share * in_server)
            for other in others if times["n_with"] else ():
                if self._is_free_twin(other):
                    beside = self._compared(use, other)
                    if beside["n_compared"] >= LEAST_BATCHES:
                        return _made(found, SERVERS, beside, times["n_with"] / times["n"] * in_server)
            why = "too few batches of equal size ran with and without it"
            if not times["n_without"]:
                why = "it was there all the time, so that there is nothing to compare with"
        return replace(found, compared=BOUND, consequence_ratio=found.foreign_ratio * in_server, reason=why)

    def _compared(self, foreign_ratios: Sequence[float], beside: _Gpu | None = None) -> dict[str, Any]:
        """The row of `_COMPARED`; `beside`: another GPU, of which nobody else used any."""
        settings = {
            "servers": list(self.servers),
            "uuid": self.uuid,
            "phase": self.span.name,
            "start_ns": self.span.start_ns,
            "foreign_ratios": foreign_ratios,
            "beside": "" if beside is None else beside.uuid,
            "servers_beside": [] if beside is None else list(beside.servers),
        }
        return records(self.run.connection.execute(_COMPARED, settings))[0]

    def _is_free_twin(self, other: _Gpu) -> bool:
        """Whether the other one is a GPU of the same name that nothing else used in the phase."""
        nodes = self.run.manifest.nodes.values()
        names = {
            place.uuid: name
            for node in nodes
            for place, name in zip(node.gpu_places, node.gpus or (), strict=False)
        }
        is_twin = other.uuid != self.uuid and names.get(other.uuid) == names.get(self.uuid, "")
        foreign = other.shares.foreign_ratio
        return is_twin and foreign is not None and foreign < WITHOUT_RATIO

    def _in_server(self, own: Requests) -> float:
        """Time in the servers over the service time of their requests, at most 1."""
        servers = self.run.manifest.servers
        asked = [[name, one.model] for name in self.servers for one in servers[name].models if one.model]
        ((total,),) = self.run.rows(_IN_SERVER, phase=self.span.name, asked=asked)
        service = float(own.service_ns[own.is_ok].sum())
        return min(1.0, float(total) / service) if total and service > 0 else 1.0


def _made(found: GpuShares, compared: str, times: Mapping[str, Any], share: float) -> GpuShares:
    with_ns, without_ns = times["with_ns"], times["without_ns"]
    excess = max(0.0, 1.0 - without_ns / with_ns) if with_ns > 0 else 0.0
    return replace(
        found, compared=compared, with_ns=with_ns, without_ns=without_ns, consequence_ratio=excess * share
    )
