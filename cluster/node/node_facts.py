"""Hardware and kernel of the node that this process is on."""

from __future__ import annotations

import os
import platform

import psutil

from squall.actors.doctor.checkup import ThisHost
from squall.actors.doctor.priority import watchdogs
from squall.actors.sampling.gpu.source import GpuSource, gpu_places, gpu_uses, missing_reason
from squall.analysis.storage.deployed import NodeFacts


def node_facts() -> NodeFacts:
    """Without names of host or user."""
    return NodeFacts(
        n_cores=os.cpu_count(),
        cpu_model=_cpu_model(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        gpus=tuple(_gpu_names()),
        gpu_places=tuple(gpu_places()),
        gpus_before=tuple(gpu_uses()),
        ray_watchdogs=tuple(watchdogs(ThisHost())),
    )


def cpu_facts() -> tuple[str, int]:
    """Model of the CPU and the number of its logical cores."""
    return _cpu_model(), os.cpu_count() or 0


def _gpu_names() -> list[str]:
    if missing_reason() is not None:
        return []
    source = GpuSource(with_gpm=False)
    try:
        return source.names()
    finally:
        source.close()


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
