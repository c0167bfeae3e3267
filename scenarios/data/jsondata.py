"""perf_analyzer's JSON: `{"data": [{"IN": [1, 2]}, …], "validation_data": [{"OUT": [3]}, …]}`, an entry at a time.

Source: perf_analyzer's docs/input_data.md. Of several streams of a sequence model every step is an entry, in the order
of the file. Keys other than the one that is asked for are passed over.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from squall.scenarios.data.source import Cell, Entries, Raw, Source, Wanted, fault
from squall.scenarios.data.values import array_of
from squall.scenarios.traces.documents import entries_in, has_key
from squall.scenarios.traces.faults import shown

DATA, VALIDATION = "data", "validation_data"
"""Keys of such a file: what requests carry, and what the replies to them must be."""


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

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        for number, entry in compress(enumerate(_entries_in(self._path, self._key)), wanted):
            given = [name for name in names if entry.get(name) is not None]
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
    if array.size != math.prod(shape):
        raise fault(
            number, f"{name!r} has {array.size} elements, and its shape {list(shape)} {math.prod(shape)}"
        )
    return array.reshape(shape)


def _shape(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"has a shape that is none: {value!r}"[:80])
    return tuple(value)


def _entries_in(path: Path, key: str) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, entry in enumerate(entries_in(file, key)):
            if not isinstance(entry, dict):
                raise fault(number, f"an entry is an object of inputs by name, not {shown(str(entry))}")
            yield entry


def has_validation(path: Path) -> bool:
    """Whether the file says what replies must be. Raises RowFault for what is no JSON object, OSError."""
    with path.open("rb") as file:
        return has_key(file, VALIDATION)
