"""What is derived from the raw tables: why each request took as long as it did, by batch and by window."""

from __future__ import annotations

from dataclasses import replace

from squall.analysis.columns import (
    INSTANCE_DEVICE,
    INTERVAL,
    OF_SERVER,
    PHASE,
    RUN,
    SERVER,
    PhaseAt,
    PhaseFrom,
    Table,
    columns,
)
from squall.analysis.storage.load import REQUEST

DEVICE_COSTS = columns(
    """
    n_kernels        count?  kernels of the batch; whole CUDA graphs where nsys traced these
    n_copies         count?  memory copies and memory sets of the batch
    n_launches       count?  CUDA calls of the batch that launch a kernel or a graph
    kernel_ns        ns?     sum of the durations of its kernels
    kernel_busy_ns   ns?     time within the batch in which any of its kernels ran (union)
    copy_exposed_ns  ns?     time within the batch in which a copy or set of it ran and no kernel of it
    sync_wait_ns     ns?     GPU idle inside its body while its thread was in a call that blocks
    launch_idle_ns   ns?     GPU idle inside its body otherwise: nothing had been launched yet
    head_ns          ns?     from its start to its first operation on the GPU; all of it where it has none
    tail_ns          ns?     from the end of its last operation on the GPU to its end
    launch_ns        ns?     time of its thread in calls that launch
    blocked_ns       ns?     time of its thread in calls that block: waits, blocking copies, copies of pageable memory
    blocked_busy_ns  ns?     part of blocked_ns in which an operation of the batch ran on the GPU
    n_mid_blocks     count?  calls that block and are followed by more work of the batch on the GPU
    h2d_ns           ns?     sum of the durations of its copies from host to device
    d2h_ns           ns?     sum of the durations of its copies from device to host
    h2d_bytes        bytes?  bytes that these moved
    d2h_bytes        bytes?  bytes that these moved
    os_wait_ns       ns?     time of its thread in OS-runtime calls that block, within the batch
    """,
)
"""Columns of `batch_costs` that `joined` repeats. kernel_busy + copy_exposed + sync_wait + launch_idle + head + tail is
the length of the batch."""

(_TIE,) = columns(
    """
    tie  text  range: kernels and calls by the batch's NVTX range and correlation ids, or by the batch that the kernel
               library gave them; window: launched (by the library: begun on the GPU) while it alone ran, where nothing
               names batches; in `joined` also what ran from the send of a request to its end, of a server without ids
               and of a decoupled model; none: not profiled, of a decoupled model, or not from its start to its end in
               one of the library's windows
    """
)


TABLES = (
    Table(
        "batch_costs",
        "execution in the server, with what it did on CPU and GPU",
        PhaseFrom("its row of `batches`; by a trace the first of its rows of `triton_traces`"),
        columns(
            *OF_SERVER,
            """
            model     text  name of the model
            version   text  version of the model
            instance  text  model instance; empty where only Triton's trace tells of the batch
            """,
            INSTANCE_DEVICE,
            """
            batch_id       id       count of executions of the instance, by a trace of the server; with server, instance
                                    and its device the key of the row
            source         text     record: the model's own record; library: that of the batch library; hook: that of
                                    the hook in a Python model; trace: Triton's trace of its requests
            start_ns       instant  its execution began
            end_ns         instant  its execution ended
            rows           count    rows in the batch
            n_requests     count    requests in the batch
            gap_before_ns  ns?      idle time of the instance before it; null for the first of an instance
            """,
            _TIE,
            """
            process   id?   process that executed it; null if not profiled
            thread    id?   thread that executed it; null if not profiled
            gpu_uuid  text  GPU with most of its kernel time; empty if none
            """,
            *DEVICE_COSTS,
            """
            copy_ns         ns?     sum of the durations of its copies and sets
            pageable_bytes  bytes?  bytes of its copies from or to pageable memory
            sync_ns         ns?     time of its thread in CUDA calls that wait (…Synchronize)
            alloc_ns        ns?     time of its thread in CUDA calls that allocate or free
            api_ns          ns?     time of its thread in all CUDA calls
            n_blocks        count?  calls that block
            overrun_ns      ns?     time in which its operations still ran after its end, not awaited
            """,
        ),
        made_in="analysis/join/batch_costs.py",
    ),
    Table(
        "joined",
        "row of `requests`, with what explains its latency",
        PhaseFrom("its row of `requests`"),
        columns(
            *REQUEST,
            """
            response_ns  ns?    done - scheduled: the headline; null if unsent or lost, and in a closed loop
            service_ns   ns?    done - sent; null if unsent or lost
            lag_ns       ns?    sent - scheduled; null if unsent or lost, and in a closed loop
            join_level   text   exact: by request id in a row of `batches`; batch: by request id in Triton's trace;
                                window: no ids, what the server did meanwhile; none
            server       text?  server of its batch
            instance     text?  model instance of its batch
            """,
            replace(INSTANCE_DEVICE, nullable=True),
            """
            batch_id          id?       batch that served it
            batch_start_ns    instant?  its batch's execution began
            batch_end_ns      instant?  its batch's execution ended
            batch_rows        count?    rows in its batch
            batch_n_requests  count?    requests in its batch
            wait_ns           ns?       batch_start - sent: network, server front end and queue together
            compute_ns        ns?       batch_end - batch_start
            reply_ns          ns?       done - batch_end: server's way out, network and client's way in
            parts_level       text      where the six parts below come from. trace: Triton's trace of this request;
                                        statistics: means of Triton's statistics in the second of its end, the queue
                                        being the rest of wait_ns; none: unknown
            network_ns        ns?       network, server front end and client, both ways
            queue_ns          ns?       in the scheduler's queue
            input_ns          ns?       the server gathered its inputs
            handover_ns       ns?       between the server's core and the model's process, both ways
            output_ns         ns?       the server scattered its outputs
            residual_ns       ns?       latency - lag - these five - compute: what they do not explain, of either sign
            idle_wait_ns      ns?       part of wait_ns in which it was at the server and the instance of its batch idle
            gap_before_ns     ns?       idle time of the instance before its batch
            """,
            _TIE,
            *DEVICE_COSTS,
            """
            kernel_share_ns       ns?     its part of the batch's kernel_ns, by rows; the parts of a whole batch add up
                                          to it exactly
            gpu_share_ns          ns?     its part of the batch's kernel_busy_ns + copy_exposed_ns, likewise
            gpu_uuid              text    GPU with most of the batch's kernel time; empty if none
            gpu_util              ratio?  nvidia-smi's utilisation in the sample that holds the batch's start
            gpu_sm_util           ratio?  GPM: share of SMs busy, likewise
            gpu_sm_clock_hz       Hz?     SM clock, likewise
            gpu_throttle_reasons  id?     NVML's bit mask of reasons why clocks are held down, likewise
            clock_error_ns        ns?     bound on the error between the two nodes' clocks
            """,
        ),
        made_in="analysis/join/join.py",
    ),
    Table(
        "steps",
        "request and execution that it passed, of requests that passed several; absent where none did",
        PhaseFrom("its row of `requests`"),
        columns(
            RUN,
            PHASE,
            "request_id  id  the request",
            SERVER,
            """
            model     text  name of the model
            version   text  version of the model
            instance  text  model instance; empty where only Triton's trace tells of the batch
            """,
            INSTANCE_DEVICE,
            """
            batch_id    id       batch of the instance, as in `batch_costs`
            source      text     who tells of the batch, as in `batch_costs`
            start_ns    instant  its execution began
            end_ns      instant  its execution ended
            rows        count    rows in the batch
            n_requests  count    requests in the batch
            wait_ns     ns?      start - the latest end of another of its steps before that, or start of a step on the
                                 path that it lies within; where there is neither, start - sent. Null where there is
                                 none of these
            is_on_path  claim    it is on the critical path: from the step that ends last back to the one that ends last
                                 before that begins; what lies within a step of it is not
            is_joined   claim    it is the batch of `joined`: the longest step of the path
            tie         text     id: the batch names the request; time: it names none, and lies within one that does, of
                                 the model that nearly all such batches lie within
            """,
        ),
        made_in="analysis/join/join.py",
    ),
    Table(
        "windows",
        "100 ms of the run",
        PhaseAt("t_ns"),
        columns(
            RUN,
            """
            phase  text     phase in which the window starts
            t_ns   instant  start of the window
            """,
            INTERVAL,
            """
            n_arrivals          count?       arrivals scheduled in the window; null in a closed loop
            n_sent              count        requests sent in the window
            n_done              count        requests that ended ok in the window
            n_failed            count        arrivals scheduled (closed loop: requests sent) in the window that did not
                                             end ok
            in_flight           count        requests sent and not ended at the window's end
            queue_depth         count?       requests sent whose batch had not begun at the window's end
            n_batches           count?       batches that began in the window
            batch_rows_mean     real:count?  mean rows of those batches; null if none
            response_p50_ns     ns?          median response time of the window's arrivals; null if none or failed, and
                                             in a closed loop
            response_p95_ns     ns?          95th percentile, failures counted as infinite; null if none or infinite,
                                             and in a closed loop
            service_p50_ns      ns?          median service time of the requests sent in the window; null if none or
                                             failed
            service_p95_ns      ns?          95th percentile, failures counted as infinite; null if none or infinite
            queue_mean_ns       ns?          mean queue_ns of the requests whose batch began in the window; null if none
            compute_mean_ns     ns?          mean compute_ns of the same requests; null if none
            gpu_kernel_ratio    ratio?       temporal GPU activity: time with any kernel, of all processes, over the
                                             window; mean over GPUs with a report that covers the window, null without
                                             one
            gpu_busy_ratio      ratio?       likewise with any kernel, copy or set
            gpu_copy_ratio      ratio?       likewise with any copy
            copy_overlap_ratio  ratio?       time with a copy and a kernel over time with a copy; null if none
            gpu_streams_mean    real:count?  mean streams with an operation, over the time with any
            gpu_util            ratio?       nvidia-smi's utilisation, mean of the samples that end in the window, of
                                             the GPUs that operations of the run ran on, whole ones; of all where no
                                             report says which
            gpu_sm_util         ratio?       GPM: share of SMs busy, likewise
            gpu_tensor_util     ratio?       GPM: share of time in which a tensor pipe was busy, likewise
            gpu_dram_util       ratio?       GPM: share of peak DRAM bandwidth, likewise
            """,
        ),
        made_in="analysis/metrics/windows.py",
    ),
)
