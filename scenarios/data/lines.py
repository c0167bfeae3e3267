"""Lines of UTF-8 text: each is an entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path

from squall.scenarios.data.source import Entries, Source, Wanted, fault
from squall.scenarios.data.values import array_of
from squall.scenarios.traces.faults import RowFault

ONLY_COLUMN = "text"
LARGEST_LINE_BYTES = 2**24
"""Of one line, so that a file without line ends is told and not read."""
_BOM = b"\xef\xbb\xbf"


class LineSource(Source):
    """A text file; the end of a line, `\\n` or `\\r\\n`, is no part of it."""

    names = (ONLY_COLUMN,)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.n_entries = sum(1 for _ in self._lines())

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        del names
        for number, line in compress(enumerate(self._lines()), wanted):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise fault(number, f"is not UTF-8 text, from its byte {error.start + 1} on") from error
            yield number, {ONLY_COLUMN: array_of(text)}

    def _lines(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(LARGEST_LINE_BYTES + 1):
                if len(line) > LARGEST_LINE_BYTES:
                    most = LARGEST_LINE_BYTES // 2**20
                    raise RowFault(number + 1, f"the line is longer than {most} MiB; is it lines of text?")
                line = line.removeprefix(_BOM) if not number else line
                yield line.removesuffix(b"\n").removesuffix(b"\r")
                number += 1
