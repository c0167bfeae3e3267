"""The null server takes text of any length; of other inputs the size must be that of the shape."""

from __future__ import annotations

import pytest

from squall.actors.null import json, proto
from squall.actors.null.model import BadRequest


def described(datatype: str, n_bytes: int) -> dict[str, object]:
    return {
        "name": "INPUT", "shape": [2, 1], "datatype": datatype, "parameters": {"binary_data_size": n_bytes}
    }  # fmt: skip


@pytest.mark.parametrize("n_bytes", [8, 9, 500])
def test_text_has_any_size(n_bytes: int) -> None:
    assert json.rows_of([described("BYTES", n_bytes)], n_bytes) == 2
    assert proto.rows_of([("BYTES", [2, 1])], [n_bytes]) == 2


@pytest.mark.parametrize(("datatype", "n_bytes"), [("FP32", 9), ("INT8", 8), ("FP128", 32)])
def test_other_data_has_the_size_of_its_shape(datatype: str, n_bytes: int) -> None:
    with pytest.raises(BadRequest, match="its shape needs"):
        json.rows_of([described(datatype, n_bytes)], n_bytes)
    with pytest.raises(BadRequest, match="the shapes need"):
        proto.rows_of([(datatype, [2, 1])], [n_bytes])


def test_each_input_has_data_or_none_has() -> None:
    assert proto.rows_of([("BYTES", [2, 1]), ("FP32", [2, 1])], []) == 2
    with pytest.raises(BadRequest, match="the shapes need"):
        proto.rows_of([("BYTES", [2, 1]), ("FP32", [2, 1])], [8])
