"""Which GPUs the CUDA devices of a process are, by their numbers in it, and what the GPUs of this node hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from squall.actors.sampling.gpu.source import gpu_identities, gpu_sizes
from squall.analysis.occupancy import sm_count
from squall.analysis.storage.collected import RecordedGpu
from squall.cluster.node.injected.effect import started_with


class Gpu(NamedTuple):
    """A GPU of the host, as NVML lists it."""

    uuid: str
    name: str


def gpus_of(pid: int | None, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """UUIDs of the CUDA devices of a process, by number; empty where they cannot be told. None: it cannot be seen."""
    environment = None if pid is None else _environment(proc / str(pid))
    gpus = [Gpu(*one) for one in gpu_identities()]
    if environment is not None and _is_elsewhere(proc / str(pid)):
        gpus = container_gpus(gpus, environment)
    return visible_gpus(gpus, environment)


def container_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Those of the host that a container has, in NVML's order; none where they cannot be told.

    Its runtime goes by a variable: numbers as NVML has them on the host, or UUIDs. Without it, it is taken to have all.
    """
    given = environment.get("NVIDIA_VISIBLE_DEVICES", "all")
    if given == "all":
        return list(gpus)
    named = [_named(gpus, entry.strip(), by_bus=True) for entry in given.split(",")]
    return [gpu for gpu in gpus if gpu.uuid in named] if all(named) else []


def _is_elsewhere(process: Path) -> bool:
    """Whether it has a file system of its own, as what is in a container has."""
    try:
        return os.readlink(process / "ns/mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def recorded_gpus() -> tuple[RecordedGpu, ...]:
    """Those of this node of whose SMs it is known what they hold."""
    counted = [(uuid, capability, sm_count(capability, n_cores)) for uuid, capability, n_cores in gpu_sizes()]
    return tuple(
        RecordedGpu(uuid=uuid, compute_capability=capability, sm_count=n_sms)
        for uuid, capability, n_sms in counted
        if n_sms is not None
    )


def visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str] | None) -> tuple[str, ...]:
    """Those that a process with that environment has, of `gpus` in NVML's order; None: it cannot be read.

    CUDA numbers by the bus, as NVML does, where CUDA_DEVICE_ORDER says so; else the fastest come first, which of equal
    GPUs is the order of the bus too. A process that changed the variable itself before its first CUDA call, where the
    host has several GPUs, is not seen to have done so.
    """
    if len(gpus) == 1:
        return (gpus[0].uuid,)
    if environment is None:
        return ()
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpu.uuid for gpu in gpus) if by_bus else ()
    found = [_named(gpus, entry.strip(), by_bus) for entry in visible.split(",")]
    return tuple(filter(None, found)) if all(found) else ()


def _named(gpus: Sequence[Gpu], entry: str, by_bus: bool) -> str | None:
    """The UUID of what an entry of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID."""
    if entry.isdecimal():
        return gpus[int(entry)].uuid if by_bus and int(entry) < len(gpus) else None
    fits = [gpu.uuid for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return fits[0] if len(fits) == 1 else None


def _environment(process: Path) -> dict[str, str] | None:
    """None where this user may not see it."""
    try:
        return started_with(process)
    except OSError:
        return None
