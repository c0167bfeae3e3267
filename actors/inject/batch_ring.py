"""The reader of the rings that `batches.c` leaves, and `squall_batches.py` in a Python model: a server's batches, frame
by frame.

A ring is a file: a header, then data that is written round and round. Positions in it count bytes from the start and
never fall; the writer moves its own by whole frames only. Frames carry the process they are of, so that what is drained
of several rings may stand in one file.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from squall.actors.inject.ring_file import RingError, RingFile
from squall.actors.spill import bounded
from squall.scenarios.foreign_file import plain_opener

"""A longer request id is cut to so many bytes."""

Writer = Literal["library", "hook"]
"""The library that a server preloads, or the hook in a Python model."""
_WRITERS: Final[tuple[Writer, ...]] = ("library", "hook")
"""By number, in headers and frames."""

_HEADER = struct.Struct("<8sIIQqQ")
_MAGIC = b"SQBATCH\0"
_LAYOUT = 1
_HEADER_BYTES = 4096
_MOST_BYTES = 2**30
_WRITTEN, _LOST, _READ = 64 // 8, 72 // 8, 128 // 8
"""Places of the positions in the header, in words of 8 bytes."""

_FRAME = struct.Struct("<IIiiqqqqqQIIIiHHI")
_MARKER = 0x31425153
_MOST_FRAME = 128 << 10
_ID_LENGTH = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """What a server told of one batch.

    `rows`: as the backend counts them; 0 where it told of members only, as most do when all have failed: then Triton
    counted no execution. `n_requests` counts members whose id found no room too: `request_ids` may be shorter.
    """

    pid: int
    thread: int
    model: str
    version: int
    instance: str
    device: int
    """Number of the GPU; -1: none."""
    start_ns: int
    """This and the instants after it: CLOCK_MONOTONIC of the node, as the backend gave them; 0 where it gave none."""
    compute_start_ns: int
    compute_end_ns: int
    end_ns: int
    rows: int
    n_requests: int
    n_failed: int
    request_ids: tuple[bytes, ...]
    """In the order in which they were told of, each cut to 128 bytes; empty for a member without id."""
    writer: Writer = "library"


@dataclass(frozen=True, slots=True)
class CutOff:
    """The rest of a file, from byte `offset` on, is no record: its writer was cut off there, or it is damaged."""

    offset: int
    n_bytes: int


def rings(folder: Path) -> list[Path]:
    """Ring files in `folder`, by name; none where there is no such folder."""
    found = folder.glob("batches-*.ring") if folder.is_dir() else ()
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


class BatchRing:
    """The one reader of a ring: what is drained is gone from it. Not thread-safe.

    The server may write meanwhile, or have ended in whatever way.
    """

    def __init__(self, path: Path) -> None:
        """Raises RingError, in one line, if `path` is no ring of this version; OSError if it cannot be opened."""
        self._path = path
        self._fence = threading.Lock()
        self._file = RingFile(path, _HEADER.size)
        self._map = self._file.map
        try:
            self.pid, self._size, self.writer = self._told()
        except RingError:
            self._file.close()
            raise
        self._words = memoryview(self._map).cast("Q")
        self._read = self._load(_READ)

    def _told(self) -> tuple[int, int, Writer]:
        """Process, size of the data and writer, by the header. Raises RingError if it is none."""
        magic, layout, n_header, size, pid, writer = _HEADER.unpack_from(self._map)
        if magic != _MAGIC:
            raise RingError(f"{self._path}: not a ring of batches")
        if (layout, n_header) != (_LAYOUT, _HEADER_BYTES):
            raise RingError(
                f"{self._path}: a ring of layout {layout}, and this is a reader of layout {_LAYOUT}"
            )
        if not 0 < size <= _MOST_BYTES or size % 8 or len(self._map) != n_header + size:
            raise RingError(f"{self._path}: a ring of {size} bytes in a file of {len(self._map)}")
        if writer >= len(_WRITERS):
            raise RingError(f"{self._path}: a ring of a writer that this reader does not know")
        return pid, size, _WRITERS[writer]

    def _load(self, word: int) -> int:
        """One aligned load, and nothing that follows happens before it: a lock that is given back and taken orders."""
        with self._fence:
            value = self._words[word]
        with self._fence:
            return value

    def _store(self, word: int, value: int) -> None:
        """One aligned store, and nothing before it happens later."""
        with self._fence:
            pass
        with self._fence:
            self._words[word] = value

    def drain(self) -> bytes:
        """Frames that were written since the last call, whole and in their order; their room is free again.

        Raises RingError, in one line, where the positions cannot be, or the file was cut while it was mapped: nothing
        more is to be had of it then.
        """
        self._file.check_whole()
        written = self._load(_WRITTEN)
        if not 0 <= written - self._read <= self._size:
            raise RingError(f"{self._path}: {self._read} bytes read of {written}, in a ring of {self._size}")
        taken = self._between(self._read, written)
        self._read = written
        self._store(_READ, written)
        return taken

    def _between(self, begin: int, end: int) -> bytes:
        at, n = begin % self._size, end - begin
        n_first = min(n, self._size - at)
        start = _HEADER_BYTES + at
        return self._map[start : start + n_first] + self._map[_HEADER_BYTES : _HEADER_BYTES + n - n_first]

    def lost(self) -> int:
        """Batches that found no room so far, or were longer than the ring."""
        return self._load(_LOST)

    def close(self) -> None:
        """Leaves the file as it is. May be called twice."""
        self._words.release()
        self._file.close()


def recorded_batches(file: Path) -> Iterator[RecordedBatch | CutOff]:
    """Batches of a file of drained bytes, in their order. What is no record ends it: a `CutOff` is the last then.

    Raises OSError alone: of whatever bytes `file` has, so many are batches as come before the first that are none.
    """
    with open(file, "rb", opener=plain_opener) as stream:
        n_left = os.fstat(stream.fileno()).st_size
        offset = 0
        while head := stream.read(_FRAME.size):
            frame = head + stream.read(_length(head) - len(head))
            batch = _batch(frame)
            if batch is None:
                yield CutOff(offset, max(n_left - offset, len(frame)))
                return
            yield batch
            offset += len(frame)


def _length(head: bytes) -> int:
    """Bytes of the frame with this head; those of the head alone where it is none."""
    if len(head) < _FRAME.size:
        return len(head)
    marker, n_bytes = _FRAME.unpack(head)[:2]
    is_frame = marker == _MARKER and _FRAME.size <= n_bytes <= _MOST_FRAME and n_bytes % 8 == 0
    return int(n_bytes) if is_frame else len(head)


def _batch(frame: bytes) -> RecordedBatch | None:
    """None where the bytes are no whole frame."""
    if len(frame) < _FRAME.size:
        return None
    (marker, n_bytes, pid, thread, version, start, compute_start, compute_end, end, rows,
     n_requests, n_failed, n_ids, device, n_model, n_instance, writer) = _FRAME.unpack_from(frame)  # fmt: skip
    if (
        marker != _MARKER
        or n_bytes != len(frame)
        or max(n_ids, n_failed) > n_requests
        or writer >= len(_WRITERS)
    ):
        return None
    at = _FRAME.size
    model, instance = frame[at : at + n_model], frame[at + n_model : at + n_model + n_instance]
    ids = _ids(frame, at + n_model + n_instance, n_ids)
    if ids is None:
        return None
    model_name, instance_name = (bounded(one.decode(errors="replace")) for one in (model, instance))
    return RecordedBatch(
        pid, thread, model_name, version, instance_name, device, start, compute_start, compute_end, end, rows,
        n_requests, n_failed, ids, _WRITERS[writer],
    )  # fmt: skip


def _ids(frame: bytes, at: int, n_ids: int) -> tuple[bytes, ...] | None:
    """None where they are not the rest of the frame."""
    if n_ids > len(frame) // _ID_LENGTH.size:
        return None
    ids = []
    for _ in range(n_ids):
        if at + _ID_LENGTH.size > len(frame):
            return None
        (n,) = _ID_LENGTH.unpack_from(frame, at)
        at += _ID_LENGTH.size
        ids.append(frame[at : at + n])
        at += n
    is_end = 0 <= len(frame) - at < 8 and not any(frame[at:])
    return tuple(ids) if is_end else None
