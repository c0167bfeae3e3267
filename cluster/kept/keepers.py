"""The keepers of a run's nodes: while it is gathered, and again when it is analysed or brought home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from squall.analysis.storage.store import RunStore
from squall.cluster.kept.fetched import Fetched
from squall.cluster.kept.keeper import Keeper
from squall.cluster.kept.node_folder import NodeFolder
from squall.cluster.node.scratch import this_place
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle, ask_all, end_all, spawn, wait_all
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.errors import ClusterError

_THREADS = 4


class Keepers:
    """One on each node that had a part in the run, by label. `begin` before the first record is taken."""

    def __init__(self, config: RecordsConfig, nodes: Mapping[str, Node]) -> None:
        self._config = config
        self._nodes = nodes
        self._handles: dict[str, Handle[Keeper]] = {}
        self._fetched: Fetched | None = None

    def begin(self, store: RunStore) -> None:
        """Makes the folders, and says in the manifest where they are. Raises ClusterError, StoreError."""
        for label, node in self._nodes.items():
            self._handles[label] = spawn("keeper", node, _THREADS, Keeper, self._config.folder)
        try:
            seen = (str(store.run_dir.resolve()), this_place())
            asked = {
                label: one.begin(Keeper.begin, store.run, label, *seen)
                for label, one in self._handles.items()
            }
            folders = wait_all(self._handles, asked)
        except ClusterError:
            with suppress(ClusterError):
                remove_kept(store, self._handles)
            raise
        store.amend(replace(store.manifest, kept=folders))
        self._fetched = _fetched_into(store)
        _reach(
            store,
            {
                label: NodeFolder(self._handles[label], folders[label], label, self._fetched)
                for label in folders
            },
        )

    def __getitem__(self, label: str) -> Handle[Keeper]:
        return self._handles[label]

    def end(self) -> None:
        """Ends the processes; the folders stay."""
        end_all(self._handles.values())
        self._handles.clear()
        if self._fetched is not None:
            self._fetched.close()


@contextmanager
def reached(
    store: RunStore, nodes: Sequence[Node], is_read_once: bool = False
) -> Iterator[dict[str, Handle[Keeper]]]:
    """The folders that `nodes` of a Ray keep of the run are read meanwhile, and slices worked on there; their keepers,
    by label in the run. What was read is kept in the run directory until the end, unless it `is_read_once`."""
    root = _root_of(store)
    asked = [spawn("keeper", node, _THREADS, Keeper, root) for node in nodes]
    fetched = None if is_read_once else _fetched_into(store)
    try:
        found: dict[str, Handle[Keeper]] = {}
        for at, there in ask_all(dict(enumerate(asked)), Keeper.nodes_of, store.run).items():
            keeper = asked[at]
            wanted = {label: folder for label, folder in there.items() if label in store.manifest.kept}
            places = {label: NodeFolder(keeper, folder, label, fetched) for label, folder in wanted.items()}
            _reach(store, places)
            found |= dict.fromkeys(wanted, keeper)
        yield found
    finally:
        end_all(asked)
        if fetched is not None:
            fetched.close()


def _fetched_into(store: RunStore) -> Fetched | None:
    """None where the run directory cannot be written."""
    try:
        return Fetched(store.run_dir)
    except OSError:
        return None


def _reach(store: RunStore, places: dict[str, NodeFolder]) -> None:
    store.kept.reach(places, {label: place.work for label, place in places.items()})


def _root_of(store: RunStore) -> str | None:
    """Folder of records of all runs, as the scenario of the run says."""
    records = (store.manifest.scenario or {}).get("records")
    folder = records.get("folder") if isinstance(records, Mapping) else None
    return folder if isinstance(folder, str) else None


def remove_kept(store: RunStore, keepers: Mapping[str, Handle[Keeper]]) -> list[str]:
    """Removes what the nodes keep of a run; the nodes of which something stays. Raises ClusterError."""
    run_dir = str(store.run_dir.resolve())
    asked = {
        label: keeper.begin(Keeper.forget, store.run, label, run_dir) for label, keeper in keepers.items()
    }
    return [label for label, is_gone in wait_all(keepers, asked).items() if not is_gone]
