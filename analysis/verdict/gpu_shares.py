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
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.requests.requests import Requests, in_order
from squall.analysis.tables.columns import NO_DEVICE
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.records import GpuUse
from squall.scenarios.units import NS_PER_S

BATCH_COLUMNS = (
    "phase", "node", "server", "model", "instance_device", "start_ns", "end_ns", "rows", "n_foreign",
)  # fmt: skip
WITH_RATIO, WITHOUT_RATIO = 0.10, 0.02
"""Foreign share of a second from which it is one with foreign work, and below which one without: a tenth is what a
batch is made longer by at most there, and NVML tells whole percents."""
LEAST_BATCHES = 30
"""Of equal size on either side, over all sizes: as the findings demand (`confidence.DEMANDS.n_batches`)."""
LEAST_IDLE = 10
"""Samples without any request in flight before these say what the GPU does by itself: one second at 10 Hz."""
LEAST_IDLE_SECONDS = 2
"""The same of the samples of processes, at 1 Hz."""
LEAST_RATIO = 0.01
"""Foreign share below which nothing was taken: NVML tells whole percents."""
MOMENTS, SERVERS, BOUND = "moments", "servers", "bound"
PROCESSES, ACTIVITY = "processes", "activity"


@dataclass(frozen=True)
class GpuShares:
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


@dataclass(frozen=True, eq=False)
class GpuTables:
    """What is looked at; None where the table is absent. `batches` has at least `BATCH_COLUMNS`."""

    samples: pa.Table | None = None
    processes: pa.Table | None = None
    batches: pa.Table | None = None
    triton: pa.Table | None = None


def gpu_shares(
    tables: GpuTables, requests: Requests, manifest: Manifest, phases: Sequence[str]
) -> list[GpuShares]:
    """The shares of each GPU that a server of the run uses, in each of `phases`; empty without samples of GPUs."""
    if tables.samples is None:
        return []
    used = used_gpus(tables, manifest)
    found = []
    for phase in phases:
        own = [
            _of_gpu(tables, requests, manifest, phase, node, uuid, servers)
            for (node, uuid), servers in sorted(used.items())
        ]
        found += [_with_consequence(one, own, tables, requests, manifest) for one in own]
    return found


def gpu_lines(found: Sequence[GpuShares]) -> list[str]:
    """A line for each GPU that others used, or of which that is not known; of several phases each names its own."""
    has_phases = len({one.phase for one in found}) > 1
    return [
        f"{f'{one.phase}: ' if has_phases else ''}{gpu_line(one)}"
        for one in found
        if one.is_used_by_others or one.foreign_ratio is None or one.n_foreign or one.n_unknown
    ]


def gpu_line(shares: GpuShares) -> str:
    """`GPU 7c1d2a52 of node-0: 1 other process had 92 % of its time, the server 31 %; …`, and what that did."""
    text = f"{_short(shares.gpu_uuid)} of {shares.node}: "
    if shares.foreign_ratio is None:
        return f"{text}whether others use it is not assessed: {shares.reason}"
    return f"{text}{taken_text(shares)}"


def taken_text(shares: GpuShares) -> str:
    """What others had of a GPU and what it did, without its name."""
    what = f"{_processes(shares.n_foreign)} had {share_text(shares.foreign_ratio)} of its time"
    if shares.measured_by == ACTIVITY:
        what = f"work of others for {share_text(shares.foreign_ratio)} of the time in which no request was in flight"
    if shares.foreign_memory_bytes:
        what += f" and {shares.foreign_memory_bytes / (1 << 30):.1f} GiB of its memory"
    if shares.server_ratio is not None:
        what += f", the server {share_text(shares.server_ratio)}"
    if shares.n_unknown:
        what += f"; of {_processes(shares.n_unknown, '')} it is not known whose"
    return f"{what}; {_consequence_text(shares)}" if shares.is_used_by_others else what


def _consequence_text(shares: GpuShares) -> str:
    ratio = shares.consequence_ratio
    if ratio is None:
        return "not known what that did to the response times"
    if shares.compared == BOUND:
        return f"that made at most {share_text(ratio)} of the response times: {shares.reason}"
    where = "without it" if shares.compared == MOMENTS else "on a GPU without it"
    return (
        f"batches of equal size took {duration_text(shares.with_ns)} with it and {duration_text(shares.without_ns)} "
        f"{where}: that made {share_text(ratio)} of the response times"
    )


def _processes(n: int, other: str = "other ") -> str:
    return f"{count_text(n)} {other}process{'' if n == 1 else 'es'}"


def _short(uuid: str) -> str:
    """The first part of a UUID tells the GPUs of a node apart."""
    return f"GPU {uuid.removeprefix('GPU-')[:8]}"


def used_gpus(tables: GpuTables, manifest: Manifest) -> dict[tuple[str, str], tuple[str, ...]]:
    """The servers that use each GPU, by node and UUID, as far as that can be told.

    By the device of their batches; else by NVML, where kernels of a process of theirs ran; else those that they were
    given, or the only one of the node. A model on the CPU uses none, though Triton opens every GPU that it sees.
    """
    known = _all_gpus(tables, manifest)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    devices = _devices(tables.batches)
    for name, server in manifest.servers.items():
        here = known.get(server.node, [])
        by_batch = {manifest.gpu_of(name, device) or _at(here, device) for device in devices.get(name, ())}
        for uuid in by_batch or _without_batches(tables, manifest, name, here):
            if uuid:
                found[server.node, uuid].add(name)
    return {key: tuple(sorted(servers)) for key, servers in found.items()}


def _without_batches(tables: GpuTables, manifest: Manifest, name: str, here: Sequence[str]) -> set[str]:
    server = manifest.servers[name]
    stated = [manifest.stated_models.get(one.model or "") for one in server.models]
    if stated and all(one is not None and _is_on_cpu(one) for one in stated):
        return set()
    if len(here) == 1:
        return set(here)
    own = tables.processes
    if own is not None and sum(one.node == server.node for one in manifest.servers.values()) == 1:
        is_own = pc.and_(pc.equal(own["node"].cast(pa.string()), server.node), own["is_server"])
        own = own.filter(pc.and_(is_own, pc.greater(pc.fill_null(own["sm_util"], 0.0), 0.0)))
        if own.num_rows:
            return set(own["gpu_uuid"].cast(pa.string()).unique().to_pylist())
    return set(server.gpus)


def _is_on_cpu(model: Mapping[str, object]) -> bool:
    return model.get("device") == "cpu" or (not model.get("device") and model.get("framework") == "numpy")


def _all_gpus(tables: GpuTables, manifest: Manifest) -> dict[str, list[str]]:
    """UUIDs of the GPUs of each node, in NVML's order where the manifest has it."""
    found = {
        name: [place.uuid for place in node.gpu_places] or [use.uuid for use in node.gpus_before]
        for name, node in manifest.nodes.items()
    }
    sampled = tables.samples
    if sampled is not None:
        pairs = zip(
            *(sampled[name].cast(pa.string()).to_pylist() for name in ("node", "gpu_uuid")), strict=True
        )
        for node, uuid in sorted(set(pairs)):
            if uuid not in found.setdefault(node, []):
                found[node].append(uuid)
    return found


def _devices(batches: pa.Table | None) -> dict[str, set[int]]:
    if batches is None or not batches.num_rows:
        return {}
    found: dict[str, set[int]] = defaultdict(set)
    pairs = (
        batches.select(["server", "instance_device"]).group_by(["server", "instance_device"]).aggregate([])
    )
    for row in pairs.to_pylist():
        if row["instance_device"] not in (None, NO_DEVICE) and row["instance_device"] >= 0:
            found[row["server"]].add(row["instance_device"])
    return found


def _at(uuids: Sequence[str], device: int) -> str:
    return uuids[device] if device < len(uuids) else ""


def _of_gpu(
    tables: GpuTables,
    requests: Requests,
    manifest: Manifest,
    phase: str,
    node: str,
    uuid: str,
    servers: tuple[str, ...],
) -> GpuShares:
    samples = _rows(tables.samples, node, uuid)
    assert samples is not None, "without samples there is no GPU to look at"
    own = requests.take(requests.target.is_any_of(servers) & requests.is_sent)
    before = next((one for one in _uses_before(manifest, node) if one.uuid == uuid), None)
    idle = _active_while_idle(samples, requests, manifest, node, phase)
    found = GpuShares(
        node,
        phase,
        uuid,
        servers,
        int(pc.sum(pc.equal(samples["phase"].cast(pa.string()), phase)).as_py() or 0),
        before_ratio=before.util if before is not None and _is_started(manifest, servers) else None,
        idle_ratio=idle.ratio,
    )
    if _is_mig(samples):
        return replace(found, reason="MIG divides it, and NVML tells no use per process there")
    seconds = _Seconds.of(tables, manifest, found)
    if seconds is not None:
        found = replace(
            found,
            n_foreign=seconds.n_foreign,
            n_unknown=seconds.n_unknown,
            foreign_memory_bytes=seconds.foreign_memory_bytes,
        )
        if seconds.has_use and (seconds.names_server or seconds.n_foreign):
            n = seconds.count(own.sent_ns)
            found = replace(
                found,
                foreign_ratio=_mean(seconds.foreign, n),
                server_ratio=_mean(seconds.server, n) if seconds.names_server else None,
                measured_by=PROCESSES,
            )
            hidden = idle.beyond(_named_while_idle(tables, requests, manifest, found))
            if hidden < (found.foreign_ratio or 0.0) + WITH_RATIO or _serves_others(tables.batches, servers):
                return found
            return replace(found, foreign_ratio=hidden, measured_by=ACTIVITY)
    if found.idle_ratio is not None and not _serves_others(tables.batches, servers):
        return replace(found, foreign_ratio=found.idle_ratio, measured_by=ACTIVITY)
    why = "NVML names no process of the server, as in a container where the driver hides processes"
    if seconds is not None and not seconds.has_use:
        why = "NVML tells no use per process"
    rest = "there were too few samples without a request in flight"
    if found.idle_ratio is not None:
        rest = "the server serves requests of others, too"
    return replace(found, reason=f"{why}, and {rest}")


def _serves_others(batches: pa.Table | None, servers: Sequence[str]) -> bool:
    """Whether requests that are not of this run were in batches of these servers."""
    if batches is None:
        return False
    own = pc.is_in(batches["server"].cast(pa.string()), pa.array(servers, pa.string()))
    return bool(pc.any(pc.and_(own, pc.greater(batches["n_foreign"], 0))).as_py())


@dataclass(frozen=True, eq=False)
class _Seconds:
    """The seconds of a phase: the use of a GPU by others and by the server in each, 0 where NVML names no process.

    `edges_ns`: where they begin, and the end of the last. `has_use`: NVML tells the use of any process of this node;
    `names_server`: it names a process of a server of this node.
    """

    edges_ns: Int64s
    foreign: Floats
    server: Floats
    n_foreign: int
    n_unknown: int
    foreign_memory_bytes: int | None
    has_use: bool
    names_server: bool

    @classmethod
    def of(cls, tables: GpuTables, manifest: Manifest, found: GpuShares) -> _Seconds | None:
        """None without a row of the node in the table of processes."""
        everyone = _rows(tables.processes, found.node)
        span = next((one for one in measure_spans(manifest) if one.name == found.phase), None)
        if everyone is None or not everyone.num_rows or span is None:
            return None
        every_own = pc.unique(everyone.filter(everyone["is_server"])["process"].combine_chunks())
        names_server = len(every_own) > 0
        edges = np.arange(span.start_ns, max(span.end_ns, span.start_ns + 1) + NS_PER_S, NS_PER_S)
        rows = everyone.filter(_is(everyone, "gpu_uuid", found.gpu_uuid))
        middle = rows["t_ns"].to_numpy() - rows["interval_ns"].to_numpy() // 2
        is_inside = (middle >= edges[0]) & (middle < edges[-1])
        rows = rows.filter(pa.array(is_inside))
        place = np.searchsorted(edges, middle[is_inside], "right") - 1
        there = _there_before(manifest, found)
        ids = rows["process"].to_numpy()
        is_server = np.isin(
            ids, every_own.to_numpy()
        )  # one that came with a model is known some seconds later
        has_open = np.zeros(len(ids), np.bool_)
        if "uses_driver" in rows.column_names:
            has_open = np.asarray(
                pc.fill_null(rows["uses_driver"], False).to_numpy(zero_copy_only=False), dtype=np.bool_
            )
        sources = {manifest.servers[name].source for name in found.servers}
        knows_own = not sources & {None, "url"} or bool(is_server.any())
        is_other = ~is_server & (
            (names_server and knows_own)
            | (has_open & (not sources & {None, "url", "container"}))
            | np.isin(ids, there)
        )
        use = np.asarray(pc.fill_null(rows["sm_util"], 0.0).to_numpy(), dtype=np.float64)
        n_seconds = len(edges) - 1
        _, first, tick = np.unique(rows["t_ns"].to_numpy(), return_index=True, return_inverse=True)
        n_ticks = np.maximum(1, np.bincount(place[first], minlength=n_seconds))
        foreign, server = (
            np.minimum(1.0, np.bincount(place[own], use[own], n_seconds) / n_ticks)
            for own in (is_other, is_server)
        )
        memory = np.where(is_other, pc.fill_null(rows["memory_used_bytes"], 0).to_numpy(), 0)
        held = np.bincount(tick, memory, len(first))
        return cls(
            edges,
            foreign,
            server,
            n_foreign=len(np.unique(ids[is_other])),
            n_unknown=len(np.unique(ids[~is_other & ~is_server])),
            foreign_memory_bytes=int(held.max(initial=0)) or None,
            has_use=everyone["sm_util"].null_count < everyone.num_rows,
            names_server=names_server,
        )  # fmt: skip

    def count(self, at_ns: Int64s) -> Int64s:
        """How many of the instants lie in each second."""
        return np.histogram(at_ns, self.edges_ns)[0].astype(np.int64)

    def at(self, at_ns: Int64s) -> Floats:
        """The use by others in the second of each instant; nan outside of the phase."""
        place = np.searchsorted(self.edges_ns, at_ns, "right") - 1
        is_inside = (place >= 0) & (place < len(self.foreign))
        return np.where(is_inside, self.foreign[np.clip(place, 0, len(self.foreign) - 1)], np.nan)


def _there_before(manifest: Manifest, found: GpuShares) -> Int64s:
    """Processes that were on the GPU before the run started its servers there; none where these ran already."""
    if not _is_started(manifest, found.servers):
        return np.zeros(0, np.int64)
    uses = _uses_before(manifest, found.node)
    return np.array(
        [one for use in uses if use.uuid == found.gpu_uuid for one in use.processes or ()], np.int64
    )


def _uses_before(manifest: Manifest, node: str) -> Sequence[GpuUse]:
    return manifest.nodes[node].gpus_before if node in manifest.nodes else ()


def _is_started(manifest: Manifest, servers: Sequence[str]) -> bool:
    """Whether the run started all of these servers."""
    return all(manifest.servers[name].source not in (None, "url") for name in servers)


def _is_mig(samples: pa.Table) -> bool:
    return bool(pc.any(pc.not_equal(samples["mig_instance"].cast(pa.string()), "")).as_py())


@dataclass(frozen=True)
class _Idle:
    """Mean use of a GPU while no request was in flight: in gaps of the phase, and the lesser of before and behind it;
    None of too few samples."""

    within: float | None = None
    around: float | None = None

    @property
    def ratio(self) -> float | None:
        """That of the phase, where it is known."""
        return self.within if self.within is not None else self.around

    def beyond(self, other: _Idle) -> float:
        """How much more it is than `other` in the same moments; 0 where both are known of none."""
        pairs = ((self.within, other.within), (self.around, other.around))
        return next((one - rest for one, rest in pairs if one is not None and rest is not None), 0.0)


def _active_while_idle(
    samples: pa.Table, requests: Requests, manifest: Manifest, node: str, phase: str
) -> _Idle:
    """The activity of the GPU, of at least `LEAST_IDLE` samples."""
    for name in ("sm_util", "util"):
        rows = samples.filter(pc.is_valid(samples[name]))
        at, since = rows["t_ns"].to_numpy(), rows["t_ns"].to_numpy() - rows["interval_ns"].to_numpy()
        found = _while_idle(since, at, rows[name].to_numpy(), requests, manifest, node, phase, LEAST_IDLE)
        if found.ratio is not None:
            return found
    return _Idle()


def _named_while_idle(tables: GpuTables, requests: Requests, manifest: Manifest, found: GpuShares) -> _Idle:
    """The use by all processes that NVML names, of at least `LEAST_IDLE_SECONDS` samples."""
    rows = _rows(tables.processes, found.node, found.gpu_uuid)
    if rows is None:
        return _Idle()
    at, first, tick = np.unique(rows["t_ns"].to_numpy(), return_index=True, return_inverse=True)
    of_each = np.asarray(pc.fill_null(rows["sm_util"], 0.0).to_numpy(), dtype=np.float64)
    use = np.asarray(np.bincount(tick, of_each, len(at)), dtype=np.float64)
    since = at - rows["interval_ns"].to_numpy()[first]
    return _while_idle(since, at, use, requests, manifest, found.node, found.phase, LEAST_IDLE_SECONDS)


def _while_idle(
    since_ns: Int64s,
    at_ns: Int64s,
    value: Floats,
    requests: Requests,
    manifest: Manifest,
    node: str,
    phase: str,
    least: int,
) -> _Idle:
    """Mean of the samples with no request in flight at any server of the node since a second before, as nvidia-smi's
    utilisation is over up to that; before or behind the phase of either where the other has fewer than `least`."""
    span = next(one for one in measure_spans(manifest) if one.name == phase)
    here = [name for name, server in manifest.servers.items() if server.node == node]
    sent = requests.take(requests.target.is_any_of(here) & requests.is_sent)
    if not len(sent):
        return _Idle()
    begins = in_order(sent.sent_ns)
    ends = in_order(np.where(sent.is_done, sent.done_ns, sent.sent_ns))
    since = since_ns - NS_PER_S
    # what was sent before its end was done before its begin
    is_idle = np.searchsorted(begins, at_ns, "right") == np.searchsorted(ends, since, "left")
    within, before, behind = (
        float(value[own].mean()) if int(own.sum()) >= least else None
        for own in (
            is_idle & (since >= span.start_ns) & (at_ns <= span.end_ns),
            is_idle & (at_ns <= span.start_ns),
            is_idle & (since >= span.end_ns),
        )
    )
    return _Idle(within, min((one for one in (before, behind) if one is not None), default=None))


def _with_consequence(
    found: GpuShares, others: Sequence[GpuShares], tables: GpuTables, requests: Requests, manifest: Manifest
) -> GpuShares:
    """`found` with what others' use did to the requests of its servers."""
    if not found.is_used_by_others or found.foreign_ratio is None:
        return found
    own = requests.in_phases([found.phase])
    own = own.take(own.target.is_any_of(found.servers) & own.is_sent)
    if not len(own):
        return found
    in_server = _in_server(tables.triton, own, manifest, found)
    seconds = _Seconds.of(tables, manifest, found) if found.measured_by == PROCESSES else None
    batches = _Batches.of(tables, manifest, found, found.servers)
    why = "no batch of the server is known" if batches is None else "when it ran is not known"
    if seconds is not None and batches is not None:
        use = seconds.at(batches.start_ns)
        is_with = use >= WITH_RATIO
        times = _compared(batches, is_with, batches, use < WITHOUT_RATIO)
        if times is not None:
            n = seconds.count(own.sent_ns)
            share = float(n[seconds.foreign >= WITH_RATIO].sum()) / max(1, int(n.sum()))
            return _made(found, MOMENTS, times, share * in_server)
        if is_with.any():
            found_beside = _beside(found, others, tables, manifest, batches, is_with)
            if found_beside is not None:
                return _made(found, SERVERS, found_beside, float(is_with.mean()) * in_server)
        why = "too few batches of equal size ran with and without it"
        if not (use < WITHOUT_RATIO).any():
            why = "it was there all the time, so that there is nothing to compare with"
    return replace(found, compared=BOUND, consequence_ratio=found.foreign_ratio * in_server, reason=why)


def _made(found: GpuShares, compared: str, times: tuple[float, float], share: float) -> GpuShares:
    with_ns, without_ns = times
    excess = max(0.0, 1.0 - without_ns / with_ns) if with_ns > 0 else 0.0
    return replace(
        found, compared=compared, with_ns=with_ns, without_ns=without_ns, consequence_ratio=excess * share
    )


@dataclass(frozen=True, eq=False)
class _Batches:
    """Batches on a GPU in a phase: when each began, how long it took, model and rows as one number."""

    start_ns: Int64s
    ns: Floats
    kind: Int64s

    @classmethod
    def of(
        cls, tables: GpuTables, manifest: Manifest, found: GpuShares, servers: Sequence[str]
    ) -> _Batches | None:
        """Those of these servers on the GPU of `found`; None where no batch is known."""
        if tables.batches is None:
            return None
        here = _all_gpus(tables, manifest).get(found.node, [])
        rows = _in_phase(tables.batches, found.phase)
        rows = rows.filter(pc.is_in(rows["server"].cast(pa.string()), pa.array(servers, pa.string())))
        names = rows["server"].cast(pa.string()).to_numpy()
        devices = rows["instance_device"].to_numpy()
        is_own = np.ones(rows.num_rows, np.bool_)
        for server in servers:
            for device in np.unique(devices[names == server]).tolist():
                uuid = manifest.gpu_of(server, device) or _at(here, device)
                if device != NO_DEVICE and uuid and uuid != found.gpu_uuid:
                    is_own &= ~((names == server) & (devices == device))
        rows = rows.filter(pa.array(is_own))
        if not rows.num_rows:
            return None
        models = rows["model"].cast(pa.string()).to_numpy()
        model = np.searchsorted(sorted(_models(tables.batches)), models)
        start = rows["start_ns"].to_numpy()
        kind = model.astype(np.int64) * (1 << 40) + rows["rows"].to_numpy()
        return cls(start, (rows["end_ns"].to_numpy() - start).astype(np.float64), kind)


def _models(batches: pa.Table) -> list[str]:
    return [str(one) for one in batches["model"].cast(pa.string()).unique().to_pylist()]


def _compared(
    one: _Batches, is_with: Bools, other: _Batches, is_without: Bools
) -> tuple[float, float] | None:
    """Mean time of the batches `is_with` of `one`, and what those of `other` of equal kind took that are `is_without`,
    each kind as often as it ran with; None of fewer than `LEAST_BATCHES` on either side."""
    n_with = n_without = 0
    with_ns = without_ns = 0.0
    for kind in np.intersect1d(one.kind[is_with], other.kind[is_without]).tolist():
        ours, theirs = one.ns[is_with & (one.kind == kind)], other.ns[is_without & (other.kind == kind)]
        n_with, n_without = n_with + len(ours), n_without + len(theirs)
        with_ns += float(ours.sum())
        without_ns += float(theirs.mean()) * len(ours)
    if min(n_with, n_without) < LEAST_BATCHES:
        return None
    return with_ns / n_with, without_ns / n_with


def _beside(
    found: GpuShares,
    others: Sequence[GpuShares],
    tables: GpuTables,
    manifest: Manifest,
    batches: _Batches,
    is_with: Bools,
) -> tuple[float, float] | None:
    """As `_compared`, with the batches on a GPU of the same name that nothing else used in the phase."""
    names = _names(manifest)
    name = names.get(found.gpu_uuid)
    for other in others:
        is_free = other.foreign_ratio is not None and other.foreign_ratio < WITHOUT_RATIO
        if (
            other.gpu_uuid == found.gpu_uuid
            or not is_free
            or name is None
            or names.get(other.gpu_uuid) != name
        ):
            continue
        theirs = _Batches.of(tables, manifest, other, other.servers)
        times = None
        if theirs is not None:
            times = _compared(batches, is_with, theirs, np.ones(len(theirs.ns), np.bool_))
        if times is not None:
            return times
    return None


def _names(manifest: Manifest) -> dict[str, str]:
    """Product name of each GPU of which the manifest has the place."""
    return {
        place.uuid: name
        for node in manifest.nodes.values()
        for place, name in zip(node.gpu_places, node.gpus or (), strict=False)
    }


def _in_server(triton: pa.Table | None, own: Requests, manifest: Manifest, found: GpuShares) -> float:
    """Time in the servers over the service time of their requests, at most 1."""
    if triton is None:
        return 1.0
    rows = _in_phase(triton, found.phase)
    total = 0.0
    for name in found.servers:
        asked = [one.model for one in manifest.servers[name].models]
        is_own = pc.and_(
            pc.equal(rows["server"].cast(pa.string()), name),
            pc.is_in(rows["model"].cast(pa.string()), pa.array(asked, pa.string())),
        )
        total += float(pc.sum(rows.filter(is_own)["success_ns"]).as_py() or 0.0)
    service = float(own.service_ns[own.is_ok].sum())
    return min(1.0, total / service) if total > 0 and service > 0 else 1.0


def _mean(values: Floats, weights: Int64s) -> float:
    """Weighted by how many requests were sent in each second; plain where none was."""
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else float(values.mean())


def _rows(table: pa.Table | None, node: str, uuid: str = "") -> pa.Table | None:
    """Those of a node, or of a GPU of it; None without the table."""
    if table is None:
        return None
    is_own = _is(table, "node", node)
    return table.filter(pc.and_(is_own, _is(table, "gpu_uuid", uuid)) if uuid else is_own)


def _in_phase(table: pa.Table, phase: str) -> pa.Table:
    return table.filter(_is(table, "phase", phase))


def _is(table: pa.Table, name: str, value: str) -> pa.ChunkedArray:
    return pc.equal(table[name].cast(pa.string()), value)
