"""The reader of rings and of what was drained of them, over bytes of every kind."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.inject.batch_ring import BatchRing, CutOff, RecordedBatch, recorded_batches, rings

HEAD = struct.Struct("<IIiiqqqqqQIIIiHHI")
MARKER = 0x31425153
SIZE = 65_536
ONE = RecordedBatch(
    pid=7, thread=8, model="echo", version=3, instance="echo_0_1", device=1, start_ns=10, compute_start_ns=20,
    compute_end_ns=30, end_ns=40, rows=5, n_requests=3, n_failed=1, request_ids=(b"a", b"", b"\xff\n"),
)  # fmt: skip


def frame(one: RecordedBatch) -> bytes:
    """As the library writes it, by another hand than the reader's."""
    body = one.model.encode() + one.instance.encode()
    body += b"".join(struct.pack("<H", len(request_id)) + request_id for request_id in one.request_ids)
    n_bytes = -(-(HEAD.size + len(body)) // 8) * 8
    head = HEAD.pack(
        MARKER, n_bytes, one.pid, one.thread, one.version, one.start_ns, one.compute_start_ns,
        one.compute_end_ns, one.end_ns, one.rows, one.n_requests, one.n_failed, len(one.request_ids), one.device,
        len(one.model.encode()), len(one.instance.encode()), ["library", "hook"].index(one.writer),
    )  # fmt: skip
    return (head + body).ljust(n_bytes, b"\0")


def write_ring(path: Path, data: bytes = b"", at: int = 0, written: int | None = None, read: int = 0) -> Path:
    """A ring of SIZE bytes with `data` at byte `at` of all that was ever written, round and round."""
    content = bytearray(4096 + SIZE)
    struct.pack_into("<8sIIQq", content, 0, b"SQBATCH\0", 1, 4096, SIZE, 7)
    end = at + len(data) if written is None else written
    struct.pack_into("<QQ", content, 64, end, 2)
    struct.pack_into("<Q", content, 128, read)
    for i, byte in enumerate(data, at):
        content[4096 + i % SIZE] = byte
    path.write_bytes(content)
    return path


def read(data: bytes, folder: Path) -> list[RecordedBatch | CutOff]:
    (folder / "drained").write_bytes(data)
    return list(recorded_batches(folder / "drained"))


def test_a_frame_is_read_back(tmp_path: Path) -> None:
    other = replace(ONE, model="", instance="", request_ids=(), n_requests=0, n_failed=0, rows=0, device=-1)
    hooked = replace(ONE, writer="hook")
    assert read(frame(ONE) + frame(other) + frame(hooked), tmp_path) == [ONE, other, hooked]


def test_a_writer_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = write_ring(tmp_path / "batches-7-a.ring")
    with closing(BatchRing(path)) as ring:
        assert ring.writer == "library"
    content = bytearray(path.read_bytes())
    struct.pack_into("<Q", content, 32, 1)
    path.write_bytes(content)
    with closing(BatchRing(path)) as ring:
        assert ring.writer == "hook"
    struct.pack_into("<Q", content, 32, 2)
    path.write_bytes(content)
    assert refused(path) == "a ring of a writer that this reader does not know"
    strange = frame(ONE)[:84] + struct.pack("<I", 2) + frame(ONE)[88:]
    assert read(strange, tmp_path) == [CutOff(0, len(strange))]


def test_names_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    (found,) = read(frame(ONE).replace(b"echo_0_1", b"echo_\xff_1"), tmp_path)
    assert isinstance(found, RecordedBatch)
    assert found.instance == "echo_�_1"


@pytest.mark.parametrize("at", [0, SIZE - 8, 10 * SIZE + 1000])
def test_a_ring_is_drained_from_where_its_reader_was(tmp_path: Path, at: int) -> None:
    path = write_ring(tmp_path / "batches-7-a.ring", frame(ONE) * 3, at, read=at)
    with closing(BatchRing(path)) as ring:
        assert (ring.pid, ring.lost()) == (7, 2)
        assert ring.drain() == frame(ONE) * 3
        assert ring.drain() == b""
    assert struct.unpack_from("<Q", path.read_bytes(), 128) == (at + 3 * len(frame(ONE)),)


def test_a_ring_that_is_full_to_the_brim_is_drained(tmp_path: Path) -> None:
    data = (bytes(range(256)) * (SIZE // 256))[:SIZE]
    with closing(BatchRing(write_ring(tmp_path / "r", data, 24, read=24))) as ring:
        assert ring.drain() == data


def refused(path: Path) -> str:
    """Why it is no ring, in one line that begins with its path."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError) as told:  # noqa: PT011  the text is looked at
        BatchRing(path)
    assert len(os.listdir("/proc/self/fd")) == before
    text = str(told.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_what_is_no_ring_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "batches-7-a.ring"
    for content in (b"", b"SQBATCH\0"):
        path.write_bytes(content)
        assert refused(path) == "not a ring"
    path.write_bytes(b"nonsense" * 1024)
    assert refused(path) == "not a ring of batches"
    path.unlink()
    os.mkfifo(path)
    assert refused(path) == "not a ring"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (8, struct.pack("<I", 2), "a ring of layout 2, and this is a reader of layout 1"),
        (12, struct.pack("<I", 512), "a ring of layout 1, and this is a reader of layout 1"),
        (16, struct.pack("<Q", 0), "a ring of 0 bytes in a file of 69632"),
        (16, struct.pack("<Q", SIZE + 8), "a ring of 65544 bytes in a file of 69632"),
        (16, struct.pack("<Q", 2**63), "a ring of 9223372036854775808 bytes in a file of 69632"),
    ],
)
def test_a_ring_with_another_head_is_refused(tmp_path: Path, field: int, value: bytes, why: str) -> None:
    path = write_ring(tmp_path / "ring")
    content = bytearray(path.read_bytes())
    content[field : field + len(value)] = value
    path.write_bytes(content)
    assert refused(path) == why


@pytest.mark.parametrize(("read", "written"), [(8, 0), (0, SIZE + 1), (0, 2**64 - 1), (2**64 - 1, 0)])
def test_positions_that_cannot_be_are_refused_in_one_line(tmp_path: Path, read: int, written: int) -> None:
    path = write_ring(tmp_path / "ring", written=written, read=read)
    with closing(BatchRing(path)) as ring:
        for _ in range(2):
            with pytest.raises(
                ValueError, match=rf"^{path}: {read} bytes read of {written}, in a ring of {SIZE}$"
            ):
                ring.drain()


def test_a_ring_that_was_cut_while_it_was_read_is_refused(tmp_path: Path) -> None:
    path = write_ring(tmp_path / "ring", frame(ONE))
    with closing(BatchRing(path)) as ring:
        os.truncate(path, 4096)
        with pytest.raises(ValueError, match=r"the ring was cut while it was read$"):
            ring.drain()


def test_a_reader_closes_twice(tmp_path: Path) -> None:
    ring = BatchRing(write_ring(tmp_path / "ring"))
    ring.close()
    ring.close()


def test_rings_are_regular_files_of_that_name(tmp_path: Path) -> None:
    whole = write_ring(tmp_path / "batches-7-a.ring")
    (tmp_path / "batches-8-b.ring").symlink_to(whole)
    (tmp_path / "batches-9-c.ring").mkdir()
    (tmp_path / "batches-9-d.ring.new").touch()
    (tmp_path / "other").touch()
    assert rings(tmp_path) == [whole]
    assert rings(tmp_path / "nowhere") == []


def test_a_file_that_was_cut_off_tells_how_much_of_it_is_no_record(tmp_path: Path) -> None:
    whole = frame(ONE) + frame(ONE)
    for n in range(len(whole) + 1):
        *batches, last = [*read(whole[:n], tmp_path), None]
        n_whole, n_cut = divmod(n, len(frame(ONE)))
        if n_cut:
            assert batches.pop() == CutOff(n - n_cut, n_cut)
        assert (batches, last) == ([ONE] * n_whole, None)


def damaged() -> Iterator[bytes]:
    """Frames with one field that cannot be."""
    good = frame(ONE)
    for offset, value in (
        (0, 0), (4, 0), (4, 80), (4, 91), (4, 2**32 - 1), (4, len(good) + 8), (72, 2), (72, 4), (72, 2**32 - 1),
        (80, 0xFFFF), (80, 0xFFFF0000),
    ):  # fmt: skip
        yield good[:offset] + struct.pack("<I", value) + good[offset + 4 :]


@pytest.mark.parametrize("bad", list(damaged()))
def test_a_damaged_frame_ends_the_file(tmp_path: Path, bad: bytes) -> None:
    n = len(frame(ONE))
    assert read(frame(ONE) + bad + frame(ONE), tmp_path) == [ONE, CutOff(n, len(bad) + n)]


@given(
    data=st.binary(max_size=400),
    changes=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4),
)
def test_no_bytes_whatever_are_more_than_a_cut_off(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(frame(ONE) * 3 + data)
    for at, value in changes:
        content[at % len(content)] = value
    found = read(bytes(content), tmp_path_factory.mktemp("any"))
    cut = [one for one in found if isinstance(one, CutOff)]
    assert cut == found[len(found) - len(cut) :]
    assert len(cut) <= 1
    assert sum(one.n_bytes for one in cut) + HEAD.size * (len(found) - len(cut)) <= len(content)
