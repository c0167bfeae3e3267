"""Nested lists of Python's as arrays of one type, exactly."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from squall.scenarios.arrays import Array

_LARGEST_WHOLE = 2**1023  # that float64 surely has room for
_NAMES = {
    bool: "booleans",
    int: "whole numbers",
    float: "numbers",
    str: "text",
    bytes: "bytes",
    type(None): "null",
}


def array_of(value: Any) -> Array:
    """The array of a number, boolean, text, bytes, or of nested lists of one of these; text as its UTF-8 bytes.

    Whole numbers are int64, or uint64 where they are too large for that; with one that has a fraction all are float64.
    Raises ValueError, in words that follow the name of what holds it, where lists are ragged, types are mixed, for
    null, and for a whole number that would be another as float64.
    """
    cells = np.array(value, np.object_)
    flat = cells.ravel().tolist()
    kinds = {*map(type, flat)}
    if list in kinds:
        raise ValueError("is ragged: its lists differ in length or in depth")
    return _typed(flat, kinds).reshape(cells.shape)


def _typed(flat: list[Any], kinds: set[type]) -> Array:
    """The values as one array, (n,). Raises as `array_of`."""
    if kinds <= {str, bytes} and flat:
        return np.array([item.encode() if isinstance(item, str) else item for item in flat], np.object_)
    if kinds == {bool}:
        return np.array(flat, np.bool_)
    if kinds == {int}:
        for dtype in (np.int64, np.uint64):
            with suppress(OverflowError):
                return np.array(flat, dtype)
        raise ValueError(f"holds {max(flat, key=abs)}, which no integer of 64 bits is")
    if kinds <= {int, float}:
        for item in flat:
            if type(item) is int and (abs(item) > _LARGEST_WHOLE or float(item) != item):
                raise ValueError(
                    f"holds {item} beside numbers with a fraction, and float64 has no such number"
                )
        return np.array(flat, np.float64)
    held = " and ".join(sorted(_NAMES.get(kind, kind.__name__) for kind in kinds))
    raise ValueError(f"holds {held}, and a tensor is of one type")
