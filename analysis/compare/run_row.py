"""One run as a row: all that commands which compare runs read of it, kept as `run.parquet` in its directory.

A folder of analysed runs is a table: `SELECT name, figures['p95_ns'].value FROM read_parquet('runs/*/run.parquet')`.
The row is made when the run is analysed. One that is lacking, of another version, or of other tables than the manifest
states is made again where it is read, and not written.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from squall.analysis.compare.level import Level, level_of
from squall.analysis.compare.of_run import promises_of
from squall.analysis.compare.run_account import NO_ACCOUNT, RunAccount, run_account
from squall.analysis.record import from_json, parquet_schema, to_json
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import quantile_values
from squall.analysis.storage.intact import content_errors_of, finite, require_intact
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect, rows
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.run_figures import Reading, run_figures
from squall.scenarios.errors import SquallError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.locust_plan import NO_LOAD
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

FILE = "run.parquet"
FAILURES = "failures_ratio"
"""Share of the measured requests that did not end ok."""
_NO_LOAD = {name.removesuffix("_ns") for name in NO_LOAD}  # as the file has them
SHIFT_PERCENTS = tuple(range(1, 100))
"""Quantiles of the shift curve."""
_TABLES = ("requests", "joined", "batch_costs", "kernels", "cpu_samples", "gpu_samples")
_STATES = {
    "gpu_samples": """SELECT avg(sm_clock_hz) AS sm_clock_hz, avg(temperature_c) AS temperature_c,
        -- 1: nothing to run, which throttles nothing
        avg((throttle_reasons > 1)::INTEGER) AS throttled_ratio""",
    "cpu_samples": "SELECT sum(others_ns + steal_ns) / nullif(sum(interval_ns * n_cores), 0) AS others_ratio",
}
"""Figures of `RunRow.states` over the measured phases, by the table of their samples. `uptime_ns` besides: of the
server that has run longest, before the load."""
_BYTES_PER_ROW = """
    SELECT median(request_bytes / rows) AS bytes_per_row FROM requests WHERE request_bytes > 0 AND rows > 0"""
_GPUS = "SELECT DISTINCT gpu_uuid::VARCHAR FROM joined WHERE gpu_uuid <> ''"
"""Those that served requests."""
_MOST_BYTES, _MOST_VALUES = 32 * 1024**2, 1_000_000
"""Of a row, and of one of its columns: a run has some thousand kernels."""


class Answers(Frozen):
    """Of the replies of the measured phases. `sha256`: of id and size in bytes of each; None where one did not end ok.
    `n_checked` values were compared with the reference, `n_wrong` were wrong; None: none were compared."""

    sha256: str | None = None
    n_checked: int | None = None
    n_wrong: int | None = None


class RunRow(Frozen):
    """A run. `schedule`: digest of its plan, `seed` its seed: both runs of a pair have the same."""

    name: str
    status: str
    reasons: tuple[str, ...] = ()
    ended_early: bool = False
    """its load was ended once the outcome of its promises was certain"""
    seed: int | None = None
    schedule: str = ""
    load: str = ""
    """digest of what scenario and squall say of arrivals and rows, without which server each is for"""
    started_ns: int = 0
    scenario: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    """of the scenario"""
    is_open: bool = True
    collectors_on: tuple[str, ...] = ()
    setting: Mapping[str, str] = field(default_factory=dict)
    """hardware and versions, by what they are called"""
    n_servers: int | None = None
    n_server_nodes: int | None = None
    queue_delay_ns: int | None = None
    """the longest of the batchers of what the servers serve; None where none is known"""
    n: int = 0
    """requests of the measured phases"""
    n_failed: int = 0
    """of these, those that did not end ok"""
    request_bytes_per_row: float | None = None
    """median of the sent requests"""
    gpus: tuple[str, ...] = ()
    """UUIDs of those that it ran on"""
    states: Mapping[str, float] = field(default_factory=dict)
    """of GPUs and CPU, means over the measured phases, and of servers; what was not sampled is absent"""
    figures: Mapping[str, Reading] = field(default_factory=dict)
    """by metric, those of `verdict.run_figures` over all measured phases, and `FAILURES`"""
    quantiles_ns: tuple[float | None, ...] = ()
    """(99,), of `SHIFT_PERCENTS`; None where infinite or where its requests carry none"""
    level: Level | None = None
    """of an open loop"""
    account: RunAccount = NO_ACCOUNT
    answers: Answers = Answers()
    offered_hz: float | None = None
    """the load that was asked for, in the measured phases"""
    promises: Mapping[str, str] = field(default_factory=dict)
    """verdict by promise"""
    made_of: str = ""
    """digest of the tables that the figures are of"""
    problem: str = ""
    """why it cannot be read"""

    @property
    def is_valid(self) -> bool:
        """Whether its figures are of the load that was asked for."""
        return self.status == "VALID" and not self.ended_early and not self.problem

    @property
    def has_verdict(self) -> bool:
        """Whether it ran to its end: it is neither ABORTED nor open, and can be read."""
        return self.status in ("VALID", "INVALID") and not self.problem

    @property
    def why_left_out(self) -> str:
        """Of a run that is not valid: its status and how its first reason begins, or that it ended early."""
        if self.ended_early and self.status == "VALID":
            return self.problem or "ended early, once its promises were decided"
        return self.problem or "; ".join(
            [self.status or "not sealed", *(one.split(":")[0] for one in self.reasons[:1])]
        )


def read_row(path: Path) -> RunRow:
    """The run in directory `path`. Never raises for one that is damaged, open or INVALID: it says so."""
    try:
        with content_errors_of(path.name):
            store = RunStore.open(path)
            manifest = store.manifest
            if manifest.status != "VALID" or manifest.decided is not None:
                return RunRow(**_head(path.name, manifest))
            require_intact(store, derived_too=True)
            return run_row(store)
    except (SquallError, OSError) as error:
        return RunRow(path.name, "", problem=f"cannot be read: {error}")


def run_row(store: RunStore) -> RunRow:
    """The row that is kept of a run, else made now; of one without requests what its manifest says."""
    head = _head(store.run_dir.name, store.manifest)
    if not store.has("requests"):
        return RunRow(**head)
    row = _kept(store)
    return make_row(store) if row is None else replace(row, **head)


def write_row(store: RunStore, summary: Mapping[str, Any], memory_limit_bytes: int) -> None:
    """Makes the row of a run and keeps it. `summary`: as `summary.json` has it."""
    import pyarrow.parquet as pq

    row = to_json(make_row(store, summary, memory_limit_bytes))
    row["scenario"] = json.dumps(row["scenario"])
    sink = io.BytesIO()
    table = pa.Table.from_pylist([row], parquet_schema(RunRow))
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    store.write_file(FILE, [sink.getvalue()])


def _kept(store: RunStore) -> RunRow | None:
    """None where there is none of these tables and of this version of squall."""
    import pyarrow.parquet as pq

    try:
        content = pa.BufferReader(store.read_bytes(FILE, _MOST_BYTES))
        with pq.ParquetFile(content) as file:
            group = file.metadata.row_group(0)
            chunks = [group.column(place) for place in range(group.num_columns)]
            # as it was written each value takes its bytes: no small file becomes a large row
            is_own = file.metadata.num_rows == 1 and all(
                chunk.compression == "UNCOMPRESSED"
                and {"PLAIN", "RLE", "BIT_PACKED"}.issuperset(chunk.encodings)
                and chunk.num_values <= _MOST_VALUES
                for chunk in chunks
            )
            if not is_own or file.schema_arrow.names != parquet_schema(RunRow).names:
                return None
            (found,) = file.read().to_pylist(maps_as_pydicts="strict")
        if finite(found)[1]:
            return None
        row = from_json(RunRow, {**found, "scenario": json_of(found["scenario"])})
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, SquallError):
        return None
    return row if row.made_of == _digest_of_tables(store.manifest) else None


def _digest_of_tables(manifest: Manifest) -> str:
    text = json.dumps(to_json(manifest.tables or {}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def make_row(
    store: RunStore,
    summary: Mapping[str, Any] | None = None,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> RunRow:
    """The row of a run, from its tables and, of what was asked for and promised, `summary`. Raises MissingTable for a
    run without requests."""
    manifest = store.manifest
    requests, spans = Requests.read(store), measure_spans(manifest)
    phases = [span.name for span in spans]
    measured = requests.in_phases(phases)
    n, n_failed = len(measured), int((~measured.is_ok).sum())
    failures = Reading(n_failed / n) if n else Reading(None, "no request was to be sent")
    late_from_ns = next(
        (one.late_from_ns for one in promises_of(manifest) if one.metric in ("response", "goodput")), None
    )
    long = [span for span in spans if span.end_ns > span.start_ns]
    quantiles = quantile_values(
        measured.latency_ns, [percent / 100.0 for percent in SHIFT_PERCENTS], ~measured.is_ok
    )
    tables = [name for name in _TABLES if store.has(name)]
    intended = (summary or {}).get("measure", {}).get("load", {})
    intended = intended.get("intended") or intended.get("delivered") or {}
    with connect(store, tables, memory_limit_bytes) as connection:
        connection.execute("CREATE TEMP TABLE measured AS SELECT unnest($1::VARCHAR[]) AS phase", [phases])
        gpus = [gpu for one in rows(connection, _GPUS) for gpu in one.values()] if "joined" in tables else []
        checks = manifest.value_checks
        return RunRow(
            **_head(store.run_dir.name, manifest),
            n=n,
            n_failed=n_failed,
            request_bytes_per_row=rows(connection, _BYTES_PER_ROW)[0]["bytes_per_row"],
            gpus=tuple(sorted(gpus or {gpu for server in manifest.servers.values() for gpu in server.gpus})),
            states=_states(connection, tables, manifest),
            figures={**run_figures(store, requests), FAILURES: failures},
            quantiles_ns=tuple(None if one.value_ns is None else float(one.value_ns) for one in quantiles),
            level=level_of(requests, long, late_from_ns) if requests.is_open and long else None,
            account=run_account(connection, tables),
            answers=Answers(
                # of Locust the request of one id is another one in each run
                None if n_failed or manifest.plan.load == "locust" else _digest_of_sizes(connection),
                checks.n_checked if checks else None,
                checks.n_wrong if checks else None,
            ),
            offered_hz=intended.get("rate_hz"),
            promises={one["promise"]: one["verdict"] for one in (summary or {}).get("promises") or ()},
            made_of=_digest_of_tables(manifest),
        )


def _head(name: str, manifest: Manifest) -> dict[str, Any]:
    """What the manifest says of a run, with requests or without."""
    servers = manifest.servers.values()
    delays = [own.queue_delay_ns for one in servers for own in one.serving.values()]
    return {
        "name": name,
        "status": manifest.status or manifest.state,
        "reasons": tuple(manifest.reasons),
        "ended_early": manifest.decided is not None,
        "seed": manifest.seed,
        "schedule": manifest.plan.sha256 or "",
        "load": load_digest(manifest),
        "started_ns": manifest.started_ns or 0,
        "scenario": manifest.scenario or {},
        "digest": manifest.scenario_digest or "",
        "is_open": manifest.plan.load == "open",
        "collectors_on": tuple(
            sorted(name for name, one in manifest.collectors.items() if one.status == "on")
        ),
        "setting": _setting(manifest),
        "n_servers": len(servers) or None,
        "n_server_nodes": len({one.node for one in servers}) or None,
        "queue_delay_ns": max((one for one in delays if one is not None), default=0) if delays else None,
    }


def load_digest(manifest: Manifest) -> str:
    """Equal for runs of one squall that send the same rows at the same instants, from the same seed; the digest of a
    plan holds which of several servers each arrival is for, too."""
    scenario = manifest.scenario or {}
    clients, locust = _part(scenario, "clients"), _part(scenario, "load", "locust")
    said = [
        scenario.get("phases"), clients.get("rows"), clients.get("payload_variants"), scenario.get("seed"),
        dict(manifest.plan.n_by_phase), manifest.plan.n_users, manifest.versions.get("squall"),
    ]  # fmt: skip
    if scenario.get("load"):  # where a locustfile lies is nobody's matter, what it says is
        stated = {key: one for key, one in locust.items() if key not in _NO_LOAD}
        said += [stated, manifest.locust.file_sha256 if manifest.locust is not None else None]
    if scenario.get("models"):
        keys = ("share", "rows", "payload_variants")
        said.append([[one.get(key) for key in keys] for one in manifest.stated_models.values()])
    if manifest.data is not None:
        said += [manifest.data.sha256, {**_part(clients, "data"), "path": None}]
    for name, data in sorted(manifest.data_by_model.items()):
        said += [name, data.sha256, {**_part(manifest.stated_models, name, "data"), "path": None}]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _part(stated: object, *keys: str) -> dict[str, Any]:
    """What a scenario states under the keys; nothing where that is no object, as in a manifest that anybody wrote."""
    for key in keys:
        stated = stated.get(key) if isinstance(stated, Mapping) else None
    return dict(stated) if isinstance(stated, Mapping) else {}


def _setting(manifest: Manifest) -> dict[str, str]:
    """What a run stood on, by what it is called: hardware, versions."""
    found = {f"version of {name}": text for name, text in manifest.versions.items()}
    for label, node in manifest.nodes.items():
        of_node = {
            "CPU": node.cpu_model, "cores": node.n_cores, "kernel": node.kernel,
            "GPUs": None if node.gpus is None else ", ".join(node.gpus) or "none",
        }  # fmt: skip
        found |= {f"{what} of {label}": str(value) for what, value in of_node.items() if value is not None}
    for name, server in manifest.servers.items():
        of_server = {
            "Triton": server.server_version,
            "source": server.source,
            "model version": server.version,
        }
        found |= {f"{what} of {name}": text for what, text in of_server.items() if text is not None}
    return found


def _states(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], manifest: Manifest
) -> dict[str, float]:
    """Those that are known."""
    found: dict[str, Any] = {}
    for table, query in _STATES.items():
        if table in tables:
            found |= rows(connection, f"{query} FROM {table} SEMI JOIN measured USING (phase)")[0]
    uptimes = [one.uptime_ns for one in manifest.servers.values() if one.uptime_ns is not None]
    found["uptime_ns"] = max(uptimes, default=None)
    return {name: float(value) for name, value in found.items() if value is not None}


def _digest_of_sizes(connection: duckdb.DuckDBPyConnection) -> str:
    """Of the measured requests, their ids and the sizes of their replies."""
    sizes = connection.execute(
        """SELECT request_id::BIGINT AS request_id, response_bytes::BIGINT AS response_bytes
        FROM requests SEMI JOIN measured USING (phase) ORDER BY request_id"""
    ).fetchnumpy()
    columns = [np.ascontiguousarray(sizes[name], np.int64) for name in ("request_id", "response_bytes")]
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
