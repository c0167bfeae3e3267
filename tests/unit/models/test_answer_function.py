"""Right answers from a function: how it is found, what it is given, and what it may give."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.models.answer_function import AnswerFunction, function_answers, load_function, refuse_no_function
from squall.models.made import make_inputs
from squall.models.payload import read_tensor, write_tensor
from squall.models.reference import made_requests
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.errors import ScenarioError
from tests.unit.models.cases import cases

SPEC = ModelSpec(
    "own", "1",
    (TensorSpec("X", "FP32", (-1,)), TensorSpec("HALF", "BF16", (2,)), TensorSpec("TEXT", "BYTES", (1,))),
    (TensorSpec("SUM", "FP32", (1,)), TensorSpec("SMALL", "UINT8", (2,)), TensorSpec("IS", "BOOL", (1,)),
     TensorSpec("TEXT", "BYTES", (-1,)), TensorSpec("BF", "BF16", (1,))),
    8,
)  # fmt: skip
MADE = {"X": InputConfig.model_validate({"sizes": {"kind": "uniform", "low": 1, "high": 9}})}
SEED = 5
Arrays = dict[str, NDArray[Any]]


def answers(call: Callable[[Arrays], Any], kinds: list[tuple[int, int]], is_streamed: bool = False) -> Any:
    requests = made_requests(SPEC, kinds, SEED, None, MADE)
    return function_answers(AnswerFunction("own:right", call, None), SPEC, requests, is_streamed)


def test_it_is_given_what_is_sent_once_for_each_kind_of_request() -> None:
    seen: list[Arrays] = []

    def right(inputs: Arrays) -> Arrays:
        seen.append(inputs)
        return {"SUM": inputs["X"].sum(axis=1, keepdims=True), "TEXT": inputs["TEXT"]}

    found = answers(right, [(2, 1), (1, 0), (2, 1), (2, 0)])
    assert list(found) == [(1, 0), (2, 0), (2, 1)]
    for (rows, variant), given in zip(found, seen, strict=True):
        sent = make_inputs(SPEC, rows, variant, SEED, None, MADE)
        assert np.array_equal(given["X"], sent["X"])
        assert given["TEXT"].tolist() == sent["TEXT"].tolist()
        assert np.array_equal(given["HALF"], read_tensor("BF16", (rows, 2), write_tensor(sent["HALF"])))
        assert given["HALF"].dtype == np.float32
        assert found[rows, variant].keys() == {"SUM", "TEXT"}
        assert np.array_equal(found[rows, variant]["SUM"][:, 0], sent["X"].sum(axis=1))
    assert len({given["X"].shape[1] for given in seen}) > 1  # sizes of their own


@pytest.mark.parametrize(
    ("name", "array", "dtype"),
    [
        *(
            (name, np.array(values, dtype), found)
            for name, dtype, values, found in cases("test_what_the_datatype_holds_is_taken")
        ),
        ("TEXT", np.array([[b"a\0", b""]], object), "object"),
        ("TEXT", np.zeros((1, 0), object), "object"),
    ],
)
def test_what_the_datatype_holds_is_taken(name: str, array: NDArray[Any], dtype: str) -> None:
    found = answers(lambda _: {name: array}, [(1, 0)])[1, 0][name]
    assert found.dtype == dtype
    assert found.tolist() == array.tolist() or np.isnan(array.astype(float)).all()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        *(
            ({name: np.array(values, dtype)}, f"gave output {why}")
            for name, dtype, values, why in cases("test_what_the_model_cannot_answer_is_refused")
        ),
        ({"SUM": [[1.0]]}, "gave a list as output SUM, it must be a numpy array"),
        (None, "gave a NoneType, it must give arrays by name of the output"),
        ({}, "gave no output, it must give arrays by name of the output"),
        ([{"SUM": np.zeros((1, 1))}], "gave a list, it must give arrays by name of the output"),
    ],
)
def test_what_the_model_cannot_answer_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        answers(lambda _: given, [(1, 0)])
    assert str(caught.value) == f"clients.check.function: own:right: for 1 rows of payload 0 it {why}"


def ends(_: Arrays) -> Arrays:
    raise SystemExit(3)


def fails(_: Arrays) -> Arrays:
    raise ValueError("of two\nlines")


@pytest.mark.parametrize(
    ("call", "why"), [(fails, "ValueError: of two lines"), (ends, "SystemExit: 3"), (lambda x: x["Y"], "KeyError: 'Y'")]
)  # fmt: skip
def test_what_it_raises_is_told_in_one_line_with_its_place(
    call: Callable[[Arrays], Arrays], why: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        answers(call, [(1, 0)])
    line = str(caught.value)
    assert f" it raised {why} (test_answer_function.py, line " in line
    assert "\n" not in line


FILE = """
from __future__ import annotations

from dataclasses import dataclass

print("as it is imported")
VALUE = 3


@dataclass
class Held:
    value: int


def right(inputs):
    print("as it is called")
    return {"SUM": inputs["X"].sum(axis=1, keepdims=True) * Held(1).value}
"""


def test_a_function_of_a_file_is_called_and_prints_nothing_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "right.py"
    path.write_text(FILE)
    function = load_function(f"{path}:right")
    assert function.sha256 == hashlib.sha256(FILE.encode()).hexdigest()
    found: Any = function_answers(function, SPEC, made_requests(SPEC, [(2, 0)], SEED, None, MADE))
    sent = make_inputs(SPEC, 2, 0, SEED, None, MADE)
    assert np.array_equal(found[2, 0]["SUM"][:, 0], sent["X"].sum(axis=1))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "as it is imported\nas it is called\n")
    path.write_text(FILE.replace("def right", "def left"))
    with pytest.raises(ScenarioError, match=r"right\.py has no function right$"):
        load_function(f"{path}:right")


def test_a_function_of_a_module_is_found_as_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "their_own_answers"
    package.mkdir()
    (package / "right.py").write_text("def right(inputs): return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = load_function("their_own_answers.right:right")
    assert function.call is sys.modules["their_own_answers.right"].right
    assert function.sha256 == hashlib.sha256(b"def right(inputs): return {}\n").hexdigest()
    assert load_function("builtins:dict").sha256 is None


@pytest.mark.parametrize(
    ("is_run", "code", "why"),
    [
        *cases("test_a_file_without_the_function_is_refused_in_one_line"),
        (False, "-" * 1_000_000 + "1", "cannot be imported: (MemoryError|RecursionError).*"),
    ],
)
def test_a_file_without_the_function_is_refused_in_one_line(
    tmp_path: Path, is_run: bool, code: str | None, why: str
) -> None:
    path = tmp_path / "right.py"
    if code is not None:
        path.write_text(code)
    with pytest.raises(ScenarioError, match=f"^clients.check.function: {path}:right: {why}$"):
        (load_function if is_run else refuse_no_function)(f"{path}:right")


@pytest.mark.parametrize(
    "code",
    ["def right(x): ...", "class right: ...", "right = print", "from os import getcwd as right", "from os import *",
     "if True:\n    def right(x): ..."],
)  # fmt: skip
def test_what_may_be_the_function_is_found_without_running_it(tmp_path: Path, code: str) -> None:
    path = tmp_path / "right.py"
    path.write_text(f"raise SystemExit\n{code}\n")
    refuse_no_function(f"{path}:right")


@pytest.mark.parametrize("look", [load_function, refuse_no_function])
def test_a_pipe_is_not_waited_for(tmp_path: Path, look: Callable[[str], object]) -> None:
    path = tmp_path / "right.py"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match=r"right: cannot be read: it is no file$"):
        look(f"{path}:right")


def test_a_module_is_looked_for_without_importing_what_is_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("theirs_whole", "theirs_bare/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "right.py").write_text("raise SystemExit\ndef right(x): ...\n")
    (tmp_path / "theirs_whole/__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (
        "theirs_whole.right:right",
        "theirs_bare.deep.right:right",
        "builtins:dict",
        "numpy.linalg:inv",
    ):
        refuse_no_function(name)
    for name, why in (
        ("theirs_whole.right:left", "has no function left"),
        ("theirs_whole.left:left", "no module named theirs_whole.left"),
        ("surely_not.there:right", "no module named surely_not"),
    ):
        with pytest.raises(ScenarioError, match=why):
            refuse_no_function(name)


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"surely_not\.there:right: cannot be imported: ModuleNotFoundError"
    ):
        load_function("surely_not.there:right")


def test_a_list_is_of_the_responses_of_which_each_has_any_number_of_rows() -> None:
    def responses(given: Any) -> tuple[Arrays, ...]:
        found: tuple[Arrays, ...] = answers(lambda _: given, [(2, 0)], is_streamed=True)[2, 0]
        return found

    found = responses([{"SUM": np.zeros((rows, 1))} for rows in (2, 1, 3)])
    assert [one["SUM"].shape for one in found] == [(2, 1), (1, 1), (3, 1)]
    assert responses([]) == ()
    assert len(responses({"SUM": np.zeros((2, 1))})) == 1
    with pytest.raises(ScenarioError, match="as response 2, gave output NONE, model own has"):
        responses([{"SUM": np.zeros((1, 1))}, {"NONE": np.zeros(1)}])
    with pytest.raises(ScenarioError, match="as response 1, gave a int"):
        responses([3])
