"""Batches of Python models that know nothing of squall: what the backend says of each, and what Triton counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import RecordedBatch
from tests.integration.foreign_serving import foreign_triton

MODEL = """
import time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        ids = [request.request_id() for request in requests]
        if any(name.startswith("raise") for name in ids):
            raise ValueError("asked to")
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if request.request_id().startswith("error"):
            return pb.InferenceResponse(error=pb.TritonError("asked to"))
        x = pb.get_input_tensor_by_name(request, "INPUT")
        return pb.InferenceResponse([pb.Tensor.from_dlpack("OUTPUT", x)])
"""
TENSORS = """
input [ { name: "INPUT", data_type: TYPE_FP32, dims: [ 2 ] } ]
output [ { name: "OUTPUT", data_type: TYPE_FP32, dims: [ 2 ] } ]
"""
PLAIN = f"""
name: "plain"
backend: "python"
max_batch_size: 8
{TENSORS}
dynamic_batching {{ max_queue_delay_microseconds: 1000 }}
instance_group [ {{ kind: KIND_CPU, count: 2 }} ]
"""
WARMED = f"""
name: "warmed"
backend: "python"
max_batch_size: 8
{TENSORS}
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
model_warmup [ {{
  name: "w", batch_size: 2,
  inputs: {{ key: "INPUT" value: {{ data_type: TYPE_FP32, dims: [ 2 ], zero_data: true }} }}
}} ]
"""
PAIR = f"""
name: "pair"
platform: "ensemble"
max_batch_size: 8
{TENSORS}
ensemble_scheduling {{ step [
  {{ model_name: "plain", model_version: -1,
     input_map {{ key: "INPUT" value: "INPUT" }} output_map {{ key: "OUTPUT" value: "between" }} }},
  {{ model_name: "warmed", model_version: -1,
     input_map {{ key: "INPUT" value: "between" }} output_map {{ key: "OUTPUT" value: "OUTPUT" }} }}
] }}
"""


def ids(batches: list[RecordedBatch]) -> list[str]:
    return sorted(request_id.decode() for one in batches for request_id in one.request_ids)


@pytest.mark.beside
def test_batches_of_python_models_are_recorded_as_triton_counts_them(tmp_path: Path) -> None:
    for name in ("plain", "warmed"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.py").write_text(MODEL)
    with foreign_triton(tmp_path, {"plain": PLAIN, "warmed": WARMED, "pair": PAIR}) as triton:
        (warm_up,) = triton.recorded(2)
        assert (warm_up.model, warm_up.rows, warm_up.request_ids) == ("warmed", 2, (b"", b""))

        sent = [(f"r{i:03d}", 1 + i % 3) for i in range(300)]
        assert set(triton.ask_all("plain", sent)) == {200}
        batches = triton.recorded(300)
        triton.wait_for_counts("plain", len(batches), sum(one.rows for one in batches), failed=0)
        assert ids(batches) == [name for name, _ in sent]
        assert sum(one.rows for one in batches) == sum(rows for _, rows in sent)
        assert {one.instance for one in batches} == {"plain_0_0", "plain_0_1"}

        assert triton.ask_all("warmed", [("error", 1), ("raise", 3)]) == [500, 500]
        by_id = {one.request_ids: one for one in triton.recorded(2)}
        answered, raised = by_id[(b"error",)], by_id[(b"raise",)]
        assert (answered.rows, answered.n_failed) == (1, 0)  # the backend holds that it went well
        assert (raised.rows, raised.n_failed) == (3, 1)
        triton.wait_for_counts(
            "warmed", 3, 3, failed=1
        )  # what raised is an execution, its rows no inferences

        assert set(triton.ask_all("pair", [("e1", 1), ("e2", 2)])) == {200}
        steps = triton.recorded(4)
        for model in ("plain", "warmed"):
            assert ids([one for one in steps if one.model == model]) == ["e1", "e2"]
        assert {one.model for one in steps} == {"plain", "warmed"}
