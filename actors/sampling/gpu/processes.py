"""Processes with a context on a GPU, as NVML tells of them. NVML itself is handed in."""

from __future__ import annotations

from typing import Any

from squall.actors.sampling.gpu.readings import running

Row = dict[str, Any]
_PERCENT = 100


def processes_of(nvml: Any, handle: Any, seen_us: int) -> tuple[list[Row], int]:
    """Rows of the GPU's processes, and the newest time stamp of NVML's per-process samples (us, for the next call).

    `seen_us`: the newest one of the call before; only later samples count. Raises pynvml.NVMLError.
    """
    newest: dict[int, Any] = {}
    for sample in _utilisation(nvml, handle, seen_us):
        if sample.timeStamp > seen_us and (
            sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp
        ):
            newest[sample.pid] = sample
    rows = []
    for process in running(nvml, handle):
        used = newest.get(process.pid)
        rows.append(
            {
                "process": process.pid, "memory_used_bytes": process.usedGpuMemory,
                "sm_util": None if used is None else used.smUtil / _PERCENT,
                "memory_util": None if used is None else used.memUtil / _PERCENT,
            }
        )  # fmt: skip
    return rows, max((sample.timeStamp for sample in newest.values()), default=seen_us)


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
