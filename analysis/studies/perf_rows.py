"""The requests of a run as arrays in order of their ends: what windows are cut from."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.scenarios.config.loader import scenario_of_run
from squall.scenarios.records import Frozen
from squall.scenarios.sequences import SequenceRule, Sequences

_ENDED = """
    SELECT request_id, scheduled_ns, sent_ns, coalesce(first_byte_ns, done_ns) AS first_byte_ns,
        outcome = 'ok' AS is_ok,
        CASE WHEN outcome = 'ok' THEN coalesce(instants[-1], done_ns) ELSE done_ns END AS end_ns,
        coalesce(instants, []) AS responses
    FROM requests LEFT JOIN ({streamed}) USING (request_id)
    WHERE sent_ns IS NOT NULL AND done_ns IS NOT NULL ORDER BY end_ns, request_id"""
_STREAMED = "SELECT request_id, list(t_ns ORDER BY index) AS instants FROM responses GROUP BY request_id"
_NOT_STREAMED = "SELECT NULL::BIGINT AS request_id, NULL::BIGINT[] AS instants"


class EndedRequests(Frozen, eq=False):
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
        is_streamed, sequences = store.has("responses"), sequences_of(store.manifest)
        query = _ENDED.format(streamed=_STREAMED if is_streamed else _NOT_STREAMED)
        with connect(store, ["requests", *(["responses"] if is_streamed else [])]) as connection:
            ended = connection.sql(query).to_arrow_table()
        column = {name: ended[name].to_numpy() for name in ended.column_names}
        ends = [sequences.place(one).is_end for one in column["request_id"].tolist()] if sequences else None
        return cls(
            sent_ns=column["sent_ns"],
            first_byte_ns=column["first_byte_ns"],
            done_ns=column["end_ns"],
            is_ok=column["is_ok"],
            scheduled_ns=None if ended["scheduled_ns"].null_count else column["scheduled_ns"],
            responses=column["responses"] if is_streamed else None,
            ends_sequence=None if ends is None else np.array(ends, np.bool_),
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


def sequences_of(manifest: Manifest) -> Sequences | None:
    """Which sequence each request of a run is of; None where they are of none."""
    if manifest.scenario is None or "sequences" not in manifest.scenario.get("clients", {}):
        return None
    scenario = scenario_of_run(manifest.scenario, "manifest")
    config, plan = scenario.clients.sequences, manifest.plan
    assert config is not None
    n_lanes = config.concurrent or (plan.n_users if plan is not None else None)
    return Sequences(SequenceRule(n_lanes or 1, config.length, scenario.seed, manifest.run))
