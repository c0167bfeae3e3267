"""A scripted NVML: constants, structures and errors of the real `pynvml`, with GPUs of a test behind its calls."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 1 << 20


@dataclass
class FakeGpu:
    """What a GPU answers to each call; NotSupported where nothing is said. Errors are raised, lists given in turn.

    `fields`: (field id, scope) to a counter. `gpm`: metric to value, as NVML gives it; None: the GPU has none.
    """

    uuid: str = "GPU-0"
    name: str = "NVIDIA H100"
    values: dict[str, Any] = field(default_factory=dict)
    fields: dict[tuple[int, int], Any] = field(default_factory=dict)
    gpm: dict[str, Any] | None = None
    mig: list[FakeMig] = field(default_factory=list)
    is_lost: bool = False
    n_gpm_samples: int = 0
    n_calls: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeMig(FakeGpu):
    """An instance: its own answers, by way of its GPU's handle."""

    gi: int = 0
    ci: int = 0


class FakeNvml:
    """Stands in `sys.modules["pynvml"]`. Whatever the real module has and this one does not script fails."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.n_inits = 0
        self.names: set[str] = set()
        self.is_driver_missing = False
        self._samples: dict[int, tuple[Any, FakeGpu | None, int]] = {}

    def __getattribute__(self, name: str) -> Any:
        if re.match(r"NVML|nvml|c_nvml", name):
            object.__getattribute__(self, "names").add(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # AttributeError: NVML has no such name
        if name.startswith("nvml"):
            raise AssertionError(f"{name} is not scripted")
        return real

    # the library

    def nvmlInit(self) -> None:
        if self.is_driver_missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.n_inits += 1

    def nvmlShutdown(self) -> None:
        self.n_inits -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        if gpu.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu

    # a GPU

    def _ask(self, gpu: FakeGpu, call: str) -> Any:
        gpu.n_calls[call] = gpu.n_calls.get(call, 0) + 1
        if gpu.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        answer = gpu.values.get(call, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
        if isinstance(answer, list) and call not in ("processes", "utilisation_of"):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, pynvml.NVMLError):
            raise answer
        return answer

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        info = pynvml.nvmlPciInfo_t()
        info.busId = self._ask(gpu, "bus")
        return info

    def nvmlDeviceGetCpuAffinity(self, gpu: FakeGpu, n_words: int) -> list[int]:
        return (list(self._ask(gpu, "affinity")) + [0] * n_words)[:n_words]

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: FakeGpu, other: FakeGpu) -> int:
        return int(self._ask(gpu, f"way to {other.uuid}"))

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:
        return int(link < self._ask(gpu, "n_nvlinks"))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "pcie_generation"))

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "pcie_lanes"))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> list[int]:
        return list(self._ask(gpu, "capability"))

    def nvmlDeviceGetNumGpuCores(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "n_cores"))

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = self._ask(gpu, "utilisation")
        return rates

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        memory = pynvml.c_nvmlMemory_t()
        is_size_alone = "total" in gpu.values and "memory" not in gpu.values
        memory.used = 0 if is_size_alone else self._ask(gpu, "memory")
        memory.total, memory.free = (gpu.values.get(name, 0) for name in ("total", "free"))
        return memory

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "power"))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "energy"))

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "power_limit"))

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(self._ask(gpu, "temperature"))

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        names = {pynvml.NVML_CLOCK_SM: "sm_clock", pynvml.NVML_CLOCK_MEM: "memory_clock"}
        return int(self._ask(gpu, names[kind]))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return int(self._ask(gpu, "throttle"))

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, since: int) -> int:
        assert since == pynvml.NVML_VOLATILE_ECC
        names = {
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: "corrected",
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: "uncorrected",
        }
        return int(self._ask(gpu, names[kind]))

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, wanted: list[Any]) -> list[Any]:
        gpu.n_calls["fields"] = gpu.n_calls.get("fields", 0) + 1
        if gpu.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        found = []
        for item in wanted:
            key = item if isinstance(item, tuple) else (item, 0)
            value = pynvml.c_nvmlFieldValue_t()
            value.fieldId, value.scopeId = key
            answer = gpu.fields.get(key)
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if answer is None:
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            else:
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                value.value.ullVal = answer
            found.append(value)
        return found

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        return list(self._ask(gpu, "processes"))

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:
        del gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, seen_us: int) -> list[Any]:
        return [item for item in self._ask(gpu, "utilisation_of") if item.timeStamp > seen_us]

    # MIG

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [int(bool(gpu.mig))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        del gpu
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeMig:
        if index >= len(gpu.mig):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.mig[index]

    def nvmlDeviceGetGpuInstanceId(self, part: FakeMig) -> int:
        return part.gi

    def nvmlDeviceGetComputeInstanceId(self, part: FakeMig) -> int:
        return part.ci

    # GPM

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:
        support = pynvml.c_nvmlGpmSupport_t()
        support.isSupportedDevice = int(gpu.gpm is not None or any(part.gpm is not None for part in gpu.mig))
        return support

    def nvmlGpmSampleAlloc(self) -> Any:
        memory = ctypes.create_string_buffer(8)
        self._samples[ctypes.addressof(memory)] = (memory, None, 0)
        return ctypes.cast(memory, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._samples[_address(sample)]

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> Any:
        if gpu.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if gpu.gpm is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        gpu.n_gpm_samples += 1
        memory = self._samples[_address(sample)][0]
        self._samples[_address(sample)] = (memory, gpu, gpu.n_gpm_samples)
        return sample

    def nvmlGpmMigSampleGet(self, parent: FakeGpu, gi: int, sample: Any) -> Any:
        (part,) = [part for part in parent.mig if part.gi == gi]
        return self.nvmlGpmSampleGet(part, sample)

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        _, gpu, first = self._samples[_address(request.sample1)]
        _, same, second = self._samples[_address(request.sample2)]
        assert gpu is not None
        assert gpu is same
        assert first < second, "the samples are in the wrong order"
        assert gpu.gpm is not None
        by_id = {getattr(pynvml, name): value for name, value in gpu.gpm.items()}
        for metric in request.metrics[: request.numMetrics]:
            value = by_id.get(metric.metricId)
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else pynvml.NVML_SUCCESS
            metric.value = -1.0 if value is None else value
        return request

    @property
    def n_samples_held(self) -> int:
        """GPM samples that were allocated and not freed."""
        return len(self._samples)


def _address(sample: Any) -> int:
    return int(ctypes.cast(sample, ctypes.c_void_p).value or 0)
