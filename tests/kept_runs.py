"""Runs whose rows lie on the nodes that recorded them, and the work of these nodes without processes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.schema import TABLES
from squall.analysis.storage.kept_parts import as_kept
from squall.analysis.storage.part import table_entry
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.places.place import rows_of
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.workplace import Errand
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedFile, SealedVerdict
from squall.cluster.kept.keeper import Keeper

_NOW_NS = 1_795_250_252_713_561_538


def leave_on_nodes(
    whole: RunStore,
    parent: Path,
    nodes: Sequence[str],
    elsewhere: Mapping[int, str] | None = None,
    n_twice: int = 0,
) -> RunStore:
    """The sealed run with the rows of each of `nodes` in `parent/kept/NODE/RUN/NODE`; what is of no such node lies in
    its directory, as what the driver itself writes does.

    `elsewhere`: by worker where its requests lie, if not on the node that they name. `n_twice` requests of the first
    node lie on the last one too.
    """
    bare = replace(
        whole.manifest, run="", state="open", tables=None, verdict=None, disk_losses=(), unfinished=None
    )
    store = RunStore.create(parent / "runs", "left", _NOW_NS, bare)
    folders = {node: parent / "kept" / node / store.run for node in nodes}
    store.amend(replace(store.manifest, kept={node: str(path) for node, path in folders.items()}))
    stores = {}
    for node, folder in folders.items():
        (folder / node / "tables").mkdir(parents=True)
        (folder / node / "owner.json").write_text(json.dumps({"run": store.run}))
        stores[node] = RunStore(folder / node, Manifest(run=store.run), {})
    for table in (name for name in whole.tables() if not TABLES[name].is_derived):
        for part in whole.parts(table):
            rows = rows_of(part)
            homes = _homes(table, rows, elsewhere or {})
            for node, there in stores.items():
                _append(there, table, rows.filter(pc.equal(homes, node)))
            if table == "requests":
                _append(stores[nodes[-1]], table, rows.filter(pc.equal(homes, nodes[0])).slice(0, n_twice))
            _append(store, table, rows.filter(pc.invert(pc.is_in(homes, pa.array(nodes, pa.string())))))
        for node, there in stores.items():
            there.flush(table)
            store.keep(table, as_kept(node, table_entry(there.run_dir, there.path(table)).files))
    store.seal(SealedVerdict(status="VALID"))
    return RunStore.open(store.run_dir)


def _homes(table: str, rows: pa.Table, elsewhere: Mapping[int, str]) -> pa.ChunkedArray:
    homes = rows.column("node").cast(pa.string())
    for worker, node in elsewhere.items() if table == "requests" else ():
        homes = pc.if_else(pc.equal(rows.column("worker"), worker), node, homes)
    return homes


def _append(store: RunStore, table: str, rows: pa.Table) -> None:
    if len(rows):
        store.append(table, rows)


class Colleague:
    """A node of such a run: its keeper, in this process, told everything as bytes."""

    def __init__(self, folder: Path, node: str) -> None:
        """`folder`: of the run on the node."""
        self.keeper = Keeper(str(folder.parent))
        self.done: list[tuple[str, int]] = []
        """Table and number of each errand."""
        self._folder, self._node = str(folder), node

    def work(self, table: str, made: str, number: int, errand: Errand) -> Sequence[SealedFile]:
        """As a `Workplace`."""
        self.done.append((table, number))
        carried: Errand = pickle.loads(pickle.dumps(errand))
        return self.keeper.work(self._folder, self._node, table, made, number, carried)


def set_to_work(store: RunStore) -> dict[str, Colleague]:
    """Has every node of the run work on what it keeps."""
    folders = {node: Path(folder) for node, folder in store.manifest.kept.items()}
    colleagues = {node: Colleague(folder, node) for node, folder in folders.items()}
    store.kept.reach(
        {node: LocalFolder(folder) for node, folder in folders.items()},
        {node: one.work for node, one in colleagues.items()},
    )
    return colleagues


def plain(rows: pa.Table) -> pa.Table:
    """Text as text: which words a part has in its dictionary depends on where parts are cut."""
    types = [pa.string() if pa.types.is_dictionary(one.type) else one.type for one in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))
