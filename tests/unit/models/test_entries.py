"""Entries of data as inputs: what suits the model is sent exactly, what does not is told with its row."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from squall.models.entries import Fitting, fit, refuse_rows, requests
from squall.models.payload import NUMPY, read_tensor, write_tensor
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.clients.data import DataConfig
from squall.scenarios.config.clients.inputs import InputConfig
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.data.source import Picture, Raw
from squall.scenarios.data.values import array_of
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import kind_code

MADE: TypeAdapter[Any] = TypeAdapter(dict[str, InputConfig])


def tensor(datatype: str, *dims: int) -> TensorSpec:
    return TensorSpec("A", datatype, dims)


@pytest.mark.parametrize("datatype", [*NUMPY, "BYTES", "BF16"])
def test_every_datatype_is_filled_from_lists(datatype: str) -> None:
    values: Any = {"BOOL": [True, False], "BYTES": ["é", "b"]}.get(datatype, [1, 2])
    found = fit(tensor(datatype, 2), array_of(values))
    back = read_tensor(datatype, (2,), write_tensor(found))
    assert back.tolist() == ([b"\xc3\xa9", b"b"] if datatype == "BYTES" else values)


@pytest.mark.parametrize(
    ("datatype", "values", "told"),
    [
        ("INT32", [1.0], "is INT32, and the data has numbers with a fraction"),
        ("INT32", [2**31], "is INT32, which does not hold 2147483648"),
        ("UINT8", [-1], "is UINT8, which does not hold -1"),
        ("INT64", ["1"], "is INT64, and the data has text or bytes"),
        ("FP32", [True], "is FP32, and the data has booleans"),
        ("BOOL", [1], "is BOOL, and the data has whole numbers"),
        ("BYTES", [1], "is BYTES, and the data has whole numbers"),
        ("FP16", [70_000], "is float16, which does not hold 70000"),
        ("BF16", [1e39], "is float32, which does not hold 1e+39"),
        ("BF16", [1.0, -3.4e38], "is BF16, which does not hold 3.4e+38"),
    ],
)
def test_a_wrong_datatype_is_told(datatype: str, values: list[Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        fit(tensor(datatype, 1), array_of(values))


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
    ("dims", "shape", "stated", "expected"),
    [
        ((3,), (3,), None, (3,)),
        ((-1,), (0,), None, (0,)),
        ((2, 3), (6,), None, (2, 3)),
        ((-1, 3), (6,), None, (2, 3)),
        ((-1, -1), (6,), (3, 2), (3, 2)),
        ((-1, -1), (2, 3), None, (2, 3)),
        ((1,), (), None, (1,)),
        ((), (), None, ()),
        ((1,), (1,), None, (1,)),
        ((3,), (2,), None, "has 2 elements, and its dims [3] take 3"),
        ((-1, 3), (4,), None, "has 4 elements, and its dims [-1, 3] take a multiple of 3"),
        ((-1, -1), (6,), None, "is a flat list, and of its dims [-1, -1] several are open: nest the lists"),
        ((2, 3), (3, 2), None, "has the shape [3, 2], and its dims are [2, 3]"),
        ((3,), (1, 3), None, "has the shape [1, 3], and its dims are [3]"),
    ],
)
def test_shapes_are_those_of_the_model_or_told(
    dims: tuple[int, ...], shape: tuple[int, ...], stated: tuple[int, ...] | None, expected: Any
) -> None:
    cell = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
            fit(tensor("INT64", *dims), cell, stated)
        return
    found = fit(tensor("INT64", *dims), cell, stated)
    assert found.shape == expected
    assert found.ravel().tolist() == cell.ravel().tolist()


def test_raw_bytes_are_those_that_travel() -> None:
    values = np.arange(6, dtype=np.int16)
    assert fit(tensor("INT16", 2, -1), Raw(values.tobytes())).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert fit(tensor("INT16", -1, -1), Raw(values.tobytes(), (3, 2))).shape == (3, 2)
    words = write_tensor(array_of(["a", "bb"]))
    assert fit(tensor("BYTES", 2), Raw(words)).tolist() == [b"a", b"bb"]
    assert fit(tensor("BYTES", -1), Raw(b"one\r\ntwo\n", is_lines=True)).tolist() == [b"one", b"two"]
    for cell, told in (
        (Raw(b"123"), "is INT16, and 3 bytes are no multiple of 2"),
        (Raw(values.tobytes(), (4,)), "has 6 elements, and its shape [4] 4"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            fit(tensor("INT16", -1), cell)
    with pytest.raises(ValueError, match="cut off"):
        fit(tensor("BYTES", 1), Raw(b"\x09\x00\x00\x00x"))


def picture(mode: str, color: Any, form: str = "PNG") -> Picture:
    file = io.BytesIO()
    Image.new(mode, (3, 2), color).save(file, form)
    return Picture(file.getvalue())


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((2, 3, 3), [[[255, 0, 0]] * 3] * 2),
        ((3, 2, 3), None),
        ((-1, -1, 3), [[[255, 0, 0]] * 3] * 2),
        ((3, -1, -1), [[[255] * 3] * 2, [[0] * 3] * 2, [[0] * 3] * 2]),
    ],
)
def test_pictures_are_decoded_as_the_dims_say(dims: tuple[int, ...], expected: Any) -> None:
    found = fit(tensor("UINT8", *dims), picture("RGB", "red")) if expected else None
    assert found is None or found.tolist() == expected
    if expected is None:  # channels last is looked at first, and the picture is 2 high
        with pytest.raises(ValueError, match=r"has the shape \[2, 3, 3\], and its dims are \[3, 2, 3\]"):
            fit(tensor("UINT8", *dims), picture("RGB", "red"))


def test_a_picture_for_a_model_that_decodes_itself_is_its_file() -> None:
    one = picture("RGB", "red", "JPEG")
    assert fit(tensor("BYTES", 1), one).tolist() == [one.data]
    assert fit(tensor("FP32", 2, 3), picture("L", 7)).tolist() == [[7.0] * 3] * 2
    assert fit(tensor("UINT8", 2, 3, 4), picture("RGBA", (1, 2, 3, 4)))[0, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("dims", "data", "told"),
    [
        ((2, 3, 3), b"what?", "is no picture that can be read: none of JPEG, PNG, BMP, GIF, WEBP, TIFF"),
        (
            (2, 3),
            picture("I;16", 60_000).data,
            "is no picture that can be read: its pixels are whole numbers of more",
        ),
        (
            (2, 3),
            picture("F", 0.5, "TIFF").data,
            "is no picture that can be read: its pixels are floats, not 0 to 255",
        ),
        ((4,), None, "has dims [4], and a picture is [height, width] with 1, 3 or 4 channels last or first"),
        ((9, 9, 3), None, "has the shape [2, 3, 3], and its dims are [9, 9, 3]"),
    ],
)
def test_what_is_no_picture_is_told(dims: tuple[int, ...], data: bytes | None, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        fit(tensor("UINT8", *dims), Picture(data) if data else picture("RGB", "red"))


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


def spec_of(*inputs: TensorSpec, most: int = 8) -> ModelSpec:
    return ModelSpec("m", "1", inputs, (), most)


def data_of(path: Path, lists: list[list[int]]) -> Data:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ids": lists}), path, row_group_size=3)
    return open_data(DataConfig(path=str(path)))


@given(
    n=st.integers(1, 12),
    kinds=st.sets(st.tuples(st.integers(1, 8), st.integers(0, 11)), min_size=1, max_size=20),
)
def test_a_request_has_the_entries_from_its_own_on(
    tmp_path_factory: pytest.TempPathFactory, n: int, kinds: set[tuple[int, int]]
) -> None:
    kinds = {(rows, entry % n) for rows, entry in kinds}
    data = data_of(tmp_path_factory.mktemp("d") / "a.parquet", [[entry, entry] for entry in range(n)])
    codes = np.sort([int(kind_code(*kind)) for kind in kinds])
    found = {
        (rows, entry): inputs["ids"][:, 0].tolist()
        for rows, entry, inputs in requests(data, Fitting(spec_of(IDS), data, {}), codes)
    }
    assert found == {(rows, entry): [(entry + more) % n for more in range(rows)] for rows, entry in kinds}


def test_few_entries_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(tmp_path / "a.parquet", [[entry] for entry in range(500)])
    fitting = Fitting(spec_of(IDS), data, {})
    asked: list[int] = []

    def noted(number: int, entry: Any) -> Any:
        asked.append(number)
        return {"ids": entry["ids"]}

    monkeypatch.setattr(fitting, "fitted", noted)
    codes = np.sort([int(kind_code(rows, entry)) for entry in range(0, 400, 10) for rows in (1, 4)])
    for rows, entry, _ in requests(data, fitting, codes):
        assert asked[-1] == entry + rows - 1 or rows == 1
    assert asked == [entry + more for entry in range(0, 400, 10) for more in range(4)]


def test_rows_of_one_request_have_one_shape_or_it_is_told(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1], [2], [3, 4]])
    fitting = Fitting(spec_of(IDS), data, {})
    with pytest.raises(ScenarioError) as caught:
        list(requests(data, fitting, np.array([int(kind_code(2, 1))])))
    assert str(caught.value) == (
        f"{data.path}: row 2: ids is [1], and [2] in another of the 2 entries of one request: its rows have one shape;"
        " use clients.rows of 1, or entries of one shape"
    )


def test_a_model_without_batches_gets_the_entry_as_it_is(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1, 2, 3]])
    spec = spec_of(IDS, most=0)
    ((rows, entry, inputs),) = requests(data, Fitting(spec, data, {}), np.array([int(kind_code(1, 0))]))
    assert (rows, entry, inputs["ids"].shape) == (1, 0, (3,))
    with pytest.raises(ScenarioError, match=r"clients\.rows: 2 rows, but model m takes at most 1 a request"):
        refuse_rows(spec, 2)


def test_inputs_that_the_data_has_not_are_made_like_those_that_it_has(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1, 2, 3], [4]])
    made = MADE.validate_python({
        "mask": {"like": "ids", "low": 1.0, "high": 1.0}, "TEXT": {"length": 5}
    })  # fmt: skip
    fitting = Fitting(spec_of(IDS, MASK, TEXT), data, {}, made, seed=4)
    found = list(requests(data, fitting, kind_code(np.array([1, 1]), np.array([0, 1]))))
    assert [one["mask"].tolist() for _, _, one in found] == [[[1, 1, 1]], [[1]]]
    assert [len(one["TEXT"][0, 0]) for _, _, one in found] == [5, 5]
    assert found[0][2]["TEXT"].tolist() != found[1][2]["TEXT"].tolist()


@pytest.mark.parametrize(
    ("columns", "made", "told"),
    [
        (
            {},
            {},
            "has no column 'mask' for input mask of model m, it has ids; name it in clients.data.columns",
        ),
        ({"idz": "ids"}, {}, "clients.data.columns.idz: model m has no such input, it has ids, mask"),
        ({}, {"msk": {"length": 3}}, "clients.inputs.msk: model m has no such input, it has ids, mask"),
        ({"mask": "ids"}, {"mask": {"like": "ids"}}, "clients.inputs.mask: clients.data.columns has it too"),
    ],
)
def test_columns_that_do_not_suit_the_model_are_told(
    tmp_path: Path, columns: dict[str, str], made: dict[str, Any], told: str
) -> None:
    data = data_of(tmp_path / "a.parquet", [[1]])
    with pytest.raises(ScenarioError) as caught:
        Fitting(spec_of(IDS, MASK), data, columns, MADE.validate_python(made))
    assert told in str(caught.value)


def test_the_only_input_takes_lines_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    data = open_data(DataConfig(path=str(tmp_path / "a.txt")))
    fitting = Fitting(spec_of(TEXT), data, {})
    ((_, _, inputs),) = requests(data, fitting, np.array([int(kind_code(2, 1))]))
    assert inputs["TEXT"].tolist() == [[b"y"], [b"x"]]


OPTIONAL = TensorSpec("maybe", "INT32", (1,), is_optional=True)


def json_data(path: Path, *found: dict[str, Any]) -> Data:
    path.write_text(json.dumps({"data": found}))
    return open_data(DataConfig(path=str(path)))


def test_an_optional_input_is_left_out_where_the_entry_has_none(tmp_path: Path) -> None:
    data = json_data(tmp_path / "a.json", {"ids": [1]}, {"ids": [2], "maybe": [7]})
    fitting = Fitting(spec_of(IDS, OPTIONAL), data, {})
    found = [
        inputs for _, _, inputs in requests(data, fitting, kind_code(np.array([1, 1]), np.array([0, 1])))
    ]
    assert [{name: one.tolist() for name, one in inputs.items()} for inputs in found] == [
        {"ids": [[1]]}, {"ids": [[2]], "maybe": [[7]]}
    ]  # fmt: skip
    with pytest.raises(
        ScenarioError, match=r"row 1: maybe is in 1 of the 2 entries of one request, and not in the"
    ):
        list(requests(data, fitting, np.array([int(kind_code(2, 0))])))
    (tmp_path / "a.txt").write_text("x\n")
    lines = open_data(DataConfig(path=str(tmp_path / "a.txt")))
    ((_, _, inputs),) = requests(
        lines, Fitting(spec_of(TEXT, OPTIONAL), lines, {}), np.array([int(kind_code(1, 0))])
    )
    assert list(inputs) == ["TEXT"]
    assert Fitting(spec_of(TEXT, OPTIONAL), lines, {}).left_out == ("maybe",)
    assert fitting.left_out == ()
    with pytest.raises(
        ScenarioError, match=r"has no column 'other' for input maybe of model m, it has ids, maybe"
    ):
        Fitting(spec_of(IDS, OPTIONAL), data, {"maybe": "other"})


def test_an_entry_without_an_input_that_the_model_needs_is_told(tmp_path: Path) -> None:
    data = json_data(tmp_path / "a.json", {"ids": [1], "maybe": [1]}, {"maybe": [7]}, {})
    codes = np.array([int(kind_code(1, 1))])
    with pytest.raises(ScenarioError, match=r"a\.json: row 2: has no 'ids', or null$"):
        list(requests(data, Fitting(spec_of(IDS, OPTIONAL), data, {}), codes))
    codes = np.array([int(kind_code(1, 2))])
    with pytest.raises(ScenarioError, match=r"a\.json: row 3: has no input of model m$"):
        list(requests(data, Fitting(spec_of(OPTIONAL), data, {}), codes))


@pytest.mark.parametrize(
    "column", [[1, None], [[1], None], ["x", None], [["x"], None], [True, None], [b"x", None]]
)
def test_null_is_no_value_of_an_input(tmp_path: Path, column: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    datatype = {int: "INT64", bool: "BOOL"}.get(type(np.ravel(np.array(column[0])).tolist()[0]), "BYTES")
    needed = TensorSpec("a", datatype, (1,))
    pq.write_table(pa.table({"a": column, "ids": [1, 2]}), tmp_path / "a.parquet")
    given = column[0] if isinstance(column[0], list) else [column[0]]
    given = [one.decode() if isinstance(one, bytes) else one for one in given]
    (tmp_path / "a.json").write_text(
        json.dumps({"data": [{"a": given, "ids": [1]}, {"a": None, "ids": [2]}]})
    )
    codes = kind_code(np.array([1, 1]), np.array([0, 1]))
    pq.write_table(pa.table({"a": pa.nulls(1), "ids": [1]}), tmp_path / "all.parquet")
    whole = open_data(DataConfig(path=str(tmp_path / "all.parquet")))
    with pytest.raises(ScenarioError, match=r"all\.parquet: row 1: has no 'a', or null$"):
        list(requests(whole, Fitting(spec_of(needed), whole, {}), codes[:1]))
    for name in ("a.parquet", "a.json"):
        data = open_data(DataConfig(path=str(tmp_path / name)))
        optional = spec_of(TensorSpec("ids", "INT64", (1,)), replace(needed, is_optional=True))
        found = [list(inputs) for _, _, inputs in requests(data, Fitting(optional, data, {}), codes)]
        assert found == [["ids", "a"], ["ids"]]
        with pytest.raises(ScenarioError, match=rf"{name}: row 2: has no 'a', or null$"):
            list(requests(data, Fitting(spec_of(needed), data, {}), codes))


def test_an_optional_input_that_is_made_beside_the_data_comes_in_its_share(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1]] * 64)
    codes = kind_code(np.ones(64, np.int64), np.arange(64))

    def n_present(share: float, whose: TensorSpec = OPTIONAL) -> int:
        made = MADE.validate_python({whose.name: {"present": share}})
        fitting = Fitting(spec_of(IDS, whose), data, {}, made)
        return sum(whose.name in inputs for _, _, inputs in requests(data, fitting, codes))

    assert (n_present(0), n_present(1)) == (0, 64)
    assert 12 <= n_present(0.5) <= 52  # 64 fair coins: 5 standard deviations of 4
    with pytest.raises(
        ScenarioError, match=r"clients\.inputs\.mask\.present: model m needs the input in every request"
    ):
        n_present(0, MASK)


def test_the_shape_that_an_array_states_is_compared_before_a_row_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (1, 10**9)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 10**9)  # a hole
    data = open_data(DataConfig(path=str(tmp_path / "a.npy")))
    fitting = Fitting(spec_of(TensorSpec("IN", "UINT8", (8, 8, 3))), data, {})
    with pytest.raises(
        ScenarioError, match=r"a\.npy: row 1: input IN .*has 1000000000 elements, and its dims"
    ):
        next(requests(data, fitting, np.array([kind_code(1, 0)], np.int64)))


def test_pictures_beside_other_files_are_told_how_to_be_entries(tmp_path: Path) -> None:
    (tmp_path / "a.PNG").write_bytes(picture("L", 1).data)
    (tmp_path / "labels.txt").write_text("x")
    data = open_data(DataConfig(path=str(tmp_path)))
    with pytest.raises(
        ScenarioError, match=r"it has a\.PNG, labels\.txt; if its pictures are the entries, state"
    ):
        Fitting(spec_of(TEXT), data, {})


def test_a_wrong_entry_is_told_with_its_row_and_column(tmp_path: Path) -> None:
    data = data_of(tmp_path / "a.parquet", [[1], [2**40]])
    fitting = Fitting(spec_of(MASK), data, {"mask": "ids"})
    with pytest.raises(ScenarioError) as caught:
        list(requests(data, fitting, kind_code(np.array([1, 1]), np.array([0, 1]))))
    assert str(caught.value) == (
        f"{data.path}: row 2: input mask (column 'ids') is INT32, which does not hold 1099511627776"
    )
