"""A slice of `joined` or `steps` of one node's requests, with the little that it needs of elsewhere: it works there.

    here    batches and what they cost, a row per execution      there   the node's requests, as they were recorded
            of each request a few numbers                                their part of `joined`, which stays

Of the files that `sources` wrote go those rows that belong to the slice's requests of that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.join.slices import JoinSlice, join_slice
from squall.analysis.join.sources import REQUESTS, Homes, Sources, Span
from squall.analysis.join.step_rows import step_slice
from squall.analysis.storage.part import parquet_bytes
from squall.analysis.storage.places.place import FarPart, home_of
from squall.analysis.storage.row_groups import read_span
from squall.analysis.storage.workplace import Desk, Errand

Table = Literal["joined", "steps"]
_BY_ID = {"joined": ("traces", "while_there"), "steps": ()}
_WHOLE = {"joined": ("second_means", "phase_means"), "steps": ()}
_OF_BATCHES = {"joined": "members", "steps": "stepped"}


def slice_at(one: JoinSlice, homes: Homes, home: int) -> JoinSlice:
    """The slice, of the requests that lie at a home alone, and with the nodes that these name."""
    others = homes.names[1:]
    requests = tuple(part for part in one.requests if home_of(part, others) == homes.names[home])
    nodes = {name: facts for name, facts in one.nodes.items() if name in homes.nodes[home]}
    return replace(one, requests=requests, nodes=nodes)


class Errands:
    """Makes up the errands of one table. For several threads: nodes that are at the same slice share what it read."""

    def __init__(self, table: Table) -> None:
        self._table: Table = table
        self._stretch = lru_cache(maxsize=2)(partial(_Stretch, table))

    def make(self, one: JoinSlice, home: int) -> Errand:
        """For the node of `slice_at`, which works without anything of here. Raises StoreError."""
        sources, table = one.sources, self._table
        stretch = self._stretch(sources.folder, _spans(table, sources)[one.number])
        ids = stretch.ids(home)
        members = stretch.rows(_OF_BATCHES[table], ids)
        rows = {
            _OF_BATCHES[table]: members,
            "executed": stretch.rows("executed", np.unique(members["place"].to_numpy())),
        }
        rows |= {name: stretch.rows(name, ids) for name in _BY_ID[table]}
        files = {name: parquet_bytes(found) for name, found in rows.items()}
        files |= {name: sources.path(name).read_bytes() for name in _WHOLE[table]}
        requests = tuple(Path(part.file) for part in one.requests if isinstance(part, FarPart))
        bare = replace(sources, folder=Path(), homes=None)
        return _JoinErrand(table, replace(one, requests=requests, sources=bare), files)


def _spans(table: Table, sources: Sources) -> tuple[Span, ...]:
    return sources.spans if table == "joined" else sources.step_spans


class _Stretch:
    """What the files have of the requests of one slice, wherever these lie."""

    def __init__(self, table: Table, folder: Path, span: Span) -> None:
        found = read_span([folder / REQUESTS], "request_id", *span, ["request_id", "home"])
        ids, homes = found["request_id"].to_numpy(), found["home"].to_numpy()
        order = np.argsort(homes, kind="stable")
        self._ids, self._homes = ids[order], homes[order]
        sources = Sources(folder, (span,))
        self._found = {
            name: _read(sources, name, "request_id", span) for name in (_OF_BATCHES[table], *_BY_ID[table])
        }
        places = self._found[_OF_BATCHES[table]]["place"].to_numpy()
        of_places = (int(places.min()), int(places.max())) if len(places) else (0, -1)
        self._found["executed"] = _read(sources, "executed", "place", of_places)

    def ids(self, home: int) -> Int64s:
        """Of the requests that lie at a home, in order."""
        first, end = np.searchsorted(self._homes, (home, home + 1))
        ids: Int64s = self._ids[first:end]
        return ids

    def rows(self, name: str, wanted: Int64s) -> pa.Table:
        """Those with one of the `wanted` keys, which are sorted, as the rows are."""
        found = self._found[name]
        keys = found["place" if name == "executed" else "request_id"].to_numpy()
        first, end = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        n = end - first
        at = np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())
        return found.take(pa.array(at))


def _read(sources: Sources, name: str, key: str, span: Span) -> pa.Table:
    return pa.table(read_span([sources.path(name)], key, *span))


@dataclass(frozen=True)
class _JoinErrand:
    """`slice`: the paths of its requests from the run's folder on the node. `files`: Parquet by name of a file."""

    table: Table
    slice: JoinSlice
    files: Mapping[str, bytes]

    def __call__(self, desk: Desk) -> None:
        sources = replace(self.slice.sources, folder=desk.scratch)
        for name, content in self.files.items():
            sources.path(name).write_bytes(content)
        requests = tuple(desk.records / part for part in self.slice.requests if isinstance(part, Path))
        own = replace(self.slice, requests=requests, sources=sources, new=desk.new)
        (join_slice if self.table == "joined" else step_slice)(own)
