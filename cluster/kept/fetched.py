"""What has come of files of nodes, kept while a run is analysed: a byte that several queries read crosses once."""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple

_SHARE_OF_FREE = 4
"""A quarter of the disk's free room at most: queries spill there too."""


class _Piece(NamedTuple):
    """Bytes from `start` to `end` of a file of a node, and where they lie in ours."""

    start: int
    end: int
    at: int


_START = attrgetter("start")


class Fetched:
    """One file without a name in a folder, gone with its process. For any thread; of files that never change.

    Where there is no room, no more is kept, and what is read again comes again.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        """Raises OSError where nothing can be written there. `most_bytes`: None for a share of the free room."""
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # `close` ends it
        self._most = shutil.disk_usage(folder).free // _SHARE_OF_FREE if most_bytes is None else most_bytes
        self._end = 0
        self._pieces: dict[str, list[_Piece]] = {}
        """By file; sorted, and none over another."""
        self._lock = Lock()

    def read(self, file: str, start: int, n_bytes: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """So many bytes of `file` from `start` on. What is not here comes by `fetch`, told a start and how many
        bytes, which gives all of these or raises."""
        end, at, found = start + n_bytes, start, []
        with self._lock:
            here = self._over(file, start, end)
        for piece in here:
            if at < piece.start:
                found.append(self._kept(file, at, fetch(at, piece.start - at)))
                at = piece.start
            n_here = min(piece.end, end) - at
            found.append(os.pread(self._file.fileno(), n_here, piece.at + at - piece.start))
            at += n_here
        if at < end:
            found.append(self._kept(file, at, fetch(at, end - at)))
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Gives the room back. Nobody reads any more."""
        self._file.close()

    def _over(self, file: str, start: int, end: int) -> list[_Piece]:
        """The pieces that have any of these bytes, in order."""
        pieces = self._pieces.get(file, [])
        first = max(0, bisect_right(pieces, start, key=_START) - 1)
        last = bisect_right(pieces, end - 1, key=_START)
        return [piece for piece in pieces[first:last] if piece.end > start]

    def _kept(self, file: str, start: int, content: bytes) -> bytes:
        """`content`, kept where there is room and no other thread was faster."""
        end = start + len(content)
        with self._lock:
            if not content or self._end + len(content) > self._most:
                return content
            at, self._end = self._end, self._end + len(content)
        try:
            is_whole = os.pwrite(self._file.fileno(), content, at) == len(content)
        except OSError:
            is_whole = False
        with self._lock:
            if not is_whole:
                self._most = 0
            elif not self._over(file, start, end):
                insort(self._pieces.setdefault(file, []), _Piece(start, end, at))
        return content
