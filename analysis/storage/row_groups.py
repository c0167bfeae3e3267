"""Row groups of Parquet files, with the least value of some of their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from squall.analysis.storage.part import disk_errors

Columns = dict[str, NDArray[Any]]
NULL = np.iinfo(np.int64).min
"""Stands for a number that is null."""


class RowGroup(NamedTuple):
    """A row group of a file, with the least values of the columns asked for; None where the writer did not say."""

    path: Path
    number: int
    n_rows: int
    least: dict[str, Any]


def row_groups(paths: Iterable[Path], columns: Sequence[str]) -> list[RowGroup]:
    """The row groups of the files, in order. Raises StoreError where one cannot be read."""
    found = []
    for path in paths:
        with disk_errors(f"cannot read {path}"):
            metadata = pq.read_metadata(path)
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            statistics = {name: group.column(places[name]).statistics for name in columns}
            least = {
                name: one.min if one is not None and one.has_min_max else None
                for name, one in statistics.items()
            }
            found.append(RowGroup(path, number, group.num_rows, least))
    return found
