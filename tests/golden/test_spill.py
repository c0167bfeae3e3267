"""What a worker has recorded survives its end and a full disk, and takes no more memory for more rows."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import squall.actors.load.recorder
from squall.actors.load.recorder import NEVER, Recorder
from squall.actors.spill import read_spill
from squall.analysis.storage.schema import OUTCOME_CODE

LABELS = {"run": "r", "node": "node-0"}
SERVERS = (["server-0"], ["stub"])
OK = OUTCOME_CODE["ok"]


def record_rows(recorder: Recorder, first: int, n: int, detail: Callable[[int], str] = lambda _: "") -> None:
    for i in range(first, first + n):
        recorder.record(i, 10 * i, 10 * i + 1, 10 * i + 2, 10 * i + 3, 8, 1, 100, 0, OK, detail(i))


def settle(recorder: Recorder) -> None:
    """Flushes and waits until the writer has given the buffer back."""
    wanted = max(1, recorder._free.qsize())
    recorder.flush()
    deadline = time.monotonic() + 120
    while recorder._free.qsize() < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read(path: Path) -> list[pa.Table]:
    with pa.OSFile(str(path)) as data:
        return list(read_spill(data))


def ids(tables: list[pa.Table]) -> list[int]:
    return [number for table in tables for number in table.column("request_id").to_pylist()]


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """A spill_file of three batches of 3, 1 and 2 rows, and where each of them ends."""
    path = tmp_path_factory.mktemp("spill_file") / "s.arrows"
    recorder = Recorder(path, LABELS, 0, ["m"], *SERVERS)
    ends: list[int] = []
    for first, n in ((0, 3), (3, 1), (4, 2)):
        record_rows(recorder, first, n)
        settle(recorder)
    assert recorder.close() == []
    data = path.read_bytes()
    stream = pa.BufferReader(data)
    ends += [stream.tell() for _ in read_spill(stream)]
    assert len(ends) == 3
    assert ends[-1] == len(data)
    return data, ends


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1))
def test_a_spill_file_cut_at_any_byte_still_gives_its_whole_batches(
    whole_file: tuple[bytes, list[int]], where: float
) -> None:
    data, ends = whole_file
    cut = round(where * len(data))
    n_rows = [0, 3, 4, 6][sum(end <= cut for end in ends)]
    # the last 8 bytes of a stream are its end mark: without them its batches are whole all the same
    found = ids(list(read_spill(pa.BufferReader(data[:cut]))))
    assert found[:n_rows] == list(range(n_rows))
    assert found == list(range(len(found)))
    if any(cut < end <= cut + 8 for end in ends):
        assert len(found) >= n_rows
    else:
        assert len(found) == n_rows


def read_damaged(data: bytes) -> tuple[list[int], list[str]]:
    """The ids, and what is told of the rest."""
    losses: list[str] = []
    tables = list(read_spill(pa.BufferReader(data), "requests", losses))
    return ids(tables), losses


def with_body(stream: bytes, byte: bytes) -> bytes:
    """A stream of one batch, with every byte of its columns that one."""
    reader = pa.BufferReader(stream)
    for message in pa.ipc.MessageReader.open_stream(reader):
        if message.type == "record batch":
            start: int = reader.tell() - message.body.size
            end: int = reader.tell()
            return stream[:start] + byte * (end - start) + stream[end:]
    raise AssertionError("no batch")


@pytest.mark.parametrize("byte", [b"\x7f", b"\xff"], ids=["too large", "negative"])
def test_places_beyond_their_words_cost_the_rows_of_their_batch_alone(
    whole_file: tuple[bytes, list[int]], byte: bytes
) -> None:
    data, (first, second, _) = whole_file
    found = read_damaged(data[:first] + with_body(data[first:second], byte) + data[second:])
    loss = f"bytes {first} to {second} are damaged or cut off: 0 rows of these could be read"
    assert found == ([0, 1, 2, 4, 5], [loss])


def test_what_a_writer_had_begun_is_told(whole_file: tuple[bytes, list[int]]) -> None:
    data, (_, second, third) = whole_file
    loss = f"bytes {second} to {third - 9} are damaged or cut off: 0 rows of these could be read"
    assert read_damaged(data[:-9]) == ([0, 1, 2, 3], [loss])


def test_a_file_of_another_table_has_no_rows(whole_file: tuple[bytes, list[int]]) -> None:
    data, _ = whole_file
    losses: list[str] = []
    assert list(read_spill(pa.BufferReader(data), "batches", losses)) == []
    assert len(losses) == 3


def test_whole_batches_before_a_damaged_one_of_their_stream_are_kept() -> None:
    word, place = pa.array(["w"]), pa.array([0, 0], pa.int32())
    batches = [
        pa.record_batch({"n": pa.array([at, at + 1]), "w": pa.DictionaryArray.from_arrays(place, word)})
        for at in (0, 2)
    ]
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    last = stream.getvalue().rindex(bytes(8), 0, -8)  # its places, with their padding
    data = bytearray(stream.getvalue())
    data[last : last + 4] = b"\xff" * 4
    losses: list[str] = []
    (table,) = read_spill(pa.BufferReader(bytes(data)), losses=losses)
    assert table["n"].to_pylist() == [0, 1]
    assert losses == [f"bytes 0 to {len(data)} are damaged or cut off: 2 rows of these could be read"]


def test_columns_that_would_grow_beyond_all_bounds_are_not_expanded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 5_000)
    assert recorder.close() == []
    data = (tmp_path / "s.arrows").read_bytes()
    assert len(read_damaged(data)[0]) == 5_000
    expanded = (8 * 5_000).to_bytes(8, "little")  # stands before each column of numbers
    ids_found, losses = read_damaged(data.replace(expanded, (2**30).to_bytes(8, "little"), 1))
    assert (ids_found, len(losses)) == ([], 1)


def test_a_column_that_may_have_no_nulls_has_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 3)
    assert recorder.close() == []
    (table,) = read(tmp_path / "s.arrows")
    nulls = pa.nulls(3, pa.int64())
    place = table.schema.get_field_index("request_id")
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table.set_column(place, table.schema.field(place), nulls))
    assert read_damaged(stream.getvalue())[0] == []


class _Disk(io.FileIO):
    """A file on a disk with room for `room` bytes more."""

    room = 0

    def write(self, data: object) -> int:
        size = min(len(memoryview(data)), self.room)  # type: ignore[arg-type]
        if not size:
            raise OSError(28, os.strerror(28))
        self.room -= size
        return super().write(memoryview(data)[:size])  # type: ignore[arg-type]


def test_rows_that_a_full_disk_does_not_take_come_back_from_close(tmp_path: Path) -> None:
    path = tmp_path / "s.arrows"
    recorder = Recorder(path, LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 10)
    settle(recorder)
    disk = _Disk(tmp_path / "small", "w")
    disk.room = 700  # a piece of the next batch
    recorder._spill_file._file.close()
    recorder._spill_file._file = disk
    recorder._spill_file._n_bytes = 0
    record_rows(recorder, 10, 20_000)
    kept = recorder.close()
    assert recorder.error == "No space left on device"
    assert ids(kept) == list(range(10, 20_010))
    assert ids(read(path)) == list(range(10))
    assert (tmp_path / "small").stat().st_size == 0, "the piece of a batch was not cut off"


def test_a_device_that_cannot_even_be_cut_back_loses_no_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    recorder._spill_file._file.close()
    recorder._spill_file._file = io.FileIO("/dev/full", "w")
    record_rows(recorder, 0, 100)
    kept = recorder.close()
    assert recorder.error == "No space left on device"
    assert ids(kept) == list(range(100))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small file system needs mount rights: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_file_and_leftovers_are_all_rows_when_the_disk_fills(small_disk: Path) -> None:
    recorder = Recorder(small_disk / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    rng = np.random.default_rng(1)
    for i, noise in enumerate(rng.integers(0, 2**62, 40_000).tolist()):
        recorder.record(i, noise, noise, noise, noise, 8, 1, 100, 0, OK)
        if i % 500 == 499:
            recorder.flush()
    kept = recorder.close()
    in_file = ids(read(small_disk / "s.arrows"))
    assert in_file
    assert kept
    assert in_file + ids(kept) == list(range(40_000))


def test_buffers_do_not_grow_with_the_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    made = {id(recorder._buffer)}
    for turn in range(10):
        record_rows(recorder, turn * 16_384, 16_000)
        settle(recorder)
        made.add(id(recorder._buffer))
    assert len(made) <= 2
    assert recorder.close() == []
    assert recorder.n_recorded == len(ids(read(tmp_path / "s.arrows"))) == 10 * 16_000


def test_more_rows_than_a_buffer_holds_are_all_in_the_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 3 * 16_384 + 5)
    assert recorder.close() == []
    assert ids(read(tmp_path / "s.arrows")) == list(range(3 * 16_384 + 5))


def test_records_become_rows_exactly_with_nulls_where_an_instant_was_not_reached(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 3, ["warm", "m"], *SERVERS)
    recorder.record(5, 2**62, 2**62 + 1, 2**62 + 2, 2**62 + 3, 2**40, 7, 2**31 - 1, 0, OK)
    late = OUTCOME_CODE["timeout"]
    recorder.record(6, 10, 11, NEVER, 12, 0, 1, 100, 1, late, "no whole reply")
    recorder.record(7, 20, NEVER, NEVER, NEVER, 0, 1, 0, 1, OUTCOME_CODE["unsent"], "ended")
    assert recorder.close() == []
    (table,) = read(tmp_path / "s.arrows")
    shared = {
        "run": "r", "node": "node-0", "target": "server-0", "request_kind": "stub", "worker": 3,
        "method": None, "name": None,
    }  # fmt: skip
    names = (
        "request_id", "scheduled_ns", "sent_ns", "first_byte_ns", "done_ns", "response_bytes", "rows", "request_bytes",
        "phase", "outcome", "detail",
    )  # fmt: skip
    expected = [
        (5, 2**62, 2**62 + 1, 2**62 + 2, 2**62 + 3, 2**40, 7, 2**31 - 1, "warm", "ok", ""),
        (6, 10, 11, None, 12, 0, 1, 100, "m", "timeout", "no whole reply"),
        (7, 20, None, None, None, 0, 1, 0, "m", "unsent", "ended"),
    ]
    assert table.to_pylist() == [
        {name: {**shared, **dict(zip(names, row, strict=True))}[name] for name in table.schema.names}
        for row in expected
    ]


def test_seventy_thousand_different_details_keep_every_row_and_say_what_is_not_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 70_000, detail=lambda i: f"detail {i}")
    assert recorder.close() == []
    tables = read(tmp_path / "s.arrows")
    details = [text for table in tables for text in table.column("detail").to_pylist()]
    assert details[:65_534] == [f"detail {i}" for i in range(65_534)]
    assert set(details[65_534:]) == {squall.actors.load.recorder._MANY_DETAILS}
    assert len(details) == 70_000


def test_a_table_carries_only_the_details_of_its_own_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "s.arrows", LABELS, 0, ["m"], *SERVERS)
    record_rows(recorder, 0, 5_000, detail=lambda i: f"detail {i} " + "x" * 150)
    settle(recorder)
    record_rows(recorder, 5_000, 1, detail=lambda _: "another")
    assert recorder.close() == []
    last = read(tmp_path / "s.arrows")[-1].column("detail").chunk(0)
    assert last.dictionary.to_pylist() == ["another"]
