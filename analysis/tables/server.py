"""What the server did: batches, statistics, traces, threads."""

from __future__ import annotations

from squall.analysis.tables.columns import INSTANCE_DEVICE, INTERVAL, OF_SERVER, PhaseAt, T, Table, columns

TABLES = (
    Table(
        "batches",
        "execution in the server, recorded by the model itself, by the batch library inside the server, or by the hook "
        "in a Python model",
        PhaseAt("start_ns"),
        columns(
            *OF_SERVER,
            """
            model        text  name of the model
            version      text  version of the model
            recorded_by  text  model: its own record, by a head of squall; library: what its backend reported to Triton;
                               hook: what squall_batches.py saw in its Python model
            instance     text  model instance; with its device and batch_id the key of the row within its server
            """,
            INSTANCE_DEVICE,
            """
            batch_id       id        count of executions of this instance, from 0
            start_ns       instant   the model's execute began, by its record or the hook; by the library, its backend's
                                     computation
            end_ns         instant   all responses were built; by the hook, execute returned; by the library, its
                                     backend had the answer
            exec_start_ns  instant?  Triton handed the batch to the backend, which gathered inputs until start_ns; null
                                     by model and hook
            exec_end_ns    instant?  the backend had scattered the outputs that were there at end_ns; null by model and
                                     hook
            rows           count     rows in the batch
            n_requests     count     requests in the batch
            request_ids    list:id   request_id of each request in the batch
            n_foreign      count     requests in the batch whose id is not one of ours
            n_failed       count?    requests in the batch that the backend reported as failed, by the hook all where
                                     execute raised; null by the model
            """,
        ),
    ),
    Table(
        "recordings",
        "stretch in which the kernel library recorded a server's kernels: all that start and end in it are there",
        PhaseAt("start_ns"),
        columns(
            *OF_SERVER,
            """
            begun_ns     instant  recording was asked for: from here on it may cost the server something
            start_ns     instant  every process of the server that used CUDA records
            end_ns       instant  the first of them was asked to end recording
            done_ns      instant  none of them records any more
            n_processes  count    processes that recorded; one that began to use CUDA meanwhile is not counted
            kinds        text     what was recorded, with commas between: kernels, copies, sync, runtime, driver, events
            """,
        ),
    ),
    Table(
        "triton_samples",
        "statistics delta of a model between two samples",
        PhaseAt("t_ns"),
        columns(
            *OF_SERVER,
            """
            model    text  name of the model
            version  text  version of the model
            """,
            T,
            INTERVAL,
            """
            request_count           count       requests that succeeded
            failure_count           count       requests that failed; one refused for a full queue is not among them
            cache_hit_count         count?      requests of request_count that the response cache answered: they have no
                                                batch
            inference_count         count       rows inferred
            execution_count         count       executions (batches)
            queue_ns                ns          time in the scheduler's queue, summed over the requests that succeeded
            compute_input_ns        ns          time to gather inputs, summed over requests
            compute_infer_ns        ns          time in the model, summed over requests
            compute_output_ns       ns          time to scatter outputs, summed over requests
            success_ns              ns          time in the server, summed over the requests that succeeded
            batch_sizes             list:count  batch sizes in rows that were executed
            batch_counts            list:count  executions of each of batch_sizes
            pending_count           count?      requests waiting for execution at t_ns, from the metrics
            failure_rejected_count  count?      failures for a queue timeout, from the metrics: no metric counts those
                                                for a full queue
            failure_canceled_count  count?      failures because the client cancelled, from the metrics
            failure_backend_count   count?      failures in the backend, from the metrics
            failure_other_count     count?      other failures, from the metrics
            is_reset                claim       a counter went back, or the model was away before: the server or the
                                                model started anew, and this row counts from there
            """,
        ),
    ),
    Table(
        "triton_traces",
        "request that Triton's trace API recorded; requests of one batch share compute_start_ns",
        PhaseAt("request_start_ns"),
        columns(
            *OF_SERVER,
            """
            model                    text      name of the model; empty if the request never came as far as one
            version                  text      version of the model; empty as model is
            trace_id                 id        Triton's id of the trace
            parent_trace_id          id?       trace_id of the request that this one is a part of: an ensemble's, or a
                                               model's that called another
            request_id               id?       request_id of ours, in the rows of its parts too; null if the request is
                                               not ours
            protocol                 text      http or grpc; empty if the trace does not say, as for a part
            recv_start_ns            instant?  the server began to read the request (gRPC: end of its wait for one)
            recv_end_ns              instant?  the request was read: it had arrived
            request_start_ns         instant?  the request entered the core
            queue_start_ns           instant?  it entered the scheduler's queue
            compute_start_ns         instant?  its batch left the queue: the key of the batch within its model
            compute_input_end_ns     instant?  inputs were gathered
            compute_output_start_ns  instant?  the model had answered
            compute_end_ns           instant?  outputs were scattered
            request_end_ns           instant?  the core released the request: not the client's end
            send_start_ns            instant?  the server began to write the reply
            send_end_ns              instant?  the reply was handed to the network
            """,
        ),
    ),
    Table(
        "thread_samples",
        "second of a thread of the server that ran or switched in it",
        PhaseAt("t_ns"),
        columns(
            *OF_SERVER,
            """
            process       id    process id on its node
            process_name  text  name of the process
            thread        id    thread id on its node
            thread_name   text  name of the thread
            """,
            T,
            INTERVAL,
            """
            cpu_ns                ns?     CPU time by the scheduler's exact count (schedstat); the two below come in
                                          ticks of 10 ms
            cpu_user_ns           ns      CPU time in user mode: a thread that spins has all of the interval
            cpu_system_ns         ns      CPU time in the kernel
            run_delay_ns          ns?     time in which it could run and had no CPU (schedstat)
            voluntary_switches    count?  times it gave up the CPU to wait
            involuntary_switches  count?  times the CPU was taken from it
            state                 text    R running, S sleeping, D uninterruptible, … at t_ns
            """,
        ),
    ),
)
