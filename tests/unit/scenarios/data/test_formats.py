"""Entries of every format: what was written is what is read, however few are wanted."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow.feather import write_feather

from squall.scenarios.config.inputs import DataConfig
from squall.scenarios.data.jsondata import JsonSource
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.data.source import Picture, Raw
from squall.scenarios.data.values import array_of
from squall.scenarios.errors import ScenarioError

LISTS = [[1, 2], [], [-3, 4, 5], [6]]


def opened(path: Path, **config: Any) -> Data:
    return open_data(DataConfig.model_validate({"path": str(path), **config}))


def entries(data: Data, *numbers: int) -> dict[int, Any]:
    wanted = np.array(numbers or range(data.n_entries))
    return dict(data.read(wanted, data.names))


CELLS: dict[str, list[Any]] = {
    "ids": LISTS,
    "text": [b"a", "bé".encode(), b"", b"d"],
    "blob": [b"\xff", b"", b"x", b"\x00"],
    "half": [0.5, 1, 2, 4],
    "flag": [True, False, True, True],
    "nested": [[[b"x", b"y"]], [[b"z", b"z"]], [[b"p", b"q"]], [[b"r", b"s"]]],
    "pair": [[1.5, 2.5]] * 4,
    "word": [b"one", b"two", b"one", b"one"],
}
TYPES = {
    "ids": pa.list_(pa.int32()), "text": pa.string(), "blob": pa.binary(), "half": pa.float16(), "flag": pa.bool_(),
    "nested": pa.list_(pa.list_(pa.string())), "pair": pa.list_(pa.float32(), 2),
    "word": pa.dictionary(pa.int32(), pa.string()),
}  # fmt: skip


def table() -> pa.Table:
    arrays = {name: np.array(cells, np.float16) if name == "half" else cells for name, cells in CELLS.items()}
    return pa.table({name: pa.array(arrays[name], kind) for name, kind in TYPES.items()})


def write_parquet(path: Path) -> None:
    pq.write_table(table(), path, row_group_size=2)


def write_arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        for batch in table().to_batches(3):
            writer.write_batch(batch)


def write_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        writer.write_table(table(), 3)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.parquet", write_parquet), ("a.feather", write_arrow), ("a.arrows", write_stream),
        ("nothing", write_parquet), ("told.bin", write_arrow),  # first bytes say what a name does not
    ],
)  # fmt: skip
def test_a_table_has_a_cell_of_each_column(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    data = opened(tmp_path / name)
    assert (data.n_entries, data.names) == (4, tuple(CELLS))
    found = entries(data)
    assert {name: [one[name].tolist() for one in found.values()] for name in CELLS} == CELLS
    assert (found[0]["half"].dtype, found[0]["ids"].dtype) == (np.float16, np.int32)
    some: dict[int, Any] = dict(data.read(np.array([1, 3]), ("ids",)))
    assert {number: list(one) for number, one in some.items()} == {1: ["ids"], 3: ["ids"]}
    assert some[3]["ids"].tolist() == LISTS[3]


@pytest.mark.parametrize("kind", [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2),
])  # fmt: skip
@pytest.mark.parametrize("write", [pq.write_table, write_feather])
def test_text_and_bytes_of_every_kind_stand_alone_and_in_lists(
    tmp_path: Path, kind: pa.DataType, write: Callable[[pa.Table, Path], None]
) -> None:
    words = [b"ab", b"cd"]
    columns: dict[str, Any] = {
        "alone": pa.array(words, kind),
        "listed": pa.array([words, words[:1]], pa.list_(kind)),
    }
    if kind not in (pa.string_view(), pa.binary_view(), pa.binary(2)):
        columns["coded"] = pa.array([words, words[:1]], pa.list_(pa.dictionary(pa.int32(), kind)))
    write(pa.table(columns), tmp_path / "a")
    found = entries(opened(tmp_path / "a"))
    assert [one["alone"].item() for one in found.values()] == words
    for name in columns.keys() - {"alone"}:
        assert [one[name].tolist() for one in found.values()] == [words, words[:1]]


def test_a_column_of_tensors_keeps_their_shape(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    pq.write_table(pa.table({"a": column}), tmp_path / "t.parquet")
    assert np.array_equal([one["a"] for one in entries(opened(tmp_path / "t.parquet")).values()], values)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy_have_their_entries_along_the_first_axis(tmp_path: Path, save: Any) -> None:
    values, words = np.arange(24, dtype=np.int16).reshape(4, 3, 2), np.array(["a", "bé", "cc", ""])
    save(tmp_path / "a.npz", A=values, B=words)
    found = entries(opened(tmp_path / "a.npz"), 1, 3)
    assert np.array_equal(found[3]["A"], values[3])
    assert found[1]["B"].item() == "bé".encode()
    np.save(tmp_path / "a.npy", values)
    (one,) = entries(opened(tmp_path / "a.npy"), 2).values()
    assert np.array_equal(one["array"], values[2])
    np.save(tmp_path / "s.npy", np.array([b"x", b"yy"]))
    assert [one["array"].item() for one in entries(opened(tmp_path / "s.npy")).values()] == [b"x", b"yy"]


def test_perf_analyzers_json_in_all_its_forms(tmp_path: Path) -> None:
    raw = base64.b64encode(b"\x01\x00").decode()
    steps: list[Any] = [
        {"A": [1, 2, 3, 4], "B": ["x"]},
        [{"A": {"content": [1, 2, 3, 4], "shape": [2, 2]}, "B": ["y"]}, {"A": [[1, 2], [3, 4]], "B": ["z"]}],
        {"A": {"b64": raw}, "B": {"content": {"b64": raw}, "shape": [1]}},
        {"A": {"b64": raw, "shape": [2, 1]}, "C": [True]},
    ]
    document = {"other": {"data": 1}, "validation_data": [{"O": [1]}], "data": steps, "more": 2}
    (tmp_path / "a.json").write_text(json.dumps(document, indent=1))
    data = opened(tmp_path / "a.json")
    assert (data.n_entries, data.names) == (5, ("A", "B", "C"))
    found = entries(data)
    assert found[0]["A"].tolist() == [1, 2, 3, 4]
    assert found[1]["A"].tolist() == found[2]["A"].tolist() == [[1, 2], [3, 4]]
    assert found[3] == {"A": Raw(b"\x01\x00"), "B": Raw(b"\x01\x00", (1,))}
    assert found[4] == {"A": Raw(b"\x01\x00", (2, 1)), "C": np.array([True])}
    assert [found[number]["B"].tolist() for number in range(3)] == [[b"x"], [b"y"], [b"z"]]


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), min_size=1, max_size=30), st.booleans()
)
def test_json_is_read_alike_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], is_indented: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps({"data": [{"A": one} for one in lists]}, indent=1 if is_indented else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("squall.scenarios.traces.documents._READ_BYTES", 7)
        source = JsonSource(path)
        wanted = np.ones(source.n_entries, np.bool_)
        found: list[Any] = [one["A"] for _, one in source.read(wanted, ("A",))]
        assert [one.tolist() for one in found] == lists


def test_lines_of_text_lose_their_ends_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffé a \nb\r\n\n\tc".encode())
    found = entries(opened(tmp_path / "a.txt"))
    assert [one["text"].item() for one in found.values()] == ["é a ".encode(), b"b", b"", b"\tc"]


def test_images_come_by_name_and_whole(tmp_path: Path) -> None:
    for name in ("b.png", "a.png"):
        Image.new("RGB", (2, 3), "red").save(tmp_path / name)
    (tmp_path / ".hidden").write_text("x")
    data = opened(tmp_path)
    assert data.format == "images"
    assert entries(data)[1] == {"image": Picture((tmp_path / "b.png").read_bytes())}


def test_a_folder_is_an_entry_and_one_of_folders_an_entry_each(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "IN").write_bytes(name.encode())
    assert [one["IN"].data for one in entries(opened(tmp_path)).values()] == [b"x", b"y"]
    assert entries(opened(tmp_path / "x")) == {0: {"IN": Raw(b"x", is_lines=True)}}


def test_entries_are_counted_up_to_a_limit_and_anew_once_the_file_has_changed(tmp_path: Path) -> None:
    for n in (3, 5):
        (tmp_path / "a.txt").write_text("x\n" * n)
        for limit, expected in ((None, n), (2, 2), (9, n)):
            assert opened(tmp_path / "a.txt", limit=limit).n_entries == expected


def test_the_digest_is_of_all_bytes_and_of_a_folder_of_names_too(tmp_path: Path) -> None:
    digests: list[str] = []
    for name, content in (("IN", b"one"), ("IN", b"two"), ("IM", b"one"), ("IN", b"one")):
        folder = tmp_path / str(len(digests))
        folder.mkdir()
        (folder / name).write_bytes(content)
        digests.append(opened(folder).sha256())
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\ny\n")
    data = opened(path)
    path.write_text("x\ny\nz\n")
    with pytest.raises(ScenarioError, match="changed while it was read"):
        entries(data)


@given(
    st.recursive(
        st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=3) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=9,
    )
)
def test_an_array_holds_what_the_lists_did_or_is_refused(value: Any) -> None:
    try:
        array = array_of(value)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert refused.startswith(("is ragged", "holds "))
        return
    told = array.tolist()
    if array.dtype.kind == "O":
        told = json.loads(json.dumps(told, default=lambda one: one.decode()))
    assert told == value
    if array.size:
        assert {type(one) for one in array.ravel().tolist()} <= {bytes, bool, int, float}
