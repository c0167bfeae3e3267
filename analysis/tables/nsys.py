"""What Nsight Systems, or the kernel library, saw in the server's processes."""

from __future__ import annotations

from squall.analysis.tables.columns import (
    INSTANCE_DEVICE,
    NODE,
    PHASE,
    RUN,
    SERVER,
    PhaseAt,
    Table,
    at,
    bytes_,
    count,
    id_,
    ratio,
    text,
)

_RECORDED = PhaseAt("start_ns", only_measured=True)
_BY = text("recorded_by", "nsys: from its report; library: by the kernel library inside the server's process")

EVENT = (
    RUN,
    PHASE,
    NODE,
    SERVER,
    id_("process", "process id on its node"),
    id_("thread", "thread id on its node"),
    text("thread_name", "name of the thread; empty if unknown, or not one of those that the server has"),
    at("start_ns", "start of the event"),
    at("end_ns", "end of the event"),
)

_BATCH = (
    text("instance", "model instance whose batch it belongs to; empty if to none"),
    INSTANCE_DEVICE,
    id_("batch_id", "batch that it belongs to, by thread and correlation id; null if to none", nullable=True),
)
_DEVICE = (
    RUN,
    PHASE,
    NODE,
    SERVER,
    _BY,
    id_("process", "process id on its node"),
    id_("thread", "thread that launched it; null if the launch was not recorded", nullable=True),
    id_("device", "CUDA device of the process"),
    text("gpu_uuid", "UUID of the GPU; empty if the report does not say"),
    id_("context", "CUDA context"),
    id_("stream", "CUDA stream"),
    at("start_ns", "start on the GPU"),
    at("end_ns", "end on the GPU"),
    id_("correlation_id", "with process the key of the API call that launched it"),
    at("launch_start_ns", "start of that API call; null if it was not recorded", nullable=True),
    at("launch_end_ns", "end of that API call", nullable=True),
    id_(
        "graph_id",
        "CUDA graph that it ran in; null outside graphs, and where nsys exports only its node",
        nullable=True,
    ),
    id_(
        "graph_node_id",
        "node of that graph; null outside graphs, and where nsys traced whole graphs",
        nullable=True,
    ),
)

TABLES = (
    Table(
        "osrt",
        "OS-runtime call that blocked, in the nsys report",
        _RECORDED,
        (*EVENT, text("name", "function called: futex, sem_wait, epoll_wait, …")),
    ),
    Table(
        "nvtx",
        "NVTX range in the nsys report",
        _RECORDED,
        (
            *EVENT,
            text("name", "text of the range; empty if the range is not ours"),
            text("instance", "model instance that opened the range; empty if the range is not ours"),
            INSTANCE_DEVICE,
            id_("batch_id", "batch that the range spans; null if the range is not ours", nullable=True),
            at(
                "clock_ns",
                "clock reading that our range carries, taken just before it opened",
                nullable=True,
            ),
        ),
    ),
    Table(
        "cuda_api",
        "CUDA runtime or driver call, in the nsys report or by the kernel library",
        _RECORDED,
        (
            *EVENT,
            _BY,
            text("name", "function called, without the suffix of its version"),
            text("api", "runtime or driver"),
            text(
                "call_class",
                "what the call does, by its name: launch, graph launch, blocking sync, poll, blocking copy, "
                "async copy, memset, allocation, other",
            ),
            id_("correlation_id", "with process the key of the call, and of what it put on the GPU"),
            id_("return_value", "0: success", nullable=True),
            *_BATCH,
        ),
    ),
    Table(
        "kernels",
        "kernel, in the nsys report or by the kernel library; whole CUDA graphs where nsys traced these",
        _RECORDED,
        (
            *_DEVICE,
            text("name", "name without arguments and template parameters; CUDA graph for a whole one"),
            text("full_name", "demangled name; CUDA graph for a whole one"),
            *(
                id_(f"{what}_{axis}", f"{what} size; 0 for a whole graph")
                for what in ("grid", "block")
                for axis in "xyz"
            ),
            count("registers_per_thread", "registers of a thread", nullable=True),
            bytes_("static_shared_bytes", "static shared memory of a block", nullable=True),
            bytes_("dynamic_shared_bytes", "dynamic shared memory of a block", nullable=True),
            ratio(
                "theoretical_occupancy",
                "most resident warps of an SM over its limit, by the launch's sizes",
                True,
            ),
            *_BATCH,
        ),
    ),
    Table(
        "memcpys",
        "memory copy, in the nsys report or by the kernel library",
        _RECORDED,
        (
            *_DEVICE,
            text("copy_kind", "HtoD, DtoH, DtoD, HtoH, PtoP, …"),
            text("source_kind", "pageable, pinned, device, array, managed, …; empty if unknown"),
            text("destination_kind", "as source_kind"),
            bytes_("bytes", "bytes copied"),
            *_BATCH,
        ),
    ),
    Table(
        "memsets",
        "memory set, in the nsys report or by the kernel library",
        _RECORDED,
        (*_DEVICE, text("memory_kind", "pinned, device, …"), bytes_("bytes", "bytes set"), *_BATCH),
    ),
    Table(
        "syncs",
        "synchronisation that CUPTI recorded, in the nsys report or by the kernel library",
        _RECORDED,
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            _BY,
            id_("process", "process id on its node"),
            id_("thread", "thread that called it; null if the call was not recorded", nullable=True),
            id_("context", "CUDA context", nullable=True),
            id_("stream", "CUDA stream; null if it waits for none in particular", nullable=True),
            at("start_ns", "start of the wait"),
            at("end_ns", "end of the wait"),
            id_("correlation_id", "with process the key of the API call"),
            text(
                "name",
                "API call that waited, without the suffix of its version; empty if it was not recorded",
            ),
            text("kind", "CUPTI's kind, which 2025.3 labels wrongly: go by name"),
            *_BATCH,
        ),
    ),
    Table(
        "clock_marks",
        "event of the nsys report whose instant is known from a clock reading beside it",
        _RECORDED,
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            text("source", "sleep: a call between two readings; range: an NVTX range that carries one"),
            at("read_before_ns", "the node's monotonic clock just before"),
            at("start_ns", "start of the event by the report"),
            at("end_ns", "end of the event by the report"),
            at("read_after_ns", "the node's monotonic clock just after; null for a range", nullable=True),
        ),
    ),
)

OPERATIONS = {"kernels": "kernel", "memcpys": "copy", "memsets": "set"}
"""Tables whose rows are operations of a GPU, and what kind of operation each row is."""
DEVICE_TABLES = tuple(OPERATIONS)
EVENT_TABLES = (*DEVICE_TABLES, "syncs", "cuda_api", "osrt", "nvtx")
