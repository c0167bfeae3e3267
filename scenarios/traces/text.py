"""Text of a trace in blocks of whole lines: bounded memory for any file, plain, gzip or zstd.

The compression is told by the first bytes, not by the name.
"""

from __future__ import annotations

import gzip
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.part import MOST_ROWS

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE_BYTES = 2**20
HEAD_BYTES = 2**16

_ZSTD = b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Whole lines of a text, each with its line end. `first_row` is the row of the first one."""

    first_row: int
    data: bytes

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Row numbers of the lines that are not blank, (n,) int64, increasing."""
        stripped = map(bytes.strip, self.data.split(b"\n"))  # no step in Python: files have millions of lines
        return np.flatnonzero(np.fromiter(map(bool, stripped), dtype=np.bool_)) + self.first_row

    def row_of(self, index: int) -> int:
        """Row number of the line that gave the data row `index`."""
        return int(self.rows[min(index, self.rows.size - 1)])

    def has_rows(self, n_rows: int) -> bool:
        """Whether `n_rows` is the number of lines, with the blank ones or without: no reader joined or split any."""
        return n_rows == self.data.count(b"\n") or n_rows == self.rows.size

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Row and content, without its line end, of each line that is not blank."""
        for row, line in enumerate(self.data.split(b"\n"), self.first_row):
            if line.strip():
                yield row, line.rstrip(b"\r")


def refuse_streams(path: Path) -> None:
    """A trace is opened more than once, so that a pipe would block or lose its first rows; OSError passes."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise RowFault(None, "is a pipe or a device; write it to a file first")


def open_text(path: Path) -> IO[bytes]:
    """The uncompressed bytes of `path`. Raises RowFault for a name that promises another compression."""
    refuse_streams(path)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic == _ZSTD:
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedInputStream(str(path), "zstd"))
    if path.suffix in (".gz", ".zst") and magic:
        kind = "gzip" if path.suffix == ".gz" else "zstd"
        raise RowFault(None, f"the name ends in {path.suffix} but the bytes are not {kind}; rename the file")
    return path.open("rb")


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of the uncompressed text, less if the file is shorter."""
    with open_text(path) as file:
        return _filled(file, HEAD_BYTES).removeprefix(_BOM)


def whole_lines(head: bytes, n_header_rows: int = 0) -> list[bytes]:
    """The lines of a file's first bytes after its header, without their ends; a last one that is cut is left out."""
    body = head.split(b"\n", n_header_rows)[-1] if n_header_rows else head
    return [
        line.rstrip(b"\r") for line in (body[: body.rfind(b"\n") + 1] or body).split(b"\n") if line.strip()
    ]


def first_line(head: bytes) -> tuple[int, bytes]:
    """Row and content of the first line that is not blank. Raises RowFault if there is none."""
    for row, line in enumerate(head.split(b"\n"), 1):
        if line.strip():
            return row, line.rstrip(b"\r")
    raise RowFault(None, "the file is empty; it needs at least one row")


def text_blocks(path: Path, n_header_rows: int = 0) -> Iterator[Block]:
    """All lines of `path` after the first `n_header_rows`, in blocks of about `BLOCK_BYTES`.

    Raises RowFault for a line longer than `LONGEST_LINE_BYTES`, which is never held whole, for a NUL byte, and for more
    than `MOST_ROWS` lines.
    """
    row, rest = 1, b""
    with open_text(path) as file:
        while True:
            read = _filled(file, BLOCK_BYTES)
            data = rest + (read.removeprefix(_BOM) if row == 1 and not rest else read)
            end = data.rfind(b"\n") + 1 if read else len(data)
            _check_lines(data, row)
            whole, rest = data[:end], data[end:]
            if whole:
                whole = whole if whole.endswith(b"\n") else whole + b"\n"
                n_skipped = max(n_header_rows - row + 1, 0)
                yield Block(row + n_skipped, whole.split(b"\n", n_skipped)[-1] if n_skipped else whole)
                row += whole.count(b"\n")
                if row - 1 > MOST_ROWS:
                    raise RowFault(None, f"has more than {MOST_ROWS} rows, which a trace has at most; cut it")
            if not read:
                return


def _check_lines(data: bytes, row: int) -> None:
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    long = np.flatnonzero(np.diff(ends, prepend=-1, append=len(data)) - 1 > LONGEST_LINE_BYTES)
    if long.size:
        what = f"the line is longer than {LONGEST_LINE_BYTES} bytes; is this a text of one request a line?"
        raise RowFault(row + int(long[0]), what)
    if b"\0" in data:
        row += data[: data.index(b"\0")].count(b"\n")
        raise RowFault(row, "a NUL byte: this is no text; name the format")


def _filled(file: IO[bytes], n_bytes: int) -> bytes:
    """`n_bytes` of `file`, fewer only at its end: a compressed stream may return less at a time."""
    pieces: list[bytes] = []
    while n_bytes and (read := file.read(n_bytes)):
        pieces.append(read)
        n_bytes -= len(read)
    return b"".join(pieces)
