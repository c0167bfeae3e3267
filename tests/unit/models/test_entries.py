"""Entries of data as inputs: what suits the model is sent exactly, what does not is told with its row."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from squall.models.entries import Fitting, fit
from squall.models.payload import NUMPY, read_tensor, write_tensor
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import DataConfig, InputConfig
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.data.source import Picture, Raw
from squall.scenarios.data.values import array_of
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import kind_code
from tests.unit.models.cases import cases

MADE: TypeAdapter[Any] = TypeAdapter(dict[str, InputConfig])


def tensor(datatype: str, *dims: int) -> TensorSpec:
    return TensorSpec("A", datatype, dims)


def holds(one: TensorSpec, cell: Any, expected: Any, stated: tuple[int, ...] | None = None) -> None:
    """Whether the input is of these values, or refused in words that begin so."""
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
            fit(one, cell, stated)
    else:
        assert fit(one, cell, stated).tolist() == expected


@pytest.mark.parametrize("datatype", [*NUMPY, "BYTES", "BF16"])
def test_every_datatype_is_filled_from_lists(datatype: str) -> None:
    values: Any = {"BOOL": [True, False], "BYTES": ["é", "b"]}.get(datatype, [1, 2])
    found = fit(tensor(datatype, 2), array_of(values))
    back = read_tensor(datatype, (2,), write_tensor(found))
    assert back.tolist() == ([b"\xc3\xa9", b"b"] if datatype == "BYTES" else values)


@pytest.mark.parametrize(("datatype", "values", "told"), cases("test_a_wrong_datatype_is_told"))
def test_a_wrong_datatype_is_told(datatype: str, values: list[Any], told: str) -> None:
    holds(tensor(datatype, 1), array_of(values), told)


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_bf16_is_the_nearest_there_is(values: list[float]) -> None:
    given = np.array(values, np.float32)
    finite = np.abs(given[np.isfinite(given)])
    if finite.size and finite.max() > 3.38e38:  # would round to infinity, as IEEE 754 says, and is refused
        return
    found = read_tensor("BF16", given.shape, write_tensor(fit(tensor("BF16", -1), given)))
    assert np.array_equal(np.isnan(found), np.isnan(given))
    is_number = np.isfinite(given)
    half_ulp = np.maximum(np.abs(given[is_number].astype(np.float64)) * 2.0**-8, 2.0**-134)
    assert (np.abs(found[is_number].astype(np.float64) - given[is_number]) <= half_ulp).all()


@pytest.mark.parametrize(
    ("dims", "shape", "stated", "expected"), cases("test_shapes_are_those_of_the_model_or_told")
)
def test_shapes_are_those_of_the_model_or_told(
    dims: list[int], shape: list[int], stated: list[int] | None, expected: Any
) -> None:
    cell = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    found = expected if isinstance(expected, str) else cell.reshape(expected).tolist()
    holds(tensor("INT64", *dims), cell, found, tuple(stated) if stated else None)


@pytest.mark.parametrize(
    ("datatype", "dims", "data", "shape", "is_lines", "expected"),
    cases("test_raw_bytes_are_those_that_travel"),
)
def test_raw_bytes_are_those_that_travel(
    datatype: str, dims: list[int], data: str, shape: list[int] | None, is_lines: bool, expected: Any
) -> None:
    cell = Raw(data.encode("latin-1"), tuple(shape) if shape else None, is_lines)
    holds(tensor(datatype, *dims), cell, expected)


def picture(mode: str, color: Any, form: str = "PNG") -> Picture:
    file = io.BytesIO()
    Image.new(mode, (3, 2), color).save(file, form)
    return Picture(file.getvalue())


@pytest.mark.parametrize(
    ("datatype", "dims", "cell", "expected"),
    [
        *(
            (
                datatype,
                dims,
                picture(mode, tuple(color) if isinstance(color, list) else color, form),
                expected,
            )
            for datatype, dims, mode, color, form, expected in cases(
                "test_pictures_are_decoded_as_the_dims_say_or_told"
            )
        ),
        ("BYTES", [1], Picture(b"its file"), [b"its file"]),
        ("UINT8", [2, 3, 3], Picture(b"?"), "is no picture that can be read: none of JPEG, PNG, BMP, GIF"),
    ],
)
def test_pictures_are_decoded_as_the_dims_say_or_told(
    datatype: str, dims: list[int], cell: Picture, expected: Any
) -> None:
    holds(tensor(datatype, *dims), cell, expected)


def test_no_program_is_started_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # else it was looked for before
    drawing = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(ValueError, match="none of JPEG, PNG, BMP, GIF, WEBP, TIFF"):
        fit(tensor("UINT8", 8, 8, 3), Picture(drawing))
    assert not (tmp_path / "started").exists()


def test_without_pillow_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ValueError, match="takes decoded pictures, and Pillow is not installed: pip install pillow"
    ):
        fit(tensor("UINT8", 2, 3, 3), Picture(b"x"))


IDS, MASK, TEXT = (
    TensorSpec("ids", "INT64", (-1,)), TensorSpec("mask", "INT32", (-1,)), TensorSpec("TEXT", "BYTES", (1,)),
)  # fmt: skip
OPTIONAL = TensorSpec("maybe", "INT32", (1,), is_optional=True)


def data_of(path: Path, lists: list[list[int]]) -> Data:
    pq.write_table(pa.table({"ids": lists}), path, row_group_size=3)
    return open_data(DataConfig(path=str(path)))


def data_in(path: Path, content: str) -> Data:
    path.write_text(content)
    return open_data(DataConfig(path=str(path)))


def fitting_of(
    data: Data, *inputs: TensorSpec, columns: Any = None, made: Any = None, most: int = 8
) -> Fitting:
    spec = ModelSpec("m", "1", inputs, (), most)
    return Fitting(spec, data, columns or {}, MADE.validate_python(made or {}), seed=4)


def requests(
    kinds: Collection[tuple[int, int]], data: Data, *inputs: TensorSpec, **options: Any
) -> dict[tuple[int, int], dict[str, Any]]:
    """The inputs of requests of so many rows from that entry on, by name, as lists."""
    codes = np.sort([int(kind_code(*kind)) for kind in kinds])
    return {
        (rows, entry): {name: array.tolist() for name, array in one.items()}
        for rows, entry, one in fitting_of(data, *inputs, **options).requests(codes)
    }


@given(
    n=st.integers(1, 12),
    kinds=st.sets(st.tuples(st.integers(1, 8), st.integers(0, 11)), min_size=1, max_size=20),
)
def test_a_request_has_the_entries_from_its_own_on(
    tmp_path_factory: pytest.TempPathFactory, n: int, kinds: set[tuple[int, int]]
) -> None:
    kinds = {(rows, entry % n) for rows, entry in kinds}
    data = data_of(tmp_path_factory.mktemp("d") / "a.parquet", [[entry, entry] for entry in range(n)])
    assert requests(kinds, data, IDS) == {
        (rows, entry): {"ids": [[(entry + more) % n] * 2 for more in range(rows)]} for rows, entry in kinds
    }


def test_few_entries_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(tmp_path / "a.parquet", [[entry] for entry in range(500)])
    fitting = fitting_of(data, IDS)
    asked: list[int] = []

    def noted(number: int, entry: Any) -> Any:
        asked.append(number)
        return {"ids": entry["ids"]}

    monkeypatch.setattr(fitting, "_fitted", noted)
    codes = np.sort([int(kind_code(rows, entry)) for entry in range(0, 400, 10) for rows in (1, 4)])
    for rows, entry, _ in fitting.requests(codes):
        assert asked[-1] == entry + rows - 1 or rows == 1
    assert asked == [entry + more for entry in range(0, 400, 10) for more in range(4)]


def test_a_model_without_batches_gets_the_entry_as_it_is(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1, 2, 3]])
    assert requests([(1, 0)], data, IDS, most=0) == {(1, 0): {"ids": [1, 2, 3]}}


def test_inputs_that_the_data_has_not_are_made_like_those_that_it_has(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1, 2, 3], [4]])
    made = {"mask": {"like": "ids", "low": 1.0, "high": 1.0}, "TEXT": {"length": 5}}
    found = list(requests([(1, 0), (1, 1)], data, IDS, MASK, TEXT, made=made).values())
    assert [one["mask"] for one in found] == [[[1, 1, 1]], [[1]]]
    assert [len(one["TEXT"][0][0]) for one in found] == [5, 5]
    assert found[0]["TEXT"] != found[1]["TEXT"]


@pytest.mark.parametrize(("options", "told"), cases("test_data_that_does_not_suit_the_model_is_one_line"))
def test_data_that_does_not_suit_the_model_is_one_line(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    data = data_of(tmp_path / "a.parquet", [[1], [2], [3, 4], [2**40]])
    kinds = options.pop("kinds", [(1, 0), (1, 3)])
    with pytest.raises(ScenarioError) as caught:
        requests(kinds, data, IDS, MASK, **options)
    assert told in str(caught.value)


def test_the_only_input_that_is_needed_takes_lines_whatever_its_name(tmp_path: Path) -> None:
    lines = data_in(tmp_path / "a.txt", "x\ny\n")
    assert requests([(2, 1)], lines, TEXT, OPTIONAL) == {(2, 1): {"TEXT": [[b"y"], [b"x"]]}}
    assert fitting_of(lines, TEXT, OPTIONAL).left_out == ("maybe",)


def test_an_optional_input_is_left_out_where_the_entry_has_none(tmp_path: Path) -> None:
    data = data_in(tmp_path / "a.json", json.dumps({"data": [{"ids": [1]}, {"ids": [2], "maybe": [7]}, {}]}))
    assert requests([(1, 0), (1, 1)], data, IDS, OPTIONAL) == {
        (1, 0): {"ids": [[1]]}, (1, 1): {"ids": [[2]], "maybe": [[7]]}
    }  # fmt: skip
    assert fitting_of(data, IDS, OPTIONAL).left_out == ()
    for kinds, inputs, options, told in (
        ([(2, 0)], (IDS, OPTIONAL), {}, "row 1: maybe is in 1 of the 2 entries of one request, and not in the"),
        (
            [(1, 0)], (IDS, OPTIONAL), {"columns": {"maybe": "other"}},
            "has no column 'other' for input maybe of model m, it has ids, maybe",
        ),
        ([(1, 2)], (IDS, OPTIONAL), {}, "row 3: has no 'ids', or null$"),
        ([(1, 2)], (OPTIONAL,), {}, "row 3: has no input of model m$"),
    ):  # fmt: skip
        with pytest.raises(ScenarioError, match=told):
            requests(kinds, data, *inputs, **options)


@pytest.mark.parametrize(
    ("datatype", "given"), [("INT64", 1), ("INT64", [1]), ("BYTES", "x"), ("BYTES", ["x"]), ("BOOL", True)]
)
def test_null_is_no_value_of_an_input(tmp_path: Path, datatype: str, given: Any) -> None:
    needed, ids = TensorSpec("a", datatype, (1,)), TensorSpec("ids", "INT64", (1,))
    pq.write_table(pa.table({"a": pa.nulls(1), "ids": [1]}), tmp_path / "all.parquet")
    pq.write_table(pa.table({"a": [given, None], "ids": [1, 2]}), tmp_path / "a.parquet")
    rows = [{"a": np.ravel(given).tolist(), "ids": [1]}, {"a": None, "ids": [2]}]
    (tmp_path / "a.json").write_text(json.dumps({"data": rows}))
    for name, row in (("all.parquet", 1), ("a.parquet", 2), ("a.json", 2)):
        data = open_data(DataConfig(path=str(tmp_path / name)))
        kinds = [(1, entry) for entry in range(row)]
        with pytest.raises(ScenarioError, match=rf"{name}: row {row}: has no 'a', or null$"):
            requests(kinds, data, needed)
        found = requests(kinds, data, ids, replace(needed, is_optional=True))
        assert [list(one) for one in found.values()] == [["ids", "a"], ["ids"]][2 - row :]


def test_an_optional_input_that_is_made_beside_the_data_comes_in_its_share(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1]] * 64)
    n_present = {
        share: sum(
            "maybe" in one
            for one in requests(
                [(1, entry) for entry in range(64)], data, IDS, OPTIONAL, made={"maybe": {"present": share}}
            ).values()
        )
        for share in (0, 0.5, 1)
    }
    assert (n_present[0], n_present[1]) == (0, 64)
    assert 12 <= n_present[0.5] <= 52  # 64 fair coins: 5 standard deviations of 4


def test_the_shape_that_an_array_states_is_compared_before_a_row_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (1, 10**9)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 10**9)  # a hole
    data = open_data(DataConfig(path=str(tmp_path / "a.npy")))
    with pytest.raises(
        ScenarioError, match=r"a\.npy: row 1: input IN .*has 1000000000 elements, and its dims"
    ):
        requests([(1, 0)], data, TensorSpec("IN", "UINT8", (8, 8, 3)))


def test_pictures_beside_other_files_are_told_how_to_be_entries(tmp_path: Path) -> None:
    (tmp_path / "a.PNG").write_bytes(picture("L", 1).data)
    (tmp_path / "labels.txt").write_text("x")
    data = open_data(DataConfig(path=str(tmp_path)))
    with pytest.raises(
        ScenarioError, match=r"it has a\.PNG, labels\.txt; if its pictures are the entries, state"
    ):
        fitting_of(data, TEXT)
