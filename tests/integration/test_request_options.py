"""What each request says beside its inputs, as a real Triton and a model of somebody else's see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.made import make_inputs
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping

pytestmark = [pytest.mark.beside]

MODEL = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Writes down what each request says, and answers the outputs that it asks for."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self._seen = open(given["seen"]["string_value"], "a")
        self._sleep_s = float(given["sleep_s"]["string_value"])

    def execute(self, requests):
        time.sleep(self._sleep_s)
        answers = []
        for request in requests:
            given = {one.name(): np.from_dlpack(one) for one in request.inputs()}
            asked = request.requested_output_names()
            self._seen.write(json.dumps({
                "id": request.request_id(), "parameters": json.loads(request.parameters() or "{}"),
                "outputs": sorted(asked), "timeout_us": request.timeout(), "inputs": sorted(given),
                "sum": float(sum(one.astype(np.float64).sum() for one in given.values())),
            }) + "\\n")
            rows = len(next(iter(given.values())))
            made = {"a": ((rows, 2), np.float32), "b": ((rows, 3), np.int32), "c": ((rows, 1), bool)}
            outputs = [pb_utils.Tensor.from_dlpack(name, np.ones(*made[name])) for name in asked]
            answers.append(pb_utils.InferenceResponse(outputs))
        self._seen.flush()
        return answers
'''
CONFIG = """
name: "teller"
backend: "python"
max_batch_size: 4
input [
  {{ name: "x", data_type: TYPE_FP32, dims: [ 4 ] }},
  {{ name: "hint", data_type: TYPE_INT32, dims: [ -1 ], optional: true }}
]
output [
  {{ name: "a", data_type: TYPE_FP32, dims: [ 2 ] }},
  {{ name: "b", data_type: TYPE_INT32, dims: [ 3 ] }},
  {{ name: "c", data_type: TYPE_BOOL, dims: [ 1 ] }}
]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
parameters: {{ key: "seen" value: {{ string_value: "{seen}" }} }}
parameters: {{ key: "sleep_s" value: {{ string_value: "{sleep_s}" }} }}
{batching}
"""
SPEC = ModelSpec(
    "teller", "1", (TensorSpec("x", "FP32", (4,)), TensorSpec("hint", "INT32", (-1,), is_optional=True)),
    (TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT32", (3,)), TensorSpec("c", "BOOL", (1,))), 4,
)  # fmt: skip


def mapping_of(
    folder: Path,
    protocol: str,
    clients: dict[str, Any],
    *,
    sleep_s: float = 0.0,
    batching: str = "",
    rate: str = "60/s",
) -> dict[str, Any]:
    """A second of requests to a model that writes into `folder/seen`."""
    version = folder / "models" / "teller" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    config = CONFIG.format(seen=folder / "seen", sleep_s=sleep_s, batching=batching)
    (version.parent / "config.pbtxt").write_text(config)
    return scenario_mapping(
        model={"name": "teller", "repository": str(folder / "models"), "max_batch_size": 4, "shapes": {"hint": [2]}},
        clients={
            "workers_per_node": 1, "timeout": "20s", "protocol": protocol,
            "rows": {"kind": "uniform", "low": 1, "high": 2}, **clients,
        },
        phases=[
            {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": rate}},
            {"name": "drain", "kind": "drain", "duration": "20s"},
        ],
    )  # fmt: skip


def run_of(bench: Bench, mapping: dict[str, Any], ends: tuple[int, ...] = (0, 3)) -> dict[str, Any]:
    """Its requests."""
    live = bench.start_run(mapping)
    assert live.end() in ends, live.lines
    return planned_rows(bench.store())


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen").read_text().splitlines()]


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_outputs_parameters_and_timeout_reach_the_model(alone: Bench, tmp_path: Path, protocol: str) -> None:
    parameters = {
        "lang": "de",
        "top_k": 50,
        "below": -3,
        "is_long": True,
        "is_odd": False,
        "temperature": 0.5,
    }
    request = {"outputs": ["c", "a"], "parameters": parameters, "timeout": "1500us"}
    rows = run_of(alone, mapping_of(tmp_path, protocol, {"request": request}))
    assert set(rows["outcome"]) == {"ok"}, rows["detail"]
    seen = told(tmp_path)
    assert sorted(int(one["id"]) for one in seen) == rows["request_id"]
    for one in seen:
        assert one["parameters"] == parameters
        assert (one["outputs"], one["timeout_us"]) == (["a", "c"], 1_500)


def told_and_sent(
    folder: Path, mapping: dict[str, Any], rows: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each request what the model says of it, and the inputs that were sent: all were answered, and sums agree."""
    assert set(rows["outcome"]) == {"ok"}, rows["detail"]
    scenario = scenario_from_mapping(mapping, "test")
    variants = plan_scenario(scenario).variant.tolist()
    told_of = {int(one["id"]): one for one in told(folder)}
    assert sorted(told_of) == rows["request_id"]
    for number, of_request in zip(rows["request_id"], rows["rows"], strict=True):
        sent = make_inputs(
            SPEC,
            of_request,
            variants[number],
            scenario.seed,
            scenario.models[0].model.shapes,
            scenario.clients.inputs,
        )
        total = sum(float(array.astype(np.float64).sum()) for array in sent.values())
        assert told_of[number]["sum"] == pytest.approx(total, abs=1e-5)
        yield told_of[number], sent


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_optional_input_is_in_its_share_of_the_payloads(
    alone: Bench, tmp_path: Path, protocol: str, is_shared: bool
) -> None:
    hinted = {
        "inputs": {"hint": {"present": 0.4}}, "payload_variants": 64,
        "shared_memory": {"outputs": False} if is_shared else False,
    }  # fmt: skip
    mapping = mapping_of(tmp_path, protocol, hinted)
    rows = run_of(alone, mapping)
    told_of = {}
    for one, sent in told_and_sent(tmp_path, mapping, rows):
        assert one["inputs"] == sorted(sent)
        told_of[one["id"]] = one
    assert 0 < sum("hint" in one["inputs"] for one in told_of.values()) < len(told_of)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_a_compressed_request_is_to_the_model_what_the_plain_one_is(
    alone: Bench, tmp_path: Path, protocol: str
) -> None:
    parameters = {"lang": "de"}
    request = {"compression": "gzip", "parameters": parameters, "outputs": ["a", "b"]}
    mapping = mapping_of(tmp_path, protocol, {"request": request})
    rows = run_of(alone, mapping)
    for one, _ in told_and_sent(tmp_path, mapping, rows):
        assert (one["outputs"], one["parameters"]) == (["a", "b"], parameters)
    assert all(worker.has_lane for worker in alone.store().manifest.workers)


@pytest.mark.slow
def test_tensors_may_travel_as_json(alone: Bench, tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path, "http", {"request": {"binary": False, "outputs": ["a", "b"]}})
    rows = run_of(alone, mapping)
    for one, _ in told_and_sent(tmp_path, mapping, rows):
        assert one["outputs"] == ["a", "b"]


QUEUES = """
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  priority_queue_policy { key: 1 value { max_queue_size: 1 } }
  priority_queue_policy { key: 2 value {
    allow_timeout_override: true timeout_action: REJECT default_timeout_microseconds: 60000000 } }
}
"""
"""A queue of one for urgent requests, and of any length for others, which may say how long they wait."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "request_", "outcomes", "why"),
    [
        ("http", {"priority": 1}, {"ok", "rejected"}, "Exceeds maximum queue size"),
        ("grpc", {"priority": 1}, {"ok", "rejected"}, "Exceeds maximum queue size"),
        ("http", {"priority": 2}, {"ok"}, ""),
        ("http", {"timeout": "1ms"}, {"ok", "rejected"}, "Request timeout expired"),
        ("grpc", {"timeout": "1ms"}, {"ok", "rejected"}, "Request timeout expired"),
        ("grpc", {"timeout": "30s"}, {"ok"}, ""),
    ],
)
def test_the_server_queues_by_priority_and_timeout(
    alone: Bench, tmp_path: Path, protocol: str, request_: dict[str, Any], outcomes: set[str], why: str
) -> None:
    """120/s of 1.5 rows on average are more than executions of 40 ms serve, of 4 rows at most: requests wait."""
    mapping = mapping_of(
        tmp_path, protocol, {"request": request_}, sleep_s=0.04, batching=QUEUES, rate="120/s"
    )
    rows = run_of(alone, mapping, (0, 3, 99) if "rejected" in outcomes else (0, 3))
    assert set(rows["outcome"]) == outcomes
    details = {
        one for one, outcome in zip(rows["detail"], rows["outcome"], strict=True) if outcome == "rejected"
    }
    assert all(why in one for one in details)


@pytest.mark.slow
def test_an_output_that_the_model_has_not_ends_before_anything_is_sent(alone: Bench, tmp_path: Path) -> None:
    live = alone.start_run(mapping_of(tmp_path, "http", {"request": {"outputs": ["a", "d"]}}))
    assert live.end() == 2
    assert "clients.request.outputs[1]: model teller has no output 'd', it has a, b, c" in live.error_line()
    assert not told(tmp_path)
