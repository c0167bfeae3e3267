"""What a run left on its nodes, brought into the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from squall.analysis.storage.store import RunStore
from squall.cluster.kept.keepers import reached, remove_kept
from squall.cluster.placement import Node
from squall.cluster.remote.session import Session


def bring_records(run_dir: Path, ray: str | None) -> None:
    """Brings all records of the run here, checks them, then removes them where they lay. Without any it does nothing.

    The caller holds `run_dir`. `ray`: address of a Ray that has the nodes; None: their folders are on this machine.
    Raises StoreError, which names what is missing, and ClusterError; the run is as it was then.
    """
    store = RunStore.open(run_dir)
    folders = store.manifest.kept
    if not folders:
        return
    with _nodes_of(ray) as nodes, reached(store, nodes, is_read_once=True) as keepers:
        if store.is_sealed:
            store.bring_home()
        else:  # its driver was killed: nothing says what is whole there, the scratch folders have it
            store.amend(replace(store.manifest, kept={}))
        remove_kept(store.run, keepers)
        for node, folder in folders.items():
            if node not in keepers and Path(folder).name == store.run:
                rmtree(Path(folder) / node, ignore_errors=True)


@contextmanager
def _nodes_of(ray: str | None) -> Iterator[Sequence[Node]]:
    if ray is None:
        yield ()
        return
    with Session(ray) as session:
        yield session.nodes()
