"""The `requests` table as arrays in order of time: what every figure about load and latency reads.

An open-loop run has a schedule and its latency is the response time; a closed-loop run has none and its latency
is the service time. The two are never mixed: `Requests` says which it is, and everything else asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COLUMNS = ["request_id", "node", "phase", "scheduled_ns", "sent_ns", "done_ns", "rows", "outcome", "detail"]
"""Columns of `requests` that `Requests.from_table` needs."""


@dataclass(frozen=True, eq=False)
class Labels:
    """A text column as (n,) codes into `words`: millions of rows share a handful of texts."""

    codes: npt.NDArray[np.int32]
    words: tuple[str, ...]

    @classmethod
    def from_column(cls, column: pa.ChunkedArray[Any]) -> Labels:
        """From a text column, plain or dictionary-encoded, without nulls."""
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        whole = encoded.unify_dictionaries().combine_chunks()
        return cls(np.asarray(whole.indices.to_numpy(), dtype=np.int32), tuple(whole.dictionary.to_pylist()))

    def take(self, rows: Int64s | Bools) -> Labels:
        """The labels of `rows`."""
        return Labels(self.codes[rows], self.words)

    def is_any_of(self, words: Iterable[str]) -> Bools:
        """Whether each label is one of `words`."""
        wanted = set(words)
        return np.isin(self.codes, [code for code, word in enumerate(self.words) if word in wanted])

    def counts(self) -> dict[str, int]:
        """How often each word that occurs does."""
        counts = np.bincount(self.codes, minlength=len(self.words))
        return {word: int(n) for word, n in zip(self.words, counts, strict=True) if n}


def is_open_load(manifest: Mapping[str, Any]) -> bool:
    """Whether the run followed a schedule: `plan.load` of its manifest is not "closed"."""
    return bool(manifest.get("plan", {}).get("load", "open") == "open")


@dataclass(frozen=True, eq=False)
class Requests:
    """Scheduled arrivals, or requests of users, (n,) each. Instants are ns on the run clock.

    Sorted by request_id, which is the order of the schedule; closed loop: by `sent_ns`. `sent_ns` and `done_ns`
    are 0 where `is_sent` and `is_done` are false, `scheduled_ns` is 0 throughout where `is_open` is false.
    """

    is_open: bool
    request_id: Int64s
    node: Labels
    phase: Labels
    scheduled_ns: Int64s
    sent_ns: Int64s
    is_sent: Bools
    done_ns: Int64s
    is_done: Bools
    rows: Int64s
    outcome: Labels
    detail: Labels

    @classmethod
    def from_table(cls, table: pa.Table, is_open: bool = True) -> Requests:
        """From `requests` or `joined`, in any order, with at least `COLUMNS`; `is_open` from `is_open_load`."""
        by_id = np.argsort(numbers(table, "request_id"), kind="stable")
        in_order = by_id if is_open else by_id[np.argsort(numbers(table, "sent_ns")[by_id], kind="stable")]
        is_sent = _is_known(table, "sent_ns")
        return cls(
            is_open=is_open,
            request_id=numbers(table, "request_id"),
            node=Labels.from_column(table.column("node")),
            phase=Labels.from_column(table.column("phase")),
            scheduled_ns=numbers(table, "scheduled_ns"),
            sent_ns=numbers(table, "sent_ns"),
            is_sent=is_sent,
            done_ns=numbers(table, "done_ns"),
            is_done=_is_known(table, "done_ns") & is_sent,
            rows=numbers(table, "rows"),
            outcome=Labels.from_column(table.column("outcome")),
            detail=Labels.from_column(table.column("detail")),
        ).take(in_order)

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def is_ok(self) -> Bools:
        """Whether each ended ok."""
        return self.outcome.is_any_of(["ok"])

    @property
    def latency_name(self) -> str:
        """What the latency is: `response`, or in a closed loop `service`."""
        return "response" if self.is_open else "service"

    @property
    def begin_ns(self) -> Int64s:
        """The instant that the latency runs from: scheduled, or in a closed loop sent."""
        return self.scheduled_ns if self.is_open else self.sent_ns

    @property
    def has_begun(self) -> Bools:
        """Whether there is such an instant: always, but for requests of a closed loop that were never sent."""
        return np.ones(len(self), dtype=np.bool_) if self.is_open else self.is_sent

    @property
    def latency_ns(self) -> Int64s:
        """done - begin; without meaning where `is_done` is false."""
        return self.done_ns - self.begin_ns

    @property
    def response_ns(self) -> Int64s:
        """done - scheduled; without meaning where `is_done` or `is_open` is false."""
        return self.done_ns - self.scheduled_ns

    @property
    def service_ns(self) -> Int64s:
        """done - sent; without meaning where `is_done` is false."""
        return self.done_ns - self.sent_ns

    @property
    def lag_ns(self) -> Int64s:
        """sent - scheduled; without meaning where `is_sent` or `is_open` is false."""
        return self.sent_ns - self.scheduled_ns

    def take(self, rows: Int64s | Bools) -> Requests:
        """The rows at those places, or where true."""
        return Requests(
            is_open=self.is_open,
            request_id=self.request_id[rows],
            node=self.node.take(rows),
            phase=self.phase.take(rows),
            scheduled_ns=self.scheduled_ns[rows],
            sent_ns=self.sent_ns[rows],
            is_sent=self.is_sent[rows],
            done_ns=self.done_ns[rows],
            is_done=self.is_done[rows],
            rows=self.rows[rows],
            outcome=self.outcome.take(rows),
            detail=self.detail.take(rows),
        )

    def in_phases(self, names: Iterable[str]) -> Requests:
        """The rows that belong to one of the phases `names`."""
        return self.take(self.phase.is_any_of(names))


def numbers(table: pa.Table, name: str) -> Int64s:
    """A column of whole numbers, (n,); 0 where it is null."""
    return np.asarray(pc.fill_null(table.column(name), 0).to_numpy(), dtype=np.int64)


def _is_known(table: pa.Table, name: str) -> Bools:
    return np.asarray(table.column(name).is_valid().to_numpy(), dtype=np.bool_)
