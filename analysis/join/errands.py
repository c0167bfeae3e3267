"""A slice of `joined` or `steps` of one node's requests, with the little that it needs of elsewhere: it works there.

    here    batches and what they cost, a row per execution      there   the node's requests, as they were recorded
            of each request a few numbers                                their part of `joined`, which stays

Of the files that `sources` wrote go those rows that belong to the slice's requests of that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.join.slices import JoinSlice, join_slice
from squall.analysis.join.sources import Homes, Sources
from squall.analysis.join.step_rows import step_slice
from squall.analysis.storage.part import parquet_bytes
from squall.analysis.storage.places.place import FarPart, home_of
from squall.analysis.storage.row_groups import read_span
from squall.analysis.storage.workplace import Desk, Errand
from squall.analysis.tables import relations

Table = Literal["joined", "steps"]
_BY_ID = {"joined": (relations.TRACES, relations.WHILE_THERE), "steps": ()}
_WHOLE = {"joined": (relations.SECOND_MEANS, relations.PHASE_MEANS), "steps": ()}
_OF_BATCHES = {"joined": relations.MEMBERS, "steps": relations.STEPPED}


def slice_at(one: JoinSlice, homes: Homes, home: int) -> JoinSlice:
    """The slice, of the requests that lie at a home alone, and with the nodes that these name."""
    others = homes.names[1:]
    requests = tuple(part for part in one.requests if home_of(part, others) == homes.names[home])
    nodes = {name: facts for name, facts in one.nodes.items() if name in homes.nodes[home]}
    return replace(one, requests=requests, nodes=nodes)


def join_errand(table: Table, one: JoinSlice, home: int) -> Errand:
    """For the node of `slice_at`, which works without anything of here. Raises StoreError."""
    sources = one.sources
    span = (sources.spans if table == "joined" else sources.step_spans)[one.number]
    ids = sources.ids_at(home, span)
    members = _rows(sources, _OF_BATCHES[table], "request_id", ids)
    places = np.unique(members["place"].to_numpy())
    rows = {
        _OF_BATCHES[table]: members,
        relations.EXECUTED: _rows(sources, relations.EXECUTED, "place", places),
    }
    rows |= {relation: _rows(sources, relation, "request_id", ids) for relation in _BY_ID[table]}
    files = {relation.name: parquet_bytes(found) for relation, found in rows.items()}
    files |= {relation.name: sources.path(relation).read_bytes() for relation in _WHOLE[table]}
    requests = tuple(Path(part.file) for part in one.requests if isinstance(part, FarPart))
    bare = replace(sources, folder=Path(), homes=None)
    return _JoinErrand(table, replace(one, requests=requests, sources=bare), files)


def _rows(sources: Sources, relation: relations.Relation, key: str, wanted: Int64s) -> pa.Table:
    """The rows of a file whose `key` is one of `wanted`, which are sorted."""
    first, last = (wanted[0], wanted[-1]) if len(wanted) else (0, -1)
    found = pa.table(read_span([sources.path(relation)], key, int(first), int(last), list(relation.columns)))
    return found.filter(pa.array(np.isin(found[key].to_numpy(), wanted)))


@dataclass(frozen=True)
class _JoinErrand:
    """`slice`: the paths of its requests from the run's folder on the node. `files`: Parquet by name of a relation."""

    table: Table
    slice: JoinSlice
    files: Mapping[str, bytes]

    def __call__(self, desk: Desk) -> None:
        sources = replace(self.slice.sources, folder=desk.scratch)
        for relation in map(relations.RELATIONS.__getitem__, self.files):
            sources.path(relation).write_bytes(self.files[relation.name])
        requests = tuple(desk.records / part for part in self.slice.requests if isinstance(part, Path))
        own = replace(self.slice, requests=requests, sources=sources, new=desk.new)
        (join_slice if self.table == "joined" else step_slice)(own)
