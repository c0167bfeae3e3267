"""NumPy's .npy, and .npz with an array for each input: the entries are along the first axis."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from squall.scenarios.arrays import Array
from squall.scenarios.data.folders import LARGEST_FILE_BYTES
from squall.scenarios.data.source import Entries, Source, Wanted, fault
from squall.scenarios.data.values import array_of
from squall.scenarios.records import Frozen
from squall.scenarios.traces.faults import RowFault

ONLY_COLUMN = "array"
_KINDS = "biufSU"
_TEXT_BYTES = 128
"""Of a text, in lists of Python."""
_SUFFIX = ".npy"


class _Header(Frozen):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int  # of the data, in bytes from the begin of the file

    @property
    def n_row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


class ArraySource(Source):
    """An array, or a zip file of them; read a row at a time, also where they are compressed."""

    def __init__(self, path: Path, is_zip: bool = False) -> None:
        self._path, self._is_zip = path, is_zip
        self._headers: dict[str, _Header] = {}
        with ExitStack() as stack:
            for name, file in self._opened(stack).items():
                self._headers[name] = _header(file, f"array {name!r}" if is_zip else "the array")
        if not self._headers:
            raise RowFault(None, "holds no array")
        self.names = tuple(self._headers)
        self.shapes = {name: header.shape[1:] for name, header in self._headers.items()}
        lengths = {name: header.shape[0] for name, header in self._headers.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n}" for name, n in lengths.items())
            raise RowFault(None, f"its arrays have different lengths, and each is an entry a row: {told}")
        self.n_entries = next(iter(lengths.values()))
        if not is_zip:
            (header,) = self._headers.values()
            if path.stat().st_size < header.start + header.n_row_bytes * self.n_entries:
                raise RowFault(None, f"is cut short: it says {self.n_entries} rows and has bytes for fewer")

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        with ExitStack() as stack:
            files = self._opened(stack)
            for number in np.flatnonzero(wanted).tolist():
                yield number, {name: _row(files[name], self._headers[name], number) for name in names}

    def _opened(self, stack: ExitStack) -> dict[str, IO[bytes]]:
        if not self._is_zip:
            return {ONLY_COLUMN: stack.enter_context(self._path.open("rb"))}
        archive = stack.enter_context(zipfile.ZipFile(self._path))
        members = [name for name in archive.namelist() if name.endswith(_SUFFIX)]
        return {name.removesuffix(_SUFFIX): stack.enter_context(archive.open(name)) for name in members}


def _row(file: IO[bytes], header: _Header, number: int) -> Array:
    file.seek(header.start + number * header.n_row_bytes)
    data = file.read(header.n_row_bytes)
    if len(data) < header.n_row_bytes:
        raise fault(number, "the file is cut short here")
    row = np.frombuffer(data, header.dtype).reshape(header.shape[1:])
    return array_of(row.tolist()) if header.dtype.kind in "SU" else row


def _header(file: IO[bytes], what: str) -> _Header:
    """Of an array at the begin of `file`; `what` it is called."""
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):  # headers of 2.0 and 3.0 may have 4 GiB; none of numbers or text needs them
            raise ValueError(f"its format is {version[0]}.{version[1]}; np.save it again, as 1.0")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise RowFault(None, f"{what} is no array of NumPy's: {' '.join(str(error).split())}") from error
    if dtype.kind not in _KINDS:
        raise RowFault(None, f"{what} is of {dtype}, which no input takes; use numbers, booleans or text")
    if is_fortran and len(shape) > 1:
        raise RowFault(None, f"{what} lies in Fortran's order; save np.ascontiguousarray of it")
    if not shape:
        raise RowFault(None, f"{what} is one number, and its first axis was to be the entries")
    if min(shape) < 0:
        raise RowFault(None, f"{what} states the shape {list(shape)}, and no size is below 0")
    header = _Header(shape, dtype, file.tell())
    n_held = math.prod(shape[1:]) * _TEXT_BYTES if dtype.kind in "SU" else 0
    if max(header.n_row_bytes, n_held) > LARGEST_FILE_BYTES:
        raise RowFault(
            None,
            f"{what} has rows of {list(shape[1:])} {dtype}, and an entry has {LARGEST_FILE_BYTES // 2**30} GiB at most;"
            " its first axis is to be the entries",
        )
    return header
