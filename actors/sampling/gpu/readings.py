"""What is asked of NVML about a GPU, how often, and in which columns it goes. NVML itself is handed in.

Calls, units and field ids: NVML API reference, "Device Queries", "Field Value Enums" and "Field Value Queries".
`nvmlDeviceGetPcieThroughput` is not used: it counts for 20 ms and blocks for as long. The energy counter takes 3 to
4 ms of CPU (H200, driver 580), where other calls take 50 to 100 us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

Row = dict[str, Any]
_PERCENT, _MILLI, _MHZ, _KIB = 100, 1_000, 1_000_000, 1_024
_ALL_LINKS = 0xFFFF_FFFF
_SLOW_NS = NS_PER_S
_RARE_NS = 10 * NS_PER_S


class Reading(Frozen):
    """One call: `read(nvml, handle)` fills `columns`, at every tick or each `period_ns`.

    `is_total`: it gives counters, whose change goes into the columns.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Any, Any], Row]
    period_ns: int = 0
    is_total: bool = False


def _utilisation(nvml: Any, handle: Any) -> Row:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"util": rates.gpu / _PERCENT, "memory_util": rates.memory / _PERCENT}


def _memory(nvml: Any, handle: Any) -> Row:
    return {"memory_used_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).used}


def _power(nvml: Any, handle: Any) -> Row:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / _MILLI}


def _energy(nvml: Any, handle: Any) -> Row:
    return {"energy_j": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / _MILLI}


def _power_limit(nvml: Any, handle: Any) -> Row:
    return {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / _MILLI}


def _temperature(nvml: Any, handle: Any) -> Row:
    return {"temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


def _sm_clock(nvml: Any, handle: Any) -> Row:
    return {"sm_clock_hz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * _MHZ)}


def _memory_clock(nvml: Any, handle: Any) -> Row:
    return {"memory_clock_hz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * _MHZ)}


def _throttle(nvml: Any, handle: Any) -> Row:
    return {"throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _ecc_corrected(nvml: Any, handle: Any) -> Row:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    return {"ecc_corrected_count": nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)}


def _ecc_uncorrected(nvml: Any, handle: Any) -> Row:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {"ecc_uncorrected_count": nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)}


def _processes(nvml: Any, handle: Any) -> Row:
    return {"n_processes": len({process.pid for process in running(nvml, handle)})}


def _power_instant(nvml: Any, handle: Any) -> Row:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    return {"power_instant_w": _value(nvml, field) / _MILLI}


def _pcie(nvml: Any, handle: Any) -> Row:
    fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
    rx, tx = nvml.nvmlDeviceGetFieldValues(handle, fields)
    return {"pcie_rx_bytes_per_s": _value(nvml, rx), "pcie_tx_bytes_per_s": _value(nvml, tx)}


def _nvlink(nvml: Any, handle: Any) -> Row:
    fields = [nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX]
    rx, tx = nvml.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS) for field in fields])
    return {
        "nvlink_rx_bytes_per_s": _value(nvml, rx) * _KIB,
        "nvlink_tx_bytes_per_s": _value(nvml, tx) * _KIB,
    }


READINGS = (
    Reading("utilisation", ("util", "memory_util"), _utilisation),
    Reading("memory", ("memory_used_bytes",), _memory, _SLOW_NS),
    Reading("power", ("power_w",), _power, _SLOW_NS),
    Reading("power_instant", ("power_instant_w",), _power_instant),
    Reading("energy", ("energy_j",), _energy, _RARE_NS, is_total=True),
    Reading("sm_clock", ("sm_clock_hz",), _sm_clock),
    Reading("throttle", ("throttle_reasons",), _throttle),
    Reading("temperature", ("temperature_c",), _temperature, _SLOW_NS),
    Reading("memory_clock", ("memory_clock_hz",), _memory_clock, _SLOW_NS),
    Reading("power_limit", ("power_limit_w",), _power_limit, _SLOW_NS),
    Reading("ecc_corrected", ("ecc_corrected_count",), _ecc_corrected, _SLOW_NS, is_total=True),
    Reading("ecc_uncorrected", ("ecc_uncorrected_count",), _ecc_uncorrected, _SLOW_NS, is_total=True),
    Reading("processes", ("n_processes",), _processes, _SLOW_NS),
)
"""Of every GPU and MIG instance. What changes slowly is read once a second, energy every 10 s, null between."""

TRAFFIC = (
    Reading("pcie", ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"), _pcie, is_total=True),
    Reading("nvlink", ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"), _nvlink, is_total=True),
)
"""Counters of bytes, in place of what GPM does not give."""


def running(nvml: Any, handle: Any) -> list[Any]:
    """Processes with a compute or graphics context; one of NVML's own records each."""
    found = list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    try:
        graphics = nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)
    except nvml.NVMLError_NotSupported:
        return found
    known = {process.pid for process in found}
    return found + [process for process in graphics if process.pid not in known]


def _value(nvml: Any, field: Any) -> float:
    """The number in a field value. Raises the NVMLError that stands in its place."""
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    members: Mapping[int, str] = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal", nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal", nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal", nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }  # fmt: skip
    value: float = getattr(field.value, members[field.valueType])
    return value
