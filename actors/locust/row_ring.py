"""Rows of requests on their way out of a Locust process: a ring in shared memory, which a kill of the process leaves.

    ┌ n_written ┬ n_read ┬ n_word_bytes ┬ words: length, text, length, text … ┬ ring of records ┐

One process writes, one reads. A record is published by `n_written`, a word by `n_word_bytes`, each after its bytes are
there; words before the first record that names them.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [
        ("request_id", "<i8"), ("sent_ns", "<i8"), ("done_ns", "<i8"), ("response_bytes", "<i8"), ("rows", "<i4"),
        ("request_bytes", "<i8"), ("method", "<u4"), ("name", "<u4"), ("detail", "<u4"), ("phase", "<u1"),
        ("outcome", "<u1"), ("target", "<u1"), ("model", "<u1"),
    ]
)  # fmt: skip
_PACK = struct.Struct("<qqqqiqIIIBBBB")
assert _PACK.size == RECORD.itemsize
NONE = 255
"""A server or a model that a request has not."""
NEVER = -1
"""An instant that is not known."""
_COUNT = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_N_WRITTEN, _N_READ, _N_WORD_BYTES = 0, 8, 16
_WORDS_AT = 64
WORDS_BYTES = 2**25
RING_ROWS = 2**17
MANY_WORDS = "further texts were not kept: more than 32 MiB of different ones"
_ENOUGH = len(MANY_WORDS) + _LENGTH.size


def open_ring_file() -> int:
    """A file in memory without a name, for both sides; who has no descriptor of it cannot open it. Raises OSError."""
    fd = os.memfd_create("squall-locust-rows")
    os.ftruncate(fd, _size(RING_ROWS))  # pages that nobody writes take no memory
    return fd


def _size(n_rows: int) -> int:
    return _WORDS_AT + WORDS_BYTES + n_rows * RECORD.itemsize


class RowWriter:
    """The side of the process that records. Nothing is ever dropped: what finds the ring full waits in memory."""

    def __init__(self, fd: int, n_rows: int = RING_ROWS) -> None:
        self._map = mmap.mmap(fd, _size(n_rows))
        self._n_rows = n_rows
        self._n_written = 0
        self._n_word_bytes = 0
        self._codes: dict[str, int] = {}
        self._waiting: list[bytes] = []

    @property
    def n_recorded(self) -> int:
        """Records so far."""
        return self._n_written + len(self._waiting)

    @property
    def n_waiting(self) -> int:
        """Of these not in the ring yet."""
        return len(self._waiting)

    def code_of(self, text: str) -> int:
        """What stands for a text in a record."""
        code = self._codes.get(text)
        return self._add(text) if code is None else code

    def _add(self, text: str) -> int:
        data = text.encode(errors="replace")
        left = WORDS_BYTES - self._n_word_bytes - _LENGTH.size - len(data)
        if left < _ENOUGH and text != MANY_WORDS:
            return self.code_of(MANY_WORDS)
        at = _WORDS_AT + self._n_word_bytes
        _LENGTH.pack_into(self._map, at, len(data))
        self._map[at + _LENGTH.size : at + _LENGTH.size + len(data)] = data
        self._n_word_bytes += _LENGTH.size + len(data)
        _COUNT.pack_into(self._map, _N_WORD_BYTES, self._n_word_bytes)
        code = self._codes[text] = len(self._codes)
        return code

    def record(self, *values: int) -> None:
        """One record; `values` in the order of `RECORD`."""
        if self._waiting or not self._has_room():
            self._waiting.append(_PACK.pack(*values))
            self.retry()
            return
        _PACK.pack_into(self._map, self._place(), *values)
        self._publish()

    def retry(self) -> None:
        """Puts what waits into the ring, as far as it has room."""
        n = 0
        for data in self._waiting:
            if not self._has_room():
                break
            at = self._place()
            self._map[at : at + len(data)] = data
            self._publish()
            n += 1
        del self._waiting[:n]

    def _has_room(self) -> bool:
        return self._n_written - int(_COUNT.unpack_from(self._map, _N_READ)[0]) < self._n_rows

    def _place(self) -> int:
        return _WORDS_AT + WORDS_BYTES + self._n_written % self._n_rows * RECORD.itemsize

    def _publish(self) -> None:
        self._n_written += 1
        _COUNT.pack_into(self._map, _N_WRITTEN, self._n_written)


@dataclass(frozen=True, eq=False)
class Rows:
    """Records, (n,) of `RECORD`, and all words by their codes."""

    records: NDArray[np.void]
    words: list[str]


class RowReader:
    """The other side: takes what is there, each record once."""

    def __init__(self, fd: int, n_rows: int = RING_ROWS) -> None:
        self._map = mmap.mmap(fd, _size(n_rows))
        self._n_rows = n_rows
        self._ring: NDArray[Any] = np.frombuffer(self._map, RECORD, n_rows, _WORDS_AT + WORDS_BYTES)
        self._words: list[str] = []
        self._n_word_bytes = 0
        self.n_taken = 0

    def take(self) -> Rows:
        """What was recorded since the last time, a copy."""
        n_written = int(_COUNT.unpack_from(self._map, _N_WRITTEN)[0])
        self._read_words()  # after the count: words of what is counted are there
        first, n = self.n_taken % self._n_rows, n_written - self.n_taken
        records = np.concatenate(
            [self._ring[first : first + n], self._ring[: max(0, first + n - self._n_rows)]]
        )
        self.n_taken = n_written
        _COUNT.pack_into(self._map, _N_READ, n_written)
        return Rows(records, self._words)

    def _read_words(self) -> None:
        end = int(_COUNT.unpack_from(self._map, _N_WORD_BYTES)[0])
        while self._n_word_bytes < end:
            at = _WORDS_AT + self._n_word_bytes
            (length,) = _LENGTH.unpack_from(self._map, at)
            data = self._map[at + _LENGTH.size : at + _LENGTH.size + length]
            self._words.append(data.decode(errors="replace"))
            self._n_word_bytes += _LENGTH.size + length
