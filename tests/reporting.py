"""A server that reports batches as a backend does, built of `tests/native`, with the batch library preloaded."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing, CutOff, RecordedBatch, recorded_batches, rings
from tests.sanitize import compiler

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "tests" / "native"
LIBRARY_SOURCE = ROOT / "actors" / "inject" / "batches.c"
WARNINGS = ("-std=c11", "-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-Werror")
SHARED = ("-shared", "-fPIC")
LIBRARY_FLAGS = ("-O2", "-fvisibility=hidden")
"""As in setup.py."""
LEAST_RING_BYTES = 65_536
AT = (10, 20, 30, 40)
"""Instants of a batch: start, compute start, compute end, end."""
LATER = (50, 60, 70, 80)


def compiled(sources: Sequence[Path], output: Path, *flags: str) -> Path:
    """Skips the test where there is no compiler; fails with its words where it refuses."""
    cc = compiler()
    if not cc:
        pytest.skip("no C compiler is here (Debian: gcc)")
    command = [cc, *WARNINGS, *flags, *map(str, sources), "-o", str(output), "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@dataclass(frozen=True)
class Told:
    """What the server's own symbols were told."""

    members: int
    failed: int
    batches: int
    rows: int
    errors: int
    deleted: int


@dataclass(frozen=True)
class ReportingServer:
    """A program led by its arguments (`tests/native/reporting_server.c`), and what is preloaded into it."""

    program: Path
    library: Path
    preloaded_before: str = ""

    def environment(self, folder: Path | None, **more: str) -> dict[str, str]:
        """That of a server whose rings go into `folder`; None: it is not told where."""
        preload = ":".join(filter(None, (self.preloaded_before, str(self.library))))
        where = {"SQUALL_BATCHES": str(folder)} if folder else {}
        return os.environ | {"LD_PRELOAD": preload} | where | more

    def started(self, folder: Path | None, *script: object, **environment: str) -> subprocess.Popen[bytes]:
        """With pipes for stdin, stdout and stderr."""
        return subprocess.Popen(
            [self.program, *map(_argument, script)], env=self.environment(folder, **environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, folder: Path | None, *script: object, **environment: str) -> Told:
        """After its end, which must be a good one."""
        told, _ = self.run_and_hear(folder, *script, **environment)
        return told

    def run_and_hear(self, folder: Path | None, *script: object, **environment: str) -> tuple[Told, str]:
        """And what it said on stderr."""
        with self.started(folder, *script, **environment) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (process.returncode, out, err)
        last = out.decode().splitlines()[-1].split()
        assert last[0] == "told"
        return Told(*map(int, last[1:])), err.decode()


def _argument(part: object) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


def reporting_server(folder: Path, *flags: str) -> ReportingServer:
    """Built in `folder` with `flags` for all three parts."""
    symbols = compiled(
        [NATIVE / "reporting_symbols.c"],
        folder / "libtritonserver.so",
        *SHARED, *flags, "-Wl,-soname,libtritonserver.so",
    )  # fmt: skip
    program = compiled(
        [NATIVE / "reporting_server.c", symbols], folder / "server", *flags, f"-Wl,-rpath,{folder}"
    )
    library = compiled([LIBRARY_SOURCE], folder / "batches.so", *SHARED, *LIBRARY_FLAGS, *flags)
    return ReportingServer(program, library)


def only_ring(folder: Path) -> BatchRing:
    """Of the one process that left a ring in `folder`."""
    (path,) = rings(folder)
    return BatchRing(path)


def batches_of(drained: bytes, folder: Path) -> list[RecordedBatch | CutOff]:
    """Drained bytes, read as a file is."""
    file = folder / "drained"
    file.write_bytes(drained)
    return list(recorded_batches(file))


def recorded(folder: Path) -> list[RecordedBatch]:
    """All batches of the one ring in `folder`, which lost none."""
    ring = only_ring(folder)
    try:
        batches = batches_of(ring.drain(), folder)
        assert ring.lost() == 0
    finally:
        ring.close()
    whole = [batch for batch in batches if isinstance(batch, RecordedBatch)]
    assert whole == batches
    return whole


def member(instance: int, request_id: object, at: tuple[int, ...] = AT, ok: str = "1") -> list[object]:
    """Words of a script: a member is told of; `ok` "0": it failed."""
    return ["member", instance, ok, *at, request_id]


def batch(instance: int, rows: int, at: tuple[int, ...] = AT) -> list[object]:
    """Words of a script: a batch is told of."""
    return ["batch", instance, rows, *at]


def by_thread(batches: Iterable[RecordedBatch]) -> list[list[RecordedBatch]]:
    """Those of each thread, in their order."""
    found: dict[int, list[RecordedBatch]] = defaultdict(list)
    for one in batches:
        found[one.thread].append(one)
    return list(found.values())


def numbers(batches: Iterable[RecordedBatch], n_members: int) -> list[int]:
    """Which of its thread's batches each is, whose members must be all there and in order."""
    found = []
    for one in batches:
        thread, number, _ = one.request_ids[0].split(b":")
        assert one.request_ids == tuple(b"%s:%s:%d" % (thread, number, k) for k in range(n_members))
        assert one.rows == one.n_requests == n_members
        found.append(int(number))
    return found
