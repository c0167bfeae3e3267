"""Requests of the columns that a test says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from squall.analysis.requests.requests import Requests

TEXTS = {
    "node": "node-0",
    "phase": "main",
    "target": "server-0",
    "request_kind": "m",
    "outcome": "ok",
    "detail": "",
}


def requests_of(begin_ns: Any, is_open: bool = True, **columns: Any) -> Requests:
    """Requests that begin then, in an open loop on schedule, and end ok at once, but for `columns`: a value for all,
    or one of each."""
    n = len(begin_ns)
    plain = {
        "request_id": np.arange(n),
        "worker": 0,
        "rows": 1,
        "sent_ns": begin_ns,
        "done_ns": begin_ns,
        **TEXTS,
    }
    scheduled = {"scheduled_ns": begin_ns if is_open else None}

    def column(name: str, value: Any) -> pa.Array:
        values = value if isinstance(value, list | np.ndarray) else [value] * n
        return pa.array(values, pa.string() if name in TEXTS else pa.int64())

    every = {**plain, **scheduled, **columns}
    return Requests.from_table(
        pa.table({name: column(name, value) for name, value in every.items()}), is_open
    )
