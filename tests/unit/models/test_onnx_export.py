"""ONNX files: only one that answers as the module does is left, whatever goes wrong on the way."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from squall.models import onnx_export
from squall.models.onnx_export import export_onnx, needed
from squall.models.spec import HEADS, head_spec
from squall.scenarios.errors import ScenarioError, TargetError

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_all = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
SIZES = HEADS["linear_head"].sizes({"width": 8, "layers": 2})
SPEC = head_spec("linear_head", "1", SIZES, 16)


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

    write = onnx_export._write

    def written(made: Path, module: Any, *rest: Any) -> None:
        module.get_parameter("w_out").data.mul_(1.01)
        write(made, module, *rest)

    monkeypatch.setattr(onnx_export, "_write", written)
    with pytest.raises(
        TargetError, match=r"answers otherwise than the module: .* times the difference that fp32"
    ):
        export_onnx(file, SPEC, SIZES)
    assert file.read_bytes() == before, "the file that was right is still there"
    assert list(file.parent.iterdir()) == [file]


@needs_all
@pytest.mark.parametrize("opset", [17, 99])
def test_an_opset_that_cannot_be_written_is_refused(opset: int, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=f"opset {opset}: the exporter writes 18 to"):
        export_onnx(tmp_path / "model.onnx", SPEC, SIZES, opset=opset)
