"""Text and token ids of lengths that vary, made by squall: what a model of somebody else's sees of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.made import make_inputs
from squall.models.payload import write_tensor
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping
from tests.reporting import NATIVE, SHARED, compiled

pytestmark = [pytest.mark.slow, pytest.mark.beside]

MODEL = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Writes down what it was asked, and answers the number of ids of a row."""

    def initialize(self, args):
        self._seen = open(json.loads(args["model_config"])["parameters"]["seen"]["string_value"], "a")

    def execute(self, requests):
        answers = []
        for request in requests:
            ids, mask, scale = (
                np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)) for name in ("ids", "mask", "scale")
            )
            self._seen.write(json.dumps({
                "id": request.request_id(), "ids": ids.shape, "mask": mask.shape, "marks": mask.sum().item(),
                "low": int(ids.min()), "high": int(ids.max()), "sum": int(ids.sum()),
                "scale": [float(scale.min()), float(scale.max())], "rows": len(scale),
            }) + "\\n")
            self._seen.flush()
            out = np.full((len(ids), 1), ids.shape[1], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("out", out)]))
        return answers
'''
CONFIG = """
name: "reader"
backend: "python"
max_batch_size: 4
input [
  {{ name: "ids", data_type: TYPE_INT64, dims: [ -1 ] }},
  {{ name: "mask", data_type: TYPE_INT64, dims: [ -1 ] }},
  {{ name: "scale", data_type: TYPE_FP16, dims: [ 2 ] }}
]
output [ {{ name: "out", data_type: TYPE_INT32, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
parameters: {{ key: "seen" value: {{ string_value: "{seen}" }} }}
"""
SPEC = ModelSpec(
    "reader", "1",
    (TensorSpec("ids", "INT64", (-1,)), TensorSpec("mask", "INT64", (-1,)), TensorSpec("scale", "FP16", (2,))),
    (TensorSpec("out", "INT32", (1,)),), 4,
)  # fmt: skip
TEXT_CONFIG = """
name: "minimal"
backend: "minimal"
max_batch_size: 4
input [ { name: "TEXT", data_type: TYPE_STRING, dims: [ 2 ] } ]
output [ { name: "OUTPUT", data_type: TYPE_STRING, dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU, count: 1 } ]
"""
TEXT_SPEC = ModelSpec(
    "minimal", "1", (TensorSpec("TEXT", "BYTES", (2,)),), (TensorSpec("OUTPUT", "BYTES", (2,)),), 4
)
INPUTS: dict[str, Any] = {
    "ids": {
        "sizes": {"kind": "lognormal", "mean": 90.0, "cv": 1.0, "max": 512},
        "low": 0.0,
        "high": 30_521.0,
    },
    "mask": {"like": "ids", "values": {"kind": "zipf", "exponent": 1.0, "max": 3}},
    "scale": {"low": 0.5, "high": 2.0},
}
N_VARIANTS = 256


def mapping_of(folder: Path, seen: Path, protocol: str, **inputs: Any) -> dict[str, Any]:
    version = folder / "reader" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(seen=seen))
    return scenario_mapping(
        model={"name": "reader", "repository": str(folder), "max_batch_size": 4},
        clients={
            "workers_per_node": 2, "timeout": "20s", "protocol": protocol, "payload_variants": N_VARIANTS,
            "rows": {"kind": "uniform", "low": 1, "high": 3}, "inputs": {**INPUTS, **inputs},
        },
        phases=[
            {"name": "main", "kind": "measure", "duration": "4s", "arrivals": {"kind": "poisson", "rate": "150/s"}},
            {"name": "drain", "kind": "drain", "duration": "20s"},
        ],
    )  # fmt: skip


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_sees_what_was_asked_for(alone: Bench, tmp_path: Path, protocol: str) -> None:
    seen = tmp_path / "seen"
    mapping = mapping_of(tmp_path / "models", seen, protocol)
    live = alone.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    rows = planned_rows(alone.store())
    assert set(rows["outcome"]) == {"ok"}
    told = {int(one["id"]): one for one in map(json.loads, seen.read_text().splitlines())}
    assert sorted(told) == rows["request_id"]

    scenario = scenario_from_mapping(mapping, "test")
    variants = plan_scenario(scenario).variant.tolist()
    for number, of_request in zip(rows["request_id"], rows["rows"], strict=True):
        one = told[number]
        made = make_inputs(SPEC, of_request, variants[number], scenario.seed, made=scenario.clients.inputs)
        sent = made["ids"]
        assert one["ids"] == one["mask"] == list(sent.shape)
        assert one["sum"] == int(sent.astype(np.int64).sum())
        assert one["marks"] == made["mask"].sum()
        assert one["rows"] == of_request
        assert 0 <= one["low"] <= one["high"] <= 30_521
        assert 0.5 <= one["scale"][0] <= one["scale"][1] <= 2.0

    # the lengths have their law: Kolmogorov-Smirnov of 256 variants that come unequally often, 1e-4 at 2.2 / sqrt(n)
    lengths = np.sort([one["ids"][1] for one in told.values()])
    variance = np.log(2.0)
    law = np.sort(np.clip(np.rint(np.exp(
        np.random.default_rng(1).normal(np.log(90.0) - variance / 2, np.sqrt(variance), 200_000)
    )), 1, 512))  # fmt: skip
    grid = np.arange(1, 513)
    gap = np.abs(
        np.searchsorted(lengths, grid, side="right") / lengths.size
        - np.searchsorted(law, grid, side="right") / law.size
    )
    assert gap.max() < 2.2 / np.sqrt(N_VARIANTS)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_comes_back_as_long_as_it_was_made(alone: Bench, tmp_path: Path, protocol: str) -> None:
    """From a backend in C: Triton 2.51's Python backend does not read text under numpy 2."""
    folder = tmp_path / "models" / "minimal"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(TEXT_CONFIG)
    compiled([NATIVE / "minimal_backend.c"], folder / "libtriton_minimal.so", *SHARED, "-O2")
    mapping = mapping_of(tmp_path, tmp_path / "seen", protocol)
    mapping["model"] = {"name": "minimal", "repository": str(folder.parent), "max_batch_size": 4}
    mapping["clients"]["inputs"] = {"TEXT": {"length": {"kind": "uniform", "low": 1, "high": 3_000}}}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    rows = planned_rows(alone.store())
    assert set(rows["outcome"]) == {"ok"}
    scenario = scenario_from_mapping(mapping, "test")
    variants = plan_scenario(scenario).variant.tolist()
    beside = []
    for number, of_request, n_bytes in zip(
        rows["request_id"], rows["rows"], rows["response_bytes"], strict=True
    ):
        text = make_inputs(
            TEXT_SPEC, of_request, variants[number], scenario.seed, made=scenario.clients.inputs
        )
        beside.append(n_bytes - len(write_tensor(text["TEXT"])))
    assert max(beside) - min(beside) <= 6  # digits of the lengths that a reply states
    assert max(rows["response_bytes"]) > 3_000


def test_what_the_model_does_not_take_ends_before_anything_is_sent(alone: Bench, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    live = alone.start_run(mapping_of(tmp_path / "models", seen, "http", idz={"length": 4}))
    assert live.end() == 2
    assert "clients.inputs.idz: model reader has no such input, did you mean 'ids'?" in live.error_line()
    assert not seen.exists() or not seen.read_text()
