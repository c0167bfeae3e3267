"""ONNX files: only one that answers as the module does is left, whatever goes wrong on the way."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models import onnx_export
from squall.models.heads import make_weights
from squall.models.onnx_export import _difference, _try_inputs, export_onnx, needed, zoo_module
from squall.models.spec import HEADS, ModelSpec, TensorSpec, head_spec
from squall.scenarios.errors import ScenarioError, TargetError

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_all = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
SIZES = HEADS["linear_head"].sizes({"width": 8, "layers": 2})
SPEC = head_spec("linear_head", "1", SIZES, 16)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_difference_is_in_parts_of_what_is_allowed(factor: float) -> None:
    expected = np.array([[3.0, 0.0, -4.0]], np.float32)
    rms = np.sqrt(25 / 3)
    found = expected.copy()
    found[0, 1] += factor * 1e-4 * rms
    assert _difference(found, expected, "fp32") == pytest.approx(factor)
    found[0, 2] -= 2 * (1e-3 * 4 + 1e-4 * rms)
    assert _difference(found, expected, "fp32") == pytest.approx(2)


@pytest.mark.parametrize("found", [[[0.0] * 3], [[1.0, np.nan]], [[np.inf, 1.0]]])
def test_another_shape_or_type_and_what_is_no_number_are_never_right(found: list[list[float]]) -> None:
    right = np.ones((1, 2), np.float32)
    assert _difference(np.array(found, np.float32), right, "fp16") == np.inf
    assert _difference(right.astype(np.int64), right, "fp16") == np.inf


def test_inputs_to_try_have_tokens_of_the_vocabulary_and_masks_from_the_left() -> None:
    names = ("input_ids", "attention_mask")
    spec = ModelSpec("bert_tiny", "1", tuple(TensorSpec(name, "INT64", (12,)) for name in names), (), 8)
    ids, mask = _try_inputs(spec, {"vocabulary": 7}, 500)
    assert (str(ids.dtype), ids.shape, mask.shape) == ("int64", (500, 12), (500, 12))
    assert (ids.min(), ids.max()) == (0, 6)
    lengths = mask.sum(1)
    assert (lengths.min(), lengths.max()) == (1, 12)
    assert (mask == (np.arange(12) < lengths[:, None])).all()


def test_a_package_that_is_missing_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(
        TargetError, match=r"onnxscript .*which this export needs: pip install 'squall\[export\]'"
    ):
        needed("onnxscript")


@needs_all
def test_a_file_is_kept_only_if_it_answers_as_the_module_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "1" / "model.onnx"
    done = export_onnx(file, SPEC, SIZES)
    assert 0 < done.worst <= 1
    assert (done.n_bytes, list(file.parent.iterdir())) == (file.stat().st_size, [file])
    assert str(Path(__file__).parents[3]).encode() not in file.read_bytes(), (
        "no path of this machine is in it"
    )
    before = file.read_bytes()
    assert export_onnx(file, SPEC, SIZES).sha256 == done.sha256, "the same model makes the same file"

    wrong = make_weights("linear_head", SIZES)
    wrong["w_out"] *= np.float32(1.01)
    write = onnx_export._write

    def written(made: Path, _: Any, *rest: Any) -> None:
        write(made, zoo_module("linear_head", SIZES, wrong), *rest)

    monkeypatch.setattr(onnx_export, "_write", written)
    with pytest.raises(
        TargetError, match=r"answers otherwise than the module: .* times the difference that fp32"
    ):
        export_onnx(file, SPEC, SIZES)
    assert file.read_bytes() == before, "the file that was right is still there"
    assert list(file.parent.iterdir()) == [file]


@needs_all
def test_a_file_of_another_shape_is_not_kept(tmp_path: Path) -> None:
    spec = replace(SPEC, outputs=(TensorSpec("OUTPUT", "FP32", (3,)),))
    with pytest.raises(TargetError, match=r"answers rows of \[2\], and the model has .*3"):
        export_onnx(tmp_path / "model.onnx", spec, SIZES)
    assert list(tmp_path.iterdir()) == []


@needs_all
@pytest.mark.parametrize("opset", [17, 99])
def test_an_opset_that_cannot_be_written_is_refused(opset: int, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f"opset {opset}: the exporter writes 18 to"):
        export_onnx(tmp_path / "model.onnx", SPEC, SIZES, opset=opset)


@needs_all
def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    sizes = {
        "hidden": 8, "layers": 1, "heads": 2, "intermediate": 16, "vocabulary": 9, "positions": 6, "sequence": 4,
        "weights_seed": 1,
    }  # fmt: skip
    names = ("input_ids", "attention_mask")
    inputs = tuple(TensorSpec(name, "INT64", (4,)) for name in names)
    spec = ModelSpec("bert_tiny", "1", inputs, (TensorSpec("OUTPUT", "FP32", (8,)),), 8)
    with pytest.raises(ScenarioError, match="weights of bert_tiny: has no weight embeddings"):
        export_onnx(tmp_path / "model.onnx", spec, sizes, weights={})
