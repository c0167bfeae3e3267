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


def items_in(file: IO[bytes], key: str, parse_float: Callable[[str], Any] = float) -> Iterator[Any]:
    """The values of the list under `key`; keys other than that are passed over.

    Raises RowFault where there is no such key, and ValueError, with what is wrong behind the values so far, for what is
    no such document.
    """
    text = _Text(file, parse_float)
    if not text.seek(key):
        raise RowFault(None, f'has no "{key}", the list of entries of perf_analyzer\'s format')
    yield from text.items()


def has_key(file: IO[bytes], key: str) -> bool:
    """Whether the document has a key. Raises ValueError for what is no JSON object."""
    return _Text(file, float).seek(key)


class _Text:
    """JSON text of a file as far as it was read."""

    def __init__(self, file: IO[bytes], parse_float: Callable[[str], Any]) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._parser = json.JSONDecoder(parse_float=parse_float)
        self._text, self._at, self._is_whole = "", 0, False

    def seek(self, key: str) -> bool:
        """Whether the object has the key, whose value is the next then."""
        self._expect("{", "a JSON object with data")
        while self._peek() != "}":
            name = self._value()
            self._expect(":", "a JSON object with data")
            if name == key:
                return True
            if self._peek() != "[":
                self._value()
            else:
                for _ in self.items():
                    pass
            if self._peek() == ",":
                self._at += 1
        return False

    def items(self) -> Iterator[Any]:
        """Those of the list that comes next."""
        self._expect("[", "a list of entries")
        while self._peek() != "]":
            yield self._value()
            if self._peek() != "]":
                self._expect(",", "a list of entries")
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
