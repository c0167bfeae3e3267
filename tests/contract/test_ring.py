"""What the reader of every ring does, whatever library writes it: taken is what is new, once and in order; what cannot
be is one line."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing
from squall.actors.inject.kernel_ring import HEADER, HEADER_BYTES, RECORD_BYTES, KernelRing

PID = 4_711
N_PIECES = 16
"""That a ring holds."""


@dataclass(frozen=True)
class Written:
    """A ring's file as a library writes it. `count_at`: where in it stands how much was ever written, counted in pieces
    of `piece_bytes` or, `unit` 1, in bytes; `read_at`: how much was read."""

    path: Path
    ring: Callable[[Path], BatchRing | KernelRing]
    piece_bytes: int
    unit: int
    count_at: int
    read_at: int

    def write(self, begin: int, *pieces: bytes) -> None:
        """The next pieces, as numbers `begin`, … of all that were ever written; the last thing is that they are."""
        with self.path.open("r+b") as file:
            for number, piece in enumerate(pieces, begin):
                file.seek(HEADER_BYTES + number % N_PIECES * self.piece_bytes)
                file.write(piece * self.piece_bytes)
        self.tell(self.count_at, begin + len(pieces))

    def tell(self, at: int, n_pieces: int) -> None:
        """So many have been written, or read."""
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(struct.pack("<Q", n_pieces * self.unit))

    def of(self, *pieces: bytes) -> bytes:
        return b"".join(piece * self.piece_bytes for piece in pieces)


def batches(folder: Path) -> Written:
    header = struct.pack("<8sIIQq", b"SQBATCH\0", 1, HEADER_BYTES, N_PIECES * 24, PID)
    return made(Written(folder / "batches-1-a.ring", BatchRing, 24, 24, 64, 128), header)


def kernels(folder: Path) -> Written:
    header = struct.pack("<8sIIQI", b"sqkern1\0", HEADER_BYTES, RECORD_BYTES, N_PIECES, PID)
    places = HEADER.fields
    assert places is not None
    head, tail = places["head"][1], places["tail"][1]
    return made(Written(folder / "kernels-1-a.ring", KernelRing, RECORD_BYTES, 1, head, tail), header)


def made(written: Written, header: bytes) -> Written:
    """Its file, empty."""
    written.path.write_bytes(header.ljust(HEADER_BYTES + N_PIECES * written.piece_bytes, b"\0"))
    written.path.chmod(0o600)
    return written


every = pytest.mark.parametrize("make", [batches, kernels], ids=lambda one: one.__name__)
Make = Callable[[Path], Written]


@every
def test_what_is_new_is_taken_once_whole_and_in_order(make: Make, tmp_path: Path) -> None:
    written = make(tmp_path)
    with closing(written.ring(written.path)) as ring:
        assert ring.pid == PID
        assert ring.drain() == b""
        written.write(0, b"a", b"b")
        assert ring.drain() == written.of(b"a", b"b")
        assert ring.drain() == b""
        written.write(2, b"c")
        assert ring.drain() == written.of(b"c")


@every
def test_a_full_ring_is_taken_over_its_end_from_where_a_reader_before_was(make: Make, tmp_path: Path) -> None:
    written, pieces = make(tmp_path), [bytes([65 + number]) for number in range(N_PIECES)]
    written.tell(written.read_at, N_PIECES + 5)
    written.write(N_PIECES + 5, *pieces)
    with closing(written.ring(written.path)) as ring:
        assert ring.drain() == written.of(*pieces)
    with closing(written.ring(written.path)) as ring:
        assert ring.drain() == b"", "its room is free again, for whoever reads next"


@every
@pytest.mark.parametrize(("n_read", "n_written"), [(1, 0), (0, N_PIECES + 1), (0, 2**40)])
def test_positions_that_cannot_be_are_one_line_each_time(
    make: Make, tmp_path: Path, n_read: int, n_written: int
) -> None:
    written = make(tmp_path)
    written.tell(written.read_at, n_read)
    written.tell(written.count_at, n_written)
    with closing(written.ring(written.path)) as ring:
        for _ in range(2):
            with pytest.raises(ValueError, match=f"^{written.path}: [^\n]+$"):
                ring.drain()


@every
def test_a_ring_that_was_cut_is_one_line(make: Make, tmp_path: Path) -> None:
    written = make(tmp_path)
    written.write(0, b"a")
    with closing(written.ring(written.path)) as ring:
        os.truncate(written.path, HEADER_BYTES)
        with pytest.raises(ValueError, match=f"^{written.path}: [^\n]+$"):
            ring.drain()


@every
def test_what_is_no_ring_is_one_line_and_leaves_nothing_open(make: Make, tmp_path: Path) -> None:
    written = make(tmp_path)
    whole, before = written.path.read_bytes(), len(os.listdir("/proc/self/fd"))
    for content in (b"", whole[:20], b"nonsense" * 1024, whole[:-8]):
        written.path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{written.path}: [^\n]+$"):
            written.ring(written.path)
    link = tmp_path / "link"
    link.symlink_to(written.path)
    with pytest.raises(OSError, match="symbolic link"):
        written.ring(link)
    written.path.unlink()
    os.mkfifo(written.path, 0o600)
    with pytest.raises(ValueError, match=f"^{written.path}: not a ring$"):
        written.ring(written.path)
    assert len(os.listdir("/proc/self/fd")) == before
