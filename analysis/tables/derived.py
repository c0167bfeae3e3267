"""What is derived from the raw tables: why each request took as long as it did, by batch and by window."""

from __future__ import annotations

from dataclasses import replace

from squall.analysis.tables.columns import (
    INSTANCE_DEVICE,
    INTERVAL,
    NODE,
    PHASE,
    RUN,
    SERVER,
    Column,
    PhaseAt,
    PhaseFrom,
    Table,
    at,
    bytes_,
    count,
    flag,
    id_,
    ns,
    ratio,
    real,
    text,
)
from squall.analysis.tables.load import REQUEST


def _ns(name: str, meaning: str) -> Column:
    return ns(name, meaning, nullable=True)


def _count(name: str, meaning: str) -> Column:
    return count(name, meaning, nullable=True)


DEVICE_COSTS = (
    _count("n_kernels", "kernels of the batch; whole CUDA graphs where nsys traced these"),
    _count("n_copies", "memory copies and memory sets of the batch"),
    _count("n_launches", "CUDA calls of the batch that launch a kernel or a graph"),
    _ns("kernel_ns", "sum of the durations of its kernels"),
    _ns("kernel_busy_ns", "time within the batch in which any of its kernels ran (union)"),
    _ns("copy_exposed_ns", "time within the batch in which a copy or set of it ran and no kernel of it"),
    _ns("sync_wait_ns", "GPU idle inside its body while its thread was in a call that blocks"),
    _ns("launch_idle_ns", "GPU idle inside its body otherwise: nothing had been launched yet"),
    _ns("head_ns", "from its start to its first operation on the GPU; all of it where it has none"),
    _ns("tail_ns", "from the end of its last operation on the GPU to its end"),
    _ns("launch_ns", "time of its thread in calls that launch"),
    _ns(
        "blocked_ns",
        "time of its thread in calls that block: waits, blocking copies, copies of pageable memory",
    ),
    _ns("blocked_busy_ns", "part of blocked_ns in which an operation of the batch ran on the GPU"),
    _count("n_mid_blocks", "calls that block and are followed by more work of the batch on the GPU"),
    _ns("h2d_ns", "sum of the durations of its copies from host to device"),
    _ns("d2h_ns", "sum of the durations of its copies from device to host"),
    bytes_("h2d_bytes", "bytes that these moved", nullable=True),
    bytes_("d2h_bytes", "bytes that these moved", nullable=True),
    _ns("os_wait_ns", "time of its thread in OS-runtime calls that block, within the batch"),
)
"""Columns of `batch_costs` that `joined` repeats. kernel_busy + copy_exposed + sync_wait + launch_idle + head + tail is
the length of the batch."""

_TIE = text(
    "tie",
    "range: kernels and calls by the batch's NVTX range and correlation ids, or by the batch that the kernel library "
    "gave them; window: launched (by the library: begun on the GPU) while it alone ran, where nothing names batches; "
    "in `joined` also what ran from the send of a request to its end, of a server without ids and of a decoupled "
    "model; none: not profiled, of a decoupled model, or not from its start to its end in one of the library's windows",
)


TABLES = (
    Table(
        "batch_costs",
        "execution in the server, with what it did on CPU and GPU",
        PhaseFrom("its row of `batches`; by a trace the first of its rows of `triton_traces`"),
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            text("model", "name of the model"),
            text("version", "version of the model"),
            text("instance", "model instance; empty where only Triton's trace tells of the batch"),
            INSTANCE_DEVICE,
            id_(
                "batch_id",
                "count of executions of the instance, by a trace of the server; with server, instance and its device "
                "the key of the row",
            ),
            text(
                "source",
                "record: the model's own record; library: that of the batch library; hook: that of the hook in a "
                "Python model; trace: Triton's trace of its "
                "requests",
            ),
            at("start_ns", "its execution began"),
            at("end_ns", "its execution ended"),
            count("rows", "rows in the batch"),
            count("n_requests", "requests in the batch"),
            _ns("gap_before_ns", "idle time of the instance before it; null for the first of an instance"),
            _TIE,
            id_("process", "process that executed it; null if not profiled", nullable=True),
            id_("thread", "thread that executed it; null if not profiled", nullable=True),
            text("gpu_uuid", "GPU with most of its kernel time; empty if none"),
            *DEVICE_COSTS,
            _ns("copy_ns", "sum of the durations of its copies and sets"),
            bytes_("pageable_bytes", "bytes of its copies from or to pageable memory", nullable=True),
            _ns("sync_ns", "time of its thread in CUDA calls that wait (…Synchronize)"),
            _ns("alloc_ns", "time of its thread in CUDA calls that allocate or free"),
            _ns("api_ns", "time of its thread in all CUDA calls"),
            _count("n_blocks", "calls that block"),
            _ns("overrun_ns", "time in which its operations still ran after its end, not awaited"),
        ),
        is_derived=True,
    ),
    Table(
        "joined",
        "row of `requests`, with what explains its latency",
        PhaseFrom("its row of `requests`"),
        (
            *REQUEST,
            ns(
                "response_ns",
                "done - scheduled: the headline; null if unsent or lost, and in a closed loop",
                nullable=True,
            ),
            ns("service_ns", "done - sent; null if unsent or lost", nullable=True),
            ns("lag_ns", "sent - scheduled; null if unsent or lost, and in a closed loop", nullable=True),
            text(
                "join_level",
                "exact: by request id in a row of `batches`; batch: by request id in Triton's trace; "
                "window: no ids, what the server did meanwhile; none",
            ),
            text("server", "server of its batch", nullable=True),
            text("instance", "model instance of its batch", nullable=True),
            replace(INSTANCE_DEVICE, nullable=True),
            id_("batch_id", "batch that served it", nullable=True),
            at("batch_start_ns", "its batch's execution began", nullable=True),
            at("batch_end_ns", "its batch's execution ended", nullable=True),
            count("batch_rows", "rows in its batch", nullable=True),
            count("batch_n_requests", "requests in its batch", nullable=True),
            ns("wait_ns", "batch_start - sent: network, server front end and queue together", nullable=True),
            ns("compute_ns", "batch_end - batch_start", nullable=True),
            ns("reply_ns", "done - batch_end: server's way out, network and client's way in", nullable=True),
            text(
                "parts_level",
                "where the six parts below come from. trace: Triton's trace of this request; statistics: means of "
                "Triton's statistics in the second of its end, the queue being the rest of wait_ns; none: unknown",
            ),
            _ns("network_ns", "network, server front end and client, both ways"),
            _ns("queue_ns", "in the scheduler's queue"),
            _ns("input_ns", "the server gathered its inputs"),
            _ns("handover_ns", "between the server's core and the model's process, both ways"),
            _ns("output_ns", "the server scattered its outputs"),
            _ns(
                "residual_ns",
                "latency - lag - these five - compute: what they do not explain, of either sign",
            ),
            _ns(
                "idle_wait_ns",
                "part of wait_ns in which it was at the server and the instance of its batch idle",
            ),
            _ns("gap_before_ns", "idle time of the instance before its batch"),
            _TIE,
            *DEVICE_COSTS,
            _ns(
                "kernel_share_ns",
                "its part of the batch's kernel_ns, by rows; the parts of a whole batch add up to it exactly",
            ),
            _ns("gpu_share_ns", "its part of the batch's kernel_busy_ns + copy_exposed_ns, likewise"),
            text("gpu_uuid", "GPU with most of the batch's kernel time; empty if none"),
            ratio("gpu_util", "nvidia-smi's utilisation in the sample that holds the batch's start", True),
            ratio("gpu_sm_util", "GPM: share of SMs busy, likewise", True),
            real("gpu_sm_clock_hz", "Hz", "SM clock, likewise", True),
            id_(
                "gpu_throttle_reasons",
                "NVML's bit mask of reasons why clocks are held down, likewise",
                True,
            ),
            ns("clock_error_ns", "bound on the error between the two nodes' clocks", nullable=True),
        ),
        is_derived=True,
    ),
    Table(
        "steps",
        "request and execution that it passed, of requests that passed several; absent where none did",
        PhaseFrom("its row of `requests`"),
        (
            RUN,
            PHASE,
            id_("request_id", "the request"),
            SERVER,
            text("model", "name of the model"),
            text("version", "version of the model"),
            text("instance", "model instance; empty where only Triton's trace tells of the batch"),
            INSTANCE_DEVICE,
            id_("batch_id", "batch of the instance, as in `batch_costs`"),
            text("source", "who tells of the batch, as in `batch_costs`"),
            at("start_ns", "its execution began"),
            at("end_ns", "its execution ended"),
            count("rows", "rows in the batch"),
            count("n_requests", "requests in the batch"),
            ns(
                "wait_ns",
                "start - the latest end of another of its steps before that, or start of a step on the path that it "
                "lies within; where there is neither, start - sent. Null where there is none of these",
                nullable=True,
            ),
            flag(
                "is_on_path",
                "it is on the critical path: from the step that ends last back to the one that ends last before "
                "that begins; what lies within a step of it is not",
            ),
            flag("is_joined", "it is the batch of `joined`: the longest step of the path"),
            text(
                "tie",
                "id: the batch names the request; time: it names none, and lies within one that does, of the "
                "model that nearly all such batches lie within",
            ),
        ),
        is_derived=True,
    ),
    Table(
        "windows",
        "100 ms of the run",
        PhaseAt("t_ns"),
        (
            RUN,
            text("phase", "phase in which the window starts"),
            at("t_ns", "start of the window"),
            INTERVAL,
            count("n_arrivals", "arrivals scheduled in the window; null in a closed loop", nullable=True),
            count("n_sent", "requests sent in the window"),
            count("n_done", "requests that ended ok in the window"),
            count(
                "n_failed",
                "arrivals scheduled (closed loop: requests sent) in the window that did not end ok",
            ),
            count("in_flight", "requests sent and not ended at the window's end"),
            count(
                "queue_depth", "requests sent whose batch had not begun at the window's end", nullable=True
            ),
            count("n_batches", "batches that began in the window", nullable=True),
            real("batch_rows_mean", "count", "mean rows of those batches; null if none", nullable=True),
            ns(
                "response_p50_ns",
                "median response time of the window's arrivals; null if none or failed, and in a closed loop",
                True,
            ),
            ns(
                "response_p95_ns",
                "95th percentile, failures counted as infinite; null if none or infinite, and in a closed loop",
                True,
            ),
            ns(
                "service_p50_ns",
                "median service time of the requests sent in the window; null if none or failed",
                True,
            ),
            ns(
                "service_p95_ns",
                "95th percentile, failures counted as infinite; null if none or infinite",
                True,
            ),
            _ns(
                "queue_mean_ns", "mean queue_ns of the requests whose batch began in the window; null if none"
            ),
            _ns("compute_mean_ns", "mean compute_ns of the same requests; null if none"),
            ratio(
                "gpu_kernel_ratio",
                "temporal GPU activity: time with any kernel, of all processes, over the window; mean over GPUs "
                "with a report that covers the window, null without one",
                True,
            ),
            ratio("gpu_busy_ratio", "likewise with any kernel, copy or set", True),
            ratio("gpu_copy_ratio", "likewise with any copy", True),
            ratio(
                "copy_overlap_ratio",
                "time with a copy and a kernel over time with a copy; null if none",
                True,
            ),
            real(
                "gpu_streams_mean",
                "count",
                "mean streams with an operation, over the time with any",
                True,
            ),
            ratio(
                "gpu_util",
                "nvidia-smi's utilisation, mean of the samples that end in the window, of the GPUs that operations of "
                "the run ran on, whole ones; of all where no report says which",
                True,
            ),
            ratio("gpu_sm_util", "GPM: share of SMs busy, likewise", True),
            ratio("gpu_tensor_util", "GPM: share of time in which a tensor pipe was busy, likewise", True),
            ratio("gpu_dram_util", "GPM: share of peak DRAM bandwidth, likewise", True),
        ),
        is_derived=True,
    ),
)
