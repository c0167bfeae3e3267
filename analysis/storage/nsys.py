"""What Nsight Systems, or the kernel library, saw in the server's processes."""

from __future__ import annotations

from squall.analysis.columns import INSTANCE_DEVICE, OF_SERVER, PhaseAt, PhaseFrom, Table, columns

_RECORDED = PhaseAt("start_ns", only_measured=True)
(_BY,) = columns(
    "recorded_by  text  nsys: from its report; library: by the kernel library inside the server's process"
)

EVENT = columns(
    *OF_SERVER,
    """
    process      id       process id on its node
    thread       id       thread id on its node
    thread_name  text     name of the thread; empty if unknown, or not one of those that the server has
    start_ns     instant  start of the event
    end_ns       instant  end of the event
    """,
)

_BATCH = columns(
    "instance  text  model instance whose batch it belongs to; empty if to none",
    INSTANCE_DEVICE,
    "batch_id  id?  batch that it belongs to: by thread and correlation id, of the library by time; null if to none",
)
_DEVICE = columns(
    *OF_SERVER,
    _BY,
    """
    process          id        process id on its node
    thread           id?       thread that launched it; null if the launch was not recorded
    device           id        CUDA device of the process
    gpu_uuid         text      UUID of the GPU; empty if the report does not say
    context          id        CUDA context
    stream           id        CUDA stream
    start_ns         instant   start on the GPU
    end_ns           instant   end on the GPU
    correlation_id   id        with process the key of the API call that launched it
    launch_start_ns  instant?  start of that API call; null if it was not recorded
    launch_end_ns    instant?  end of that API call
    graph_id         id?       CUDA graph that it ran in; null outside graphs, and where nsys exports only its node
    graph_node_id    id?       node of that graph; null outside graphs, and where nsys traced whole graphs
    """,
)

TABLES = (
    Table(
        "osrt",
        "OS-runtime call that blocked, in the nsys report",
        _RECORDED,
        columns(
            *EVENT,
            "name  text  function called: futex, sem_wait, epoll_wait, …",
        ),
    ),
    Table(
        "nvtx",
        "NVTX range in the nsys report",
        _RECORDED,
        columns(
            *EVENT,
            """
            name      text  text of the range; empty if the range is not ours
            instance  text  model instance that opened the range; empty if the range is not ours
            """,
            INSTANCE_DEVICE,
            """
            batch_id  id?       batch that the range spans; null if the range is not ours
            clock_ns  instant?  clock reading that our range carries, taken just before it opened
            """,
        ),
    ),
    Table(
        "cuda_api",
        "CUDA runtime or driver call, in the nsys report or by the kernel library",
        _RECORDED,
        columns(
            *EVENT,
            _BY,
            """
            name            text  function called, without the suffix of its version
            api             text  runtime or driver
            call_class      text  what the call does, by its name: launch, graph launch, blocking sync, poll, blocking
                                  copy, async copy, memset, allocation, other
            correlation_id  id    with process the key of the call, and of what it put on the GPU
            return_value    id?   0: success
            """,
            *_BATCH,
        ),
    ),
    Table(
        "kernels",
        "kernel, in the nsys report or by the kernel library; whole CUDA graphs where nsys traced these",
        _RECORDED,
        columns(
            *_DEVICE,
            """
            name                   text    name without arguments and template parameters; CUDA graph for a whole one
            full_name              text    demangled name; CUDA graph for a whole one
            grid_x                 id      grid size; 0 for a whole graph
            grid_y                 id      grid size; 0 for a whole graph
            grid_z                 id      grid size; 0 for a whole graph
            block_x                id      block size; 0 for a whole graph
            block_y                id      block size; 0 for a whole graph
            block_z                id      block size; 0 for a whole graph
            registers_per_thread   count?  registers of a thread
            static_shared_bytes    bytes?  static shared memory of a block
            dynamic_shared_bytes   bytes?  dynamic shared memory of a block
            theoretical_occupancy  ratio?  most resident warps of an SM over its limit, by the launch's sizes
            """,
            *_BATCH,
        ),
    ),
    Table(
        "memcpys",
        "memory copy, in the nsys report or by the kernel library",
        _RECORDED,
        columns(
            *_DEVICE,
            """
            copy_kind         text   HtoD, DtoH, DtoD, HtoH, PtoP, …
            source_kind       text   pageable, pinned, device, array, managed, …; empty if unknown
            destination_kind  text   as source_kind
            bytes             bytes  bytes copied
            """,
            *_BATCH,
        ),
    ),
    Table(
        "memsets",
        "memory set, in the nsys report or by the kernel library",
        _RECORDED,
        columns(
            *_DEVICE,
            """
            memory_kind  text   pinned, device, …
            bytes        bytes  bytes set
            """,
            *_BATCH,
        ),
    ),
    Table(
        "syncs",
        "synchronisation that CUPTI recorded, in the nsys report or by the kernel library",
        _RECORDED,
        columns(
            *OF_SERVER,
            _BY,
            """
            process         id       process id on its node
            thread          id?      thread that called it; null if the call was not recorded
            context         id?      CUDA context
            stream          id?      CUDA stream; null if it waits for none in particular
            start_ns        instant  start of the wait
            end_ns          instant  end of the wait
            correlation_id  id       with process the key of the API call
            name            text     API call that waited, without the suffix of its version; empty if it was not
                                     recorded
            kind            text     CUPTI's kind, which 2025.3 labels wrongly: go by name
            """,
            *_BATCH,
        ),
    ),
    Table(
        "cuda_events",
        "CUDA event that was recorded on a stream, by the kernel library; absent unless `kernel_kinds` has `events`",
        PhaseFrom("nothing, and empty: an event has no instant, only the place of its call"),
        columns(
            *OF_SERVER,
            """
            process         id  process id on its node
            context         id  CUDA context
            stream          id  CUDA stream
            correlation_id  id  with process the key of the API call; calls of a process are numbered in their order
            event           id  which event it is, within its process
            """,
        ),
    ),
    Table(
        "clock_marks",
        "event of the nsys report whose instant is known from a clock reading beside it",
        _RECORDED,
        columns(
            *OF_SERVER,
            """
            source          text      sleep: a call between two readings; range: an NVTX range that carries one
            read_before_ns  instant   the node's monotonic clock just before
            start_ns        instant   start of the event by the report
            end_ns          instant   end of the event by the report
            read_after_ns   instant?  the node's monotonic clock just after; null for a range
            """,
        ),
    ),
)

OPERATIONS = {"kernels": "kernel", "memcpys": "copy", "memsets": "set"}
"""Tables whose rows are operations of a GPU, and what kind of operation each row is."""
DEVICE_TABLES = tuple(OPERATIONS)
TIED_TABLES = (*DEVICE_TABLES, "syncs", "cuda_api")
"""Raw tables whose rows of the kernel library get their batch once all of a run is together, before its seal."""
EVENT_TABLES = (*DEVICE_TABLES, "syncs", "cuda_api", "osrt", "nvtx")
