"""Files of Locust's own in the run directory: its statistics as CSV and HTML, and the logs of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from squall.analysis.storage.store import RunStore
from squall.cluster.node.agent import NodeAgent
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import SquallError, StoreError

FOLDER = "locust"


def kept_outputs(store: RunStore, files: Mapping[str, bytes]) -> tuple[tuple[str, ...], list[str]]:
    """Writes them below `FOLDER`; the names of those that are there, and what the disk did not take."""
    kept, notes = [], []
    for name, content in files.items():
        own = PurePath(name).name
        try:
            store.write_file(f"{FOLDER}/{own}", [content])
        except StoreError as error:
            notes.append(f"Locust's {own} is not kept: {error}")
        else:
            kept.append(own)
    return tuple(kept), notes


def kept_logs(store: RunStore, agents: Mapping[str, Handle[NodeAgent]]) -> list[str]:
    """Brings the logs of Locust's processes on each node into `logs/`; what could not be had or kept."""
    notes = []
    for label, agent in agents.items():
        try:
            for name, log in agent.call(NodeAgent.locust_logs).items():
                store.write_text(f"logs/{name}", log.decode(errors="replace"))
        except SquallError as error:
            notes.append(f"Locust's logs of {label} are not kept: {error}")
    return notes
