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
        outputs = [pb_utils.Tensor.from_dlpack("OUT", np.array(np.from_dlpack(one))) for one in inputs]
        return [pb_utils.InferenceResponse([one]) for one in outputs]
'''
STREAM = '''
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives its input back a while after its execution has returned."""

    def execute(self, requests):
        for request in requests:
            given = np.array(np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "IN")))  # gone when this returns
            threading.Thread(target=self._answer, args=(request.get_response_sender(), given)).start()

    def _answer(self, sender, given):
        time.sleep(0.012)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
CALLER = '''
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks another model for each request, and passes the request's id on or does not."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self._is_stream = given["is_stream"]["string_value"] == "True"
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
        outputs = []
        for answer in asked.exec(decoupled=True) if self._is_stream else [asked.exec()]:
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            outputs += answer.output_tensors()  # the last of a stream has none
        return pb_utils.InferenceResponse(outputs)
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


def write_stream(folder: Path, name: str) -> None:
    """A decoupled model."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(STREAM)
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n{BY_ONE}{TENSORS}'
        "instance_group [{ kind: KIND_CPU count: 1 }]\nmodel_transaction_policy { decoupled: true }\n"
    )


def write_caller(folder: Path, name: str, child: str, *, passes_id: bool, is_stream: bool = False) -> None:
    """A model that asks `child`, which is not written, for each of its requests; `is_stream`: it is decoupled."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(CALLER)
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n{BY_ONE}{TENSORS}'
        f"instance_group [{{ kind: KIND_CPU count: 1 }}]\n"
        f'parameters {{ key: "child" value: {{ string_value: "{child}" }} }}\n'
        f'parameters {{ key: "passes_id" value: {{ string_value: "{passes_id}" }} }}\n'
        f'parameters {{ key: "is_stream" value: {{ string_value: "{is_stream}" }} }}\n'
    )


TIMED = '''
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives its input back, after a sleep that depends on what it has seen and how long ago it was loaded."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self._kind, self._value = given["kind"]["string_value"], float(given["value"]["string_value"])
        self._seen, self._loaded_s = set(), time.monotonic()

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "IN") for one in requests]
        time.sleep(self._sleep_s(sum(one.shape()[0] for one in inputs)))
        outputs = [pb_utils.Tensor("OUT", one.as_numpy()) for one in inputs]
        return [pb_utils.InferenceResponse([one]) for one in outputs]

    def _sleep_s(self, rows):
        is_new, age_s = rows not in self._seen, time.monotonic() - self._loaded_s
        self._seen.add(rows)
        is_slow = {
            "sizes": is_new,
            "first": len(self._seen) == 1 and is_new,
            "until": age_s < self._value,
            "bursts": age_s % 2.0 < 0.3,
        }.get(self._kind, False)
        if self._kind in ("sizes", "first") and is_slow:
            return self._value
        if self._kind == "drift":
            return 0.004 * (1.0 + self._value * age_s)
        return 0.04 if is_slow else 0.004
'''


def write_timed(folder: Path, name: str, kind: str, value: float = 0.0) -> None:
    """A model of one instance. `kind`: sizes (sleeps `value` s at each batch size that it has not seen), first (so at
    its first execution), until (slow until `value` s after it was loaded), bursts (slow for 0.3 of each 2 s), drift (by
    the share `value` slower each second), else warm."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(TIMED)
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 8\ndynamic_batching {{ }}\n{TENSORS}'
        "instance_group [{ kind: KIND_CPU count: 1 }]\n"
        f'parameters {{ key: "kind" value: {{ string_value: "{kind}" }} }}\n'
        f'parameters {{ key: "value" value: {{ string_value: "{value}" }} }}\n'
    )
