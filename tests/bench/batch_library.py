"""What the preloaded batch library costs a server: nanoseconds of CPU for each batch, with it and without, side by side.

    python -m tests.bench.batch_library [ROUNDS]

prints a table. A program that reports batches as a backend does (`tests/native/reporting_server.c`) runs by turns with
the library preloaded and without, ROUNDS (15) times each; a figure is the median over rounds, in brackets the least and
the largest. The ring lies in memory where /dev/shm is there, and is large enough that nothing is lost. `start` is what
a server's start takes longer, which makes a ring of the usual size: wall time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from squall.actors.inject.batch_ring import BatchRing, rings
from tests.reporting import ReportingServer, reporting_server

SIZES = (1, 8, 64)
N_MEMBERS = 2_000_000
_ROOM = {"SQUALL_BATCHES_BYTES": str(400 << 20)}
_MEMORY = Path("/dev/shm")


def ns_of_a_batch(server: ReportingServer, n_members: int, folder: Path | None) -> float:
    """Of a run whose ring was there before; `folder` None: the library is not preloaded."""
    script = [str(part) for part in ("time", 10, n_members, "time", N_MEMBERS // 4 // n_members, n_members)]
    environment = {} if folder is None else server.environment(folder, **_ROOM)
    done = subprocess.run(
        [server.program, *script], env=environment, capture_output=True, text=True, check=True
    )
    for path in rings(folder) if folder else ():
        with closing(BatchRing(path)) as ring:
            assert ring.lost() == 0
        path.unlink()
    return float(done.stdout.splitlines()[1].split()[0])


def start_ms(server: ReportingServer, folder: Path | None) -> float:
    """Of a process that does nothing, from its launch to its end."""
    environment = {} if folder is None else server.environment(folder)
    begun = time.perf_counter()
    subprocess.run([server.program], env=environment, capture_output=True, check=True)
    taken = time.perf_counter() - begun
    for path in rings(folder) if folder else ():
        path.unlink()
    return 1e3 * taken


def told(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def main(n_rounds: int) -> None:
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory(dir=where) as folder:
        server = reporting_server(Path(built), "-O2")
        print("| members of a batch | without, ns | with, ns | cost of a batch, ns |\n|---|---|---|---|")
        for n_members in SIZES:
            pairs = [
                (ns_of_a_batch(server, n_members, None), ns_of_a_batch(server, n_members, Path(folder)))
                for _ in range(n_rounds)
            ]
            without, preloaded = [list(column) for column in zip(*pairs, strict=True)]
            print(
                f"| {n_members} | {told(without)} | {told(preloaded)} | {told([b - a for a, b in pairs])} |"
            )
        starts = [start_ms(server, Path(folder)) - start_ms(server, None) for _ in range(n_rounds)]
        print(f"start: {statistics.median(starts):.1f} ms ({min(starts):.1f}-{max(starts):.1f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 15)
