"""The requests of a run as arrays in order of their ends: what windows are cut from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.load import OUTCOMES
from squall.analysis.tables.manifest import Manifest
from squall.scenarios.config.loader import scenario_of_run
from squall.scenarios.sequences import SequenceRule, Sequences

COLUMNS = ["request_id", "scheduled_ns", "sent_ns", "first_byte_ns", "done_ns", "outcome"]
"""Of `requests`."""


@dataclass(frozen=True, eq=False)
class Responses:
    """Of requests that are answered response by response: `t_ns[begin : begin + n]` are one's, in their order; `begin`
    and `n` are (n_requests,)."""

    begin: Int64s
    n: Int64s
    t_ns: Int64s

    @classmethod
    def of(cls, requests: pa.Table, responses: pa.Table) -> Responses:
        """Those of each of `requests`, by their ids; `responses` in any order."""
        ordered = responses.sort_by([("request_id", "ascending"), ("index", "ascending")])
        ids, wanted = ordered["request_id"].to_numpy(), requests["request_id"].to_numpy()
        begin, end = np.searchsorted(ids, wanted), np.searchsorted(ids, wanted, "right")
        return cls(begin, end - begin, ordered["t_ns"].to_numpy())

    def last_ns(self, otherwise_ns: Int64s) -> Int64s:
        """When the last one of each had come; of a request without any the instant given."""
        if not len(self.t_ns):
            return otherwise_ns
        return np.where(self.n > 0, self.t_ns[np.maximum(self.begin + self.n, 1) - 1], otherwise_ns)

    def part(self, part: Callable[[np.ndarray], np.ndarray]) -> Responses:
        """Those of some of the requests."""
        return replace(self, begin=part(self.begin), n=part(self.n))

    def lists_ns(self) -> list[list[int]]:
        """The instants of each."""
        return [
            self.t_ns[begin : begin + n].tolist()
            for begin, n in zip(self.begin.tolist(), self.n.tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class EndedRequests:
    """Requests that were sent and ended, (n,) each, by `done_ns`; ns on the run clock. Of one that failed
    `first_byte_ns` is `done_ns` where no byte came; `scheduled_ns` is None in a closed loop. One that was answered ok
    response by response ended with the last of its `responses`, None of requests with one reply. `ends_sequence`: it
    was the last of a sequence; None of requests of none."""

    sent_ns: Int64s
    first_byte_ns: Int64s
    done_ns: Int64s
    is_ok: Bools
    scheduled_ns: Int64s | None
    responses: Responses | None = None
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
        responses = None if streamed is None else Responses.of(ended, streamed)
        if responses is not None:
            done_ns = np.where(is_ok, responses.last_ns(done_ns), done_ns)
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
            responses=None if responses is None else responses.part(lambda values: values[order]),
            ends_sequence=None if ends is None else ends[order],
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
        def some(values: Any) -> Any:
            return None if values is None else part(values)

        found = self.responses
        return EndedRequests(
            part(self.sent_ns), part(self.first_byte_ns), part(self.done_ns), part(self.is_ok), some(self.scheduled_ns),
            None if found is None else found.part(part), some(self.ends_sequence),
        )  # fmt: skip


def sequences_of(manifest: Manifest) -> Sequences | None:
    """Which sequence each request of a run is of; None where they are of none."""
    if manifest.scenario is None or "sequences" not in manifest.scenario.get("clients", {}):
        return None
    scenario = scenario_of_run(manifest.scenario, "manifest")
    config, plan = scenario.clients.sequences, manifest.plan
    assert config is not None
    n_lanes = config.concurrent or (plan.n_users if plan is not None else None)
    return Sequences(SequenceRule(n_lanes or 1, config.length, scenario.seed, manifest.run))
