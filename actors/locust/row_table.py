"""Records of a Locust process as rows of `requests`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.locust.row_ring import NEVER, NONE, Rows
from squall.actors.spill import used_words
from squall.analysis.storage.schema import OUTCOMES, arrow_schema


class RowTable:
    """Makes them, for one worker: its labels, and the names of phases, servers and models by their numbers."""

    def __init__(
        self,
        run: str,
        node: str,
        worker: int,
        phases: Sequence[str],
        targets: Sequence[str],
        models: Sequence[str],
    ) -> None:
        self._labels = {"run": run, "node": node}
        self._worker = worker
        self._phases = list(phases)
        self._targets = [*targets, *[""] * (NONE + 1 - len(targets))]
        self._models = [*models, *[""] * (NONE + 1 - len(models))]

    def of(self, rows: Rows) -> pa.Table:
        """The rows of `rows`, in `requests` schema, on the clock of their node."""
        records, n = rows.records, len(rows.records)

        def instant(name: str) -> pa.Array:
            values: NDArray[np.int64] = records[name]
            return pa.array(values.copy(), mask=values == NEVER)

        columns = {
            **{name: used_words(np.zeros(n, np.int32), [text]) for name, text in self._labels.items()},
            "phase": used_words(records["phase"], self._phases),
            "target": used_words(records["target"], self._targets),
            "request_kind": used_words(records["model"], self._models),
            "outcome": used_words(records["outcome"], OUTCOMES),
            **{name: used_words(records[name], rows.words) for name in ("method", "name", "detail")},
            "worker": pa.array(np.full(n, self._worker, np.int64)),
            **{name: instant(name) for name in ("sent_ns", "done_ns")},
            **{name: pa.nulls(n, pa.int64()) for name in ("scheduled_ns", "first_byte_ns")},
            **{
                name: pa.array(records[name].astype(np.int64))
                for name in ("request_id", "rows", "request_bytes", "response_bytes")
            },
        }
        schema = arrow_schema("requests")
        return pa.table([columns[name] for name in schema.names], schema=schema)
