"""Records that a server's own code wrote, or that came with somebody's run, with bytes changed at random.

    python -m tests.hostile_records NUMBER FOLDER KIND…

reads so many of each kind in a process of its own: one that ends it does no harm elsewhere. It prints each kind before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from squall.actors.inject.batch_ring import BatchRing
from squall.actors.inject.kernel_ring import HEADER, HEADER_BYTES, MAGIC, RECORD_BYTES, KernelRing
from squall.actors.inject.ring_file import RingError
from squall.actors.load.recorder import Recorder
from squall.actors.sampling.triton_trace import read_traces
from squall.actors.spill import SpillFile, read_spill
from squall.analysis.storage.schema import OUTCOME_CODE
from squall.cluster.node.batches import read_batches, read_recorded
from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.injected.kernel_tables import KernelTables
from tests.overlapping_batches import Batches, tied
from tests.unit.actors.inject.test_batch_ring import ONE, frame, write_ring
from tests.unit.cluster.node.injected.test_kernel_tables import (
    LABELS,
    WINDOW,
    N,
    operations,
    windows_of,
)

_EDGES = (0, 1, -1, 255, 2**20, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))


def mutated(rng: random.Random, data: bytes, n_most: int = 4) -> bytes:
    """`data` with up to `n_most` changes: bits, bytes, numbers at an edge, pieces of another place, gaps."""
    out = bytearray(data)
    for _ in range(rng.randint(1, n_most)):
        at, kind = rng.randrange(len(out)), rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            n_bytes = rng.choice((4, 8))
            at = at // 4 * 4
            out[at : at + n_bytes] = (rng.choice(_EDGES) % 256**n_bytes).to_bytes(n_bytes, "little")
        elif kind == 3:
            n_bytes, source = rng.randint(1, 64), rng.randrange(len(out))
            out[at : at + n_bytes] = out[source : source + n_bytes]
        else:
            del out[at : at + rng.randint(1, 64)]
            out = out or bytearray(1)
    return bytes(out)


PERIODS = Batches(*(np.arange(N) * 1_000 + shift for shift in (0, 100, 0)))
OF_ROWS = {"run": "r", "node": "node-0", "server": "server-0", "model": "m", "version": "1"}
LINES = b'{"instance":"m_0_0","device":0}\n' + b"".join(
    b'{"b":%d,"s":%d,"e":%d,"r":1,"i":["000000000007"]}\n' % (number, 10 * number, 10 * number + 5)
    for number in range(20)
)
TRACES = b"[%s]" % b",".join(
    b'{"id":%d,"model_name":"m","model_version":1,"request_id":"000000000007"},'
    b'{"id":%d,"timestamps":[{"name":"REQUEST_START","ns":3},{"name":"HTTP_SEND_END","ns":9}]}' % (one, one)
    for one in range(20)
)


def _spill(tables: list[pa.Table], table: str, folder: Path) -> None:
    path = folder / "out.arrows"
    path.unlink(missing_ok=True)
    file = SpillFile(path, table)
    assert all(file.write(one) for one in tables)
    file.close()


def _frames(rng: random.Random, folder: Path) -> None:
    path = folder / "a.frames"
    path.write_bytes(mutated(rng, frame(ONE) * 5))
    losses: list[str] = []
    _spill([*read_recorded([path], OF_ROWS, 0, losses, [])], "batches", folder)


def _batch_ring(rng: random.Random, folder: Path) -> None:
    path = write_ring(folder / "batches-1.ring", frame(ONE) * 5)
    content = path.read_bytes()
    path.write_bytes(mutated(rng, content[:256]).ljust(256, b"\0")[:256] + content[256:])
    with suppress(RingError):
        ring = BatchRing(path)
        assert len(ring.drain()) <= len(content)
        assert ring.lost() >= 0
        ring.close()


def _kernel_ring(rng: random.Random, folder: Path) -> None:
    header, records = np.zeros(1, HEADER), operations(10)
    for name, value in (("magic", MAGIC), ("header_bytes", HEADER_BYTES), ("record_bytes", RECORD_BYTES),
                        ("n_slots", len(records) // RECORD_BYTES), ("head", 7)):  # fmt: skip
        header[name] = value
    path = folder / "kernels-1.ring"
    head = header.tobytes()
    path.write_bytes(mutated(rng, head[:256]).ljust(256, b"\0")[:256] + head[256:] + records)
    path.chmod(0o600)
    with suppress(RingError):
        ring = KernelRing(path)
        assert str(ring.state)
        assert ring.lost().n_ring >= 0
        assert len(ring.drain()) <= len(records)
        ring.switch(True)
        ring.close()


def _kernel_records(rng: random.Random, folder: Path) -> None:
    path = folder / "a.records"
    path.write_bytes(mutated(rng, operations(10, with_calls=True), 20))
    process = TakenProcess(path=path, pid=11, gpus=("GPU-a",), status="")
    made = [*KernelTables([process], windows_of(WINDOW), LABELS).rows()]
    assert all(len(rows) for _, rows in made)
    kernels = [rows for table, rows in made if table == "kernels"]
    if kernels:
        records = {
            name: pa.concat_tables(kernels)[name]
            for name in ("context", "stream", "start_ns", "end_ns", "correlation_id")
        }
        tied([PERIODS], records, [(0, 1_000 * N)])


def _lines(rng: random.Random, folder: Path) -> None:
    (folder / "m_0_0.jsonl").write_bytes(mutated(rng, LINES))
    _spill([*read_batches(folder, OF_ROWS, [])], "batches", folder)


def _traces(rng: random.Random, folder: Path) -> None:
    (folder / "trace").write_bytes(mutated(rng, TRACES))
    labels = {name: OF_ROWS[name] for name in ("run", "node", "server")}
    _spill([*read_traces([folder / "trace"], labels, [])], "triton_traces", folder)


def _spills(rng: random.Random, folder: Path) -> None:
    whole = folder / "whole.arrows"
    if not whole.exists():
        whole.write_bytes(_spill_file(folder / "small", 3) + _spill_file(folder / "large", 2_000))
    losses: list[str] = []
    for table in read_spill(pa.BufferReader(mutated(rng, whole.read_bytes())), "requests", losses):
        assert table.unify_dictionaries().to_pylist()


def _spill_file(path: Path, n_rows: int) -> bytes:
    """Above some hundred rows it is compressed."""
    recorder = Recorder(path, {"run": "r", "node": "node-0"}, 0, ["m"], ["server-0"], ["stub"])
    for one in range(n_rows):
        recorder.record(one, one, one, one, one, 8, 1, 100, 0, OUTCOME_CODE["ok"], "")
    assert recorder.close() == []
    return path.read_bytes()


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "spills": _spills, "frames": _frames, "batch rings": _batch_ring, "kernel rings": _kernel_ring,
    "kernel records": _kernel_records, "lines": _lines, "traces": _traces,
}  # fmt: skip


def main(number: str, parent: str, *kinds: str) -> None:
    for kind in kinds:
        print(kind, flush=True)
        folder = Path(parent) / kind
        folder.mkdir()
        for one in range(int(number)):
            KINDS[kind](random.Random(f"{kind} {one}"), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
