"""What the server did: batches, and when its kernels were recorded."""

from __future__ import annotations

from squall.analysis.columns import INSTANCE_DEVICE, OF_SERVER, PhaseAt, Table, columns

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
)
