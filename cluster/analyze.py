"""`squall analyze`: what is derived from a run directory, made again here or spread over Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.derive import derive
from analysis.store import RunStore
from cluster.interrupts import Interrupts
from scenarios.errors import ScenarioError
from scenarios.units import parse_size

LOCAL_RAY = "local"
LEAST_MEMORY_BYTES = 64 * 1024**2
"""DuckDB cannot sort or group with less."""


def analyze_run(run_dir: Path, memory: str, ray: str | None, interrupts: Interrupts) -> dict[str, Any]:
    """The summary of the run, with all that is derived written anew. `ray`: an address, `local`, or None for none.

    A signal raises KeyboardInterrupt; each table is then the old or the new one. Raises ScenarioError for a `memory`
    that is no size or too small, else what `derive` raises; ClusterError of Ray.
    """
    memory_bytes = _memory_bytes(memory)
    store = RunStore.open(run_dir.resolve())  # absolute: a task has another working directory
    if ray is None:
        with interrupts.allowed():
            return derive(store, memory_bytes)
    from cluster.session import Session
    from cluster.spread import TaskSpread

    with Session(None if ray == LOCAL_RAY else ray):
        interrupts.install_again()
        with interrupts.allowed():
            return derive(store, memory_bytes, TaskSpread(store.run_dir))


def _memory_bytes(memory: str) -> int:
    try:
        found = parse_size(memory)
    except ValueError as error:
        raise ScenarioError(f"--memory: {error}") from error
    if found < LEAST_MEMORY_BYTES:
        raise ScenarioError(f"--memory: {memory} is too little, give at least 64 MiB")
    return found
