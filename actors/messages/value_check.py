"""Whether the values of a reply are those that its request must give, within a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN_BYTES, _SHOWN_BEFORE = 16, 4


@dataclass(frozen=True)
class ValueRule:
    """Which replies are compared, those whose request id is a multiple of `every`, and how close they must be.

    A float is right where |value - expected| <= atol + rtol * |expected| (`numpy.isclose`), anything else where it is
    the same.
    """

    every: int
    rtol: float
    atol: float


@dataclass
class Tally:
    """Replies whose values a worker has compared so far, the wrong ones among them; all responses to a request are
    one."""

    n_checked: int = 0
    n_wrong: int = 0


class ValueCheck:
    """The outputs that one request must give, by name; `tally` is shared by all checks of a worker."""

    def __init__(self, expected: Mapping[str, NDArray[Any]], rule: ValueRule, tally: Tally) -> None:
        self.rule = rule
        self._tally = tally
        self._outputs = {name: _expected(array, rule) for name, array in expected.items()}

    def covers(self, output: str) -> bool:
        """Whether values are known for that output."""
        return output in self._outputs

    def shape_of(self, output: str) -> tuple[int, ...]:
        """The shape that a covered output must have."""
        return self._outputs[output].shape

    def fault_of(self, outputs: Mapping[str, NDArray[Any]]) -> str:
        """The first covered output that is wrong, with its largest difference; empty where all are right. Counts."""
        self._tally.n_checked += 1
        for name, expected in self._outputs.items():
            why = expected.difference(outputs[name])
            if why:
                self._tally.n_wrong += 1
                return f"output {name} {why}"
        return ""


class StreamCheck:
    """The responses that one request must give, in their order, each as outputs by name."""

    def __init__(self, expected: Sequence[Mapping[str, NDArray[Any]]], rule: ValueRule, tally: Tally) -> None:
        self.rule = rule
        self._tally = tally
        self._responses = [ValueCheck(outputs, rule, Tally()) for outputs in expected]

    def fault_of(self, index: int, arrays: Callable[[ValueCheck], Mapping[str, NDArray[Any]]]) -> str:
        """What is wrong with the response at that place; `arrays` gives those of its outputs that a check covers."""
        if index >= len(self._responses):
            return f"response {index + 1} is one more than are expected"
        check = self._responses[index]
        why = check.fault_of(arrays(check))
        return f"response {index + 1}: {why}" if why else ""

    def fault_of_count(self, n_responses: int) -> str:
        """What is wrong with so many responses in all; empty where these are expected."""
        n = len(self._responses)
        return "" if n_responses == n else f"the stream had {n_responses} responses, expected are {n}"

    def count(self, is_wrong: bool) -> None:
        """A request of which all responses that came were compared has ended."""
        self._tally.n_checked += 1
        self._tally.n_wrong += is_wrong


Check = ValueCheck | StreamCheck


def _expected(array: NDArray[Any], rule: ValueRule) -> _Same | _Near:
    return _Near(array.astype(np.float64), rule) if array.dtype.kind == "f" else _Same(array)


class _Same:
    """One output of whole numbers, booleans, or bytes objects."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self.shape = values.shape

    def difference(self, found: NDArray[Any]) -> str:
        """Of numbers the largest; of bytes the first."""
        values = self._values
        if found.shape != values.shape:
            return _other_shape(found, values)
        is_other = found != values
        if not is_other.any():
            return ""
        if values.dtype.kind == "O":
            at = _largest(is_other)
            what = _other_bytes(found[at], values[at], _place(at))
            return f"{what}: the first of {int(is_other.sum())} that differ"
        distance = np.where(is_other, np.abs(found.astype(np.float64) - values.astype(np.float64)), -1.0)
        at = _largest(distance)
        return f"is {found[at]} at {_place(at)}, expected {values[at]}: the largest difference"


class _Near:
    """One output of floats: its values, and how far each may be off; below 0 where it is NaN or infinite."""

    def __init__(self, values: NDArray[np.float64], rule: ValueRule) -> None:
        self._values = values
        self.shape = values.shape
        self._rule = rule
        self._limits = np.where(np.isfinite(values), rule.atol + rule.rtol * np.abs(values), -1.0)

    def difference(self, found: NDArray[Any]) -> str:
        """NaN and infinities are right only where the same are expected, and else differ most."""
        values = self._values
        if found.shape != values.shape:
            return _other_shape(found, values)
        found = found.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(found - values)
        if (distance <= self._limits).all():  # the common case; isclose is for NaN and infinities
            return ""
        is_close = np.isclose(found, values, rtol=self._rule.rtol, atol=self._rule.atol, equal_nan=True)
        if is_close.all():
            return ""
        distance[np.isnan(distance)] = np.inf
        distance[is_close] = -1.0
        at = _largest(distance)
        return f"is {found[at]:.6g} at {_place(at)}, expected {values[at]:.6g}: the largest difference"


def _other_shape(found: NDArray[Any], values: NDArray[Any]) -> str:
    return f"has shape {list(found.shape)}, expected is {list(values.shape)}"


def _largest(distance: NDArray[Any]) -> tuple[np.intp, ...]:
    return np.unravel_index(int(np.argmax(distance)), distance.shape)


def _place(at: tuple[np.intp, ...]) -> list[int]:
    return [int(index) for index in at]


def _other_bytes(found: bytes, expected: bytes, place: list[int]) -> str:
    """What differs, from a few bytes before the first that does."""
    n_both = min(len(found), len(expected))
    n_same = next((i for i in range(n_both) if found[i] != expected[i]), n_both)
    start = max(0, n_same - _SHOWN_BEFORE)
    shown, right = (one[start : start + _SHOWN_BYTES] for one in (found, expected))
    return (
        f"has {shown!r} at {place} from byte {start} of {len(found)}, expected {right!r} of {len(expected)}"
    )
