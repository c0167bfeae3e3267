"""perf_analyzer's JSON: `{"data": [{"IN": [1, 2]}, …], "validation_data": [{"OUT": [3]}, …]}`, an entry at a time.

Source: perf_analyzer's docs/input_data.md. Of several streams of a sequence model every step is an entry, in the order
of the file. Keys other than the one that is asked for are passed over.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from squall.scenarios.data.source import Cell, Entry, Raw, Source, Wanted, fault
from squall.scenarios.data.values import array_of, n_elements
from squall.scenarios.traces.parts.faults import RowFault

DATA, VALIDATION = "data", "validation_data"
"""Keys of such a file: what requests carry, and what the replies to them must be."""
_READ_BYTES = 2**20
LARGEST_ENTRY_CHARACTERS = 2**28
"""Of one entry, so that a file that is no such JSON is told and not held."""
_SPACE = " \t\r\n"


class JsonSource(Source):
    """A file of perf_analyzer's `--input-data`; `key`: which of its two lists."""

    def __init__(self, path: Path, key: str = DATA) -> None:
        self._path, self._key = path, key
        names: dict[str, None] = {}
        self.n_entries = 0
        for entry in _entries_in(path, key):
            names |= dict.fromkeys(entry)
            self.n_entries += 1
        self.names = tuple(names)

    def read(self, wanted: Wanted, names: Collection[str]) -> Iterator[tuple[int, Entry]]:
        """See `Source`."""
        for number, entry in enumerate(_entries_in(self._path, self._key)):
            if number >= wanted.size:
                return
            if wanted[number]:
                given = [name for name in entry if name in names and entry[name] is not None]
                yield number, {name: _cell(entry[name], name, number) for name in given}


def _cell(value: Any, name: str, number: int) -> Cell:
    shape = None
    try:
        if isinstance(value, dict):
            shape = _shape(value.get("shape"))
            value = value.get("content", value)
        if isinstance(value, dict):
            return Raw(base64.b64decode(value["b64"], validate=True), shape)
        array = array_of(value)
    except (binascii.Error, KeyError, TypeError) as error:
        raise fault(number, f"{name!r} is neither a list, nor content with its shape, nor b64") from error
    except ValueError as error:
        raise fault(number, f"{name!r} {error}") from error
    if shape is None:
        return array
    if array.size != n_elements(shape):
        raise fault(
            number, f"{name!r} has {array.size} elements, and its shape {list(shape)} {n_elements(shape)}"
        )
    return array.reshape(shape)


def _shape(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"has a shape that is none: {value!r}"[:80])
    return tuple(value)


def _entries_in(path: Path, wanted: str) -> Iterator[dict[str, Any]]:
    """The objects of the list of that key, those of its lists too. Raises RowFault for what is no such file."""
    with path.open("rb") as file:
        text = _Text(file)
        for key in _keys_of(text):
            if key == wanted:
                yield from _steps(text)
                return
            text.skip()
    raise RowFault(None, f'has no "{wanted}", the list of entries of perf_analyzer\'s format')


def has_validation(path: Path) -> bool:
    """Whether the file says what replies must be. Raises RowFault for what is no JSON object, OSError."""
    with path.open("rb") as file:
        text = _Text(file)
        for key in _keys_of(text):
            if key == VALIDATION:
                return True
            text.skip()
    return False


def _keys_of(text: _Text) -> Iterator[Any]:
    """Keys of the object, one after the other; who takes one reads or skips its value before the next."""
    text.expect("{", "a JSON object with data")
    while text.peek() != "}":
        key = text.value()
        text.expect(":", "a JSON object with data")
        yield key
        if text.peek() == ",":
            text.expect(",", "another key")


def _steps(text: _Text) -> Iterator[dict[str, Any]]:
    for item in text.items():
        for entry in item if isinstance(item, list) else [item]:
            if not isinstance(entry, dict):
                raise text.fault(f"an entry is an object of inputs by name, not {json.dumps(entry)[:40]}")
            yield entry
            text.n_entries += 1


class _Text:
    """JSON text of a file as far as it was read; `n_entries`: of those that were whole, for its faults."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._parser = json.JSONDecoder()
        self._text, self._at, self._is_whole = "", 0, False
        self.n_entries = 0

    def fault(self, what: str) -> RowFault:
        return fault(self.n_entries, what)

    def _more(self) -> None:
        """As much again as is held. Raises RowFault for what is no text, or too long for one entry."""
        n_held = len(self._text) - self._at
        if n_held > LARGEST_ENTRY_CHARACTERS:
            most = LARGEST_ENTRY_CHARACTERS // 2**20
            raise self.fault(f"no entry ends within {most} MiB; is it perf_analyzer's JSON?")
        data = self._file.read(max(_READ_BYTES, n_held))
        self._is_whole = not data
        try:
            self._text = self._text[self._at :] + self._decode.decode(data, self._is_whole)
        except UnicodeDecodeError as error:
            raise self.fault("is not UTF-8 text") from error
        self._at = 0

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text) or self._is_whole:
                return self._text[self._at : self._at + 1]
            self._more()

    def expect(self, mark: str, what: str) -> None:
        if self.peek() != mark:
            raise self.fault(
                f"is not {what}: {self._text[self._at : self._at + 20]!r} stands in place of {mark!r}"
            )
        self._at += 1

    def value(self) -> Any:
        """The next value, whole."""
        while True:
            self.peek()
            try:
                value, end = self._parser.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._is_whole:
                    raise self.fault(f"is no JSON: {error.msg}; is the file whole?") from error
            except RecursionError as error:
                raise self.fault("is nested too deep") from error
            else:
                if end < len(self._text) or self._is_whole:  # else a number may go on
                    self._at = end
                    return value
            self._more()

    def items(self) -> Iterator[Any]:
        """Those of the list that comes next."""
        self.expect("[", "a list of entries")
        while self.peek() != "]":
            yield self.value()
            if self.peek() != "]":
                self.expect(",", "a list of entries")
        self._at += 1

    def skip(self) -> None:
        """Passes over the next value."""
        if self.peek() == "[":
            for _ in self.items():
                pass
        else:
            self.value()
