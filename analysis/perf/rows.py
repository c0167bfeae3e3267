"""The requests of a run as arrays in order of their ends: what windows are cut from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.load import OUTCOMES

COLUMNS = ["scheduled_ns", "sent_ns", "first_byte_ns", "done_ns", "outcome"]
"""Of `requests`."""


@dataclass(frozen=True, eq=False)
class EndedRequests:
    """Requests that were sent and ended, (n,) each, by `done_ns`; ns on the run clock. Of one that failed
    `first_byte_ns` is `done_ns` where no byte came; `scheduled_ns` is None in a closed loop."""

    sent_ns: Int64s
    first_byte_ns: Int64s
    done_ns: Int64s
    is_ok: Bools
    scheduled_ns: Int64s | None

    @classmethod
    def read(cls, store: RunStore) -> EndedRequests:
        """Those of a run. Raises `MissingTable`."""
        return cls.from_table(store.read("requests", COLUMNS))

    @classmethod
    def from_table(cls, table: pa.Table) -> EndedRequests:
        """From `requests`, in any order, with at least `COLUMNS`."""
        ended = table.filter(pc.and_(pc.is_valid(table["sent_ns"]), pc.is_valid(table["done_ns"])))
        done_ns = ended["done_ns"].to_numpy()
        order = np.argsort(done_ns, kind="stable")
        scheduled = ended["scheduled_ns"]
        first_byte = pc.coalesce(ended["first_byte_ns"], ended["done_ns"])
        assert "ok" in OUTCOMES
        return cls(
            sent_ns=ended["sent_ns"].to_numpy()[order],
            first_byte_ns=first_byte.to_numpy()[order],
            done_ns=done_ns[order],
            is_ok=pc.equal(ended["outcome"].cast(pa.string()), "ok").to_numpy()[order],
            scheduled_ns=None if scheduled.null_count else scheduled.to_numpy()[order],
        )

    def __len__(self) -> int:
        return len(self.done_ns)

    def between(self, start_ns: int, end_ns: int) -> EndedRequests:
        """Those that ended in [start_ns, end_ns), as views."""
        first, last = np.searchsorted(self.done_ns, [start_ns, end_ns])
        return self._each(lambda values: values[first:last])

    def first_sent(self, n: int, since_ns: int) -> EndedRequests:
        """The `n` that were sent first from `since_ns` on, by their ends; fewer where there are fewer."""
        candidates = np.flatnonzero(self.sent_ns >= since_ns)
        chosen = np.sort(candidates[np.argsort(self.sent_ns[candidates], kind="stable")[:n]])
        return self._each(lambda values: values[chosen])

    def _each(self, part: Callable[[np.ndarray], np.ndarray]) -> EndedRequests:
        scheduled = None if self.scheduled_ns is None else part(self.scheduled_ns)
        return EndedRequests(
            part(self.sent_ns), part(self.first_byte_ns), part(self.done_ns), part(self.is_ok), scheduled
        )
