"""Models of somebody else's: plain Python-backend ones that know nothing of squall, an ensemble of two, and one that
asks another (business logic scripting)."""

from __future__ import annotations

from pathlib import Path

MODEL = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives its input back, each execution after a sleep."""

    def initialize(self, args):
        self._sleep_s = float(json.loads(args["model_config"])["parameters"]["sleep_s"]["string_value"])

    def execute(self, requests):
        time.sleep(self._sleep_s)
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        outputs = [pb_utils.Tensor.from_dlpack("OUT", np.array(one.as_numpy())) for one in inputs]
        return [pb_utils.InferenceResponse([one]) for one in outputs]
'''
CALLER = '''
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks another model for each request, and passes the request's id on or does not."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self._child, self._passes_id = given["child"]["string_value"], given["passes_id"]["string_value"] == "True"

    def execute(self, requests):
        time.sleep(0.004)
        answers = [self._ask(request) for request in requests]
        time.sleep(0.002)
        return answers

    def _ask(self, request):
        id_of = {"request_id": request.request_id()} if self._passes_id else {}
        asked = pb_utils.InferenceRequest(
            model_name=self._child, requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")], **id_of,
        )
        answer = asked.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUT")])
'''
TENSORS = """
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
"""
GATHERED = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"
BY_ONE = "max_batch_size: 8\n"
WARMED = """
model_warmup [{ name: "zeros" batch_size: 2 count: 3
  inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }]
"""
PIPE = """
platform: "ensemble"
max_batch_size: 8
ensemble_scheduling {
  step [
    { model_name: "tokenize" model_version: -1
      input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "tokens" } },
    { model_name: "classify" model_version: -1
      input_map { key: "IN" value: "tokens" } output_map { key: "OUT" value: "OUT" } }
  ]
}
"""


def write_model(
    folder: Path, name: str, batching: str = GATHERED, *, n_instances: int = 1, sleep_s: float = 0.0
) -> None:
    """A model on the CPU; `batching`: lines of its config.pbtxt on how it is batched and warmed up."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(MODEL)
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n{batching}{TENSORS}'
        f"instance_group [{{ kind: KIND_CPU count: {n_instances} }}]\n"
        f'parameters {{ key: "sleep_s" value: {{ string_value: "{sleep_s}" }} }}\n'
    )


def write_ensemble(folder: Path, name: str) -> None:
    """One of two steps, `tokenize` and `classify`, which are not written."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n{TENSORS}{PIPE}')


def write_caller(folder: Path, name: str, child: str, *, passes_id: bool) -> None:
    """A model that asks `child`, which is not written, for each of its requests."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(CALLER)
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n{BY_ONE}{TENSORS}'
        f"instance_group [{{ kind: KIND_CPU count: 1 }}]\n"
        f'parameters {{ key: "child" value: {{ string_value: "{child}" }} }}\n'
        f'parameters {{ key: "passes_id" value: {{ string_value: "{passes_id}" }} }}\n'
    )
