"""NVML samples of the GPUs of a node; GPM (SM, tensor and DRAM activity) where the GPU supports it.

GPM: nvmlGpmSampleGet, then nvmlGpmMetricsGet between two samples at least 100 ms apart (NVML API, "GPM Functions").
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
_MHZ, _KIB = 1_000_000, 1_024
GPM_METRICS = {2: "sm_util", 3: "sm_occupancy", 5: "tensor_util", 10: "dram_util"}
"""nvmlGpmMetricId_t to our columns; NVML gives percent."""


def missing_reason() -> str | None:
    """Why NVML cannot be used here; None if it can."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return str(error)
    return None if count else "the driver sees no GPU"


class GpuSource:
    """One row per GPU and tick. What a GPU does not support is null. Raises pynvml.NVMLError where NVML is gone."""

    table = "gpu_samples"

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._gpus = [_Gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._then_ns: int | None = None

    def sample(self, now_ns: int) -> list[Row]:
        then_ns, self._then_ns = self._then_ns, now_ns
        rows = [gpu.sample() for gpu in self._gpus]
        if then_ns is None:
            return []
        return [{**row, "t_ns": now_ns, "interval_ns": now_ns - then_ns} for row in rows]

    def names(self) -> list[str]:
        """Product name of each GPU."""
        return [gpu.name for gpu in self._gpus]


class _Gpu:
    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
        self.name = _text(nvml.nvmlDeviceGetName(self._handle))
        self._gpm: tuple[Any, Any] | None = None
        try:
            if nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._gpm = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
                nvml.nvmlGpmSampleGet(self._handle, self._gpm[0])
        except nvml.NVMLError:
            self._gpm = None  # older than Hopper, or a MIG parent

    def _ask(self, call: str, *arguments: Any) -> Any:
        """The answer of one NVML call; None where this GPU does not support it."""
        try:
            return getattr(self._nvml, call)(self._handle, *arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None

    def sample(self) -> Row:
        nvml = self._nvml
        util = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        clocks = {
            name: self._ask("nvmlDeviceGetClockInfo", kind)
            for name, kind in (("sm_clock_hz", nvml.NVML_CLOCK_SM), ("memory_clock_hz", nvml.NVML_CLOCK_MEM))
        }
        pcie = {
            name: self._ask("nvmlDeviceGetPcieThroughput", kind)
            for name, kind in (
                ("pcie_rx_bytes_per_s", nvml.NVML_PCIE_UTIL_RX_BYTES),
                ("pcie_tx_bytes_per_s", nvml.NVML_PCIE_UTIL_TX_BYTES),
            )
        }
        power = self._ask("nvmlDeviceGetPowerUsage")
        return {
            "gpu_uuid": self._uuid,
            "util": None if util is None else util.gpu / 100,
            "memory_used_bytes": None if memory is None else memory.used,
            "power_w": None if power is None else power / 1_000,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            **{name: None if value is None else float(value * _MHZ) for name, value in clocks.items()},
            **{name: None if value is None else float(value * _KIB) for name, value in pcie.items()},
            **self._gpm_metrics(),
        }

    def _gpm_metrics(self) -> Row:
        if self._gpm is None:
            return {}
        nvml = self._nvml
        before, after = self._gpm
        nvml.nvmlGpmSampleGet(self._handle, after)
        self._gpm = (after, before)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = before, after
        request.numMetrics = len(GPM_METRICS)
        for place, metric in enumerate(GPM_METRICS):
            request.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        return {
            GPM_METRICS[request.metrics[place].metricId]: request.metrics[place].value / 100
            for place in range(len(GPM_METRICS))
            if request.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
        }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
