"""Right values beside the data, as perf_analyzer's JSON has them: by entry, and those of a request of several rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from squall.models.spec import ModelSpec, TensorSpec
from squall.models.validation import read_validation
from squall.scenarios.config.inputs import DataConfig
from squall.scenarios.data.opening import is_validated
from squall.scenarios.errors import ScenarioError
from tests.unit.models.cases import cases

SPEC = ModelSpec(
    "own", "1", (TensorSpec("X", "FP32", (1,)),),
    (TensorSpec("A", "INT32", (2,)), TensorSpec("B", "BYTES", (1,)), TensorSpec("C", "FP32", (-1,))), 8,
)  # fmt: skip


def file_of(folder: Path, validation: Any, n_data: int = 3) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps({"data": [{"X": [1.5]}] * n_data, "validation_data": validation}))
    return path


def test_a_request_is_answered_as_the_entries_that_it_carries(tmp_path: Path) -> None:
    path = file_of(tmp_path, [{"A": [n, -n], "B": [f"t{n}"], "C": [n]} for n in range(3)])
    answers, sha256 = read_validation(path, SPEC, [(1, 1), (2, 2), (1, 1)])
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    found = {kind: {name: array.tolist() for name, array in one.items()} for kind, one in answers.items()}
    assert found == {
        (1, 1): {"A": [[1, -1]], "B": [[b"t1"]], "C": [[1.0]]},
        (2, 2): {"A": [[2, -2], [0, 0]], "B": [[b"t2"], [b"t0"]], "C": [[2.0], [0.0]]},
    }
    assert [answers[1, 1][name].dtype.name for name in "AC"] == ["int32", "float32"]


def test_streams_of_entries_and_contents_with_shapes_are_read_as_data_is(tmp_path: Path) -> None:
    path = file_of(tmp_path, [[{"A": {"content": [1, 2], "shape": [2]}}, {"A": [3, 4]}], [{"A": [5, 6]}]])
    answers, _ = read_validation(path, SPEC, [(3, 0)])
    assert answers[3, 0]["A"].tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(("validation", "why"), cases("test_a_file_without_the_right_values_is_one_line"))
def test_a_file_without_the_right_values_is_one_line(tmp_path: Path, validation: Any, why: str) -> None:
    path = file_of(tmp_path, validation)
    with pytest.raises(ScenarioError) as refused:
        read_validation(path, SPEC, [(1, 1)])
    assert str(refused.value).startswith(f"clients.check.reference: {path}: ")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_which_data_says_what_replies_must_be(tmp_path: Path) -> None:
    def is_told(text: str, name: str = "b.json") -> bool:
        path = tmp_path / name
        path.write_text(text)
        return is_validated(DataConfig(path=str(path)))

    assert is_told('{"validation_data": [], "data": [{"X": [1]}]}')
    assert is_told('{"data": [[{"validation_data": 1}]], "more": {"a": [1]}, "validation_data": []}')
    assert not is_told('{"data": [{"validation_data": [1]}]}')
    assert not is_told('{"data": [1], "validation_data": []}', "b.txt")
    with pytest.raises(ScenarioError, match="is not a JSON object with data"):
        is_told("[]")
