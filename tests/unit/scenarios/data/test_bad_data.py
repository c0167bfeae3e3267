"""Bad data is one line with the file and its row."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.scenarios.config.inputs import DataConfig
from squall.scenarios.data.opening import open_data
from squall.scenarios.errors import ScenarioError

Make = Callable[[Path], object]


def cut(make: Make, n_bytes: int) -> Make:
    """The first bytes of what `make` writes, or all but the last."""

    def made(path: Path) -> None:
        make(path)
        path.write_bytes(path.read_bytes()[:n_bytes])

    return made


def doubled_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), path)


def torn_parquet(path: Path) -> None:
    """Its footer is whole, and a page of it is not."""
    pq.write_table(
        pa.table({"a": np.random.default_rng(1).integers(0, 99, 5_000)}), path, compression="snappy"
    )
    data = bytearray(path.read_bytes())
    data[200:3_000] = bytes(2_800)
    path.write_bytes(data)


def stream(path: Path) -> None:
    table = pa.table({"a": list(range(10_000))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def table(**columns: Any) -> Make:
    return lambda path: pq.write_table(pa.table(columns), path)


def text(content: str | bytes) -> Make:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def sparse_line(path: Path) -> None:
    """1 GB without a line end, after one line."""
    path.write_bytes(b"first\n")
    with path.open("r+b") as file:
        file.truncate(10**9)


def saved(array: Any) -> Make:
    return lambda path: np.save(path, array)


def zipped(**arrays: Any) -> Make:
    return lambda path: np.savez_compressed(path, **arrays)


def stated_npy(shape: tuple[int, ...], dtype: str) -> Make:
    """A header alone, and 100 bytes."""

    def made(path: Path) -> None:
        with path.open("wb") as file:
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(100))

    return made


def stated_npz(shape: tuple[int, ...], dtype: str) -> Make:
    def made(path: Path) -> None:
        stated_npy(shape, dtype)(path.with_name("IN.npy"))
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(path.with_name("IN.npy"), "IN.npy")

    return made


SECOND_NPY = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100)
"""Of format 2.0, whose header it says to have 4 GiB."""


def folder(**files: bytes) -> Make:
    def made(path: Path) -> None:
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (path / name.replace("__", "/")).write_bytes(content)

    return made


def read_all(path: Path) -> None:
    data = open_data(DataConfig(path=str(path)))
    for _ in data.read(np.arange(data.n_entries), data.names):
        pass


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("gone.parquet", Path, "no such file or folder of data"),
        ("a.parquet", text(""), "is empty"),
        ("a.txt", text(""), "is empty"),
        ("a.parquet", table(a=pa.array([], pa.int64())), "holds no entry"),
        ("a.parquet", cut(table(a=[1, 2, 3]), -9), "cannot be read, is it whole?"),
        ("a.parquet", torn_parquet, "cannot be read, is it whole?"),
        ("a.arrow", cut(stream, 20_000), "cannot be read, is it whole?"),
        ("a.parquet", table(a=[[1], [2, None]]), "row 2: column 'a' holds null and whole numbers, and a tensor is"),
        ("a.parquet", table(a=[[[1], [2]], [[1, 2], [3]]]), "row 2: column 'a' is ragged: its lists differ"),
        ("a.parquet", table(a=[{"x": 1}]), "column 'a' is struct<x: int64>, which no input takes"),
        ("a.parquet", doubled_parquet, "has two columns 'a'"),
        ("a.txt", os.mkfifo, "is neither a file nor a folder"),
        ("a.bin", text("what?"), "nothing says what it is; state format: parquet, arrow, json, npy, npz, text"),
        ("a.txt", text(b"ok\n\xff\n"), "row 2: is not UTF-8 text, from its byte 1 on"),
        ("a.txt", sparse_line, "row 2: the line is longer than 16 MiB; is it lines of text?"),
        ("a.json", text("[1]"), "row 1: is not a JSON object with data: '[1]' stands in place of '{'"),
        ("a.json", text('{"dat": []}'), 'has no "data", the list of entries of perf_analyzer\'s format'),
        ("a.json", text('{"data": []}'), "holds no entry"),
        ("a.json", text('{"data": [{"A": [1]}, 7]}'), "row 2: an entry is an object of inputs by name, not '7'"),
        ("a.json", text('{"data": [{"A": [1]}, {"A": [1'), "row 2: is no JSON: "),
        ("a.json", text(b'{"data": [{"A": ["\xff"]}]}'), "row 1: is not UTF-8 text"),
        ("a.json", text('{"data": ' + "[" * 100_000), "row 1: is nested too deep"),
        ("a.json", text(json.dumps({"data": [{"A": {"b64": "?"}}]})), "row 1: 'A' is neither a list, nor content"),
        ("a.json", text(json.dumps({"data": [{"A": {"content": [1], "shape": [2]}}]})), "row 1: 'A' has 1 elements"),
        ("a.json", text(json.dumps({"data": [{"A": {"content": [1], "shape": [-1]}}]})), "row 1: 'A' has a shape"),
        ("a.json", text(json.dumps({"data": [{"A": [1, "x"]}]})), "row 1: 'A' holds text and whole numbers"),
        ("a.json", text(json.dumps({"data": [{"A": [2**64]}]})), "row 1: 'A' holds 18446744073709551616, which no"),
        ("a.npy", cut(saved(np.zeros((10, 10))), -1), "is cut short: it says 10 rows and has bytes for fewer"),
        ("a.npy", text("what?"), "the array is no array of NumPy's"),
        ("a.npy", saved(np.asfortranarray(np.zeros((3, 2)))), "the array lies in Fortran's order"),
        ("a.npy", saved(np.array([{}])), "the array is of object, which no input takes"),
        ("a.npy", saved(np.float32(1)), "the array is one number"),
        ("a.npy", text(SECOND_NPY), "the array is no array of NumPy's: its format is 2.0; np.save it again, as 1.0"),
        ("a.npy", stated_npy((-5, 3), "|u1"), "the array states the shape [-5, 3], and no size is below 0"),
        ("a.npy", stated_npy((3, -5), "|u1"), "the array states the shape [3, -5], and no size is below 0"),
        ("a.npz", stated_npz((1, 2**30 + 1), "|u1"), "array 'IN' has rows of [1073741825] uint8, and an entry has 1"),
        ("a.npz", stated_npz((1, 2**27 + 1), "<f8"), "array 'IN' has rows of [134217729] float64, and an entry has 1"),
        ("a.npz", stated_npz((1, 2**23 + 1), "|S2"), "array 'IN' has rows of [8388609] |S2, and an entry has 1 GiB"),
        ("a.npz", stated_npz((1, 2**30), "|u1"), "row 1: the file is cut short here"),
        ("a.npz", zipped(A=np.zeros(3), B=np.zeros(4)), "its arrays have different lengths"),
        ("a.npz", cut(zipped(A=np.random.default_rng(1).random(1_000)), -100), "cannot be read, is it whole?"),
        ("d", folder(), "holds no entry"),
        ("d", folder(IN=b"x", more__IN=b"y"), "holds files beside folders"),
        ("d", folder(a__IN=b"x", b__IM=b"y"), "row 2: the folder b has no file 'IN'"),
    ],
)  # fmt: skip
def test_a_fault_names_file_and_row(tmp_path: Path, name: str, make: Make, told: str) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(ScenarioError) as caught:
        read_all(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: {told}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("form", "made"), [("images", Path.touch), ("folder", Path.touch), ("parquet", Path.mkdir)]
)
def test_a_folder_is_no_file_and_no_file_a_folder(tmp_path: Path, form: str, made: Make) -> None:
    made(tmp_path / "a")
    with pytest.raises(ScenarioError, match=f"and format is {form}"):
        open_data(DataConfig.model_validate({"path": str(tmp_path / "a"), "format": form}))


def test_json_whose_entry_does_not_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.scenarios.traces.documents.LARGEST_ENTRY_CHARACTERS", 2**20)
    (tmp_path / "a.json").write_text('{"data": [{"A": [' + "1, " * 2**21)
    with pytest.raises(ScenarioError, match="row 1: no entry ends within 1 MiB"):
        open_data(DataConfig(path=str(tmp_path / "a.json")))


def test_faults_of_entries_that_are_not_wanted_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\nfine\n")
    data = open_data(DataConfig(path=str(tmp_path / "a.txt")))
    assert [number for number, _ in data.read(np.array([0, 2]), data.names)] == [0, 2]
