"""What of an nsys export may leave its node: tables, columns, rows and strings. Whatever is not listed here stays.

Column names are nsys's own, of 2022.4 to 2026.4 (schemas 3.0 to 3.28). Never listed: environments and command lines
(TARGET_INFO_SYSTEM_ENV, StringIds that only they use), output of processes (ProcessStreams), process names, call
chains, module paths, host and user, NVTX payloads, texts of diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from re import Pattern

from squall.scenarios.records import Frozen

RANGE = re.compile(r"squall\|[A-Za-z0-9_.:|-]{1,256}\|[0-9]{1,18}")
"""Our range of a batch, `squall|<instance>|<cpu or gpu0>|<batch_id>|<clock_ns>`; of older models without device, or
clock reading."""
CLOCK_RANGE = re.compile(r"squall-clock\|[0-9]{1,18}")

FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""A C function: what nsys traces by name in the CUDA API and the OS runtime."""

KERNEL = re.compile(r"[A-Za-z0-9_$.:<>,()\[\]{}*&~#@+\-=!|^%?;' ]{1,8192}")
"""A C++ name, mangled or not. Neither slash nor quote: the name of a lambda or a literal may hold a path or a text."""

OUR_TEXT = re.compile(f"{RANGE.pattern}|{CLOCK_RANGE.pattern}")
"""An NVTX text that squall wrote. Any other may hold whatever the user's code had at hand: its range stays, unnamed."""

THREAD = re.compile(
    r"squall-clock|tritonserver|triton_python_b|python(3(\.[0-9]{1,2})?)?|pt_autograd_[0-9]{1,3}|pt_main_thread"
    r"|cuda[0-9a-f]{11}|cuda-EvtHandlr|CUPTI worker thread|\[NSys\]|\[NSys Comms\]|nsys-launcher|nsys-tee"
    r"|cache_mgr_event|cache_mgr_main|default-executo|resolver-execut|grpc_global_tim|event_engine|timer_manager"
)
"""Threads of Triton, its Python stubs, CUDA, gRPC, PyTorch and nsys. Any thread may be named by the user's code: the
rest is unnamed."""

_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")
_LABEL = re.compile(r"[A-Za-z0-9_ ()+,.-]{1,128}")
UUID = re.compile(r"(GPU-|MIG-)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class AllowedTable(Frozen):
    """What of one table is kept."""

    numbers: tuple[str, ...] = ()
    """Columns of whole numbers."""
    texts: Mapping[str, Pattern[str]] = field(default_factory=dict)
    """Columns of text: a value that does not match as a whole becomes null."""
    strings: Mapping[str, Pattern[str]] = field(default_factory=dict)
    """Those of `numbers` that refer to StringIds, with what such a string may be."""
    only: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Rows are kept where this number, if the table has it, is one of these."""
    needs: str | None = None
    """Rows are kept where this text matched."""
    of_event_threads: bool = False
    """Rows are kept whose globalTid has events in a kept table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are kept, numbers first."""
        return (*self.numbers, *self.texts)


_SPAN = ("start", "end")
_ON_GPU = (*_SPAN, "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid")
_GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_KERNEL_NAMES = {"demangledName": KERNEL, "shortName": KERNEL, "mangledName": KERNEL}
_ENUM = AllowedTable(("id",), {"name": _LABEL, "label": _LABEL})
_META = AllowedTable(
    (),
    {"name": re.compile(r"EXPORT_SCHEMA_VERSION(_MAJOR|_MINOR|_MICRO)?"), "value": _VERSION},
    needs="name",
)
_GPU_NUMBERS = (
    "id", "totalMemory", "memoryBandwidth", "clockRate", "l2CacheSize", "smCount", "constantMemory",
    "maxRegistersPerBlock", "maxShmemPerBlock", "maxShmemPerBlockOptin", "maxShmemPerSm", "maxRegistersPerSm",
    "threadsPerWarp", "asyncEngines", "maxWarpsPerSm", "maxBlocksPerSm", "maxThreadsPerBlock", "computeMajor",
    "computeMinor", "smMajor", "smMinor",
)  # fmt: skip

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPYS = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
OSRT = "OSRT_API"
NVTX = "NVTX_EVENTS"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
STRINGS = "StringIds"
META = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022.4

OS_RUNTIME_CALL = 27
"""ENUM_NSYS_EVENT_CLASS of a call; class 31 in the same table marks a process, not a call."""
PUSH_POP, START_END = 59, 60
"""ENUM_NSYS_EVENT_TYPE of the NVTX events that have two ends."""

ALLOWED: dict[str, AllowedTable] = {
    RUNTIME: AllowedTable(
        (*_SPAN, "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
        strings={"nameId": FUNCTION},
    ),
    KERNELS: AllowedTable(
        (*_ON_GPU, *_KERNEL_NAMES, "launchType", "registersPerThread", *_GRID, "staticSharedMemory",
         "dynamicSharedMemory", "localMemoryPerThread", "sharedMemoryExecuted", "graphId", "graphNodeId"),
        strings=_KERNEL_NAMES,
    ),
    GRAPHS: AllowedTable((*_ON_GPU, "graphId", "graphExecId")),
    MEMCPYS: AllowedTable((*_ON_GPU, "bytes", "copyKind", "srcKind", "dstKind", "graphId", "graphNodeId")),
    MEMSETS: AllowedTable((*_ON_GPU, "bytes", "memKind", "graphId", "graphNodeId")),
    SYNCS: AllowedTable((*_ON_GPU, "syncType")),
    OSRT: AllowedTable(
        (*_SPAN, "eventClass", "globalTid", "nameId", "returnValue", "nestingLevel"),
        strings={"nameId": FUNCTION}, only={"eventClass": frozenset({OS_RUNTIME_CALL})},
    ),
    NVTX: AllowedTable(
        (*_SPAN, "eventType", "globalTid", "endGlobalTid", "domainId", "textId"), {"text": OUR_TEXT},
        strings={"textId": OUR_TEXT}, only={"eventType": frozenset({PUSH_POP, START_END})},
    ),
    "ThreadNames": AllowedTable(("nameId", "globalTid"), strings={"nameId": THREAD}, of_event_threads=True),
    "TARGET_INFO_GPU": AllowedTable(_GPU_NUMBERS, {"name": _LABEL, "chipName": _LABEL, "uuid": UUID}),
    "TARGET_INFO_CUDA_DEVICE": AllowedTable(("gpuId", "cudaId", "pid"), {"uuid": UUID}),
    "TARGET_INFO_SESSION_START_TIME": AllowedTable(("utcEpochNs",)),
    **dict.fromkeys(META, _META),
    **dict.fromkeys(
        ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_CUPTI_SYNC_TYPE", "ENUM_NSYS_EVENT_TYPE",
         "ENUM_NSYS_EVENT_CLASS", "ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "ENUM_DIAGNOSTIC_SOURCE_TYPE",
         "ENUM_CUDA_KERNEL_LAUNCH_TYPE"),
        _ENUM,
    ),
}  # fmt: skip
"""Tables copied row by row. Beside them: DIAGNOSTIC_EVENT as counts, StringIds as far as the kept columns use it."""
