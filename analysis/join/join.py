"""Table `joined`: each scheduled arrival with the batch that served it and what that did, by request id.

    scheduled   sent        batch_start          batch_end        done
        │─ lag ──│── wait ──────│────── compute ──────│── reply ────│
        │                       response                            │

`scheduled`, `sent` and `done` are stamps of the client's node, `batch_start` and `batch_end` of the
server's: wait and reply carry the error of both clocks at `sent` and `batch_start`, `clock_error_ns`; compute, lag,
service and response carry none. `server_parts` says what wait and reply are made of.

A request that several batches name belongs to the one that starts first, or where a server executed several models to
the longest step on its critical path (`executions`). What the batch cost is repeated for each of
its requests; kernel_share_ns and gpu_share_ns are the request's own part. Where the rows of the batch are R, those of
its requests up to and with this one c, in order of request_id, and those before it b, its part of K is
floor(K c / R) - floor(K b / R): the parts of a whole batch add up to K. Requests that are not ours keep theirs. Of a
request id that stands in several rows, each has the batch, and the first in time has the part.

Table `steps` has all executions that such a request passed, and those of other models within them that name nobody
(`squall.analysis.join.critical_path`). A run in which no request passed several has no such table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.named_ids import count_named, n_repeated
from squall.analysis.join.server_parts import PARTS
from squall.analysis.join.slices import JoinSlice, join_slice
from squall.analysis.join.sources import Sources, write_sources
from squall.analysis.join.step_rows import step_slice
from squall.analysis.storage.held_folder import held_folder
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, Spread, connect, in_turn
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import MissingTable

_ROW_BYTES = 8192
"""Memory for a row of a slice while it is made, so that two at a time take half of the limit."""
_LEAST_ROWS, _MOST_ROWS = 10_000, 500_000
"""In a slice: smaller ones cost more to begin than to make, larger ones are no faster."""

_LATENCY = "coalesce(response_ns, service_ns)"
_IS_ACCOUNTED = "outcome = 'ok' AND parts_level <> 'none'"
_SUMS = ", ".join(f"sum({column}) FILTER ({_IS_ACCOUNTED}) AS {column}" for column in PARTS)
_REPORT = f"""
SELECT count(*) AS n_requests, count(*) FILTER (outcome = 'ok') AS n_ok,
    count(*) FILTER (join_level = 'exact') AS n_exact,
    count(*) FILTER (outcome = 'ok' AND join_level = 'exact') AS n_ok_exact,
    histogram(join_level) AS n_by_level, histogram(parts_level) AS n_by_parts_level,
    count(*) FILTER (outcome = 'ok' AND tie <> 'none' AND n_kernels > 0) AS n_ok_kernels,
    median(abs(residual_ns) / greatest({_LATENCY}, 1)) FILTER ({_IS_ACCOUNTED}) AS residual_median_ratio,
    sum({_LATENCY}) FILTER ({_IS_ACCOUNTED}) AS latency_ns, {_SUMS}
FROM joined
"""


@dataclass(frozen=True)
class JoinReport:
    """How well requests, batches and kernels found each other, and what the parts of the latency leave unexplained."""

    n_requests: int
    n_ok: int
    n_exact: int
    n_ok_exact: int
    n_repeated_rows: int
    """Rows of `requests` beyond the first of their request id: 0 in a run that is whole."""
    n_by_level: dict[str, int] | None
    """Requests by join_level; levels without any are left out. None without requests."""
    n_by_parts_level: dict[str, int] | None
    """Requests by parts_level, likewise."""
    n_ok_kernels: int
    """Requests that ended ok and have kernels, of their batch or by time."""
    residual_median_ratio: float | None
    """Median of |residual| / latency over the requests that ended ok and have parts; None of none."""
    sums_ns: dict[str, int]
    """Over the same requests the sum of the latencies, `latency_ns`, and of each part; the parts add up to it."""
    n_duplicate_ids: int
    """Request ids that more than one batch of a model names; the first batch was taken."""
    n_foreign: int
    """Entries of batches that are not rows of `requests`: another client's, or an id we did not plan."""


def write_joined(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread = in_turn
) -> JoinReport:
    """Writes table `joined`, exactly one row per row of `requests`, in order of request_id, and `steps` where any
    request passed several executions.

    Reads the derived table `batch_costs`, and writes it first if the run has none. Without `batches` and
    `triton_traces` every row is joined at level `window` or `none`, its batch columns null. The rows do not depend on
    `memory_limit_bytes` and `spread`. Raises `MissingTable` if the run has no requests. The error of a clock that the
    manifest does not state is null.
    """
    if not store.has("requests"):
        raise MissingTable(f"{store.where} has no table requests")
    if not store.has("batch_costs"):
        write_batch_costs(store, memory_limit_bytes=memory_limit_bytes, spread=spread)
    rows_per_slice = min(_MOST_ROWS, max(_LEAST_ROWS, memory_limit_bytes // _ROW_BYTES))
    with held_folder(store.run_dir) as folder:
        sources = write_sources(store, folder, rows_per_slice, memory_limit_bytes)
        _write(store, "joined", sources, spread)
        if sources.step_spans:
            _write(store, "steps", sources, spread)
    return read_join_report(store, memory_limit_bytes)


def _write(store: RunStore, table: str, sources: Sources, spread: Spread) -> None:
    """A part for each slice."""
    make, spans = (join_slice, sources.spans) if table == "joined" else (step_slice, sources.step_spans)
    with store.replacing(table) as new:
        requests, nodes = tuple(store.parts("requests")), store.manifest.nodes
        spread(
            make,
            [JoinSlice(store.run, requests, nodes, sources, number, new) for number in range(len(spans))],
        )


def read_join_report(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> JoinReport:
    """The report of the `joined` table as it stands. Raises `MissingTable` if it was never written."""
    has_batches = store.has("batches")
    with connect(
        store, ["joined", "batches"] if has_batches else ["joined"], memory_limit_bytes
    ) as connection:
        answer = connection.execute(_REPORT)
        names = [column[0] for column in answer.description or []]
        found: dict[str, Any] = dict(zip(names, answer.fetchall()[0], strict=True))
        found["n_repeated_rows"] = n_repeated(connection, "joined")
        named = count_named(connection) if has_batches else (0, 0)
    sums_ns = {name: int(found.pop(name) or 0) for name in ("latency_ns", *PARTS)}
    return JoinReport(sums_ns=sums_ns, n_duplicate_ids=named[0], n_foreign=named[1], **found)
