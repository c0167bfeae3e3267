"""A stretch of a trace in numpy columns: what every reader yields and `write_trace` takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from squall.scenarios.arrays import Bools, Int64s, pieces
from squall.scenarios.records import Frozen

PART_ROWS = 2**18
"""The most rows of a part that a reader yields."""

MOST_ROWS = 2**28
"""Of a trace: a few bytes of a compressed file can hold or state any number."""

NO_SESSION = -1
"""Session number of a row that names none."""

EMPTY_SIZE = -1
"""Size of a row whose cell is empty."""

_SESSION_TEXT = re.compile(r"session-([0-9a-f]{16})", re.ASCII)


class TracePart(Frozen, eq=False):
    """Rows of a trace in the order of time: columns of equal length.

    `stamp_ns` is absolute: UTC ns since 1970 where the trace has dates or epoch stamps, else the trace's own
    numbers in ns. `sizes` are the integer columns under the names they have in the file, -1 where empty.
    `session` is equal for rows of one session, client or user (`session_number` of its text, -1 where a row
    names none); None where the file has no such column. `row` is each row's number in the file, None where no file
    is read.
    """

    stamp_ns: Int64s
    sizes: Mapping[str, Int64s]
    session: Int64s | None = None
    row: Int64s | None = None

    def __post_init__(self) -> None:
        columns = [column for column in (*self.sizes.values(), self.session, self.row) if column is not None]
        if any(column.shape != self.stamp_ns.shape for column in columns):
            raise ValueError("the columns of a trace part differ in length")

    def __len__(self) -> int:
        return int(self.stamp_ns.size)

    def row_of(self, index: int | np.int64) -> int | None:
        """The number in the file of the row at `index`; None where no file is read."""
        return None if self.row is None else int(self.row[index])

    def take(self, rows: Int64s | Bools | slice) -> TracePart:
        """The rows of an index, a mask or a slice."""
        sizes = {name: values[rows] for name, values in self.sizes.items()}
        session, row = (None if column is None else column[rows] for column in (self.session, self.row))
        return TracePart(self.stamp_ns[rows], sizes, session, row)

    def pieces(self, most_rows: int = PART_ROWS) -> Iterator[TracePart]:
        """The same rows in parts of at most `most_rows`."""
        return map(self.take, pieces(len(self), most_rows))


def join_parts(parts: Sequence[TracePart]) -> TracePart:
    """One part with the rows of all, which have the same columns. ValueError for no parts."""

    def joined(columns: Iterable[Int64s | None]) -> Int64s | None:
        known = [column for column in columns if column is not None]
        return np.concatenate(known) if known else None

    return TracePart(
        np.concatenate([part.stamp_ns for part in parts]),
        {name: np.concatenate([part.sizes[name] for part in parts]) for name in parts[0].sizes},
        joined(part.session for part in parts),
        joined(part.row for part in parts),
    )


def session_number(text: str) -> int:
    """63-bit number of a session's text: blake2b, so that it is equal on every machine and in every format.

    What `session_text` wrote gives its number back. An empty text and `-` are no session, -1.
    """
    if text in ("", "-"):
        return NO_SESSION
    written = _SESSION_TEXT.fullmatch(text)
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(bytes.fromhex(written[1]) if written else digest, "big") & (2**63 - 1)


def session_text(number: int) -> str:
    """Text that `session_number` reads back as `number`; empty for -1."""
    return "" if number == NO_SESSION else f"session-{number:016x}"
