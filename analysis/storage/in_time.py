"""Rows of event tables, read by row group: in order of time over several tables, or as they lie.

Texts become codes of one coding for all tables; a null number becomes `NULL`, so that every column is whole numbers.
Memory: the rows of a slice, and row groups that reach beyond it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Int64s
from squall.analysis.storage.parquet import parquet_file
from squall.analysis.storage.row_groups import NULL, Columns, RowGroup, row_groups
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError

_RATIO_UNIT = 1e12
_AHEAD_ROWS = 400_000


class Texts:
    """Codes of texts: 0, 1, … in the order in which they were first seen."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def names(self) -> list[str]:
        """The texts, by code."""
        return list(self.codes)

    def encode(self, column: pa.ChunkedArray) -> Int64s:
        """The code of each row; a null is an empty text."""
        parts = [self._encode(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _encode(self, chunk: pa.Array) -> Int64s:
        if not pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_encode()
        table = [self.code(text or "") for text in chunk.dictionary.to_pylist()]
        if chunk.null_count:
            table.append(self.code(""))
            places = pc.fill_null(chunk.indices, len(table) - 1).to_numpy()
        else:
            places = chunk.indices.to_numpy()
        if len(table) == 1:
            return np.full(len(places), table[0], np.int64)
        codes: Int64s = np.array(table or [0], np.int64)[places]
        return codes


class _Group(NamedTuple):
    """A row group of a table."""

    table: str
    rows: RowGroup

    @property
    def first_ns(self) -> int:
        """The least `start_ns` in it; `NULL` where its writer did not say."""
        least = self.rows.least["start_ns"]
        return NULL if least is None else int(least)


class RowGroups:
    """The row groups of `columns[table]` for each table that the run has."""

    def __init__(self, store: RunStore, columns: Mapping[str, Sequence[str]]) -> None:
        self.texts = Texts()
        self.texts.code("")  # learnt before the thread that reads learns others: two texts would get one code
        self._columns = {table: list(names) for table, names in columns.items() if store.has(table)}
        self._groups = [
            _Group(table, group)
            for table in self._columns
            for group in row_groups(store.parts(table), ["start_ns"])
            if group.n_rows
        ]
        try:
            self._files = {path: parquet_file(path) for path in {one.rows.path for one in self._groups}}
        except (OSError, pa.ArrowException) as error:
            raise AnalysisError(f"{store.where}: {str(error).splitlines()[0]}") from error

    def tables(self) -> Iterator[tuple[str, Columns]]:
        """(table, columns) of each row group, as they lie."""
        for group, columns in self._ahead(self._groups, _AHEAD_ROWS):
            yield group.table, columns

    def slices(self, n_rows: int) -> Iterator[dict[str, Columns]]:
        """The rows by table in slices of about `n_rows`, each row in one slice, none starting before its slice.

        Rows come in no order within a slice. Every table has all its columns in every slice, maybe empty.
        """
        ordered = sorted(self._groups, key=lambda group: group.first_ns)
        held: dict[str, list[Columns]] = {table: [] for table in self._columns}
        n_held = 0
        for place, (group, columns) in enumerate(self._ahead(ordered, n_rows)):
            held[group.table].append(columns)
            n_held += len(columns["start_ns"])
            is_last = place + 1 == len(ordered)
            if is_last or n_held >= n_rows:
                edge = None if is_last else ordered[place + 1].first_ns
                ready, held = self._split(held, edge)
                n_ready = sum(len(columns["start_ns"]) for columns in ready.values())
                n_held -= n_ready
                if n_ready:
                    yield ready

    def _split(
        self, held: dict[str, list[Columns]], edge_ns: int | None
    ) -> tuple[dict[str, Columns], dict[str, list[Columns]]]:
        """The rows that start before `edge_ns` (all, if None), and the rest."""
        ready: dict[str, Columns] = {}
        rest: dict[str, list[Columns]] = {}
        for table, pieces in held.items():
            early: list[Columns] = []
            rest[table] = []
            for piece in pieces:
                if edge_ns is None or piece["start_ns"].max() < edge_ns:
                    early.append(piece)
                    continue
                is_ready = piece["start_ns"] < edge_ns
                early.append({name: values[is_ready] for name, values in piece.items()})
                rest[table].append({name: values[~is_ready] for name, values in piece.items()})
            ready[table] = _joined(early, self._columns[table])
        return ready, rest

    def _ahead(self, groups: Sequence[_Group], n_rows: int) -> Iterator[tuple[_Group, Columns]]:
        """Each group with its columns; a thread reads up to `n_rows` ahead, as pyarrow lets others run meanwhile."""
        with ThreadPoolExecutor(1) as reader:
            waiting: deque[tuple[_Group, Future[Columns]]] = deque()
            n_ahead = 0
            for group in groups:
                while waiting and n_ahead + group.rows.n_rows > n_rows:
                    n_ahead -= waiting[0][0].rows.n_rows
                    first, columns = waiting.popleft()
                    yield first, columns.result()
                waiting.append((group, reader.submit(self._read, group)))
                n_ahead += group.rows.n_rows
            for group, columns in waiting:
                yield group, columns.result()

    def _read(self, group: _Group) -> Columns:
        names = self._columns[group.table]
        try:
            file = self._files[group.rows.path]
            rows = file.read_row_group(group.rows.number, columns=names, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise AnalysisError(f"cannot read {group.table}: {str(error).splitlines()[0]}") from error
        return {name: self._numbers(rows.column(name)) for name in names}

    def _numbers(self, column: pa.ChunkedArray) -> Int64s:
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            return self.texts.encode(column)
        if pa.types.is_floating(column.type):
            values = (pc.fill_null(column, np.nan) if column.null_count else column).to_numpy()
            known = np.where(np.isnan(values), 0.0, np.rint(values * _RATIO_UNIT)).astype(np.int64)
            return np.where(np.isnan(values), NULL, known)
        return np.asarray((pc.fill_null(column, NULL) if column.null_count else column).to_numpy(), np.int64)


def as_ratio(value: int) -> float | None:
    """The ratio that a column of ratios was read from; None for null."""
    return None if value == NULL else value / _RATIO_UNIT


def _joined(pieces: list[Columns], names: Sequence[str]) -> Columns:
    if len(pieces) == 1:
        return pieces[0]
    empty = np.zeros(0, np.int64)
    return {name: np.concatenate([piece[name] for piece in pieces]) if pieces else empty for name in names}
