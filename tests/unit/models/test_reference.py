"""The answers that the driver expects, against the head's forward pass on each payload alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.heads import forward, make_weights
from squall.models.made import make_inputs
from squall.models.reference import answers_to, made_requests, of_asked, read_answers
from squall.models.spec import HEADS, ModelSpec, TensorSpec, head_spec
from squall.scenarios.errors import ScenarioError, TargetError
from tests.unit.models.cases import cases

SIZES = {"width": 16, "layers": 3, "classes": 2}
EXTRA = {"linear_head": {}, "linear_head_stacked": {"heads": 3}, "seqlen_head": {"sequence": 5}}
KINDS = [
    (rows, variant) for rows in (1, 30, 128) for variant in (0, 1)
]  # more rows than are computed at once


@pytest.mark.parametrize("head", HEADS)
def test_each_payload_has_the_answer_of_the_head_to_it(head: str) -> None:
    settings = {**SIZES, **EXTRA[head]}
    sizes = HEADS[head].sizes(settings)
    spec = head_spec(head, "1", sizes, 128)
    answers = answers_to(spec, settings, made_requests(spec, reversed(KINDS), 5))
    assert set(answers) == set(KINDS)
    for rows, variant in KINDS:
        x = make_inputs(spec, rows, variant, 5)["INPUT"].astype(np.float32)
        alone = forward(make_weights(head, sizes), x)
        found: Any = answers[rows, variant]["OUTPUT"]
        np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-5)


def test_a_served_model_of_other_tensors_is_refused() -> None:
    spec = head_spec("linear_head", "1", HEADS["linear_head"].sizes(SIZES), 8)
    other = ModelSpec(spec.name, "1", spec.inputs, (TensorSpec("OUTPUT", "FP32", (3,)),), 8)
    with pytest.raises(TargetError, match="other tensors than that of the zoo"):
        answers_to(other, SIZES, made_requests(other, [(1, 0)], 5))


SPEC = ModelSpec("own", "1", (), (TensorSpec("A", "FP32", (2,)), TensorSpec("B", "BYTES", (1,))), 8)


def test_a_file_of_answers_names_output_rows_and_variant(tmp_path: Path) -> None:
    path = tmp_path / "right.npz"
    arrays = {f"A/{rows}/{variant}": np.full((rows, 2), variant) for rows in (1, 3) for variant in (0, 1)}
    np.savez(path, allow_pickle=False, **arrays)
    answers: Any
    answers, sha256 = read_answers(path, SPEC, [(3, 1), (1, 0)])
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {kind: {name: array.tolist() for name, array in one.items()} for kind, one in answers.items()} == {
        (3, 1): {"A": [[1, 1]] * 3},
        (1, 0): {"A": [[0, 0]]},
    }
    # whole numbers in the file, floats of the model: within a tolerance
    assert answers[1, 0]["A"].dtype == np.float64


def test_a_file_of_responses_names_the_response_too(tmp_path: Path) -> None:
    path = tmp_path / "right.npz"
    given: Any = {f"A/1/{variant}/{i}": np.full((1, 2), i) for variant in (0, 1) for i in range(variant + 1)}
    np.savez(path, **given)
    found: Any = read_answers(path, SPEC, [(1, 0), (1, 1), (1, 2)], is_streamed=True)[0]
    assert {kind: [one["A"].tolist() for one in of] for kind, of in found.items()} == {
        (1, 0): [[[0, 0]]], (1, 1): [[[0, 0]], [[1, 1]]], (1, 2): [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "is_streamed", "why"), cases("test_a_file_without_the_answers_is_refused")
)
def test_a_file_without_the_answers_is_refused(
    tmp_path: Path, content: Any, is_streamed: bool, why: str
) -> None:
    path = tmp_path / "right.npz"
    if isinstance(content, dict):
        arrays: dict[str, Any] = {name: np.array(values) for name, values in content.items()}
        np.savez(path, allow_pickle=False, **arrays)
    elif content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ScenarioError, match=f"clients.check.reference: {path}: {why}"):
        read_answers(path, SPEC, [(1, 0), (2, 0)], is_streamed)


def test_outputs_that_requests_do_not_ask_for_are_not_compared() -> None:
    a, b = np.zeros((1, 2)), np.array([[b"x"]], object)
    asked = SPEC.asking_for(["B"])
    assert of_asked({(1, 0): {"A": a, "B": b}, (1, 1): ({"B": b}, {"B": b, "A": a}, {}), (2, 0): ()}, asked) == {
        (1, 0): {"B": b}, (1, 1): ({"B": b}, {"B": b}, {}), (2, 0): ()
    }  # fmt: skip
    with pytest.raises(
        ScenarioError, match=r"has right values of A, and clients\.request\.outputs asks for B$"
    ):
        of_asked({(1, 0): {"A": a}}, asked)
