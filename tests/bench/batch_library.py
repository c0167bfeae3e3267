"""What the preloaded batch library costs: nanoseconds of CPU for each batch, with it and without, side by side.

    python -m tests.bench.batch_library [ROUNDS]
    python -m tests.bench.batch_library hook [ROUNDS]

prints a table; `hook` that of the hook in a Python model. Two processes report batches as a backend does
(`tests/native/reporting_server.c`), by turns, ROUNDS (40) times each: one with the library preloaded, whose ring (of
the usual size, in memory where /dev/shm is there) is drained after each turn, and one without. A figure is the median
over rounds, in brackets the quartiles; the first rounds, in which the ring goes round for the first time, are left out.
`start` is what a server's start takes longer, which makes the ring: wall time.

Of the hook: a model's execute that gives its requests back is called with the hook and without, by turns in one
process, the ring drained after each; requests are objects of Python in the place of Triton's, with names of 12 bytes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from squall.actors.inject.batch_ring import rings
from squall.models.repository import HOOK_FILE, hook_source
from tests.reporting import ReportingServer, only_ring, reporting_server

SIZES = (1, 8, 64)
N_MEMBERS = 32_000
"""Of a turn: its records take up to 4 MB, half a ring."""
N_HOOK_MEMBERS = 3_200
"""Likewise of a turn of the hook, whose ring has 1 MiB."""
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


class _Tensor:
    def shape(self) -> list[int]:
        return [1, 4]


class _Request:
    """What the hook asks of a request."""

    def __init__(self, number: int) -> None:
        self._name, self._inputs = f"{number:012d}", [_Tensor()]

    def request_id(self) -> str:
        return self._name

    def inputs(self) -> list[_Tensor]:
        return list(self._inputs)


class _Model:
    def execute(self, requests: list[_Request]) -> list[_Request]:
        return requests


def _hooked(folder: Path) -> _Model:
    """With the file as it is printed for `folder`."""
    names: dict[str, Any] = {"__name__": "squall_batches"}
    exec(compile(hook_source(folder), HOOK_FILE, "exec"), names)
    model, config = _Model(), json.dumps({"max_batch_size": max(SIZES)})
    names["record"](
        model,
        {
            "model_config": config, "model_instance_kind": "CPU", "model_instance_device_id": "0",
            "model_instance_name": "echo_0", "model_name": "echo", "model_version": "1",
        },
    )  # fmt: skip
    return model


def _ns_of_a_batch(model: _Model, requests: list[_Request], n_batches: int) -> float:
    begun = time.thread_time_ns()
    for _ in range(n_batches):
        model.execute(requests)
    return (time.thread_time_ns() - begun) / n_batches


def hook_compared(n_members: int, n_rounds: int, folder: Path) -> list[tuple[float, float]]:
    """ns of a batch without the hook and with it, of each round."""
    n_batches = N_HOOK_MEMBERS // n_members
    requests = [_Request(number) for number in range(n_members)]
    bare, hooked, pairs = _Model(), _hooked(folder), []
    with closing(only_ring(folder)) as ring:
        for _ in range(n_rounds + N_WARM_UP):
            pairs.append(
                (_ns_of_a_batch(bare, requests, n_batches), _ns_of_a_batch(hooked, requests, n_batches))
            )
            assert ring.drain()
        assert ring.lost() == 0
    _remove_rings(folder)
    return pairs[N_WARM_UP:]


def _print_table(columns: Iterable[tuple[int, list[tuple[float, float]]]]) -> None:
    print("| requests of a batch | without, ns | with, ns | cost of a batch, ns |\n|---|---|---|---|")
    for n_members, pairs in columns:
        without, recorded = [list(column) for column in zip(*pairs, strict=True)]
        print(f"| {n_members} | {told(without)} | {told(recorded)} | {told([b - a for a, b in pairs])} |")


def main_hook(n_rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        _print_table((n, hook_compared(n, n_rounds, Path(folder))) for n in SIZES)


def main(n_rounds: int) -> None:
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory(dir=where) as folder:
        server = reporting_server(Path(built), "-O2")
        _print_table((n, compared(server, n, n_rounds, Path(folder))) for n in SIZES)
        starts = [start_ms(server, Path(folder)) - start_ms(server, None) for _ in range(n_rounds)]
        print(f"start: {told(starts, 1)} ms")


if __name__ == "__main__":
    asked = sys.argv[1:]
    run = main_hook if asked[:1] == ["hook"] else main
    numbers = [int(one) for one in asked if one != "hook"]
    run(numbers[0] if numbers else 40)
