"""Lines that a model's code wrote in the place of its records: each that is none is counted, and told once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.batch_ring import RecordedBatch
from squall.cluster.node.batches import read_batches, read_recorded

LABELS = {"run": "r", "node": "node-0", "server": "server-0", "model": "m", "version": "1"}
SOUND = b'{"b":0,"s":1,"e":2,"r":1,"i":["000000000007"]}\n'


def read(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    losses: list[str] = []
    return [row for table in read_batches(folder, LABELS, losses) for row in table.to_pylist()], losses


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000, b'{"b":' + b"9" * 5_000 + b"}", b'{"b":NaN,"s":1,"e":2,"r":1,"i":[]}', b"\xff\xfe",
        b'{"b":9223372036854775808,"s":1,"e":2,"r":1,"i":[]}', b'{"b":0,"s":"1","e":2,"r":1,"i":[]}', b"[]", b"7",
        b'{"b":0,"s":1,"e":2,"r":1,"i":[7]}', b'{"instance":7}', b'{"instance":"a","device":"0"}', b"{}",
    ],
    ids=range(12),
)  # fmt: skip
def test_a_line_that_is_no_record_is_counted_as_cut(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(SOUND + line + b"\n" + SOUND)
    rows, losses = read(tmp_path)
    assert len(rows) == 2
    assert losses == ["batches: instance a: 0 records were not written, 1 lines are cut off"]


def test_a_line_of_a_hundred_megabytes_is_one_that_is_cut(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.write(SOUND + b'{"x":"')
        file.truncate(100_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b'"}\n' + SOUND)
    rows, losses = read(tmp_path)
    assert len(rows) == 2
    assert losses == ["batches: instance a: 0 records were not written, 1 lines are cut off"]


def test_names_that_no_table_takes_are_made_ones_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"instance":"a\\ud800' + b"b" * 2_000 + b'"}\n' + SOUND)
    ((row,), losses) = read(tmp_path)
    assert (row["instance"], losses) == ("a?" + "b" * 1_022, [])


def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/etc/hostname")
    assert read(tmp_path) == (
        [],
        ["batches: a.jsonl cannot be read: it is no file",
         "batches: b.jsonl cannot be read: Too many levels of symbolic links"],
    )  # fmt: skip


def test_more_rows_than_a_table_takes_are_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = RecordedBatch(1, 2, "m", 1, "m_0_0", -1, 100, 110, 120, 130, 2**64 - 1, 1, 0, ())
    monkeypatch.setattr("squall.cluster.node.batches.recorded_batches", lambda _: iter([batch]))
    losses: list[str] = []
    assert list(read_recorded([Path("a")], LABELS, 0, losses, [])) == []
    assert losses == ["batches: 1 of more rows than a batch can have"]
