"""A file or folder as entries: what every format has in common.

An entry is what one row of a request carries: a cell for each of its columns. Cells know no model: whether they suit
one is for `squall.models.entries` to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from squall.scenarios.arrays import Array, Bools
from squall.scenarios.records import Frozen
from squall.scenarios.traces.faults import RowFault


class Raw(Frozen):
    """A tensor's own bytes, little-endian in row-major order, and its shape where that is stated.

    Of a BYTES tensor: each element with its length in front; `is_lines`: a line of text each instead.
    """

    data: bytes
    shape: tuple[int, ...] | None = None
    is_lines: bool = False


class Picture(Frozen):
    """The bytes of an image file."""

    data: bytes


Cell = Array | Raw | Picture
"""An array of numbers, of booleans or of bytes objects; or what only the model's input says how to read."""
Entry = Mapping[str, Cell]
Entries = Iterator[tuple[int, Entry]]
"""Each with its number, from 0 on."""
Wanted = Bools
"""(n_entries,), true for those that are to be read."""


class Source(ABC):
    """Entries of a file or folder. `names` are its columns; its errors are RowFault, or those of the file's library."""

    names: tuple[str, ...]
    n_entries: int
    shapes: Mapping[str, tuple[int, ...]] = {}
    """Of a cell of each column that states it in front of all entries."""

    @abstractmethod
    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """Number from 0 on and cells of each wanted entry, in their order, with the columns `names`, which it has.

        Null is no cell, and an entry of JSON may lack a column. Holds few entries at a time, however large the file is.
        """

    def place(self, number: int) -> str:
        """Where the entry stands, for people: its row, from 1 on."""
        return f"row {number + 1}"


def fault(number: int, what: str) -> RowFault:
    """Of the entry `number`, from 0 on."""
    return RowFault(number + 1, what)
