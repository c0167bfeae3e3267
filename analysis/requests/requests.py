"""The `requests` table as arrays in order of time: what every figure about load and latency reads.

An open-loop run has a schedule and its latency is the response time; a closed-loop run has none and its latency
is the service time. The two are never mixed: `Requests` says which it is, and everything else asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s, Integers
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from squall.scenarios.promises import DECIDED
from squall.scenarios.records import Frozen


class Labels(Frozen, eq=False):
    """A text column as (n,) codes into `words`: millions of rows share a handful of texts.

    The codes are of the narrowest whole numbers that hold them.
    """

    codes: Integers
    words: tuple[str, ...]

    @classmethod
    def from_column(cls, column: pa.ChunkedArray[Any]) -> Labels:
        """From a text column, plain or dictionary-encoded, without nulls."""
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        whole = encoded.unify_dictionaries()
        words = whole.chunk(0).dictionary.to_pylist() if whole.num_chunks else []
        width = np.min_scalar_type(len(words))
        chunks = [chunk.indices.to_numpy().astype(width) for chunk in whole.chunks]
        return cls(np.concatenate(chunks) if chunks else np.empty(0, width), tuple(words))

    def take(self, rows: Int64s | Bools | slice) -> Labels:
        """The labels of `rows`; of a slice a view."""
        return Labels(self.codes[rows], self.words)

    def is_any_of(self, words: Iterable[str]) -> Bools:
        """Whether each label is one of `words`."""
        wanted = set(words)
        found: Bools = np.array([word in wanted for word in self.words], dtype=np.bool_)[self.codes]
        return found

    def column(self) -> pa.Array:
        """The texts as a column of a table."""
        return pa.DictionaryArray.from_arrays(self.codes, pa.array(self.words, pa.string()))

    def counts(self) -> dict[str, int]:
        """How often each word that occurs does."""
        counts = np.bincount(self.codes, minlength=len(self.words))
        return {word: int(n) for word, n in zip(self.words, counts, strict=True) if n}


def is_open_load(manifest: Manifest) -> bool:
    """Whether the run followed a schedule: users, squall's own or Locust's, send when they have been answered."""
    return manifest.plan.load == "open"


class Requests(Frozen, eq=False):
    """Scheduled arrivals, or requests of users, (n,) each. Instants are ns on the run clock.

    Sorted by request_id, which is the order of the schedule; closed loop: by `sent_ns`. `sent_ns` and `done_ns`
    are 0 where `is_sent` and `is_done` are false, `scheduled_ns` is 0 throughout where `is_open` is false.
    """

    is_open: bool
    request_id: Int64s
    worker: Integers
    node: Labels
    phase: Labels
    scheduled_ns: Int64s
    sent_ns: Int64s
    is_sent: Bools
    done_ns: Int64s
    is_done: Bools
    rows: Integers
    outcome: Labels
    detail: Labels
    target: Labels
    """The server that each is for."""
    request_kind: Labels
    """The model that each asks."""
    scheduled_phase: Labels | None = None
    """The phase of each in the schedule, where the load ended before its time; None: `phase`."""

    @classmethod
    def from_table(cls, table: pa.Table, is_open: bool = True) -> Requests:
        """From `requests`, in any order, with at least `COLUMNS`; `is_open` from `is_open_load`."""
        return cls._from_columns(lambda *names: table.select(names).columns, is_open)

    @classmethod
    def read(cls, store: RunStore) -> Requests:
        """Those of a run, read a few columns at a time: less than 50 bytes a request. Raises `MissingTable`."""
        return cls._from_columns(
            lambda *names: store.read("requests", list(names)).columns, is_open_load(store.manifest)
        )

    @classmethod
    def _from_columns(cls, columns: Callable[..., list[pa.ChunkedArray[Any]]], is_open: bool) -> Requests:
        """From the columns that `columns` gives by their names, each few let go before the next are asked for."""
        keys, sent, done = columns("request_id", "sent_ns", "done_ns")
        request_id, sent_ns, done_ns = map(_numbers, (keys, sent, done))
        order = _in_order_of(request_id)
        if not is_open:
            order = np.arange(len(sent_ns))[order][np.argsort(sent_ns[order], kind="stable")]
        is_sent, is_done = _is_known(sent)[order], _is_known(done)[order]
        del keys, sent, done
        worker, rows, scheduled_ns = (
            _numbers(one)[order] for one in columns("worker", "rows", "scheduled_ns")
        )
        names = ("node", "phase", "outcome", "detail", "target", "request_kind")
        labels = {
            name: Labels.from_column(column).take(order)
            for name, column in zip(names, columns(*names), strict=True)
        }
        return cls(
            is_open=is_open,
            request_id=request_id[order],
            worker=_narrow(worker),
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns[order],
            is_sent=is_sent,
            done_ns=done_ns[order],
            is_done=is_done & is_sent,
            rows=_narrow(rows),
            **labels,
        )._without_decided()

    def _without_decided(self) -> Requests:
        """What was not sent since the promises were decided is in no phase of the run: it only is in one of the
        schedule."""
        is_decided = self.is_decided
        if not is_decided.any():
            return self
        phase = self.phase
        codes = phase.codes.astype(np.min_scalar_type(len(phase.words)))
        codes[is_decided] = len(phase.words)
        return replace(self, phase=Labels(codes, (*phase.words, "")), scheduled_phase=phase)

    @property
    def is_decided(self) -> Bools:
        """Whether each was not sent since the outcome of the promises was certain."""
        if DECIDED not in self.detail.words:
            return np.zeros(len(self), dtype=np.bool_)
        found: Bools = self.detail.is_any_of([DECIDED]) & self.outcome.is_any_of(["unsent"])
        return found

    @property
    def planned_phase(self) -> Labels:
        """The phase of each in the schedule."""
        return self.phase if self.scheduled_phase is None else self.scheduled_phase

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def is_ok(self) -> Bools:
        """Whether each ended ok."""
        return self.outcome.is_any_of(["ok"])

    def at_server(self, name: str) -> Requests:
        """Those that are for a server."""
        return self.take(together(self.target.is_any_of([name])))

    def of_model(self, name: str) -> Requests:
        """Those that ask a model."""
        return self.take(together(self.request_kind.is_any_of([name])))

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

    def take(self, rows: Int64s | Bools | slice) -> Requests:
        """The rows at those places, or where true; of a slice views, without a copy. A column of them is made when it
        is first asked for: most are not."""
        taken = object.__new__(Requests)
        taken.__dict__.update(is_open=self.is_open, _taken_from=(self, rows))
        phase = self.scheduled_phase
        taken.__dict__["scheduled_phase"] = None if phase is None else phase.take(rows)
        return taken

    if not TYPE_CHECKING:  # which would take every name for a column

        def __getattr__(self, name: str) -> Any:
            if name not in self.__dataclass_fields__ or "_taken_from" not in self.__dict__:
                raise AttributeError(name)
            of_all, rows = self._taken_from
            values = getattr(of_all, name)
            found = self.__dict__[name] = values.take(rows) if isinstance(values, Labels) else values[rows]
            return found

    def table(self, *names: str, **further: npt.NDArray[Any]) -> pa.Table:
        """Columns of these names, and further ones, for a query; numbers without a copy."""
        own = {name: getattr(self, name) for name in names}
        texts = {name: values.column() for name, values in own.items() if isinstance(values, Labels)}
        return pa.table({**own, **texts, **further})

    def in_phases(self, names: Iterable[str]) -> Requests:
        """The rows that belong to one of the phases `names`; views where they follow one another."""
        return self.take(together(self.phase.is_any_of(names)))


def server_names(requests: Requests, manifest: Manifest) -> list[str]:
    """The servers of the run, those without a request too, in the order of the manifest, then of their names."""
    return list(dict.fromkeys([*manifest.servers, *sorted(requests.target.counts().keys() - {""})]))


def model_names(requests: Requests, manifest: Manifest) -> list[str]:
    """The models that requests ask, those without a request too, in the order of the scenario and of the manifest, then
    of their names; of a run of one model that of its requests."""
    stated, kinds = list(manifest.stated_models), sorted(requests.request_kind.counts().keys() - {""})
    servers = manifest.servers.values()
    if len(stated) < 2 and len(kinds) < 2 and not any(len(server.models) > 1 for server in servers):
        return kinds
    served = [one.model for server in servers for one in server.models]
    return list(dict.fromkeys(name for name in (*stated, *served, *kinds) if name))


def together(is_kept: Bools) -> slice | Bools:
    """`is_kept` as a slice, where the rows that are true follow one another: taking a slice copies nothing."""
    n_kept = int(np.count_nonzero(is_kept))
    first = int(is_kept.argmax()) if n_kept else 0
    return slice(first, first + n_kept) if is_kept[first : first + n_kept].all() else is_kept


def in_order(times_ns: Int64s) -> Int64s:
    """The instants sorted: the array itself where it is."""
    return times_ns if bool((times_ns[1:] >= times_ns[:-1]).all()) else np.sort(times_ns)


def numbers(table: pa.Table, name: str) -> Int64s:
    """A column of whole numbers, (n,); 0 where it is null."""
    return _numbers(table.column(name))


def _numbers(column: pa.ChunkedArray[Any]) -> Int64s:
    filled = pc.fill_null(column, 0) if column.null_count else column
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def _is_known(column: pa.ChunkedArray[Any]) -> Bools:
    if not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    return np.asarray(column.is_valid().to_numpy(), dtype=np.bool_)


def _narrow(values: Int64s) -> Integers:
    """`values` in 16 or 32 bits, signed, where these hold them."""
    largest = int(np.abs(values).max(initial=0))
    width = next((one for one in (np.int16, np.int32) if largest <= np.iinfo(one).max), np.int64)
    return values.astype(width, copy=False)


def _in_order_of(keys: Int64s) -> Int64s | slice:
    """The places of rows in the order of their `keys`; those of one key keep theirs."""
    if bool((keys[1:] >= keys[:-1]).all()):
        return slice(None)
    n = len(keys)
    if keys.min() >= 0 and keys.max() < n:  # 0 … n - 1 of a whole run: themselves the places, without a sort
        order = np.full(n, -1)
        order[keys] = np.arange(n)
        if order.min() >= 0:
            return order
    return np.argsort(keys, kind="stable")


def rows_in(table: pa.Table | None, phases: Sequence[str]) -> pa.Table | None:
    """The rows of `table` in one of `phases`; None if there is no table."""
    if table is None:
        return None
    return table.filter(pa.array(Labels.from_column(table.column("phase")).is_any_of(phases)))
