"""The entries that the requests of a trace name: by number, or by a key of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.config.clients.data import DataConfig, TraceOrder
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.errors import ScenarioError


@dataclass(frozen=True)
class NamedEntries:
    """`column`: of the trace. `keys`, sorted, and the entries `of_keys` that have them; None: numbers are the names."""

    column: str
    path: Path
    n_entries: int
    keys: NDArray[np.int64] | None = None
    of_keys: NDArray[np.int64] | None = None

    def entries(self, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries, (n,), of what the trace's requests say, (n,), -1 for nothing. Raises ScenarioError for a name
        that no entry has."""
        if self.keys is None or self.of_keys is None:
            found = names
            is_there = (names >= 0) & (names < self.n_entries)
            known = f"it has the entries 0 to {self.n_entries - 1}"
        else:
            places = np.minimum(np.searchsorted(self.keys, names), self.keys.size - 1)
            found, is_there = self.of_keys[places], self.keys[places] == names
            known = f"{self.keys.size} entries have keys, {self.keys[0]} to {self.keys[-1]}"
        if not is_there.all():
            name = int(names[~is_there][0])
            what = "is empty" if name < 0 else f"says {name}"
            raise ScenarioError(
                f"clients.data.order: the trace's column {self.column!r} {what} in a request, and of {self.path}"
                f" {known}"
            )
        return found


def named_entries(config: DataConfig, n_entries: int) -> NamedEntries | None:
    """None where no trace names them. Raises ScenarioError for keys that are no whole numbers, or there twice."""
    order = config.order
    if not isinstance(order, TraceOrder):
        return None
    if order.key is None:
        return NamedEntries(order.column, Path(config.path), n_entries)
    data = open_data(config)
    keys = _keys(data, order.key)
    of_keys = np.argsort(keys, kind="stable")
    keys = keys[of_keys]
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if twice.size:
        at = int(of_keys[twice[0] + 1])
        raise data.fault(at, f"the key {keys[twice[0]]} of {order.key!r} stands there a second time")
    return NamedEntries(order.column, data.path, n_entries, keys, of_keys.astype(np.int64))


def _keys(data: Data, name: str) -> NDArray[np.int64]:
    if name not in data.names:
        raise ScenarioError(f"{data.path}: has no column {name!r} for a key, it has {', '.join(data.names)}")
    keys = np.empty(data.n_entries, np.int64)
    for number, entry in data.read(np.arange(data.n_entries), (name,)):
        cell = entry.get(name)
        if not isinstance(cell, np.ndarray) or cell.size != 1 or cell.dtype.kind not in "iu":
            raise data.fault(number, f"{name!r} is no whole number, and was to be a key")
        keys[number] = cell.ravel()[0]
    return keys
