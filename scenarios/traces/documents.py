"""One JSON document with a list of entries, `{"data": [..]}`, an entry at a time: memory is bounded by one entry."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import IO, Any

from squall.scenarios.traces.faults import RowFault

LARGEST_ENTRY_CHARACTERS = 2**28
"""Of one entry, so that a file that is no such JSON is told and not held."""
_READ_BYTES = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")


def entries_in(file: IO[bytes], key: str, parse_float: Callable[[str], Any] = float) -> Iterator[Any]:
    """The entries of the list under `key`, those of its lists too; keys other than that are passed over.

    Raises RowFault, with the place of the entry, for what is no such document.
    """
    row = 1
    text = _Text(file, parse_float)
    try:
        if not text.seek(key):
            raise RowFault(None, f'has no "{key}", the list of entries of perf_analyzer\'s format')
        for item in text.items():
            for entry in item if isinstance(item, list) else [item]:
                yield entry
                row += 1
    except ValueError as error:
        raise RowFault(row, str(error)) from error


def has_key(file: IO[bytes], key: str) -> bool:
    """Whether the document has a key. Raises RowFault for what is no JSON object."""
    try:
        return _Text(file, float).seek(key)
    except ValueError as error:
        raise RowFault(1, str(error)) from error


class _Text:
    """JSON text of a file as far as it was read."""

    def __init__(self, file: IO[bytes], parse_float: Callable[[str], Any]) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._parser = json.JSONDecoder(parse_float=parse_float)
        self._text, self._at, self._is_whole = "", 0, False

    def seek(self, key: str) -> bool:
        """Whether the object has the key, whose value is the next then."""
        for _ in self._members("{}", "a JSON object with data"):
            name = self._value()
            self._expect(":", "a JSON object with data")
            if name == key:
                return True
            if self._peek() != "[":
                self._value()
            else:
                for _ in self.items():
                    pass
        return False

    def items(self) -> Iterator[Any]:
        """Those of the list that comes next."""
        for _ in self._members("[]", "a list of entries"):
            yield self._value()

    def _members(self, marks: str, what: str) -> Iterator[None]:
        """Stops in front of each member of the object or list that comes next."""
        self._expect(marks[0], what)
        while self._peek() != marks[1]:
            yield
            if self._peek() != marks[1]:
                self._expect(",", what)
        self._at += 1

    def _more(self) -> None:
        """As much again as is held. Raises ValueError for what is no text, or too long for one entry."""
        n_held = len(self._text) - self._at
        if n_held > LARGEST_ENTRY_CHARACTERS:
            most = LARGEST_ENTRY_CHARACTERS // 2**20
            raise ValueError(f"no entry ends within {most} MiB; is it perf_analyzer's JSON?")
        data = self._file.read(max(_READ_BYTES, n_held))
        self._is_whole = not data
        try:
            self._text = self._text[self._at :] + self._decode.decode(data, self._is_whole)
        except UnicodeDecodeError as error:
            raise ValueError("is not UTF-8 text") from error
        self._at = 0

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or self._is_whole:
                return self._text[self._at : self._at + 1]
            self._more()

    def _expect(self, mark: str, what: str) -> None:
        if self._peek() != mark:
            there = self._text[self._at : self._at + 20]
            raise ValueError(f"is not {what}: {there!r} stands in place of {mark!r}")
        self._at += 1

    def _value(self) -> Any:
        """The next value, whole."""
        while True:
            self._peek()
            try:
                value, end = self._parser.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise ValueError(f"is no JSON: {error.msg}; is the file whole?") from error
            except RecursionError as error:
                raise ValueError("is nested too deep") from error
            else:
                if end < len(self._text) or self._is_whole:  # else a number may go on
                    self._at = end
                    return value
            self._more()
