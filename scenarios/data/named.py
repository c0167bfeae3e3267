"""The entries that the requests of a trace name: by number, or by a key of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.config.inputs import DataConfig, TraceOrder
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen


class NamedEntries(Frozen):
    """`column`: of the trace. `keys`, sorted, and the entries `of_keys` that have them."""

    column: str
    path: Path
    keys: Int64s
    of_keys: Int64s

    def entries(self, names: Int64s) -> Int64s:
        """The entries, (n,), of what the trace's requests say, (n,), -1 for nothing. Raises ScenarioError for a name
        that no entry has."""
        places = np.minimum(np.searchsorted(self.keys, names), self.keys.size - 1)
        unknown = names[self.keys[places] != names]
        if unknown.size:
            what = "is empty" if unknown[0] < 0 else f"says {unknown[0]}"
            raise ScenarioError(
                f"clients.data.order: the trace's column {self.column!r} {what} in a request, and {self.path} has"
                f" {self.keys.size} entries, {self.keys[0]} to {self.keys[-1]}"
            )
        return self.of_keys[places]


def named_entries(config: DataConfig, n_entries: int) -> NamedEntries | None:
    """None where no trace names them. Raises ScenarioError for keys that are no whole numbers, or there twice."""
    order = config.order
    if not isinstance(order, TraceOrder):
        return None
    if order.key is None:
        numbers = np.arange(n_entries)
        return NamedEntries(order.column, Path(config.path), numbers, numbers)
    data = open_data(config)
    keys = _keys(data, order.key)
    of_keys = np.argsort(keys, kind="stable")
    keys = keys[of_keys]
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if twice.size:
        at = int(of_keys[twice[0] + 1])
        raise data.fault(at, f"the key {keys[twice[0]]} of {order.key!r} stands there a second time")
    return NamedEntries(order.column, data.path, keys, of_keys)


def _keys(data: Data, name: str) -> Int64s:
    if name not in data.names:
        raise ScenarioError(f"{data.path}: has no column {name!r} for a key, it has {', '.join(data.names)}")
    keys = np.empty(data.n_entries, np.int64)
    for number, entry in data.read(np.arange(data.n_entries), (name,)):
        cell = entry.get(name)
        if not isinstance(cell, np.ndarray) or cell.size != 1 or cell.dtype.kind not in "iu":
            raise data.fault(number, f"{name!r} is no whole number, and was to be a key")
        keys[number] = cell.ravel()[0]
    return keys
