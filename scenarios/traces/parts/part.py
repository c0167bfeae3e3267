"""A stretch of a trace in numpy columns: what every reader yields and `write_trace` takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PART_ROWS = 2**18
"""The most rows of a part that a reader yields."""

MOST_ROWS = 2**28
"""Of a trace: a few bytes of a compressed file can hold or state any number."""

NO_SESSION = -1
"""Session number of a row that names none."""

EMPTY_SIZE = -1
"""Size of a row whose cell is empty."""

_SESSION_TEXT = re.compile(r"session-([0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True, eq=False)
class TracePart:
    """Rows of a trace in the order of time: columns of equal length.

    `stamp_ns` is absolute: UTC ns since 1970 where the trace has dates or epoch stamps, else the trace's own
    numbers in ns. `sizes` are the integer columns under the names they have in the file, -1 where empty.
    `session` is equal for rows of one session, client or user (`session_number` of its text, -1 where a row
    names none); None where the file has no such column.
    """

    stamp_ns: NDArray[np.int64]
    sizes: Mapping[str, NDArray[np.int64]]
    session: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        columns = [*self.sizes.values(), *([] if self.session is None else [self.session])]
        if any(column.shape != self.stamp_ns.shape for column in columns):
            raise ValueError("the columns of a trace part differ in length")

    def __len__(self) -> int:
        return int(self.stamp_ns.size)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> TracePart:
        """The rows of an index, a mask or a slice."""
        session = None if self.session is None else self.session[rows]
        return TracePart(self.stamp_ns[rows], {k: v[rows] for k, v in self.sizes.items()}, session)

    def pieces(self, most_rows: int = PART_ROWS) -> Iterator[TracePart]:
        """The same rows in parts of at most `most_rows`."""
        for start in range(0, len(self), most_rows):
            yield self.take(slice(start, start + most_rows))


def join_parts(parts: Sequence[TracePart]) -> TracePart:
    """One part with the rows of all, which have the same columns. ValueError for no parts."""
    if not parts:
        raise ValueError("no parts to join")
    first = parts[0]
    session = None
    if first.session is not None:
        session = np.concatenate([part.session for part in parts if part.session is not None])
    sizes = {name: np.concatenate([part.sizes[name] for part in parts]) for name in first.sizes}
    return TracePart(np.concatenate([part.stamp_ns for part in parts]), sizes, session)


def session_number(text: str) -> int:
    """63-bit number of a session's text: blake2b, so that it is equal on every machine and in every format.

    What `session_text` wrote gives its number back. An empty text and `-` are no session, -1.
    """
    written = _SESSION_TEXT.fullmatch(text)
    if written is not None:
        return int(written[1], 16) & (2**63 - 1)
    if text in ("", "-"):
        return NO_SESSION
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    ) & (2**63 - 1)


def session_text(number: int) -> str:
    """Text that `session_number` reads back as `number`; empty for -1."""
    return "" if number == NO_SESSION else f"session-{number:016x}"
