"""Row groups of Parquet files: which of them a question concerns, by their statistics, and their columns as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from squall.analysis.storage.parquet import parquet_file, rows_of
from squall.analysis.storage.part import disk_errors

Columns = dict[str, NDArray[Any]]
NULL = np.iinfo(np.int64).min
"""Stands for a number that is null."""


class Bounds(NamedTuple):
    """Least and greatest value of a column; both None where it has none or the writer did not say."""

    least: Any
    greatest: Any
    has_nulls: bool

    @property
    def is_one_value(self) -> bool:
        """Whether all rows have the same value."""
        return self.least is not None and self.least == self.greatest and not self.has_nulls

    def may_hold(self, first: Any, last: Any) -> bool:
        """Whether a row may have a value from `first` to `last`, or none that is known."""
        return self.least is None or (self.least <= last and self.greatest >= first)


class RowGroup(NamedTuple):
    """A row group of a file, with the bounds of the columns asked for. Pickles."""

    path: Path
    number: int
    n_rows: int
    bounds: dict[str, Bounds]


def row_groups(paths: Iterable[Path], columns: Sequence[str]) -> list[RowGroup]:
    """The row groups of the files, in order. Raises StoreError where one cannot be read."""
    found = []
    for path in paths:
        with disk_errors(f"cannot read {path}"):
            metadata = pq.read_metadata(path)
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            bounds = {name: _bounds(group.column(places[name])) for name in columns}
            found.append(RowGroup(path, number, group.num_rows, bounds))
    return found


def _bounds(chunk: pq.ColumnChunkMetaData) -> Bounds:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return Bounds(None, None, True)
    has_nulls = not statistics.has_null_count or statistics.null_count > 0
    return Bounds(statistics.min, statistics.max, has_nulls)


def read_columns(
    groups: Iterable[RowGroup], numbers: Sequence[str], texts: Mapping[str, list[str]] | None = None
) -> Columns:
    """The columns of the row groups, one after another: numbers as int64, null as `NULL`; texts by place in their list.

    A text that its list has not is added to it at the end, so that one list serves several reads. Raises StoreError
    where a file cannot be read.
    """
    texts = texts or {}
    pieces: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, np.int64)] for name in (*numbers, *texts)}
    known = {
        name: {word: place for place, word in reversed([*enumerate(words)])} for name, words in texts.items()
    }
    for path, own in groupby(groups, key=lambda group: group.path):
        with disk_errors(f"cannot read {path}"), parquet_file(path) as file:
            table = file.read_row_groups([group.number for group in own], columns=[*numbers, *texts])
        for name in numbers:
            pieces[name] += [_whole(chunk) for chunk in table.column(name).chunks]
        for name, words in texts.items():
            pieces[name] += [_places(chunk, words, known[name]) for chunk in table.column(name).chunks]
    return {name: np.concatenate(found) for name, found in pieces.items()}


def read_span(paths: Iterable[Path], key: str, first: int, last: int) -> dict[str, pa.Array]:
    """The rows of Parquet files whose integer `key` is from `first` to `last`, in the order of the files; text by
    dictionary. Only row groups that may hold such a row are read. Raises StoreError where a file cannot be read."""
    within = (pc.field(key) >= first) & (pc.field(key) <= last)
    tables = []
    for path in paths:
        with disk_errors(f"cannot read {path}"):
            tables.append(rows_of(path, keeps=within))
    table = pa.concat_tables(tables).unify_dictionaries()
    return {name: _in_one_piece(table[name]) for name in table.column_names}


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """`column`, text by dictionary."""
    encoded = column.dictionary_encode() if pa.types.is_string(column.type) else column
    whole = encoded.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.array([], encoded.type)


def _whole(chunk: pa.Array) -> NDArray[np.int64]:
    return np.asarray((chunk.fill_null(NULL) if chunk.null_count else chunk).to_numpy())


def _places(chunk: pa.DictionaryArray, words: list[str], known: dict[str, int]) -> NDArray[Any]:
    """Of each row the place of its text in `words`, as `known` has it: new ones are added to both."""
    own = chunk.dictionary.to_pylist()
    for word in own:
        if word not in known:
            known[word] = len(words)
            words.append(word)
    place = np.array([known[word] for word in own] or [0], np.int32)
    return np.asarray(place[chunk.indices.to_numpy()])
