"""What the preloaded batch library costs: nanoseconds of CPU for each batch, with it and without, side by side.

    python -m tests.bench.batch_library [ROUNDS]

prints a table. Two processes report batches as a backend does (`tests/native/reporting_server.c`), by turns, ROUNDS
(40) times each: one with the library preloaded, whose ring (of the usual size, in memory where /dev/shm is there) is
drained after each turn, and one without. A figure is the median over rounds, in brackets the quartiles; the first
rounds, in which the ring goes round for the first time, are left out. `start` is what a server's start takes longer,
which makes the ring: wall time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from squall.actors.inject.batch_ring import rings
from tests.reporting import ReportingServer, only_ring, reporting_server

SIZES = (1, 8, 64)
N_MEMBERS = 32_000
"""Of a turn: its records take up to 4 MB, half a ring."""
N_WARM_UP = 20
_MEMORY = Path("/dev/shm")


class Turns:
    """A process that reports so many batches each time it is asked, and says what they took."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ns_of_a_batch(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline().split()[0])


@contextmanager
def turns(server: ReportingServer, n_members: int, n_turns: int, folder: Path | None) -> Iterator[Turns]:
    """`folder` None: without the library."""
    script = ["wait", "time", str(N_MEMBERS // n_members), str(n_members)] * n_turns
    environment = {} if folder is None else server.environment(folder)
    with subprocess.Popen(
        [server.program, *script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while folder and not rings(folder):
            assert process.poll() is None
        yield Turns(process)


def compared(
    server: ReportingServer, n_members: int, n_rounds: int, folder: Path
) -> list[tuple[float, float]]:
    """ns of a batch without the library and with it, of each round."""
    n_turns = n_rounds + N_WARM_UP
    pairs = []
    with ExitStack() as stack:
        bare = stack.enter_context(turns(server, n_members, n_turns, None))
        preloaded = stack.enter_context(turns(server, n_members, n_turns, folder))
        ring = stack.enter_context(closing(only_ring(folder)))
        for _ in range(n_turns):
            pairs.append((bare.ns_of_a_batch(), preloaded.ns_of_a_batch()))
            assert ring.drain()
        assert ring.lost() == 0
    _remove_rings(folder)
    return pairs[N_WARM_UP:]


def start_ms(server: ReportingServer, folder: Path | None) -> float:
    """Of a process that does nothing, from its launch to its end."""
    environment = {} if folder is None else server.environment(folder)
    begun = time.perf_counter()
    subprocess.run([server.program], env=environment, capture_output=True, check=True)
    taken = time.perf_counter() - begun
    if folder:
        _remove_rings(folder)
    return 1e3 * taken


def _remove_rings(folder: Path) -> None:
    for path in rings(folder):
        path.unlink()


def told(values: list[float], digits: int = 0) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def main(n_rounds: int) -> None:
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory(dir=where) as folder:
        server = reporting_server(Path(built), "-O2")
        print("| requests of a batch | without, ns | with, ns | cost of a batch, ns |\n|---|---|---|---|")
        for n_members in SIZES:
            pairs = compared(server, n_members, n_rounds, Path(folder))
            without, preloaded = [list(column) for column in zip(*pairs, strict=True)]
            print(
                f"| {n_members} | {told(without)} | {told(preloaded)} | {told([b - a for a, b in pairs])} |"
            )
        starts = [start_ms(server, Path(folder)) - start_ms(server, None) for _ in range(n_rounds)]
        print(f"start: {told(starts, 1)} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40)
