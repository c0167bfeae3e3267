"""CPU of the driver for each byte that it fetches: as pieces alone, and as a copy with checksums on a disk.

    python -m tests.bench.fetch_cost --mebibytes 512 --repeat 5

The agent is a process of its own on this machine, asked as on another one. Both ways take turns: pieces alone are what
fetching was before it had checksums and copies. Prints each way's median ns of CPU per byte, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from squall.cluster.driver.copies import LARGE_PIECE_BYTES
from squall.cluster.driver.node_files import FilesThere
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.spills import NodeFile
from squall.cluster.remote.spawn import Handle, spawn
from tests.golden.told import HERE


def _pieces(agent: Handle[NodeAgent], file: NodeFile) -> None:
    for at in range(0, file.n_bytes, LARGE_PIECE_BYTES):
        agent.call(NodeAgent.piece, file.path, at, LARGE_PIECE_BYTES)


def _copied(agent: Handle[NodeAgent], file: NodeFile, folder: Path) -> None:
    FilesThere(agent, folder).bring(file)


def _cpu_s(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    agent = spawn("agent", HERE, 4, NodeAgent, "bench", "node-0")
    costs: dict[str, list[float]] = {"pieces alone": [], "copies": []}
    try:
        with tempfile.TemporaryDirectory() as place:
            path = Path(agent.call(NodeAgent.spill_dir)) / "requests-0.arrows"
            block = os.urandom(2**20)
            with path.open("wb") as out:
                for _ in range(options.mebibytes):
                    out.write(block)
            (file,) = agent.call(NodeAgent.files)
            copies = Path(place) / "copies"
            _pieces(agent, file)  # the file is in memory then, for both
            for _ in range(options.repeat):
                costs["pieces alone"].append(_cpu_s(lambda: _pieces(agent, file)))
                costs["copies"].append(_cpu_s(lambda: _copied(agent, file, copies)))
                assert (copies / file.path).stat().st_size == file.n_bytes
                shutil.rmtree(copies)
    finally:
        agent.wait(agent.begin(NodeAgent.close))
        agent.end()
    medians = {name: statistics.median(found) * 1e9 / file.n_bytes for name, found in costs.items()}
    for name, ns in medians.items():
        print(f"{name}: {ns:.3f} ns of CPU per byte, {ns * 1e-9 * 2**30:.2f} s per GiB")
    print(f"ratio {medians['copies'] / medians['pieces alone']:.2f}")


if __name__ == "__main__":
    main()
