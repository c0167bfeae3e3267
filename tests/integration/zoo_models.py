"""Small models of every kind that a Triton serves, as a repository of its own, and what a scenario says of each."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reporting import NATIVE, SHARED, compiled

ANSWERS = Path(__file__).with_name("zoo_answers.py")
_MODEL = '''
import json
import time

import answers
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers as the function of `answers` does that its parameter names."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._compute = getattr(answers, config["parameters"]["answers"]["string_value"].format(**args))
        self._inputs = [one["name"] for one in config["input"]]
        self._outputs = [one["name"] for one in config["output"]]

    def execute(self, requests):
        return [self._answered(request) for request in requests]

    def _answered(self, request):
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
        given = {name: np.from_dlpack(one) for name, one in tensors.items() if one is not None}
        if "wait_ms" in given:
            time.sleep(int(given["wait_ms"][0, 0]) / 1e3)
        if self._compute is answers.failing and given["x"][0, 0] < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("below 0"))
        if self._compute is answers.raising and given["x"][0, 0] < 0:
            raise pb_utils.TritonModelException("below 0")
        found = self._asked(request, given) if self._compute is answers.caller else self._compute(given)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor.from_dlpack(name, np.array(found[name], order="C")) for name in self._outputs
        ])

    def _asked(self, request, given):
        answer = pb_utils.InferenceRequest(
            model_name="affine", requested_output_names=["y"], request_id=request.request_id(),
            inputs=[pb_utils.get_input_tensor_by_name(request, "x")],
        ).exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        (tensor,) = answer.output_tensors()
        return {"z": np.from_dlpack(tensor) * np.float32(2)}
'''
GATHERED = "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
PREFERRED = "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 4000 }\n"
LIMITER_OPTIONS = ("--rate-limit=execution_count", "--rate-limit-resource=ticket:1")
Tensors = Mapping[str, tuple[str, str]]
"""Datatype and dims by name, as a config.pbtxt has them; dims may be followed by further fields."""


def _ensemble(*steps: tuple[str, Mapping[str, str], Mapping[str, str]]) -> str:
    """Of models, with what each tensor of theirs is called in the ensemble."""
    written = ",\n".join(
        f'    {{ model_name: "{model}" model_version: -1 {_mapped("input", inputs)} {_mapped("output", outputs)} }}'
        for model, inputs, outputs in steps
    )
    return f'platform: "ensemble"\nensemble_scheduling {{\n  step [\n{written}\n  ]\n}}\n'


def _mapped(which: str, names: Mapping[str, str]) -> str:
    return " ".join(f'{which}_map {{ key: "{own}" value: "{name}" }}' for own, name in names.items())


@dataclass(frozen=True)
class ZooModel:
    """A model, and how a scenario loads it.

    `lines`: of its config.pbtxt. `answers`: its function in `zoo_answers`. `clients`, `model` and `check` are of the
    scenario.
    `steps`: models that it has Triton ask, each once for a request of its own; so twice where it is named twice.
    """

    name: str
    inputs: Tensors
    outputs: Tensors
    max_batch_size: int = 8
    lines: str = ""
    group: str = "count: 1"
    backend: str = "python"
    answers: str = ""
    versions: tuple[int, ...] = (1,)
    clients: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    check: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    is_asked: bool = True
    rate_hz: int = 100

    @property
    def function(self) -> str:
        """For `clients.check.function`."""
        return f"{ANSWERS}:{self.answers.format(model_version=self.model.get('version')) or self.name}"

    def config(self) -> str:
        """Its config.pbtxt."""
        kind = "" if self.backend == "ensemble" else f'backend: "{self.backend}"\n'
        group = "" if self.backend == "ensemble" else f"instance_group [{{ kind: KIND_CPU {self.group} }}]\n"
        named = f'parameters {{ key: "answers" value: {{ string_value: "{self.answers or self.name}" }} }}\n'
        return (
            f'name: "{self.name}"\n{kind}max_batch_size: {self.max_batch_size}\n{_tensors("input", self.inputs)}'
            f"{_tensors('output', self.outputs)}{group}{self.lines}{named if self.backend == 'python' else ''}"
        )


def _tensors(which: str, tensors: Tensors) -> str:
    return "".join(
        f'{which} [{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }}]\n'
        for name, (datatype, dims) in tensors.items()
    )


def _echo(name: str, datatype: str, dims: str, **more: Any) -> ZooModel:
    """Of the backend in C, which this Triton's Python backend cannot do: BF16, and text under numpy 2."""
    return ZooModel(
        name,
        {"IN": (datatype, dims)},
        {"OUTPUT": (datatype, dims)},
        backend="minimal",
        answers="echo",
        **more,
    )


_X4 = {"x": ("FP32", "[ 4 ]")}
_Y4 = {"y": ("FP32", "[ 4 ]")}
_I4 = {"x": ("INT32", "[ 4 ]")}
_SCORES = {"scores": ("FP32", "[ 2 ]")}
_LABEL = {"label": ("INT64", "[ 1 ]"), "is_sure": ("BOOL", "[ 1 ]")}
_SCALAR = ("FP32", "[ 1 ] reshape: { shape: [ ] }")
_ODD = ('serving/ \\"é\\" x:0', 'serving/ \\"é\\" y:0')
_WIDEN = ("widen", {"x": "x"}, {"y": "wide"})
_SCORE = ("score", {"x": "wide"}, {"scores": "scores"})
_PIPED = ("pipeline", {"x": "x"}, {"scores": "scores", "label": "first", "is_sure": "is_first_sure"})
_LABELLED = ("label", {"scores": "scores"}, {"label": "label", "is_sure": "is_sure"})
ZOO = (
    ZooModel("affine", {"x": ("FP32", "[ 6 ]")}, {"y": ("FP32", "[ 3 ]")}, lines=PREFERRED),
    ZooModel("halves", {"x": ("FP16", "[ 4 ]")}, {"y": ("FP16", "[ 4 ]")}, lines=GATHERED, group="count: 2"),
    _echo("bf16", "BF16", "[ 2, 3 ]", check={"rtol": 0.0, "atol": 0.0}),
    _echo("text", "STRING", "[ -1 ]", clients={"inputs": {"IN": {
        "sizes": {"kind": "uniform", "low": 1, "high": 4}, "length": {"kind": "uniform", "low": 1, "high": 300},
    }}}),
    _echo("lone_text", "STRING", "[ 1 ]", max_batch_size=0),
    ZooModel(
        "integers",
        {"small": ("INT8", "[ 3 ]"), "wide": ("INT64", "[ 2 ]"), "octets": ("UINT8", "[ 4 ]")},
        {"total": ("INT64", "[ 1 ]"), "flipped": ("UINT8", "[ 4 ]"), "turned": ("INT8", "[ 3 ]")},
        clients={"inputs": {
            "small": {"low": -127.0, "high": 127.0}, "wide": {"low": -(2.0**52), "high": 2.0**52},
            "octets": {"low": 0.0, "high": 255.0},
        }},
    ),
    ZooModel(
        "widths",
        {name: (name.upper(), "[ 2 ]") for name in ("int16", "int32", "uint16", "uint32", "uint64", "fp64")},
        {f"{name}_next": (name.upper(), "[ 2 ]")
         for name in ("fp64", "uint64", "uint32", "uint16", "int32", "int16")},
        max_batch_size=0,
    ),
    ZooModel("flags", {"left": ("BOOL", "[ 5 ]"), "right": ("BOOL", "[ 5 ]")},
             {"both": ("BOOL", "[ 5 ]"), "n_both": ("UINT32", "[ 1 ]")}),
    ZooModel(
        "tokens", {"ids": ("INT64", "[ -1 ]"), "mask": ("INT32", "[ -1 ]")},
        {"pooled": ("FP32", "[ 2 ]"), "reversed": ("INT64", "[ -1 ]"), "length": ("INT32", "[ 1 ]")},
        clients={"inputs": {
            "ids": {"sizes": {"kind": "lognormal", "mean": 40.0, "cv": 1.0, "max": 512}, "low": 0.0, "high": 30_521.0},
            "mask": {"like": "ids", "low": 0.0, "high": 1.0},
        }},
    ),
    ZooModel("grid", {"cells": ("FP32", "[ -1, 3 ]")}, {"sums": ("FP32", "[ -1 ]"), "is_high": ("BOOL", "[ 1, 3 ]")},
             max_batch_size=0, model={"shapes": {"cells": [5, 3]}}),
    ZooModel("growing", {"n": ("INT32", "[ 1 ]")}, {"numbers": ("INT64", "[ -1 ]")}, max_batch_size=0),
    ZooModel("empty", {"pairs": ("FP64", "[ -1, 2 ]")}, {"firsts": ("FP64", "[ -1 ]"), "n": ("INT32", "[ 1 ]")},
             max_batch_size=0, model={"shapes": {"pairs": [0, 2]}}),
    ZooModel("optional", {"x": ("FP32", "[ 2 ]"), "shift": ("FP32", "[ 2 ] optional: true")},
             {"y": ("FP32", "[ 2 ]")}),
    ZooModel("scalar", {"x": _SCALAR}, {"y": _SCALAR}),
    ZooModel("widen", _I4, _Y4, is_asked=False),
    ZooModel("score", _X4, _SCORES, lines=GATHERED, is_asked=False),
    ZooModel("label", _SCORES, _LABEL, is_asked=False),
    ZooModel("pipeline", _I4, _SCORES | _LABEL, lines=_ensemble(_WIDEN, _SCORE, _LABELLED), backend="ensemble",
             steps=("widen", "score", "label")),
    ZooModel("fork", _I4, _SCORES | _Y4, lines=_ensemble(_WIDEN, _SCORE, ("limited", {"x": "wide"}, {"y": "y"})),
             backend="ensemble", steps=("widen", "score", "limited")),
    ZooModel("nested", _I4, _LABEL | {"first": _LABEL["label"], "is_first_sure": _LABEL["is_sure"]},
             lines=_ensemble(_PIPED, _LABELLED), backend="ensemble",
             steps=("pipeline", "widen", "score", "label", "label")),
    ZooModel("caller", {"x": ("FP32", "[ 6 ]")}, {"z": ("FP32", "[ 3 ]")}, steps=("affine",)),
    ZooModel("versions", _X4, _Y4, answers="version_{model_version}", versions=(1, 2, 3),
             lines="version_policy: { all: {} }\n", model={"version": 2}),
    ZooModel("cached", _X4, _Y4, lines=f"{GATHERED}response_cache {{ enable: true }}\n"),
    ZooModel("limited", _X4, _Y4, lines=GATHERED,
             group='count: 2 rate_limiter { resources [{ name: "ticket" count: 1 }] priority: 1 }'),
    ZooModel("uneven", {"wait_ms": ("INT32", "[ 1 ]")}, {"waited": ("INT32", "[ 1 ]")},
             clients={"rows": {"kind": "constant", "value": 1}, "inputs": {"wait_ms": {"low": 0.0, "high": 12.0}}}),
    ZooModel("bulk", {"x": ("FP32", "[ 500000 ]")}, {"y": ("FP32", "[ 500000 ]")}, max_batch_size=0, rate_hz=20),
    ZooModel("odd.name-1", {_ODD[0]: ("FP32", "[ 3 ]")}, {_ODD[1]: ("FP32", "[ 3 ]")}, answers="odd_names"),
    ZooModel("failing", _X4, _Y4, lines=GATHERED),
    ZooModel("raising", _X4, _Y4),
)  # fmt: skip
"""`widen`, `score` and `label` are steps of others."""


def write_zoo(folder: Path) -> None:
    """The repository of all of them."""
    for one in ZOO:
        (folder / one.name).mkdir(parents=True)
        (folder / one.name / "config.pbtxt").write_text(one.config())
        for version in one.versions:
            where = folder / one.name / str(version)
            where.mkdir()
            if one.backend == "python":
                (where / "model.py").write_text(_MODEL)
                shutil.copy(ANSWERS, where / "answers.py")
        if one.backend == "minimal":
            compiled(
                [NATIVE / "minimal_backend.c"], folder / one.name / "libtriton_minimal.so", *SHARED, "-O2"
            )
