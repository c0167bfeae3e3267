"""Every table and column of a run directory: name, type, unit and meaning. The one definition of each.

Instants are int64 ns on the run clock (UTC ns of the driver); spans are int64 ns; ratios 0-1; sizes bytes.
`docs/schema.md` is generated from this file by `python -m analysis.schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pyarrow as pa

SCHEMA_VERSION = 2

OUTCOMES = (
    "ok",
    "rejected",
    "timeout",
    "cancelled",
    "server_error",
    "transport_error",
    "bad_reply",
    "unsent",
)
"""How a scheduled arrival can end; exactly one each. `rejected`: the server's queue policy refused it (full
queue or queue timeout). `timeout`: no whole reply within the client's timeout. `cancelled`: still in flight
when the drain or the run ended. `server_error`: any other error status. `transport_error`: the connection
failed. `bad_reply`: status 200, but not the reply that the model's spec promises, or wrong values. `unsent`: never
sent."""

INSTANT = "instant"
"""Unit of a column that holds a point in time: only these are shifted between clocks."""


@dataclass(frozen=True)
class Column:
    """One column: `unit` is `instant` (ns on the run clock), ns, bytes, Hz, ratio, count, W, °C, id, text."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table: `row` says what one row stands for; `is_derived` tables can be made again from the raw."""

    name: str
    row: str
    columns: tuple[Column, ...]
    is_derived: bool = False

    @property
    def instants(self) -> tuple[str, ...]:
        """Names of the columns that hold points in time."""
        return tuple(column.name for column in self.columns if column.unit == INSTANT)

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with unit and meaning as field metadata and the schema version on the table."""
        fields = [
            pa.field(c.name, c.type, c.nullable, {"unit": c.unit, "meaning": c.meaning}) for c in self.columns
        ]
        return pa.schema(fields, {"table": self.name, "schema_version": str(SCHEMA_VERSION)})


_TEXT = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()
_REAL = pa.float64()


def _text(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _TEXT, "text", meaning, nullable)


def _at(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _INT, INSTANT, meaning, nullable)


def _ns(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _INT, "ns", meaning, nullable)


def _count(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _INT, "count", meaning, nullable)


def _id(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _INT, "id", meaning, nullable)


def _bytes(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _INT, "bytes", meaning, nullable)


def _ratio(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, _REAL, "ratio", meaning, nullable)


_RUN = _text("run", "name of the run")
_PHASE = _text(
    "phase", "phase of the scenario in which the row falls; empty before the first and after the last"
)
_NODE = _text("node", "node of the cluster, node-0 being the driver's")
_SERVER = _text("server", "server under test: server-0, server-1, …")
_T = _at("t_ns", "end of the sampled interval")
_INTERVAL = _ns("interval_ns", "length of the sampled interval")

_REQUEST = (
    _RUN,
    _text("phase", "phase in which the arrival was scheduled; closed loop: in which its user issued it"),
    _text("node", "node of the client worker"),
    _id(
        "request_id",
        "also the request id that Triton sees. Position in the global schedule, 0..n-1; closed loop:"
        " user + users of the run * count of the user's requests before it",
    ),
    _id("worker", "client worker that was dealt the arrival; closed loop: its user"),
    _text("target", "server that the request was for"),
    _text("request_kind", "kind of request: the model's name"),
    _at(
        "scheduled_ns",
        "when the schedule says the request leaves; null in a closed-loop run, which has no schedule",
        nullable=True,
    ),
    _at("sent_ns", "just before the first byte was written; null if never sent", nullable=True),
    _at("first_byte_ns", "first byte of the reply arrived; null if none did", nullable=True),
    _at(
        "done_ns",
        "last byte of the reply arrived, or the request was given up; null if unsent",
        nullable=True,
    ),
    _count("rows", "rows of the batch dimension in the request"),
    _bytes("request_bytes", "bytes written: head and body; 0 if unsent"),
    _bytes("response_bytes", "body bytes received"),
    _text("outcome", "how it ended: " + ", ".join(OUTCOMES)),
    _text(
        "detail",
        "why it failed, in the server's or the transport's words; or that max_in_flight held it back",
    ),
)

_EVENT = (
    _RUN,
    _PHASE,
    _NODE,
    _SERVER,
    _id("process", "process id on its node"),
    _id("thread", "thread id on its node"),
    _text("thread_name", "name of the thread, empty if unknown"),
    _at("start_ns", "start of the event"),
    _at("end_ns", "end of the event"),
)

_TABLES = (
    Table("requests", "scheduled arrival; closed loop: request of a user", _REQUEST),
    Table(
        "batches",
        "execution in the server, recorded by the model itself",
        (
            _RUN,
            _PHASE,
            _NODE,
            _SERVER,
            _text("model", "name of the model"),
            _text("version", "version of the model"),
            _text("instance", "model instance; with batch_id the key of the row within its server"),
            _id("batch_id", "count of executions of this instance, from 0"),
            _at("start_ns", "the model's execute began"),
            _at("end_ns", "all responses were built"),
            _count("rows", "rows in the batch"),
            _count("n_requests", "requests in the batch"),
            Column("request_ids", pa.list_(_INT), "id", "request_id of each request in the batch"),
            _count("n_foreign", "requests in the batch whose id is not one of ours"),
        ),
    ),
    Table(
        "triton_samples",
        "statistics delta of a model between two samples",
        (
            _RUN,
            _PHASE,
            _NODE,
            _SERVER,
            _text("model", "name of the model"),
            _text("version", "version of the model"),
            _T,
            _INTERVAL,
            _count("request_count", "requests that succeeded"),
            _count("failure_count", "requests that failed"),
            _count("inference_count", "rows inferred"),
            _count("execution_count", "executions (batches)"),
            _ns("queue_ns", "time in the scheduler's queue, summed over the requests that succeeded"),
            _ns("compute_input_ns", "time to gather inputs, summed over requests"),
            _ns("compute_infer_ns", "time in the model, summed over requests"),
            _ns("compute_output_ns", "time to scatter outputs, summed over requests"),
            _ns("success_ns", "time in the server, summed over the requests that succeeded"),
            Column("batch_sizes", pa.list_(_INT), "count", "batch sizes in rows that were executed"),
            Column("batch_counts", pa.list_(_INT), "count", "executions of each of batch_sizes"),
            _count(
                "pending_count", "requests waiting for execution at t_ns, from the metrics", nullable=True
            ),
        ),
    ),
    Table(
        "host_samples",
        "sample of a node",
        (
            _RUN,
            _PHASE,
            _NODE,
            _T,
            _INTERVAL,
            _ratio("cpu_user", "CPU time in user mode over all cores' time"),
            _ratio("cpu_system", "CPU time in the kernel, interrupts included"),
            _ratio("cpu_iowait", "idle while waiting for a disk"),
            _ratio("cpu_steal", "taken by the hypervisor for other guests"),
            _ratio("cpu_idle", "idle"),
            _count("n_cores", "logical CPUs"),
            _count("run_queue", "runnable processes at t_ns"),
            _count("context_switches", "context switches in the interval"),
            _count("network_drops", "packets dropped on any interface in the interval"),
            _bytes("memory_available_bytes", "memory available at t_ns"),
            _ns("server_cpu_ns", "CPU time of the server's processes in the interval", nullable=True),
        ),
    ),
    Table(
        "worker_samples",
        "second of a client worker",
        (
            _RUN,
            _PHASE,
            _NODE,
            _id("worker", "client worker"),
            _T,
            _INTERVAL,
            _count(
                "n_due", "arrivals scheduled in the interval; closed loop: requests that users were ready for"
            ),
            _count("n_sent", "requests sent in the interval"),
            _count("n_done", "requests that ended in the interval"),
            _count("n_backlog", "arrivals due but not yet sent at t_ns, those held back included"),
            _count("n_held", "arrivals held back by max_in_flight at t_ns"),
            _count("n_in_flight", "requests in flight at t_ns"),
            _count("n_connections", "open connections at t_ns"),
            _count("n_socket_errors", "connections that failed or broke in the interval"),
            _count("n_write_pauses", "sends in the interval that found the socket full"),
            _ns(
                "lag_max_ns", "largest send lag of the interval; closed loop: time beyond a user's think time"
            ),
            _ns("loop_lag_ns", "how late the event loop ran this sample's own timer"),
            _ns("cpu_ns", "CPU time of the worker process in the interval, spin_ns included"),
            _ns("spin_ns", "CPU time spent waiting busily for the next instant: not counted as load"),
            _count("gc_count", "garbage collections in the interval"),
            _ns("gc_pause_ns", "time in garbage collections in the interval"),
            _count("n_dropped", "records lost by the collector so far; any makes the run invalid"),
        ),
    ),
    Table(
        "gpu_samples",
        "NVML sample of a GPU",
        (
            _RUN,
            _PHASE,
            _NODE,
            _text("gpu_uuid", "UUID of the GPU"),
            _T,
            _INTERVAL,
            _ratio("util", "nvidia-smi's utilisation: share of time in which any kernel ran", nullable=True),
            _ratio("sm_util", "GPM: share of time in which an SM was busy, mean over SMs", nullable=True),
            _ratio("sm_occupancy", "GPM: resident warps over the most possible", nullable=True),
            _ratio("tensor_util", "GPM: share of time in which a tensor pipe was busy", nullable=True),
            _ratio("dram_util", "GPM: share of peak DRAM bandwidth", nullable=True),
            _bytes("memory_used_bytes", "GPU memory in use", nullable=True),
            Column("power_w", _REAL, "W", "power draw", True),
            Column("temperature_c", _REAL, "°C", "temperature of the GPU", True),
            Column("sm_clock_hz", _REAL, "Hz", "SM clock", True),
            Column("memory_clock_hz", _REAL, "Hz", "memory clock", True),
            _id("throttle_reasons", "NVML bit mask of reasons why clocks are held down", nullable=True),
            Column("pcie_rx_bytes_per_s", _REAL, "bytes/s", "PCIe traffic to the GPU", True),
            Column("pcie_tx_bytes_per_s", _REAL, "bytes/s", "PCIe traffic from the GPU", True),
        ),
    ),
    Table(
        "osrt",
        "OS-runtime call that blocked, in the nsys report",
        (*_EVENT, _text("name", "function called: futex, sem_wait, epoll_wait, …")),
    ),
    Table(
        "nvtx",
        "NVTX range in the nsys report",
        (
            *_EVENT,
            _text("name", "text of the range"),
            _text("instance", "model instance that opened the range; empty if the range is not ours"),
            _id("batch_id", "batch that the range spans; null if the range is not ours", nullable=True),
        ),
    ),
    Table(
        "joined",
        "row of `requests`, with what explains its latency",
        (
            *_REQUEST,
            _ns(
                "response_ns",
                "done - scheduled: the headline; null if unsent, and in a closed loop",
                nullable=True,
            ),
            _ns("service_ns", "done - sent; null if unsent", nullable=True),
            _ns("lag_ns", "sent - scheduled; null if unsent, and in a closed loop", nullable=True),
            _text("join_level", "exact: by request id in the batch record; none: no batch record has it"),
            _text("server", "server of its batch", nullable=True),
            _text("instance", "model instance of its batch", nullable=True),
            _id("batch_id", "batch that served it", nullable=True),
            _at("batch_start_ns", "its batch's execution began", nullable=True),
            _at("batch_end_ns", "its batch's execution ended", nullable=True),
            _count("batch_rows", "rows in its batch", nullable=True),
            _count("batch_n_requests", "requests in its batch", nullable=True),
            _ns("wait_ns", "batch_start - sent: network, server front end and queue together", nullable=True),
            _ns("compute_ns", "batch_end - batch_start", nullable=True),
            _ns("reply_ns", "done - batch_end: server's way out, network and client's way in", nullable=True),
            _ns("clock_error_ns", "bound on the error between the two nodes' clocks", nullable=True),
        ),
        is_derived=True,
    ),
    Table(
        "windows",
        "100 ms of the run",
        (
            _RUN,
            _text("phase", "phase in which the window starts"),
            _at("t_ns", "start of the window"),
            _INTERVAL,
            _count("n_arrivals", "arrivals scheduled in the window; null in a closed loop", nullable=True),
            _count("n_sent", "requests sent in the window"),
            _count("n_done", "requests that ended ok in the window"),
            _count(
                "n_failed",
                "arrivals scheduled (closed loop: requests sent) in the window that did not end ok",
            ),
            _count("in_flight", "requests sent and not ended at the window's end"),
            _count(
                "queue_depth", "requests sent whose batch had not begun at the window's end", nullable=True
            ),
            _count("n_batches", "batches that began in the window", nullable=True),
            Column("batch_rows_mean", _REAL, "count", "mean rows of those batches; null if none", True),
            _ns(
                "response_p50_ns",
                "median response time of the window's arrivals; null if none or failed, and in a closed loop",
                True,
            ),
            _ns(
                "response_p95_ns",
                "95th percentile, failures counted as infinite; null if none or infinite, and in a closed loop",
                True,
            ),
            _ns(
                "service_p50_ns",
                "median service time of the requests sent in the window; null if none or failed",
                True,
            ),
            _ns(
                "service_p95_ns",
                "95th percentile, failures counted as infinite; null if none or infinite",
                True,
            ),
        ),
        is_derived=True,
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in _TABLES}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of `table`. Raises KeyError for a name that is not in `TABLES`."""
    return TABLES[table].arrow()


def markdown() -> str:
    """The content of `docs/schema.md`."""
    lines = [
        "# Tables of a run",
        "",
        "Generated by `python -m analysis.schema > docs/schema.md`; a test holds it to the code.",
        "",
        "Unit `instant` is int64 ns on the run clock: UTC ns of the driver. Every file carries unit and",
        "meaning of each column in its Parquet metadata. A table whose source was not there is absent.",
    ]
    for table in _TABLES:
        kind = "derived: `squall analyze` makes it again" if table.is_derived else "raw"
        lines += ["", f"## `{table.name}`", "", f"One row per {table.row} ({kind}).", ""]
        lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        for column in table.columns:
            null = ", null" if column.nullable else ""
            type_name = "text" if column.type == _TEXT else str(column.type).replace("element: ", "")
            lines.append(f"| `{column.name}` | {type_name}{null} | {column.unit} | {column.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
