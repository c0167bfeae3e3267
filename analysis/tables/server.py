"""What the server did: batches, statistics, traces, threads."""

from __future__ import annotations

import pyarrow as pa

from squall.analysis.tables.columns import (
    INSTANCE_DEVICE,
    INT,
    INTERVAL,
    NODE,
    PHASE,
    RUN,
    SERVER,
    Column,
    PhaseAt,
    T,
    Table,
    at,
    count,
    flag,
    id_,
    ns,
    text,
)

_LABELS = (RUN, PHASE, NODE, SERVER)

TABLES = (
    Table(
        "batches",
        "execution in the server, recorded by the model itself, by the batch library inside the server, or by the hook "
        "in a Python model",
        PhaseAt("start_ns"),
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            text("model", "name of the model"),
            text("version", "version of the model"),
            text(
                "recorded_by",
                "model: its own record, by a head of squall; library: what its backend reported to Triton; hook: what "
                "squall_batches.py saw in its Python model",
            ),
            text(
                "instance",
                "model instance; with its device and batch_id the key of the row within its server",
            ),
            INSTANCE_DEVICE,
            id_("batch_id", "count of executions of this instance, from 0"),
            at(
                "start_ns",
                "the model's execute began, by its record or the hook; by the library, its backend's computation",
            ),
            at(
                "end_ns",
                "all responses were built; by the hook, execute returned; by the library, its backend had the answer",
            ),
            at(
                "exec_start_ns",
                "Triton handed the batch to the backend, which gathered inputs until start_ns; null by model and hook",
                nullable=True,
            ),
            at(
                "exec_end_ns",
                "the backend had scattered the outputs that were there at end_ns; null by model and hook",
                nullable=True,
            ),
            count("rows", "rows in the batch"),
            count("n_requests", "requests in the batch"),
            Column("request_ids", pa.list_(INT), "id", "request_id of each request in the batch"),
            count("n_foreign", "requests in the batch whose id is not one of ours"),
            count(
                "n_failed",
                "requests in the batch that the backend reported as failed, by the hook all where execute raised; "
                "null by the model",
                nullable=True,
            ),
        ),
    ),
    Table(
        "recordings",
        "stretch in which the kernel library recorded a server's kernels: all that start and end in it are there",
        PhaseAt("start_ns"),
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            at("begun_ns", "recording was asked for: from here on it may cost the server something"),
            at("start_ns", "every process of the server that used CUDA records"),
            at("end_ns", "the first of them was asked to end recording"),
            at("done_ns", "none of them records any more"),
            count(
                "n_processes", "processes that recorded; one that began to use CUDA meanwhile is not counted"
            ),
            text(
                "kinds",
                "what was recorded, with commas between: kernels, copies, sync, runtime, driver, events",
            ),
        ),
    ),
    Table(
        "triton_samples",
        "statistics delta of a model between two samples",
        PhaseAt("t_ns"),
        (
            *_LABELS,
            text("model", "name of the model"),
            text("version", "version of the model"),
            T,
            INTERVAL,
            count("request_count", "requests that succeeded"),
            count("failure_count", "requests that failed; one refused for a full queue is not among them"),
            count(
                "cache_hit_count",
                "requests of request_count that the response cache answered: they have no batch",
                nullable=True,
            ),
            count("inference_count", "rows inferred"),
            count("execution_count", "executions (batches)"),
            ns("queue_ns", "time in the scheduler's queue, summed over the requests that succeeded"),
            ns("compute_input_ns", "time to gather inputs, summed over requests"),
            ns("compute_infer_ns", "time in the model, summed over requests"),
            ns("compute_output_ns", "time to scatter outputs, summed over requests"),
            ns("success_ns", "time in the server, summed over the requests that succeeded"),
            Column("batch_sizes", pa.list_(INT), "count", "batch sizes in rows that were executed"),
            Column("batch_counts", pa.list_(INT), "count", "executions of each of batch_sizes"),
            count("pending_count", "requests waiting for execution at t_ns, from the metrics", nullable=True),
            count(
                "failure_rejected_count",
                "failures for a queue timeout, from the metrics: no metric counts those for a full queue",
                nullable=True,
            ),
            count(
                "failure_canceled_count",
                "failures because the client cancelled, from the metrics",
                nullable=True,
            ),
            count("failure_backend_count", "failures in the backend, from the metrics", nullable=True),
            count("failure_other_count", "other failures, from the metrics", nullable=True),
            flag(
                "is_reset",
                "a counter went back, or the model was away before: the server or the model started anew, and this row "
                "counts from there",
            ),
        ),
    ),
    Table(
        "triton_traces",
        "request that Triton's trace API recorded; requests of one batch share compute_start_ns",
        PhaseAt("request_start_ns"),
        (
            RUN,
            PHASE,
            NODE,
            SERVER,
            text("model", "name of the model; empty if the request never came as far as one"),
            text("version", "version of the model; empty as model is"),
            id_("trace_id", "Triton's id of the trace"),
            id_(
                "parent_trace_id",
                "trace_id of the request that this one is a part of: an ensemble's, or a model's that called another",
                nullable=True,
            ),
            id_(
                "request_id",
                "request_id of ours, in the rows of its parts too; null if the request is not ours",
                nullable=True,
            ),
            text("protocol", "http or grpc; empty if the trace does not say, as for a part"),
            at(
                "recv_start_ns",
                "the server began to read the request (gRPC: end of its wait for one)",
                nullable=True,
            ),
            at("recv_end_ns", "the request was read: it had arrived", nullable=True),
            at("request_start_ns", "the request entered the core", nullable=True),
            at("queue_start_ns", "it entered the scheduler's queue", nullable=True),
            at(
                "compute_start_ns",
                "its batch left the queue: the key of the batch within its model",
                nullable=True,
            ),
            at("compute_input_end_ns", "inputs were gathered", nullable=True),
            at("compute_output_start_ns", "the model had answered", nullable=True),
            at("compute_end_ns", "outputs were scattered", nullable=True),
            at("request_end_ns", "the core released the request: not the client's end", nullable=True),
            at("send_start_ns", "the server began to write the reply", nullable=True),
            at("send_end_ns", "the reply was handed to the network", nullable=True),
        ),
    ),
    Table(
        "thread_samples",
        "second of a thread of the server that ran or switched in it",
        PhaseAt("t_ns"),
        (
            *_LABELS,
            id_("process", "process id on its node"),
            text("process_name", "name of the process"),
            id_("thread", "thread id on its node"),
            text("thread_name", "name of the thread"),
            T,
            INTERVAL,
            ns(
                "cpu_ns",
                "CPU time by the scheduler's exact count (schedstat); the two below come in ticks of 10 ms",
                nullable=True,
            ),
            ns("cpu_user_ns", "CPU time in user mode: a thread that spins has all of the interval"),
            ns("cpu_system_ns", "CPU time in the kernel"),
            ns("run_delay_ns", "time in which it could run and had no CPU (schedstat)", nullable=True),
            count("voluntary_switches", "times it gave up the CPU to wait", nullable=True),
            count("involuntary_switches", "times the CPU was taken from it", nullable=True),
            text("state", "R running, S sleeping, D uninterruptible, … at t_ns"),
        ),
    ),
)
