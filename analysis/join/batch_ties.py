"""Which execution of a slice an event belongs to: by the batch that its row names, or by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.storage.row_groups import Columns


class Ties(Protocol):
    """`row` of events of a server, (n,) int64: place of the execution, -1 where it is none of the slice."""

    numbers: tuple[str, ...]
    """Columns of numbers that it goes by, but for the instant."""
    texts: dict[str, list[str]]
    """Columns of texts, with the words whose places the columns hold."""

    def rows(self, events: Columns, at: str) -> Int64s:
        """`at`: column of the instant at which the thread acted for each event."""


class ByBatch:
    """By instance, its device and batch id."""

    numbers: tuple[str, ...] = ("instance_device", "batch_id")

    def __init__(self, rows: Int64s, instances: Sequence[str], devices: Int64s, batch_ids: Int64s) -> None:
        """Executions `rows`: the instance, its device and the batch id of each; no two have all alike."""
        words = sorted(set(instances))
        self.texts = {"instance": words}
        self._n_words = len(words)
        self._devices = np.unique(devices)
        self._first = int(batch_ids.min()) if len(batch_ids) else 0
        self._span = int(batch_ids.max()) - self._first + 1 if len(batch_ids) else 1
        place = {word: i for i, word in enumerate(words)}
        word = np.array([place[word] for word in instances], np.int64)
        key = self._instance(word, devices) * self._span + batch_ids - self._first
        order = np.argsort(key)
        self._keys, self._rows = key[order], rows[order]
        n_places = max(1, len(self._devices)) * self._n_words * self._span
        self._is_dense = n_places <= 16 * len(key) + 2**16
        if self._is_dense:  # a look-up takes a tenth of a search
            self._row_of = np.full(n_places + 1, -1)
            self._row_of[key] = rows

    def rows(self, events: Columns, at: str) -> Int64s:  # noqa: ARG002  # goes by no instant
        """-1 also for events without a batch."""
        place, batch_id = (
            self._instance(events["instance"], events["instance_device"]),
            events["batch_id"] - self._first,
        )
        is_known = (place >= 0) & (batch_id >= 0) & (batch_id < self._span)
        key = np.where(is_known, place * self._span + batch_id, -1)
        if self._is_dense:
            return self._row_of[key]  # the last entry is nobody's
        found = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[found] == key, self._rows[found], -1)

    def _instance(self, word: Int64s, device: Int64s) -> Int64s:
        """Number of each instance by place of its name and its device; -1 where there is none of the slice."""
        if len(self._devices) <= 1:
            only = self._devices[0] if len(self._devices) else 0
            return np.where((word < self._n_words) & (device == only), word, -1)
        place = np.minimum(np.searchsorted(self._devices, device), len(self._devices) - 1)
        is_known = (word < self._n_words) & (self._devices[place] == device)
        return np.where(is_known, place * self._n_words + word, -1)


class ByTime:
    """By the execution that alone was open at the instant. Spans do not overlap; both ends belong to them."""

    numbers: tuple[str, ...] = ()

    def __init__(self, rows: Int64s, first_ns: Int64s, last_ns: Int64s) -> None:
        self.texts: dict[str, list[str]] = {}
        own = np.flatnonzero(first_ns <= last_ns)
        own = own[np.argsort(first_ns[own])]
        self._rows, self._first_ns, self._last_ns = rows[own], first_ns[own], last_ns[own]

    def rows(self, events: Columns, at: str) -> Int64s:
        """-1 also where the instant is unknown."""
        at_ns = events[at]
        if not len(self._rows):
            return np.full(len(at_ns), -1)
        place = np.searchsorted(self._first_ns, at_ns, side="right") - 1
        is_open = (place >= 0) & (at_ns <= self._last_ns[np.maximum(place, 0)])
        return np.where(is_open, self._rows[np.maximum(place, 0)], -1)
