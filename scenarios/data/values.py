"""Nested lists of Python's as arrays of one type, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST_WHOLE = 2**1023  # that float64 surely has room for


def array_of(value: Any) -> NDArray[Any]:
    """The array of a number, boolean, text, bytes, or of nested lists of one of these; text as its UTF-8 bytes.

    Whole numbers are int64, or uint64 where they are too large for that; with one that has a fraction all are float64.
    Raises ValueError, in words that follow the name of what holds it, where lists are ragged, types are mixed, for
    null, and for a whole number that would be another as float64.
    """
    shape = _shape_of(value)
    flat = _flat(value, shape)
    kinds = {*map(type, flat)}
    if not flat:
        return np.empty(shape, np.float64)
    if kinds <= {str, bytes}:
        array = np.empty(len(flat), np.object_)
        array[:] = [item.encode() if isinstance(item, str) else item for item in flat]
        return array.reshape(shape)
    if kinds == {bool}:
        return np.array(flat, np.bool_).reshape(shape)
    if kinds == {int}:
        return _whole(flat).reshape(shape)
    if kinds <= {int, float}:
        for item in flat:
            if type(item) is int and (abs(item) > _LARGEST_WHOLE or int(float(item)) != item):
                raise ValueError(
                    f"holds {item} beside numbers with a fraction, and float64 has no such number"
                )
        return np.array(flat, np.float64).reshape(shape)
    raise ValueError(f"holds {_named(kinds)}, and a tensor is of one type")


def _shape_of(value: Any) -> tuple[int, ...]:
    """By the first of each list; an empty list ends it."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flat(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """The values in nested lists of that shape. Raises ValueError for lists of another."""
    if not isinstance(value, list):
        if shape:
            raise ValueError("is ragged: a value stands beside a list")
        return [value]
    if not shape:
        raise ValueError("is ragged: a list stands beside a value")
    if len(value) != shape[0]:
        raise ValueError(f"is ragged: a list of {len(value)} stands beside one of {shape[0]}")
    if len(shape) == 1 and not any(isinstance(item, list) for item in value):
        return value
    return [inner for item in value for inner in _flat(item, shape[1:])]


def _whole(flat: list[int]) -> NDArray[Any]:
    low, high = min(flat), max(flat)
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.array(flat, dtype)
    raise ValueError(f"holds {high if high > -low else low}, which no integer of 64 bits is")


def _named(kinds: set[type]) -> str:
    names = {bool: "booleans", int: "whole numbers", float: "numbers", str: "text", bytes: "bytes"}
    return " and ".join(
        sorted(names.get(kind, "null" if kind is type(None) else kind.__name__) for kind in kinds)
    )


def n_elements(shape: tuple[int, ...]) -> int:
    """Of a tensor of that shape."""
    n = 1
    for size in shape:
        n *= size
    return n
