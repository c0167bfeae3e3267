"""The temporary tables, views and files that queries over a run are made of: columns, and the one file that makes each.

Not a query but what it must give: `table` and `view` take these columns of it and no others, `empty` is the query for
none of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from squall.analysis.tables import derived, load, node, nsys, server

Columns = dict[str, str]
"""Names, and DuckDB's types."""
INT, WIDE, REAL, TEXT, FLAG = "BIGINT", "HUGEINT", "DOUBLE", "VARCHAR", "BOOLEAN"


@dataclass(frozen=True, eq=False)
class Relation:
    """What a query, or a file between two steps, is made of. `made_in`: path from the root of the repository."""

    name: str
    row: str
    made_in: str
    columns: Mapping[str, str]

    def table(self, query: str, only: Iterable[str] | None = None) -> str:
        """The statement that makes the temporary table of `query`, of all columns or `only` some."""
        return f"CREATE TEMP TABLE {self.name} AS {self._of(query, only)}"

    def view(self, query: str) -> str:
        """The statement that makes the temporary view of `query`."""
        return f"CREATE TEMP VIEW {self.name} AS {self._of(query, None)}"

    def new(self) -> str:
        """The statement that makes the temporary table without rows."""
        return f"CREATE TEMP TABLE {self.name} ({', '.join(f'{n} {t}' for n, t in self.columns.items())})"

    def drop(self) -> str:
        """The statement that ends the table."""
        return f"DROP TABLE {self.name}"

    def empty(self) -> str:
        """The query for none of its rows."""
        return f"SELECT {', '.join(f'NULL::{t} AS {n}' for n, t in self.columns.items())} WHERE false"

    def _of(self, query: str, only: Iterable[str] | None) -> str:
        return f"SELECT {', '.join(self.columns if only is None else only)} FROM ({query})"


_TABLES = {
    table.name: table for table in (*load.TABLES, *derived.TABLES, *server.TABLES, *node.TABLES, *nsys.TABLES)
}


def _sql_type(type_: pa.DataType) -> str:
    if pa.types.is_dictionary(type_) or pa.types.is_string(type_):
        return TEXT
    known: dict[pa.DataType, str] = {pa.int64(): INT, pa.float64(): REAL, pa.bool_(): FLAG}
    return known[type_]


def _of(table: str, *names: str) -> Columns:
    """Columns of a table of the run, all or some."""
    types = {column.name: _sql_type(column.type) for column in _TABLES[table].columns}
    return {name: types[name] for name in names or types}


_BATCH_KEY = _of("batch_costs", "server", "instance", "instance_device", "batch_id")
_OWNER = _of("batch_costs", "phase", "server", "instance", "instance_device", "model")
_GPU_STATE = {"util": REAL, "sm_util": REAL, "sm_clock_hz": REAL, "throttle_reasons": INT}
_AT_BATCH = {f"gpu_{name}": type_ for name, type_ in _GPU_STATE.items()}

# What each server executed.

_IN_EXECUTIONS = "analysis/join/executions.py"
EXECUTIONS = Relation(
    "executions",
    "batch that any server executed; with server, instance and its device batch_id is the key",
    _IN_EXECUTIONS,
    _of(
        "batch_costs", "node", "server", "model", "version", "instance", "instance_device", "batch_id", "start_ns",
        "end_ns", "rows", "n_requests", "phase", "source",
    ),
)  # fmt: skip
TRACED = Relation(
    "traced",
    "of these, batch that only Triton's trace tells of",
    _IN_EXECUTIONS,
    {**EXECUTIONS.columns, "compute_start_ns": INT},
)
DECOUPLED = Relation(
    "decoupled",
    "model with executions whose work goes on after them",
    _IN_EXECUTIONS,
    _of("batch_costs", "server", "model"),
)
PLACED = Relation(
    "placed",
    "row of `executions` with the order of its start as `place`, from 1",
    _IN_EXECUTIONS,
    {**EXECUTIONS.columns, "place": INT},
)
NAMED = Relation(
    "named",
    "request id that any batch names, with the place of the one that it belongs to",
    _IN_EXECUTIONS,
    {"request_id": INT, "place": INT},
)

PAIRS = Relation(
    "pairs",
    "request id and a batch that names it, where a server executed several models",
    _IN_EXECUTIONS,
    {"request_id": INT, **_of("batch_costs", "start_ns", "end_ns"), "place": INT, "server_place": INT},
)
PASSED = Relation(
    "passed",
    "of these, at the server of the batch that the request belongs to",
    _IN_EXECUTIONS,
    {"request_id": INT, "place": INT, "is_on_path": FLAG, "is_joined": FLAG},
)

# The executions dealt into slices.

_IN_SLICES = "analysis/join/batch_slices.py"
_OF_PHASE = {"server": TEXT, "phase": TEXT}
RANGES = Relation(
    "ranges",
    "batch that has an NVTX range",
    _IN_SLICES,
    {**_BATCH_KEY, "range_start_ns": INT, "range_end_ns": INT, "process": INT, "thread": INT},
)
COUNTS = Relation(
    "counts", "server and phase: about how many events", _IN_SLICES, {**_OF_PHASE, "n_events": INT}
)
WEIGHTS = Relation("weights", "server and phase: events a batch", _IN_SLICES, {**_OF_PHASE, "weight": REAL})
BARE = Relation("bare", "server of which no event has a batch", _IN_SLICES, {"server": TEXT})
WINDOWED = Relation(
    "windowed",
    "bare server and phase in which its operations were recorded, and from when on",
    _IN_SLICES,
    {**_OF_PHASE, "from_ns": INT},
)
RECORDED_WINDOWS = Relation(
    "recorded_windows",
    "stretch of a server that the kernel library recorded, and what of it",
    "analysis/recorded.py",
    {
        **_of("recordings", "server", "start_ns", "end_ns"),
        **dict.fromkeys(("has_kernels", "has_copies", "has_calls"), FLAG),
    },
)
RECORDED = Relation(
    "recorded",
    "server and phase, and which kinds of events of them the reports hold",
    _IN_SLICES,
    {**_OF_PHASE, "has_ops": FLAG, "has_calls": FLAG},
)

# What the join looks up.

_IN_SOURCES = "analysis/join/sources.py"
FIRST_ROWS = Relation(
    "first_rows",
    "request id: the first of its rows of `requests`",
    _IN_SOURCES,
    _of("requests", "request_id", "phase", "target", "request_kind", "sent_ns", "done_ns", "rows", "outcome"),
)
CLOCKS = Relation(
    "clocks",
    "instant from which a node's clock has an error, to its next row",
    _IN_SOURCES,
    {"node": TEXT, "from_ns": INT, "error_ns": INT},
)
SERVED = Relation(
    "served",
    "request that a batch names; ok ones were sent and ended",
    _IN_SOURCES,
    {
        **_of("requests", "request_id", "request_kind", "rows", "phase", "sent_ns", "done_ns"),
        "place": INT,
        "is_ok": FLAG,
    },
)
CHILDREN = Relation(
    "children",
    "execution that names no request, and the one of another model that holds it, by place",
    _IN_SOURCES,
    {"place": INT, "parent_place": INT},
)
MODELS = Relation(
    "models", "model of a server, by number", _IN_SOURCES, {"server": TEXT, "model": TEXT, "model_place": INT}
)
GPU_STATES = Relation(
    "gpu_states",
    "NVML sample of a whole GPU; is_only: no other GPU of the node was sampled",
    _IN_SOURCES,
    {**_of("gpu_samples", "node", "gpu_uuid", "t_ns", "interval_ns"), **_GPU_STATE, "is_only": FLAG},
)
SERVER_GPUS = Relation(
    "server_gpus",
    "GPU that a server sees by its own ordinal, and by none where it sees one alone",
    _IN_SOURCES,
    _of("batch_costs", "server", "instance_device", "gpu_uuid"),
)
STATES = Relation(
    "states",
    "place: the error of its node's clock and the state of its GPU at its start",
    _IN_SOURCES,
    {"place": INT, "error_ns": INT, **_AT_BATCH},
)
_OF_SECOND = {**_OF_PHASE, "model": TEXT, "second": INT}
SERVED_SUMS = Relation(
    "served_sums",
    "server, model, phase and second: sums over the requests that ended ok in it",
    _IN_SOURCES,
    {**_OF_SECOND, "n_joined": INT, "service_ns": WIDE, "compute_ns": WIDE},
)
TRITON_SUMS = Relation(
    "triton_sums",
    "the same by Triton's statistics",
    _IN_SOURCES,
    {**_OF_SECOND, **dict.fromkeys(("n_triton", "server_ns", "input_ns", "infer_ns", "output_ns"), WIDE)},
)
SILENT = Relation(
    "silent",
    "server and model with requests, of which no batch names any, or has_ids: some of them to a decoupled model",
    "analysis/join/meanwhile.py",
    {"server": TEXT, **_of("requests", "request_kind"), "has_ids": FLAG},
)
SILENT_PHASES = Relation(
    "silent_phases",
    "silent server and phase with kernels: its node, and its GPU with most kernel time",
    "analysis/join/meanwhile.py",
    {**_OF_PHASE, "node": TEXT, "gpu_uuid": TEXT},
)
MEANWHILE = Relation(
    "meanwhile",
    "instant at which kernels of a silent server start: sums over all that start by then, and their last end",
    "analysis/join/meanwhile.py",
    {"server": TEXT, **dict.fromkeys(("start_ns", "n_kernels", "kernel_ns", "busy_ns", "reached_ns"), INT)},
)

# Files that the slices of the join read.

EXECUTED = Relation(
    "executed",
    "row of `placed` with its costs and the state of its GPU, in order of place",
    _IN_SOURCES,
    {
        **STATES.columns,
        "model_place": INT,
        **_of(
            "batch_costs", "node", "server", "model", "version", "instance", "instance_device", "batch_id", "start_ns",
            "end_ns", "rows", "n_requests", "source", "tie", "gap_before_ns", "gpu_uuid",
            *(one.name for one in derived.DEVICE_COSTS),
        ),
    },
)  # fmt: skip
MEMBERS = Relation(
    "members",
    "request that a batch names, by request_id: its batch, and the rows of that before the request's",
    _IN_SOURCES,
    {"request_id": INT, "place": INT, "rows_before": INT},
)
STEPPED = Relation(
    "stepped",
    "request that passed several executions and one of them, by request_id",
    _IN_SOURCES,
    {**PASSED.columns, "is_by_time": FLAG},
)
TRACES = Relation(
    "traces",
    "request with a batch, by request_id: instants of its trace at the server and model of that",
    "analysis/join/server_parts.py",
    {
        "request_id": INT,
        **dict.fromkeys(
            (
                "queue_start_ns",
                "compute_start_ns",
                "input_end_ns",
                "output_start_ns",
                "compute_end_ns",
                "left_ns",
            ),
            INT,
        ),
    },
)
WHILE_THERE = Relation(
    "while_there",
    "request at a silent server, or of a decoupled model, by request_id: what the GPU did from its send to its end",
    "analysis/join/meanwhile.py",
    {
        "request_id": INT,
        "gpu_uuid": TEXT,
        **_of("joined", "n_kernels", "kernel_ns", "kernel_busy_ns"),
        **_AT_BATCH,
    },
)
_MEANS = dict.fromkeys(("network_ns", "input_ns", "handover_ns", "output_ns"), INT)
SECOND_MEANS = Relation(
    "second_means",
    "model_place and second: means of the parts of a request",
    "analysis/join/server_parts.py",
    {"model_place": INT, "second": INT, **_MEANS},
)
PHASE_MEANS = Relation(
    "phase_means",
    "model_place and phase: means of the parts of a request",
    "analysis/join/server_parts.py",
    {"model_place": INT, "phase": TEXT, **_MEANS},
)

# Figures of a run.

_IN_REQUESTS = "analysis/metrics/figures/request_figures.py"
_IN_BATCHES = "analysis/metrics/figures/batch_figures.py"
CHOSEN = Relation("chosen", "batch that a figure is of, where it is not of all", _IN_BATCHES, _BATCH_KEY)
PICKED = Relation("picked", "row of `batch_costs` that counts", _IN_BATCHES, _of("batch_costs"))
SPANS = Relation(
    "spans",
    "phase: the part that walls are of",
    _IN_BATCHES,
    {"phase": TEXT, "first_ns": INT, "last_ns": INT},
)
LAID = Relation(
    "laid",
    "batch on the wall of its instance, with the idle time before it",
    _IN_BATCHES,
    {
        **_OWNER,
        **_of(
            "batch_costs", "start_ns", "end_ns", "tie", "head_ns", "tail_ns", "kernel_busy_ns", "copy_exposed_ns",
            "sync_wait_ns", "launch_idle_ns",
        ),
        **dict.fromkeys(("wall_start", "wall_end", "last_end", "idle_ns", "idle_wait_ns", "waited_ns"), INT),
        "is_first": FLAG,
    },
)  # fmt: skip
BATCHED = Relation(
    "batched",
    "row of `joined` with a batch, and the model of that",
    _IN_REQUESTS,
    {
        **_BATCH_KEY,
        "model": TEXT,
        **_of(
            "joined", "outcome", "response_ns", "lag_ns", "compute_ns", "queue_ns", "input_ns", "handover_ns",
            "output_ns", "idle_wait_ns",
        ),
    },
)  # fmt: skip
WAITS = Relation(
    "waits",
    "batch: how long one of its requests waited while the instance was idle",
    _IN_REQUESTS,
    {**_BATCH_KEY, "model": TEXT, "idle_wait_ns": INT},
)
UNSERVED = Relation(
    "unserved",
    "stretch in which requests were out that were never served; before_ns: length of the stretches before",
    _IN_REQUESTS,
    {"server": TEXT, "model": TEXT, "from_ns": INT, "to_ns": INT, "before_ns": INT},
)
TAIL_OPS = Relation(
    "tail_ops",
    "operation of a picked batch, which is a row of `tail_rows`",
    "analysis/findings/tail_batches.py",
    {"batch": INT, "kind": INT, **_of("kernels", "start_ns", "end_ns", "launch_start_ns", "launch_end_ns")},
)
TAIL_ROWS = Relation(
    "tail_rows",
    "picked batch by number, from 0",
    "analysis/findings/tail_batches.py",
    {"batch": INT, **_OWNER, "batch_id": INT},
)
KEPT = Relation(
    "kept",
    "request of the account: its latency and those of the parts that its level has",
    "analysis/summary/accounting.py",
    _of(
        "joined", "response_ns", "service_ns", "lag_ns", "wait_ns", "compute_ns", "reply_ns", "network_ns", "queue_ns",
        "input_ns", "handover_ns", "output_ns", "residual_ns", "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns",
        "launch_idle_ns", "head_ns", "tail_ns",
    ),
)  # fmt: skip
WALKED = Relation(
    "walked",
    "step of an ok request of the figures, with the request's latency",
    "analysis/summary/step_figures.py",
    {
        **_of("steps", "request_id", "model", "is_on_path", "wait_ns"),
        **dict.fromkeys(("compute_ns", "latency_ns"), INT),
    },
)

# An nsys report, in nsys's names: its other views are the tables of the report.

_IN_REPORT = "analysis/nsys/batches.py"
API_CALLS = Relation(
    "api_calls",
    "CUDA call of the report, and the row of our range that it lies in",
    _IN_REPORT,
    dict.fromkeys(("gt", "s", "e", "cid", "nameId", "eventClass", "returnValue", "range"), INT),
)
LAUNCHES = Relation(
    "launches",
    "process (with hardware and VM) and correlation id: the call, so that a join never makes rows",
    _IN_REPORT,
    dict.fromkeys(("gp", "cid", "s", "e", "gt", "nameId", "range"), INT),
)
GPUS = Relation(
    "gpus",
    "CUDA device of a process, of any where pid is null",
    _IN_REPORT,
    {
        **dict.fromkeys(("cudaId", "pid"), INT),
        "uuid": TEXT,
        **dict.fromkeys(
            ("computeMajor", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm"), INT
        ),
    },
)


def by_name(relations: Iterable[Relation]) -> dict[str, Relation]:
    """Raises ValueError where two have one name, or one that of a table of a run."""
    found: dict[str, Relation] = {}
    for one in relations:
        if one.name in found or one.name in _TABLES:
            raise ValueError(f"two relations are named {one.name}")
        found[one.name] = one
    return found


RELATIONS = by_name(one for one in tuple(globals().values()) if isinstance(one, Relation))
