"""A recorded run as a trace: what was asked for, or what was really sent, ready to be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from squall.analysis.requests.requests import is_open_load
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.scenarios.errors import AnalysisError
from squall.scenarios.traces.part import TracePart

Instant = Literal["scheduled", "sent"]


def trace_of_run(store: RunStore, phases: Sequence[str] = (), instant: Instant = "scheduled") -> TracePart:
    """Arrivals of those phases (none: all of kind `measure`), in order of time, with their rows as the size `rows`.

    Stamps are UTC ns. `sent` leaves out what was never sent; `scheduled` is refused for a closed loop and for users of
    Locust, which have no schedule. A request of these that asks no model counts as one row. Raises AnalysisError for a
    phase that the run does not have, and where nothing remains.
    """
    manifest = store.manifest
    if instant == "scheduled" and not is_open_load(manifest):
        whose = "users of Locust have" if manifest.plan.load == "locust" else "a closed loop has"
        raise AnalysisError(f"{store.where}: {whose} no schedule; use --instant sent")
    spans = phase_spans(manifest)
    known = [span.name for span in spans]
    unknown = [name for name in phases if name not in known]
    if unknown:
        raise AnalysisError(f"{store.where}: has no phase {unknown[0]!r}, it has {', '.join(known)}")
    names = list(phases) or [span.name for span in spans if span.kind == "measure"]
    column = f"{instant}_ns"
    table = store.read("requests", ["phase", column, "rows"])
    table = table.filter(pc.is_in(table.column("phase").cast("string"), pc.cast(names, "string")))
    table = table.filter(table.column(column).is_valid())
    if not table.num_rows:
        raise AnalysisError(
            f"{store.where}: no request of {', '.join(names) or 'a measure phase'} was {instant}"
        )
    stamps = table.column(column).to_numpy().astype(np.int64)
    order = np.argsort(stamps, kind="stable")
    rows = table.column("rows").to_numpy().astype(np.int64)
    if manifest.plan.load == "locust":  # a request that asks no model has no rows
        rows = np.maximum(rows, 1)
    return TracePart(stamps[order], {"rows": rows[order]}, None)
