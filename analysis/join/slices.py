"""One slice of `joined`: the rows of `requests` from one request id to another, with what explains them.

A slice needs nothing of another one, so that slices are made in any order, by any process that sees the run directory.
Everything is looked up by request id or by number of the batch in files that are sorted by it (`join_sources`), of
which a slice reads a stretch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.clocks.errors import ClockErrors
from squall.analysis.join.executions import TRACE
from squall.analysis.join.meanwhile import COLUMNS as GPU_COLUMNS
from squall.analysis.join.server_parts import server_parts, share_of
from squall.analysis.join.sources import FIRST, Sources
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.part import NewParts
from squall.analysis.storage.row_groups import read_span
from squall.analysis.tables.deployed import NodeFacts
from squall.analysis.tables.derived import DEVICE_COSTS
from squall.scenarios.units import NS_PER_S

_COSTS = tuple(column.name for column in DEVICE_COSTS)
_GPU = tuple(f"gpu_{name}" for name in GPU_COLUMNS)
_MEANWHILE = ("n_kernels", "kernel_ns", "kernel_busy_ns")
_MEANS = ("network_ns", "input_ns", "handover_ns", "output_ns")
_FAR = 2**63 - 1

Arrays = Mapping[str, pa.Array]


@dataclass(frozen=True)
class JoinSlice:
    """Part `number` of `joined`, or of `steps`. Pickles."""

    run: str
    requests: tuple[Path, ...]
    nodes: Mapping[str, NodeFacts]
    sources: Sources
    number: int
    new: NewParts


def join_slice(one: JoinSlice) -> int:
    """Writes the part, its rows in order of request_id, and returns their number. Raises `StoreError` (disk)."""
    first, last = one.sources.spans[one.number]
    request, is_first = sorted_requests(read_span(one.requests, "request_id", first, last))
    ids, said_ids = request["request_id"], said_to_server(request)
    member = found_rows(one.sources, "members", "request_id", said_ids)
    batch = found_rows(one.sources, "executed", "place", member["place"])
    trace = found_rows(one.sources, "traces", "request_id", said_ids)
    first_ids = pc.if_else(pa.array(is_first), ids, pa.scalar(None, pa.int64()))
    columns = {
        **request,
        **_spans(request, batch),
        **server_parts(request, batch, trace, _means(one.sources, request, batch)),
        **_device(batch, found_rows(one.sources, "while_there", "request_id", first_ids)),
        **_shares(request, batch, member["rows_before"], is_first),
        "clock_error_ns": _clock_error(request, batch, one.nodes),
    }
    schema = arrow_schema("joined")
    return one.new.write(one.number, pa.table([columns[name] for name in schema.names], names=schema.names))


def sorted_requests(rows: dict[str, pa.Array]) -> tuple[dict[str, pa.Array], Bools]:
    """`rows` in order of request_id, and whether each is the first of its id."""
    ids = rows["request_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = np.diff(ids[order]) != 0
    if not is_first.all():
        keys = [(name, "ascending") for name in ("request_id", *FIRST)]
        order = pc.sort_indices(pa.table(rows), sort_keys=keys).to_numpy()
    return {name: column.take(pa.array(order)) for name, column in rows.items()}, is_first


def said_to_server(request: Arrays) -> pa.Array:
    """The request ids that a server was told; null of users of Locust who call it without us: what their code
    may say as an id of its own is none of ours."""
    kind = request["request_kind"].cast(pa.string())
    is_told = pc.or_(pc.is_null(request["method"]), pc.not_equal(kind, ""))
    return pc.if_else(is_told, request["request_id"], pa.scalar(None, pa.int64()))


def found_rows(sources: Sources, name: str, key: str, wanted: pa.Array) -> dict[str, pa.Array]:
    """The columns, but for `key`, of the row of a file with each of the `wanted` keys; nulls where there is none."""
    bounds = pc.min_max(wanted)
    first, last = (bounds[end].as_py() for end in ("min", "max"))
    first, last = (0, -1) if first is None else (first, last)
    rows = read_span([sources.path(name)], key, first, last)
    at = places(rows.pop(key).to_numpy(), wanted)
    return {column: values.take(at) for column, values in rows.items()}


def places(keys: Int64s, wanted: pa.Array) -> pa.Array:
    """Where each of `wanted` stands in `keys`, which are sorted and unique; null where it does not, or is null."""
    values = wanted.fill_null(0).to_numpy()
    at = np.searchsorted(keys, values)
    is_there = wanted.is_valid().to_numpy(zero_copy_only=False) & (at < len(keys))
    is_there[is_there] = keys[at[is_there]] == values[is_there]
    return pa.array(at, pa.int64(), mask=~is_there)


def _spans(request: Arrays, batch: Arrays) -> dict[str, pa.Array]:
    """The times between the instants of a request and those of its batch."""
    sent, done, start, end = request["sent_ns"], request["done_ns"], batch["start_ns"], batch["end_ns"]
    return {
        "response_ns": pc.subtract(done, request["scheduled_ns"]),
        "service_ns": pc.subtract(done, sent),
        "lag_ns": pc.subtract(sent, request["scheduled_ns"]),
        "batch_start_ns": start,
        "batch_end_ns": end,
        "batch_rows": batch["rows"],
        "batch_n_requests": batch["n_requests"],
        "wait_ns": pc.subtract(start, sent),
        "compute_ns": pc.subtract(end, start),
        "reply_ns": pc.subtract(done, end),
        **{
            name: batch[name]
            for name in ("server", "instance", "instance_device", "batch_id", "gap_before_ns")
        },
    }


def _means(sources: Sources, request: Arrays, batch: Arrays) -> dict[str, pa.Array]:
    """Of each request the means of the second in which it ended at its model, else those of its phase."""
    paths = [sources.path(name) for name in ("second_means", "phase_means")]
    seconds, phases = (read_span([path], "model_place", 0, _FAR) for path in paths)
    model = batch["model_place"]
    by_second = places(
        _joint(seconds["model_place"], seconds["second"]).to_numpy(),
        _joint(model, pc.divide(request["done_ns"], NS_PER_S)),
    )
    words = request["phase"].dictionary.to_pylist()
    codes = pa.array(
        [words.index(one) if one in words else -1 for one in phases["phase"].to_pylist()], pa.int64()
    )
    keys = _joint(phases["model_place"], codes).to_numpy()
    order = np.argsort(keys)
    at = places(keys[order], _joint(model, request["phase"].indices.cast(pa.int64())))
    by_phase = pa.array(order).take(at)
    return {name: pc.coalesce(seconds[name].take(by_second), phases[name].take(by_phase)) for name in _MEANS}


def _joint(model_place: pa.Array, other: pa.Array) -> pa.Array:
    """One key of two: seconds and codes of phases are far below 2^40."""
    return pc.add(pc.multiply(model_place, 2**40), other)


def _device(batch: Arrays, meanwhile: Arrays) -> dict[str, pa.Array]:
    """How far the join went, and what the batch did on CPU and GPU, else what the GPU did meanwhile."""
    source, is_meanwhile = batch["source"].cast(pa.string()), meanwhile["n_kernels"].is_valid()
    by_batch = pc.if_else(pc.equal(source, TRACE), "batch", "exact")
    found = {
        "join_level": pc.coalesce(by_batch, pc.if_else(is_meanwhile, "window", "none")),
        "tie": pc.if_else(is_meanwhile, "window", pc.coalesce(batch["tie"].cast(pa.string()), "none")),
        "gpu_uuid": pc.coalesce(*(one["gpu_uuid"].cast(pa.string()) for one in (meanwhile, batch)), ""),
    }
    for name in _COSTS:
        found[name] = pc.coalesce(batch[name], meanwhile[name]) if name in _MEANWHILE else batch[name]
    return found | {name: pc.coalesce(batch[name], meanwhile[name]) for name in _GPU}


def _shares(request: Arrays, batch: Arrays, rows_before: pa.Array, is_first: Bools) -> dict[str, pa.Array]:
    """Its part of the batch's kernels and of its time on the GPU; none for a repeated row of a request id."""
    rows = pc.if_else(pa.array(is_first), request["rows"], 0)
    gpu_ns = pc.add(batch["kernel_busy_ns"], batch["copy_exposed_ns"])
    wholes = {"kernel_share_ns": batch["kernel_ns"], "gpu_share_ns": gpu_ns}
    return {name: share_of(whole, rows_before, rows, batch["rows"]) for name, whole in wholes.items()}


def _clock_error(request: Arrays, batch: Arrays, nodes: Mapping[str, Any]) -> pa.Array:
    """Bound on the error between the clocks of the request's node at its send and the batch's at its start.

    What was never sent is taken at the instant that it was scheduled for.
    """
    at = pc.coalesce(request["sent_ns"], request["scheduled_ns"])
    own, words = request["node"].indices, request["node"].dictionary.to_pylist()
    client = pa.nulls(len(at), pa.int64())
    for code, node in enumerate(words):
        if node in nodes:
            client = pc.if_else(pc.equal(own, code), ClockErrors.from_node(nodes[node]).at(at), client)
    error = pc.add(client, batch["error_ns"])
    is_same = pc.equal(request["node"].cast(pa.string()), batch["node"].cast(pa.string()))
    return pc.if_else(is_same, 0, error)
