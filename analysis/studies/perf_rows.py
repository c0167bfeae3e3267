"""The requests of a run as arrays in order of their ends: what windows are cut from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.storage.load import OUTCOMES
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from squall.scenarios.config.loader import scenario_of_run
from squall.scenarios.sequences import SequenceRule, Sequences

COLUMNS = ["request_id", "scheduled_ns", "sent_ns", "first_byte_ns", "done_ns", "outcome"]
"""Of `requests`."""


@dataclass(frozen=True, eq=False)
class EndedRequests:
    """Requests that were sent and ended, (n,) each, by `done_ns`; ns on the run clock. Of one that failed
    `first_byte_ns` is `done_ns` where no byte came; `scheduled_ns` is None in a closed loop. One that was answered ok
    response by response ended with the last of its `responses`, instants of each in their order; None of requests with
    one reply. `ends_sequence`: it was the last of a sequence; None of requests of none."""

    sent_ns: Int64s
    first_byte_ns: Int64s
    done_ns: Int64s
    is_ok: Bools
    scheduled_ns: Int64s | None
    responses: npt.NDArray[np.object_] | None = None
    ends_sequence: Bools | None = None

    @classmethod
    def read(cls, store: RunStore) -> EndedRequests:
        """Those of a run. Raises `MissingTable`."""
        streamed = None
        if store.has("responses"):
            streamed = store.read("responses", ["request_id", "index", "t_ns"])
        return cls.from_table(store.read("requests", COLUMNS), streamed, sequences_of(store.manifest))

    @classmethod
    def from_table(
        cls, table: pa.Table, streamed: pa.Table | None = None, sequences: Sequences | None = None
    ) -> EndedRequests:
        """From `requests`, in any order, with at least `COLUMNS`; `streamed`: `responses`."""
        ended = table.filter(pc.and_(pc.is_valid(table["sent_ns"]), pc.is_valid(table["done_ns"])))
        assert "ok" in OUTCOMES
        is_ok = pc.equal(ended["outcome"].cast(pa.string()), "ok").to_numpy()
        done_ns = ended["done_ns"].to_numpy()
        responses = None if streamed is None else _responses(ended, streamed)
        if responses is not None:
            last_ns = [own[-1] if len(own) else done for own, done in zip(responses, done_ns, strict=True)]
            done_ns = np.where(is_ok, np.array(last_ns, np.int64), done_ns)
        ends = None
        if sequences is not None:
            ends = np.array(
                [sequences.place(one).is_end for one in ended["request_id"].to_pylist()], np.bool_
            )
        order = np.argsort(done_ns, kind="stable")
        scheduled = ended["scheduled_ns"]
        first_byte = pc.coalesce(ended["first_byte_ns"], ended["done_ns"])
        return cls(
            sent_ns=ended["sent_ns"].to_numpy()[order],
            first_byte_ns=first_byte.to_numpy()[order],
            done_ns=done_ns[order],
            is_ok=is_ok[order],
            scheduled_ns=None if scheduled.null_count else scheduled.to_numpy()[order],
            responses=None if responses is None else responses[order],
            ends_sequence=None if ends is None else ends[order],
        )

    def __len__(self) -> int:
        return len(self.done_ns)

    def between(self, start_ns: int, end_ns: int) -> EndedRequests:
        """Those that ended in [start_ns, end_ns), as views."""
        first, last = np.searchsorted(self.done_ns, [start_ns, end_ns])
        return self._taken(slice(first, last))

    def first_sent(self, n: int, since_ns: int) -> EndedRequests:
        """The `n` that were sent first from `since_ns` on, by their ends; fewer where there are fewer."""
        candidates = np.flatnonzero(self.sent_ns >= since_ns)
        chosen = np.sort(candidates[np.argsort(self.sent_ns[candidates], kind="stable")[:n]])
        return self._taken(chosen)

    def _taken(self, which: slice | Int64s) -> EndedRequests:
        columns: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(
            self, **{name: values[which] for name, values in columns.items() if values is not None}
        )


def _responses(requests: pa.Table, responses: pa.Table) -> npt.NDArray[np.object_]:
    """The instants of those of each of `requests`, by their ids, as views; `responses` in any order."""
    ordered = responses.sort_by([("request_id", "ascending"), ("index", "ascending")])
    ids, wanted = ordered["request_id"].to_numpy(), requests["request_id"].to_numpy()
    t_ns = ordered["t_ns"].to_numpy()
    found = np.empty(len(wanted), np.object_)
    ends = (np.searchsorted(ids, wanted, side).tolist() for side in ("left", "right"))
    for place, (begin, end) in enumerate(zip(*ends, strict=True)):
        found[place] = t_ns[begin:end]
    return found


def sequences_of(manifest: Manifest) -> Sequences | None:
    """Which sequence each request of a run is of; None where they are of none."""
    if manifest.scenario is None or "sequences" not in manifest.scenario.get("clients", {}):
        return None
    scenario = scenario_of_run(manifest.scenario, "manifest")
    config, plan = scenario.clients.sequences, manifest.plan
    assert config is not None
    n_lanes = config.concurrent or (plan.n_users if plan is not None else None)
    return Sequences(SequenceRule(n_lanes or 1, config.length, scenario.seed, manifest.run))
