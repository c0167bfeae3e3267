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
    flat: list[Any] = []
    _flatten(value, shape, flat)
    kinds = {type(one) for one in flat}
    if not flat:
        return np.empty(shape, np.float64)
    if kinds <= {str, bytes}:
        found = np.empty(len(flat), np.object_)
        found[:] = [one.encode() if isinstance(one, str) else one for one in flat]
        return found.reshape(shape)
    if kinds == {bool}:
        return np.array(flat, np.bool_).reshape(shape)
    if kinds == {int}:
        return _whole(flat).reshape(shape)
    if kinds <= {int, float}:
        return _with_fractions(flat).reshape(shape)
    raise ValueError(f"holds {_named(kinds)}, and a tensor is of one type")


def _with_fractions(flat: list[Any]) -> NDArray[Any]:
    for one in flat:
        if type(one) is int and (abs(one) > _LARGEST_WHOLE or int(float(one)) != one):
            raise ValueError(f"holds {one} beside numbers with a fraction, and float64 has no such number")
    return np.array(flat, np.float64)


def _shape_of(value: Any) -> tuple[int, ...]:
    """By the first of each list; an empty list ends it."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _flatten(value: Any, shape: tuple[int, ...], flat: list[Any]) -> None:
    if not shape:
        if isinstance(value, list):
            raise ValueError("is ragged: a list stands beside a value")
        flat.append(value)
        return
    if not isinstance(value, list):
        raise ValueError("is ragged: a value stands beside a list")
    if len(value) != shape[0]:
        raise ValueError(f"is ragged: a list of {len(value)} stands beside one of {shape[0]}")
    if len(shape) == 1 and not any(isinstance(one, list) for one in value):
        flat += value
        return
    for one in value:
        _flatten(one, shape[1:], flat)


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
