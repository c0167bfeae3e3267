"""Whom to ask in a second: all, while they are few; of many so many that asking stays cheap, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

MOST_ASKED = 100
"""A second: a call and its answer take about half a millisecond of the driver (docs/scale.md)."""

Asked = TypeVar("Asked")


class Turns:
    """Remembers whose turn it is. What is asked may come and go meanwhile."""

    def __init__(self, most: int = MOST_ASKED) -> None:
        self._most = most
        self._first = 0

    def next(self, candidates: Sequence[Asked]) -> list[Asked]:
        """At most `most` of them, those after the ones before; each comes once in `len(candidates) / most` turns."""
        n = len(candidates)
        if n <= self._most:
            return list(candidates)
        first = self._first % n
        self._first = (first + self._most) % n
        return [candidates[(first + at) % n] for at in range(self._most)]
