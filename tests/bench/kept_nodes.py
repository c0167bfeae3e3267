"""What crosses to the driver when a run that lies on its nodes is analysed: read from there, or worked on there.

    python -m tests.bench.kept_nodes [--scale RATIO] [--memory SIZE]

A run of `tests.bench.big_runs` (scale 0.02: 200,000 requests, 1 million kernels) lies on two nodes with clients and two
with a server each, behind keepers in processes of their own that are asked over real channels. The steps of `squall
analyze` are done in a process that has the run directory alone, three ways:

    here                all slices made there, every query fetching for itself
    here, kept          what was read kept until the end
    on the nodes, kept  slices of `batch_costs` and `joined` made on the nodes too: what `squall analyze --ray` does

Prints by step the MiB that the driver sent and received, its peak memory (VmHWM) so far, and the MiB of tables in the
run directory. Counts, not times: all is on one machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from squall.analysis.derive import N_THREADS
from squall.analysis.storage.query import in_threads
from squall.analysis.storage.store import RunStore
from squall.cluster.kept.fetched import Fetched
from squall.cluster.kept.keeper import Keeper
from squall.cluster.kept.node_folder import NodeFolder
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import end_all, spawn
from squall.scenarios.units import parse_size
from tests.bench.big_runs import N_WORKERS, write_big_run
from tests.bench.join import own_peak_bytes
from tests.bench.many_nodes import Counted
from tests.kept_runs import leave_on_nodes

NODES = ("node-0", "node-1", "node-2", "node-3")
MIB = 2**20
WAYS = {"here": (False, False), "here, kept": (False, True), "on the nodes, kept": (True, True)}
"""Whether slices are made on the nodes, and whether what was read is kept until the end."""


def _steps(store: RunStore, memory: int) -> dict[str, Callable[[], Any]]:
    from squall.analysis.join.batch_costs import write_batch_costs
    from squall.analysis.join.join import write_joined
    from squall.analysis.metrics.windows import write_windows
    from squall.analysis.render.report import write_report
    from squall.analysis.storage.intact import require_intact
    from squall.analysis.summary.summary import summarise

    spread = in_threads(N_THREADS)
    return {
        "footers": partial(require_intact, store),
        "`batch_costs`": partial(write_batch_costs, store, memory, spread),
        "`joined`": partial(write_joined, store, memory, spread),
        "`windows`": partial(write_windows, store, memory),
        "summary, metrics, findings": lambda: write_report(store, summarise(store, memory)),
    }


def _analyse(run_dir: Path, memory: int, works_there: bool, is_kept: bool, answer: Connection) -> None:
    """In a process of its own: by step (sent, received, peak, tables here), all in MiB."""
    store = RunStore.open(run_dir)
    counted = Counted()
    keepers = []
    with counted.counting():
        places, fetched = {}, Fetched(run_dir) if is_kept else None
        for label, folder in store.manifest.kept.items():
            keeper = spawn(
                "keeper", Node(label, "", "127.0.0.1", 0, True), 4, Keeper, str(Path(folder).parent)
            )
            keepers.append(keeper)
            places[label] = NodeFolder(keeper, folder, label, fetched)
        store.kept.reach(places, {label: one.work for label, one in places.items()} if works_there else {})
        found = {}
        try:
            for name, step in _steps(store, memory).items():
                before = counted.sent, counted.received
                step()
                here = sum(path.stat().st_size for path in (run_dir / "tables").rglob("*.parquet"))
                moved = counted.sent - before[0], counted.received - before[1]
                found[name] = (moved[0] / MIB, moved[1] / MIB, own_peak_bytes() / MIB, here / MIB)
        finally:
            end_all(keepers)
    answer.send(found)


def _measured(
    run_dir: Path, memory: int, works_there: bool, is_kept: bool
) -> dict[str, tuple[float, float, float, float]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_analyse, args=(run_dir, memory, works_there, is_kept, theirs))
    process.start()
    theirs.close()
    try:
        found: dict[str, tuple[float, float, float, float]] = ours.recv()
    finally:
        process.join()
    return found


def main() -> None:
    """Prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--memory", type=parse_size, default="2GiB")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="squall-kept-") as folder:
        whole = write_big_run(Path(folder) / "whole", options.scale)
        elsewhere = dict.fromkeys(range(0, N_WORKERS, 2), NODES[-1])
        store = leave_on_nodes(whole, Path(folder), NODES, elsewhere)
        shutil.rmtree(whole.run_dir)
        rows = {name: table.rows for name, table in (store.manifest.tables or {}).items()}
        raw = sum(file.bytes for table in (store.manifest.tables or {}).values() for file in table.files)
        print(
            f"{rows['requests']:,} requests, {rows['kernels']:,} kernels, {raw / MIB:.1f} MiB of raw tables\n"
        )
        print(
            "| step | way | sent MiB | received MiB | peak MiB | tables here MiB |\n|---|---|---|---|---|---|"
        )
        for way, (works_there, is_kept) in WAYS.items():
            found = _measured(store.run_dir, options.memory, works_there, is_kept)
            total = [sum(one[at] for one in found.values()) for at in (0, 1)]
            last = list(found.values())[-1]
            for name, figures in {**found, "all": (*total, *last[2:])}.items():
                cells = " | ".join(f"{figure:.1f}" for figure in figures)
                print(f"| {name} | {way} | {cells} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
