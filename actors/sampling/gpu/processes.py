"""Processes with a context on a GPU, as NVML tells of them. NVML itself is handed in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from squall.actors.sampling.gpu.readings import running

Row = dict[str, Any]
_PERCENT = 100
_DRIVER = "/dev/nvidia"


def processes_of(nvml: Any, handle: Any, seen_us: int) -> tuple[list[Row], int]:
    """Rows of the processes that have a context on the GPU or used it, and the newest time stamp of NVML's per-process
    samples (us, for the next call).

    `seen_us`: the newest one of the call before; only later samples count. Raises pynvml.NVMLError.
    """
    newest: dict[int, Any] = {}
    for sample in _utilisation(nvml, handle, seen_us):
        if sample.timeStamp > seen_us and (
            sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp
        ):
            newest[sample.pid] = sample
    memory = {process.pid: process.usedGpuMemory for process in running(nvml, handle)}
    rows: list[Row] = [
        {
            "process": pid, "memory_used_bytes": memory.get(pid),
            "sm_util": newest[pid].smUtil / _PERCENT if pid in newest else None,
            "memory_util": newest[pid].memUtil / _PERCENT if pid in newest else None,
        }
        for pid in dict.fromkeys((*memory, *newest))
    ]  # fmt: skip
    return rows, max((sample.timeStamp for sample in newest.values()), default=seen_us)


def uses_driver(pid: int, proc: Path = Path("/proc")) -> bool | None:
    """Whether a process of that id is here and has the NVIDIA driver open; None: this user may not look at it.

    False says that NVML speaks of a process of another pid namespace, or of one that has ended.
    """
    folder = proc / str(pid) / "fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(folder / name).startswith(_DRIVER):
                    return True
            except FileNotFoundError:
                continue  # closed meanwhile
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _utilisation(nvml: Any, handle: Any, seen_us: int) -> list[Any]:
    """NVML's samples since `seen_us`; none where there are none, or the GPU does not keep them (MIG)."""
    try:
        return list(nvml.nvmlDeviceGetProcessUtilization(handle, seen_us))
    except nvml.NVMLError as error:
        # success without samples comes as an error of that code
        if error.value in (
            nvml.NVML_SUCCESS,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
        ):
            return []
        raise
