"""Encoded requests in one file that all workers of a node map: written once, and no copy of it in any of them.

    │ magic │ tail │ tail │ … │ index: five columns, sorted by kind │ end: what there is, and where the index begins │

A tail is what follows the request's id (`squall.actors.messages.template`); heads are short, depend on the server, and
are made by whoever sends. Requests whose replies have one layout, as far as their inputs say it, share its number.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.plan.plan import kind_code

_MAGIC = b"squallp1"
_END = struct.Struct("<qqq8s")
"""Requests, layouts, begin of the index, and the magic again."""
_COLUMNS = ("kind", "start", "n_tail", "n_json", "layout")
_ALIGNMENT_BYTES = 8


class Tail(NamedTuple):
    """Where one is in the file; `n_json`: over HTTP, bytes of JSON in the body."""

    start: int
    n_bytes: int
    n_json: int
    layout: int


class PackWriter:
    """Writes such a file; `close` makes it whole under its name. OSError passes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file = self._part.open("wb")
        self._columns = {name: array("q") for name in _COLUMNS}
        self._layouts: dict[Hashable, int] = {}
        self._at = self._file.write(_MAGIC)

    def add(self, rows: int, variant: int, tail: bytes, n_json: int, layout: Hashable) -> None:
        """The request of that kind, each once; equal `layout`: what tells which replies are alike."""
        number = self._layouts.setdefault(layout, len(self._layouts))
        values = (int(kind_code(rows, variant)), self._at, len(tail), n_json, number)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._at += self._file.write(tail)

    def close(self) -> int:
        """Bytes of the file."""
        self._file.write(bytes(-self._at % _ALIGNMENT_BYTES))
        begin = self._at + -self._at % _ALIGNMENT_BYTES
        columns = {name: np.frombuffer(column, np.int64) for name, column in self._columns.items()}
        order = np.argsort(columns["kind"], kind="stable")
        for column in columns.values():
            self._file.write(column[order].data)
        self._file.write(_END.pack(order.size, len(self._layouts), begin, _MAGIC))
        n_bytes = self._file.tell()
        self._file.close()
        os.replace(self._part, self._path)
        return n_bytes

    def abandon(self) -> None:
        """Leaves no file."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class PackFile:
    """Such a file, mapped; its pages are the kernel's to drop and to share."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be read, ValueError for a file that is none of these."""
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        end = len(self.view) - _END.size
        if end < 0 or bytes(self.view[: len(_MAGIC)]) != _MAGIC:
            raise ValueError(f"{path} is no file of encoded requests")
        n, self.n_layouts, begin, magic = _END.unpack_from(self.view, end)
        if magic != _MAGIC or begin + n * len(_COLUMNS) * 8 != end:
            raise ValueError(f"{path} is no file of encoded requests, or not all of it")
        index = np.frombuffer(self.view[begin:end], np.int64).reshape(len(_COLUMNS), n)
        self.kinds, self.starts, self.n_tails, self.n_jsons, self.layouts = index

    def __len__(self) -> int:
        return int(self.kinds.size)

    def places(self, rows: NDArray[np.integer], variants: NDArray[np.integer]) -> NDArray[np.int64]:
        """Numbers of the requests of these kinds, (n,). Raises KeyError for one that is not there."""
        codes = kind_code(rows, variants)
        found = np.minimum(np.searchsorted(self.kinds, codes), len(self) - 1)
        if not np.array_equal(self.kinds[found], codes):
            raise KeyError("a kind of request that was not encoded")
        return found

    def tail(self, number: int) -> Tail:
        """Of a request."""
        columns = (self.starts, self.n_tails, self.n_jsons, self.layouts)
        return Tail(*(int(column[number]) for column in columns))
