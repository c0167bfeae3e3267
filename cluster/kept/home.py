"""What a run left on its nodes, brought into the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from squall.analysis.storage.store import RunStore
from squall.cluster.kept.keeper import remove_kept_folder
from squall.cluster.kept.keepers import reached, remove_kept
from squall.cluster.placement import Node
from squall.cluster.remote.session import Session
from squall.scenarios.foreign_text import escaped


def bring_records(run_dir: Path, ray: str | None) -> list[str]:
    """Brings all records of the run here, checks them, then removes them where they lay. Without any it does nothing.

    Returns a line for each folder that stays: that a manifest names it is no reason to remove it. The caller holds
    `run_dir`. `ray`: address of a Ray that has the nodes; None: their folders are on this machine. Raises StoreError,
    which names what is missing, and ClusterError; the run is as it was then.
    """
    store = RunStore.open(run_dir)
    folders = store.manifest.kept
    if not folders:
        return []
    with _nodes_of(ray) as nodes, reached(store, nodes, is_read_once=True) as keepers:
        if store.is_sealed:
            store.bring_home()
        else:  # its driver was killed: nothing says what is whole there, the scratch folders have it
            store.amend(replace(store.manifest, kept={}))
        stay = remove_kept(store, keepers)
        for node, folder in folders.items():
            path = Path(folder) / node
            if node not in keepers and not remove_kept_folder(path, store.run, node, str(run_dir.resolve())):
                stay.append(node)
    told = "stays: nothing there says that this user's squall made it for this run, or more lies there"
    return [f"{escaped(str(Path(folders[node]) / node))} {told}" for node in stay]


@contextmanager
def _nodes_of(ray: str | None) -> Iterator[Sequence[Node]]:
    if ray is None:
        yield ()
        return
    with Session(ray) as session:
        yield session.nodes()
