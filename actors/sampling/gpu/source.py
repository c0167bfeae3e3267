"""NVML samples of the GPUs of a node and of their processes, MIG instances included. The one user of pynvml."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from squall.actors.clock import Clock, SystemClock
from squall.actors.sampling.gpu.device import GpuDevice, GpuLost
from squall.actors.sampling.gpu.processes import processes_of, uses_driver
from squall.actors.sampling.gpu.readings import running
from squall.actors.sampling.gpu.topology import PCI, place_of
from squall.actors.sampling.source import OwnGpus, Row, Sampled
from squall.analysis.columns import INTERVAL, OF_NODE, PhaseAt, T, Table, columns
from squall.scenarios.records import GpuPlace, GpuUse
from squall.scenarios.units import NS_PER_S

_Told = TypeVar("_Told")
_MIG_ON = 1
_PERCENT = 100
_PROCESS_INTERVAL_NS = NS_PER_S  # 2 to 3 ms of CPU (H200); NVML keeps a use for each 1/6 to 1 s

TABLES = (
    Table(
        "gpu_samples",
        "NVML sample of a GPU",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            "gpu_uuid  text  UUID of the GPU",
            T,
            INTERVAL,
            """
            mig_instance           text      MIG instance, gi/ci; empty for a whole GPU
            read_ns                ns        how long the reads of this sample took: their values are of some instant
                                             within it
            util                   ratio?    nvidia-smi's utilisation: share of time in which any kernel ran
            memory_util            ratio?    nvidia-smi's: share of time in which memory was read or written
            gpm_interval_ns        ns?       what the columns of GPM cover, up to t_ns; null where they have no new
                                             value: they take 100 ms
            sm_util                ratio?    GPM: share of time in which an SM was busy, mean over SMs
            sm_occupancy           ratio?    GPM: resident warps over the most possible
            tensor_util            ratio?    GPM: share of time in which a tensor pipe was busy
            fp16_util              ratio?    GPM: share of time in which an FP16 pipe was busy
            fp32_util              ratio?    GPM: share of time in which an FP32 pipe was busy
            fp64_util              ratio?    GPM: share of time in which an FP64 pipe was busy
            dram_util              ratio?    GPM: share of peak DRAM bandwidth
            memory_used_bytes      bytes?    GPU memory in use; read once a second
            power_w                W?        power draw as nvidia-smi has it, mean of a second on most GPUs; read once a
                                             second
            power_instant_w        W?        power draw at t_ns
            energy_j               J?        energy drawn since the row before that has it; read every 10 s
            power_limit_w          W?        power limit in force; read once a second
            temperature_c          °C?       temperature of the GPU; read once a second
            sm_clock_hz            Hz?       SM clock
            memory_clock_hz        Hz?       memory clock; read once a second
            throttle_reasons       id?       NVML bit mask of reasons why clocks are held down
            pcie_rx_bytes_per_s    bytes/s?  PCIe traffic to the GPU: by GPM, else by its counters
            pcie_tx_bytes_per_s    bytes/s?  PCIe traffic from the GPU, likewise
            nvlink_rx_bytes_per_s  bytes/s?  NVLink traffic to the GPU, all links
            nvlink_tx_bytes_per_s  bytes/s?  NVLink traffic from the GPU, all links
            ecc_corrected_count    count?    ECC errors corrected since the row before that has a value; read once a
                                             second
            ecc_uncorrected_count  count?    ECC errors not corrected, likewise
            n_processes            count?    processes with a context on the GPU; read once a second
            """,
        ),
    ),
    Table(
        "gpu_processes",
        "process with a context on a GPU, or that used it, every second",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            "gpu_uuid  text  UUID of the GPU",
            T,
            INTERVAL,
            """
            process            id      process id on its node
            is_server          claim   it is one of the server's processes
            uses_driver        claim?  a process of that id on this node has the NVIDIA driver open; null: it may not be
                                       looked at
            memory_used_bytes  bytes?  GPU memory of the process
            sm_util            ratio?  share of time in which a kernel of it ran, as nvidia-smi pmon has it
            memory_util        ratio?  share of time in which it read or wrote GPU memory
            """,
        ),
    ),
)


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


def gpu_identities() -> list[tuple[str, str]]:
    """UUID and product name of each GPU, in NVML's order; empty where NVML cannot be used."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [
            (_text(pynvml.nvmlDeviceGetUUID(one)), _text(pynvml.nvmlDeviceGetName(one))) for one in handles
        ]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return found


def gpu_places(pci: Path = PCI) -> list[GpuPlace]:
    """Where each GPU sits, in NVML's order; empty where NVML cannot be used."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [place_of(pynvml, one, handles, pci) for one in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return found


def driver_and_names() -> tuple[str, tuple[str, ...]]:
    """Version of the driver and the product name of each GPU; empty where NVML cannot be used."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return "", ()
    return driver, tuple(name for _, name in gpu_identities())


def _of_each(read: Callable[[Any, Any], _Told | None]) -> list[_Told]:
    """What `read(pynvml, handle)` says of each GPU that answers, in NVML's order, None left out; empty where NVML
    cannot be used."""
    import pynvml

    found = []
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                told = read(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
                if told is not None:
                    found.append(told)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return found


def temperatures_c() -> list[float]:
    """Of each GPU that tells it, degrees Celsius; empty where NVML cannot be used."""
    return _of_each(lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)))


def gpu_sizes() -> list[tuple[str, tuple[int, ...], int]]:
    """UUID, compute capability and cores of each GPU that tells them; empty where NVML cannot be used.

    Of a GPU that MIG divides they do not say what a process has of it: it is left out.
    """

    def size(nvml: Any, gpu: Any) -> tuple[str, tuple[int, ...], int] | None:
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu))
        if _is_mig(nvml, gpu):
            return None
        n_cores = int(nvml.nvmlDeviceGetNumGpuCores(gpu))
        return _text(nvml.nvmlDeviceGetUUID(gpu)), capability, n_cores

    return _of_each(size)


def gpu_capabilities() -> list[tuple[str, str, tuple[int, ...]]]:
    """UUID, product name and compute capability of each GPU that tells them, in NVML's order; empty where NVML cannot
    be used."""

    def capability(nvml: Any, gpu: Any) -> tuple[str, str, tuple[int, ...]]:
        uuid, name = _text(nvml.nvmlDeviceGetUUID(gpu)), _text(nvml.nvmlDeviceGetName(gpu))
        return uuid, name, tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu))

    return _of_each(capability)


def gpu_uses() -> list[GpuUse]:
    """What each GPU does at this moment; empty where NVML cannot be used."""

    def told(ask: Callable[[], _Told]) -> _Told | None:
        import pynvml

        try:
            return ask()
        except pynvml.NVMLError:
            return None

    def use(nvml: Any, gpu: Any) -> GpuUse:
        return GpuUse(
            uuid=_text(nvml.nvmlDeviceGetUUID(gpu)),
            util=told(lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / _PERCENT),
            memory_used_bytes=told(lambda: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
            processes=told(lambda: tuple(sorted({process.pid for process in running(nvml, gpu)}))),
        )

    return _of_each(use)


class _Gpu:
    """A GPU with its MIG instances. `lost`: when it answered no more, by the node's clock, and NVML's words."""

    def __init__(self, nvml: Any, index: int, clock: Clock, with_gpm: bool) -> None:
        self._nvml = nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        self.name = _text(nvml.nvmlDeviceGetName(handle))
        self.is_mig = _is_mig(nvml, handle)
        self.lost: tuple[int, str] | None = None
        reason = _gpm_reason(nvml, handle) if with_gpm else "it is turned off"
        self.parts = [
            GpuDevice(
                nvml,
                handle,
                self.uuid,
                "",
                clock,
                lambda sample: nvml.nvmlGpmSampleGet(handle, sample),
                reason,
            )
        ]
        if self.is_mig:
            self.parts += [
                GpuDevice(nvml, part, self.uuid, f"{gi}/{ci}", clock, _mig_sample(nvml, handle, gi), reason)
                for part, gi, ci in _instances(nvml, handle)
            ]

    def sample(self, clock: Clock) -> list[Row]:
        if self.lost is not None:
            return []
        try:
            rows = [part.sample() for part in self.parts]
        except GpuLost as error:
            self.lost = (clock.monotonic_ns(), str(error))
            return []
        return [row for row in rows if row is not None]

    def facts(self) -> Row:
        return {
            "name": self.name, "uuid": self.uuid, "is_mig": self.is_mig,
            "lost_at_ns": self.lost[0] if self.lost else None, "parts": [part.facts() for part in self.parts],
        }  # fmt: skip


class GpuSource:
    """One row of gpu_samples per GPU, MIG instance and tick. What one does not support is null, and in `facts`.

    A GPU that is lost gives no more rows; `losses` says when. Raises pynvml.NVMLError where there is no NVML.
    """

    table = "gpu_samples"

    def __init__(self, with_gpm: bool = True, clock: Clock | None = None) -> None:
        import pynvml

        self._clock = clock or SystemClock()
        self._nvml = pynvml
        pynvml.nvmlInit()
        self._driver = _text(pynvml.nvmlSystemGetDriverVersion())
        self._gpus: list[_Gpu] = []
        self._unread: list[str] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                self._gpus.append(_Gpu(pynvml, index, self._clock, with_gpm))
            except pynvml.NVMLError as error:
                self._unread.append(f"gpu_samples: GPU {index} cannot be read: {error}")

    def sample(self, now_ns: int) -> list[Row]:
        """Each GPU's rows carry the instant at which its own reads began, `now_ns` or a little later."""
        del now_ns
        return [row for gpu in self._gpus for row in gpu.sample(self._clock)]

    def names(self) -> list[str]:
        """Product name of each GPU."""
        return [gpu.name for gpu in self._gpus]

    def losses(self) -> list[str]:
        return self._unread + [
            f"gpu_samples: GPU {gpu.uuid} was lost at {gpu.lost[0]} ns of the node's clock: {gpu.lost[1]}"
            for gpu in self._gpus
            if gpu.lost is not None
        ]

    def facts(self) -> dict[str, Any]:
        """`driver`, and of every GPU name, uuid, MIG, GPM or why not, and the columns that stay null."""
        return {"driver": self._driver, "gpus": [gpu.facts() for gpu in self._gpus]}

    def close(self) -> None:
        """Frees what GPM holds; call when its sampler has stopped."""
        for gpu in self._gpus:
            for part in gpu.parts:
                part.close()
        self._nvml.nvmlShutdown()


class GpuProcessSource:
    """One row of gpu_processes for every process with a context on a GPU, and for every one that used it.

    Process ids are those that the driver tells this process, which may be of another pid namespace.
    Raises pynvml.NVMLError where there is no NVML.
    """

    table = "gpu_processes"

    def __init__(self, server_pids: Callable[[], Sequence[int]], proc: Path = Path("/proc")) -> None:
        import pynvml

        self._nvml = pynvml
        self._proc = proc
        self._server_pids = server_pids
        pynvml.nvmlInit()
        self._handles: dict[str, Any] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # GpuSource tells of one that cannot be read
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._handles[_text(pynvml.nvmlDeviceGetUUID(handle))] = handle
        self._seen_us = dict.fromkeys(self._handles, 0)
        self._then_ns: int | None = None
        self._failed: dict[str, str] = {}

    def sample(self, now_ns: int) -> list[Row]:
        then_ns, self._then_ns = self._then_ns, now_ns
        pids = set(self._server_pids())
        rows = []
        for uuid, handle in self._handles.items():
            try:
                found, self._seen_us[uuid] = processes_of(self._nvml, handle, self._seen_us[uuid])
            except self._nvml.NVMLError as error:  # a lost GPU is told by GpuSource, with its instant
                self._failed[uuid] = str(error)
                continue
            rows += [
                {
                    **row, "gpu_uuid": uuid, "t_ns": now_ns, "is_server": row["process"] in pids,
                    "uses_driver": uses_driver(row["process"], self._proc),
                }
                for row in found
            ]  # fmt: skip
        return [] if then_ns is None else [{**row, "interval_ns": now_ns - then_ns} for row in rows]

    def losses(self) -> list[str]:
        return [f"gpu_processes: of GPU {uuid} not all samples: {why}" for uuid, why in self._failed.items()]

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Call when its sampler has stopped."""
        self._nvml.nvmlShutdown()


SAMPLED = (
    Sampled[OwnGpus](
        "gpu_samples", lambda to: to.gpu_interval_ns, lambda gpus: GpuSource(gpus.with_gpm, gpus.clock)
    ),
    Sampled[OwnGpus](
        "gpu_processes", lambda _: _PROCESS_INTERVAL_NS, lambda gpus: GpuProcessSource(gpus.server_pids)
    ),
)


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == _MIG_ON)
    except nvml.NVMLError:
        return False


def _instances(nvml: Any, handle: Any) -> list[tuple[Any, int, int]]:
    """Handle, GPU instance and compute instance of each MIG device of a GPU."""
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # fewer instances are made than the GPU can hold
        found.append((part, nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)))
    return found


def _mig_sample(nvml: Any, parent: Any, gpu_instance: int) -> Callable[[Any], Any]:
    return lambda sample: nvml.nvmlGpmMigSampleGet(parent, gpu_instance, sample)


def _gpm_reason(nvml: Any, handle: Any) -> str:
    """Why a GPU has no GPM; empty if it has."""
    try:
        is_supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
    except nvml.NVMLError as error:
        return f"NVML refuses it: {error}"
    return "" if is_supported else "the GPU has none; Hopper and later have"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
