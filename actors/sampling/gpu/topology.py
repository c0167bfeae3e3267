"""Where each GPU of this node sits: its PCIe link, the NUMA node and cores beside it, the way to the other GPUs.

Calls and levels: NVML API reference, "Device Queries" and `nvmlGpuTopologyLevel_t`; the NUMA node is the kernel's
(`/sys/bus/pci/devices/…/numa_node`; sysfs-bus-pci).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from squall.scenarios.records import GpuPlace

_LEVELS = {
    0: "one board", 10: "one PCIe switch", 20: "several PCIe switches", 30: "one PCIe host bridge",
    40: "one NUMA node", 50: "across NUMA nodes",
}  # fmt: skip
_WORD_BITS = 64
PCI = Path("/sys/bus/pci/devices")

Answer = TypeVar("Answer")


def place_of(nvml: Any, handle: Any, handles: Sequence[Any], pci: Path = PCI) -> GpuPlace:
    """Of one of the GPUs `handles` of this node; what it does not tell is None. `nvml`: pynvml, begun."""
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))

    def told(ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    bus = told(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    words = told(lambda: list(nvml.nvmlDeviceGetCpuAffinity(handle, -(-(os.cpu_count() or 1) // _WORD_BITS))))
    others = [one for one in handles if one is not handle]
    levels = {
        _text(nvml.nvmlDeviceGetUUID(other)): told(lambda: int(nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)))  # noqa: B023
        for other in others
    }  # fmt: skip
    links = [
        told(lambda: bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))  # noqa: B023
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
    ]
    return GpuPlace(
        uuid=uuid,
        pcie_generation=told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        pcie_lanes=told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        numa_node=None if bus is None else _numa_node(pci, bus),
        cores=None if words is None else _cores(words),
        n_nvlinks=None if all(one is None for one in links) else sum(one is True for one in links),
        ways={other: _LEVELS[level] for other, level in levels.items() if level in _LEVELS},
    )


def _numa_node(pci: Path, bus: str) -> int | None:
    """By the kernel, whose domains have four digits where NVML's have eight."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say


def _cores(words: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        at * _WORD_BITS + bit
        for at, word in enumerate(words)
        for bit in range(_WORD_BITS)
        if int(word) >> bit & 1
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
