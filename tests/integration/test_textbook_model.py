"""A Python model as textbooks write it, numpy in and numpy out, under the Triton that squall starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.cluster.node import triton_home
from squall.cluster.node.triton_home import find_triton, require_numpy
from squall.scenarios.errors import TargetError
from tests.integration.live_runs import Bench
from tests.integration.test_foreign_batches import finish, rows_of, scenario

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            again = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "X"))
            names = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()
            loud = np.array([[one.decode().upper().encode() for one in row] for row in names], dtype=np.object_)
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("Y", (2 * x).astype(np.float32)), pb_utils.Tensor("LOUD", loud),
                pb_utils.Tensor.from_dlpack("Z", 3 * again),
                pb_utils.Tensor.from_dlpack("V", (4 * again).__dlpack__()),
            ]))
        return answers
"""
CONFIG = """
name: "textbook"
backend: "python"
max_batch_size: 8
input [ { name: "X", data_type: TYPE_FP32, dims: [ 3 ] }, { name: "NAME", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 3 ] }, { name: "LOUD", data_type: TYPE_STRING, dims: [ 1 ] },
  { name: "Z", data_type: TYPE_FP32, dims: [ 3 ] }, { name: "V", data_type: TYPE_FP32, dims: [ 3 ] } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU, count: 1 } ]
"""
REFERENCE = """
import numpy as np

def answer(inputs):
    loud = np.array([[one.upper() for one in row] for row in inputs["NAME"]], dtype=object)
    return {"Y": 2 * inputs["X"], "LOUD": loud, "Z": 3 * inputs["X"], "V": 4 * inputs["X"]}
"""


@pytest.mark.beside
def test_arrays_of_numpy_texts_and_dlpack_leave_it_whole(alone: Bench, tmp_path: Path) -> None:
    if find_triton().source != "wheel":
        pytest.skip("tritonserver is on the PATH: its numpy is its own matter")
    models = tmp_path / "models"
    (models / "textbook" / "1").mkdir(parents=True)
    (models / "textbook" / "1" / "model.py").write_text(MODEL)
    (models / "textbook" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "reference.py").write_text(REFERENCE)
    mapping = scenario(models, "textbook", rate_hz=60)
    mapping["clients"] |= {"check": {"function": f"{tmp_path / 'reference.py'}:answer", "share": 1}}
    store, summary, _ = finish(alone, mapping)
    outcomes = {(row["outcome"], row["detail"]) for row in rows_of(store, "requests")}
    assert outcomes == {("ok", "")}, summary["verdict"]["reasons"]


def test_a_python_without_numpy_1_is_told_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_home, "_PYTHON", "3.13")
    with pytest.raises(
        TargetError, match=r"no numpy 1 for Python 3\.13; return outputs with Tensor\.from_dlpack"
    ):
        require_numpy()
