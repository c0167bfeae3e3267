"""Everything that an observer samples: which table, how often, from which source; of its node, a server, the GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from squall.actors.clock import Clock
from squall.actors.sampling.cpu_source import ClientPids, CpuSource
from squall.actors.sampling.gpu.source import GpuProcessSource, GpuSource
from squall.actors.sampling.host import CoreSource, HostSource
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.sampling.sampler import Source
from squall.actors.sampling.threads import Family, ThreadSource
from squall.actors.sampling.triton_source import TritonSource
from squall.scenarios.units import NS_PER_S

_PROCESS_INTERVAL_NS = NS_PER_S  # 2 to 3 ms of CPU (H200); NVML keeps a use for each 1/6 to 1 s

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class OwnNode:
    """What is known of the observer's node: its servers' processes, its load workers."""

    server_pids: Callable[[], Sequence[int]]
    clients: ClientPids


@dataclass(frozen=True)
class OwnServer:
    """A server and those of its processes that are on this node."""

    target: ServerTarget
    family: Family


@dataclass(frozen=True)
class OwnGpus:
    """The GPUs of the node, which NVML has."""

    with_gpm: bool
    server_pids: Callable[[], Sequence[int]]
    clock: Clock


@dataclass(frozen=True)
class Sampled(Generic[Seen]):
    """One table, how often it gets rows, and its source; None where there is nothing to sample."""

    table: str
    interval_ns: Callable[[ObserverSettings], int]
    source: Callable[[Seen], Source | None]


OF_NODE: tuple[Sampled[OwnNode], ...] = (
    Sampled("host_samples", lambda to: to.host_interval_ns, lambda node: HostSource(node.server_pids)),
    Sampled("core_samples", lambda to: to.host_interval_ns, lambda _: CoreSource()),
    Sampled(
        "cpu_samples",
        lambda to: to.host_interval_ns,
        lambda node: CpuSource(node.server_pids, node.clients, os.getppid()),
    ),
)
"""From the start."""


def _triton(server: OwnServer) -> Source | None:
    target = server.target
    if target.url is None:
        return None
    return TritonSource(target.url, target.metrics_url, target.models, target.access, with_others=True)


OF_SERVER: tuple[Sampled[OwnServer], ...] = (
    Sampled(
        "thread_samples", lambda to: to.thread_interval_ns, lambda server: ThreadSource(server.family.pids)
    ),
    Sampled("triton_samples", lambda to: to.triton_interval_ns, _triton),
)
"""From when the server is told."""

OF_GPUS: tuple[Sampled[OwnGpus], ...] = (
    Sampled("gpu_samples", lambda to: to.gpu_interval_ns, lambda gpus: GpuSource(gpus.with_gpm, gpus.clock)),
    Sampled("gpu_processes", lambda _: _PROCESS_INTERVAL_NS, lambda gpus: GpuProcessSource(gpus.server_pids)),
)
"""From when they are asked for."""


FILLED = tuple(
    [one.table for one in OF_NODE] + [one.table for one in OF_SERVER] + [one.table for one in OF_GPUS]
)


def sources_of(
    kinds: Sequence[Sampled[Seen]], seen: Seen, settings: ObserverSettings
) -> list[tuple[Source, int]]:
    """Each source that there is, and its interval."""
    found = [(kind, kind.source(seen)) for kind in kinds]
    for kind, source in found:
        assert source is None or source.table == kind.table, (
            f"what is to fill {kind.table} fills another table"
        )
    return [(source, kind.interval_ns(settings)) for kind, source in found if source is not None]
