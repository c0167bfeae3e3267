"""GPM: what the SMs, tensor cores, DRAM and links of a Hopper or later GPU did between two samples.

NVML API reference, "GPM Functions": nvmlGpmSampleGet twice, at least 100 ms apart (the GPU refreshes its counters no
faster), then nvmlGpmMetricsGet on the pair; each metric has its own return code. Not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
_PERCENT, _MIB = 1 / 100, float(1 << 20)
_LEAST_GAP_NS = 98_000_000  # 100 ms; a tick at 10 Hz that follows a late one comes a little sooner

METRICS: dict[str, tuple[str, float]] = {
    "NVML_GPM_METRIC_SM_UTIL": ("sm_util", _PERCENT),
    "NVML_GPM_METRIC_SM_OCCUPANCY": ("sm_occupancy", _PERCENT),
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": ("tensor_util", _PERCENT),
    "NVML_GPM_METRIC_FP16_UTIL": ("fp16_util", _PERCENT),
    "NVML_GPM_METRIC_FP32_UTIL": ("fp32_util", _PERCENT),
    "NVML_GPM_METRIC_FP64_UTIL": ("fp64_util", _PERCENT),
    "NVML_GPM_METRIC_DRAM_BW_UTIL": ("dram_util", _PERCENT),
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC": ("pcie_rx_bytes_per_s", _MIB),
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC": ("pcie_tx_bytes_per_s", _MIB),
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": ("nvlink_rx_bytes_per_s", _MIB),
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": ("nvlink_tx_bytes_per_s", _MIB),
}
"""Metric to column and factor: NVML gives percent, and MiB/s.

Without NVML_GPM_METRIC_GRAPHICS_UTIL: it alone makes the call take 1 to 2 ms of CPU where these take 0.05 ms (H200)."""


class GpmPair:
    """The last two samples of a GPU, or of one GPU instance of MIG. `close` frees them.

    `get(sample)` fills a sample: nvmlGpmSampleGet or nvmlGpmMigSampleGet on the GPU.
    """

    def __init__(self, nvml: Any, get: Callable[[Any], Any], now_ns: int) -> None:
        """Takes the first sample. Raises pynvml.NVMLError where there is no GPM."""
        self._nvml = nvml
        self._get = get
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._at_ns = now_ns
        self.silent: set[str] = set(METRICS)
        """Metrics that gave no value yet."""
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, name in enumerate(METRICS):
            self._request.metrics[place].metricId = getattr(nvml, name)
        try:
            get(self._samples[0])
        except nvml.NVMLError:
            self.close()
            raise

    def take(self, now_ns: int) -> Row:
        """The columns of GPM for the interval since the last pair; empty within 100 ms of it.

        Raises pynvml.NVMLError; the sample before stays the first of the next pair.
        """
        if now_ns - self._at_ns < _LEAST_GAP_NS:
            return {}
        nvml, request = self._nvml, self._request
        before, after = self._samples
        self._get(after)
        request.sample1, request.sample2 = before, after
        self._samples = [after, before]
        then_ns, self._at_ns = self._at_ns, now_ns
        nvml.nvmlGpmMetricsGet(request)
        row: Row = {"gpm_interval_ns": now_ns - then_ns}
        for place, (name, (column, factor)) in enumerate(METRICS.items()):
            metric = request.metrics[place]
            if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value):
                row[column] = metric.value * factor
                self.silent.discard(name)
        return row

    def close(self) -> None:
        """Frees both samples; nothing may be taken after."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []
