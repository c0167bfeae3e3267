"""One slice of table `steps`: which executions the requests from one id to another passed, where it was more than one.

As a slice of `joined`, it needs nothing of another one, and reads a stretch of what `sources` wrote.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.join.critical_path import waited_from
from squall.analysis.join.slices import JoinSlice, found_rows, places, sorted_requests
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.row_groups import NULL, read_span

BY_ID, BY_TIME = "id", "time"


def step_slice(one: JoinSlice) -> int:
    """Writes the part, its rows in order of request_id and of start, and returns their number. Raises `StoreError`
    (disk)."""
    first, last = one.sources.step_spans[one.number]
    step = read_span([one.sources.path("stepped")], "request_id", first, last)
    batch = found_rows(one.sources, "executed", "place", step["place"])
    request, is_first = sorted_requests(read_span(one.requests, "request_id", first, last))
    first_rows = {
        name: request[name].filter(pa.array(is_first)) for name in ("request_id", "phase", "sent_ns")
    }
    of_request = places(first_rows["request_id"].to_numpy(), step["request_id"])
    waited_ns = _waited_from(step, batch, first_rows["sent_ns"].take(of_request))
    tie = pc.if_else(step["is_by_time"], BY_TIME, BY_ID)
    columns = {
        **{name: step[name] for name in ("request_id", "is_on_path", "is_joined")},
        **{name: batch[name] for name in _OF_BATCH},
        "run": pa.array([one.run] * len(tie), pa.string()),
        "phase": first_rows["phase"].take(of_request),
        "wait_ns": pc.subtract(batch["start_ns"], waited_ns),
        "tie": tie,
    }
    names = arrow_schema("steps").names
    rows = pa.table([columns[name] for name in names], names=names)
    order = [(name, "ascending") for name in ("request_id", "start_ns", "is_on_path", "batch_id")]
    return one.new.write(one.number, rows.take(pc.sort_indices(rows, sort_keys=order)))


_OF_BATCH = (
    "server", "model", "version", "instance", "instance_device", "batch_id", "source", "start_ns", "end_ns", "rows",
    "n_requests",
)  # fmt: skip


def _waited_from(step: dict[str, pa.Array], batch: dict[str, pa.Array], sent: pa.Array) -> pa.Array:
    """From when on each step waited: `waited_from`, else the send of its request; null of one that was not sent."""
    owner, start, end = (one.to_numpy() for one in (step["request_id"], batch["start_ns"], batch["end_ns"]))
    found = waited_from(owner, start, end, step["is_on_path"].to_numpy(zero_copy_only=False))
    return pc.coalesce(pa.array(found, pa.int64(), mask=np.equal(found, NULL)), sent)
