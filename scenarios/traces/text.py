"""Text of a trace in blocks of whole lines: bounded memory for any file, plain, gzip or zstd.

The compression is told by the first bytes, not by the name.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.records import Frozen
from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.part import MOST_ROWS

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE_BYTES = 2**20
HEAD_BYTES = 2**16

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""By the ending of a name that is written; what is read says it by its first bytes."""
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_BOM = b"\xef\xbb\xbf"


class Block(Frozen):
    """Whole lines of a text, each with its line end. `first_row` is the row of the first one."""

    first_row: int
    data: bytes

    @cached_property
    def rows(self) -> Int64s:
        """Row numbers of the lines that are not blank, (n,) int64, increasing."""
        stripped = map(bytes.strip, self.data.split(b"\n"))  # no step in Python: files have millions of lines
        return np.flatnonzero(np.fromiter(map(bool, stripped), dtype=np.bool_)) + self.first_row

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines that are not blank, without their ends."""
        return [line.rstrip(b"\r") for line in self.data.split(b"\n") if line.strip()]


def refuse_streams(path: Path) -> None:
    """A trace is opened more than once, so that a pipe would block or lose its first rows; OSError passes."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise RowFault(None, "is a pipe or a device; write it to a file first")


def first_bytes(path: Path) -> bytes:
    """The file's own first 6 bytes, which tell a container and a compression."""
    with path.open("rb") as file:
        return file.read(6)


def open_text(path: Path) -> io.BufferedReader:
    """The uncompressed bytes of `path`. Raises RowFault for a name that promises another compression."""
    import pyarrow as pa

    refuse_streams(path)
    begin = first_bytes(path)
    compression = next((kind for kind, magic in _MAGIC.items() if begin.startswith(magic)), None)
    if compression is None and path.suffix in COMPRESSIONS and begin:
        kind = COMPRESSIONS[path.suffix]
        raise RowFault(None, f"the name ends in {path.suffix} but the bytes are not {kind}; rename the file")
    # A stream of Arrow's may return less than is asked for before its end.
    return io.BufferedReader(pa.input_stream(str(path), compression), BLOCK_BYTES)


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of the uncompressed text, less if the file is shorter. Raises RowFault if it is blank."""
    with open_text(path) as file:
        head = file.read(HEAD_BYTES).removeprefix(_BOM)
    if not head.strip():
        raise RowFault(None, "the file is empty; it needs at least one row")
    return head


def whole_lines(head: bytes) -> Block:
    """The lines of a file's first bytes; a last one that may be cut is left out unless it is the only one."""
    whole = head[: head.rfind(b"\n") + 1]
    return Block(1, whole if whole.strip() else head)


def text_blocks(path: Path, n_header_rows: int = 0) -> Iterator[Block]:
    """All lines of `path` after the first `n_header_rows`, in blocks of about `BLOCK_BYTES`.

    Raises RowFault for a line longer than `LONGEST_LINE_BYTES`, which is never held whole, for a NUL byte, and for more
    than `MOST_ROWS` lines.
    """
    row, rest = 1, b""
    with open_text(path) as file:
        while True:
            read = file.read(BLOCK_BYTES)
            data = rest + (read.removeprefix(_BOM) if row == 1 and not rest else read)
            end = data.rfind(b"\n") + 1 if read else len(data)
            _check_lines(data, row)
            whole, rest = data[:end], data[end:]
            if whole:
                whole = whole if whole.endswith(b"\n") else whole + b"\n"
                n_skipped = max(n_header_rows - row + 1, 0)
                yield Block(row + n_skipped, whole.split(b"\n", n_skipped)[-1] if n_skipped else whole)
                row += whole.count(b"\n")
                refuse_rows(row - 1)
            if not read:
                return


def refuse_rows(n_rows: int) -> None:
    """Raises RowFault for more rows than a trace has."""
    if n_rows > MOST_ROWS:
        raise RowFault(None, f"has more than {MOST_ROWS} rows, which a trace has at most; cut it")


def _check_lines(data: bytes, row: int) -> None:
    lengths = [*map(len, data.split(b"\n"))]
    if max(lengths) > LONGEST_LINE_BYTES:
        row += next(index for index, length in enumerate(lengths) if length > LONGEST_LINE_BYTES)
        what = f"the line is longer than {LONGEST_LINE_BYTES} bytes; is this a text of one request a line?"
        raise RowFault(row, what)
    if b"\0" in data:
        row += data[: data.index(b"\0")].count(b"\n")
        raise RowFault(row, "a NUL byte: this is no text; name the format")
