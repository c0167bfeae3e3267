"""`squall perf` with streams, sequences, parameters and right values, on a real Triton: what its models see."""

from __future__ import annotations

import csv
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.cluster.node.endpoint import Endpoint
from tests.integration import test_sequences, test_streams
from tests.integration.live_runs import Bench
from tests.integration.serving import serving
from tests.integration.test_perf import HEADER, ended, runs

pytestmark = [pytest.mark.slow, pytest.mark.beside]
DOUBLER = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Doubles its input; it writes down what each request says beside it."""

    def initialize(self, args):
        self._seen = open(json.loads(args["model_config"])["parameters"]["seen"]["string_value"], "a")

    def execute(self, requests):
        answers = []
        for request in requests:
            self._seen.write((request.parameters() or "{}") + "\\n")
            n = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "N"))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", np.array(n * 2, np.int32))]))
        self._seen.flush()
        return answers
'''
CONFIG = """
name: "doubler"
backend: "python"
max_batch_size: 4
input [ {{ name: "N", data_type: TYPE_INT32, dims: [ 1 ] }} ]
output [ {{ name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
parameters: {{ key: "seen" value: {{ string_value: "{seen}" }} }}
"""


@dataclass(frozen=True)
class Models:
    """A Triton with models that write down what they are asked, into files of `folder`."""

    folder: Path
    endpoint: Endpoint

    def seen(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def flags(self, model: str, is_grpc: bool = False) -> list[str]:
        http = f"127.0.0.1:{self.endpoint.port}"
        if not is_grpc:
            return ["-m", model, "-u", http]
        return ["-m", model, "-i", "grpc", "-u", f"127.0.0.1:{self.endpoint.grpc_port}", "--http-url", http]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("perf-models")
    served = {
        "writer": (test_streams.MODEL, test_streams.CONFIG.format(told=folder / "writer")),
        "adder": (test_sequences.MODEL, test_sequences.CONFIG.format(
            seen=folder / "adder", strategy=test_sequences.OLDEST
        )),
        "doubler": (DOUBLER, CONFIG.format(seen=folder / "doubler")),
    }  # fmt: skip
    for name, (model, config) in served.items():
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(model)
        (version.parent / "config.pbtxt").write_text(config)
    settings = {"name": "doubler", "repository": str(folder / "models"), "max_batch_size": 4}
    with serving(folder, **settings) as (_, endpoint):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for name in ("writer", "adder"):
            opener.open(f"{endpoint.url}/v2/repository/models/{name}/load", b"", timeout=60).close()
        yield Models(folder, endpoint)


def figure(said: list[str], name: str) -> str:
    (found,) = [line for line in said if line.startswith(f"    {name}: ")]
    return found.partition(": ")[2]


def test_a_stream_is_exported_response_by_response(alone: Bench, models: Models) -> None:
    files = alone.folder / "a.csv", alone.folder / "a.json"
    data = alone.folder / "data.json"
    data.write_text(json.dumps({"data": [{"n": [3], "gap_us": [5000]}]}))
    said, lines, code = ended(
        alone, *models.flags("writer", is_grpc=True), "--streaming", "--input-data", str(data), "--request-count",
        "60", "-f", str(files[0]), "--profile-export-file", str(files[1]),
    )  # fmt: skip
    assert code in (0, 3), lines
    store = runs(alone)[-1]
    rows = store.read("responses", ["request_id", "index", "t_ns"]).sort_by("index").to_pydict()
    came: dict[int, list[int]] = {}
    for request_id, t_ns in zip(rows["request_id"], rows["t_ns"], strict=True):
        came.setdefault(request_id, []).append(t_ns)
    (experiment,) = json.loads(files[1].read_text())["experiments"]
    told = [one["response_timestamps"] for one in experiment["requests"]]
    assert len(told) == 60
    assert all(len(one) == 3 and one in came.values() for one in told)
    assert files[0].read_text().splitlines()[0] == f"Concurrency,{HEADER}".replace(
        "Second,", "Second,Response Throughput,"
    )
    (row,) = csv.DictReader(files[0].read_text().splitlines())
    assert float(row["Response Throughput"]) == pytest.approx(3 * float(row["Inferences/Second"]), rel=1e-3)
    assert figure(said, "Response Throughput") == f"{row['Response Throughput']} infer/sec"


@pytest.mark.long
def test_users_of_a_stateful_model_send_sequences_of_the_lengths_asked_for(
    alone: Bench, models: Models
) -> None:
    said, lines, code = ended(
        alone, *models.flags("adder"), "--concurrency-range", "2", "--sequence-length", "5",
        "--sequence-length-variation", "40", "--request-count", "200",
    )  # fmt: skip
    assert code in (0, 3), lines
    seen = models.seen("adder")
    lengths = Counter(one["sequence"] for one in seen)
    whole = {one["sequence"] for one in seen if one["end"]} & {
        one["sequence"] for one in seen if one["start"]
    }
    tried = {one["sequence"] for one in seen if one["start"] and one["end"]}  # before each load
    assert {lengths[one] for one in whole - tried} == {4, 5, 6}
    n_told = int(figure(said, "Sequence count").split()[0])
    assert abs(n_told - 200 / 5) < 200 / 5 * 0.25, (
        "200 requests of 4 to 6 a sequence, cut at both ends of two users"
    )


def _n_wrong(store: RunStore, n: int) -> int:
    """Of the first `n` requests that are sent in the measured phase: every second one, unless the first of them is the
    last of the warm-up's user."""
    (start_ns,) = (one.start_ns for one in phase_spans(store.manifest) if one.kind == "measure")
    rows = store.read("requests", ["sent_ns", "outcome"]).sort_by("sent_ns").to_pylist()
    ends = [one["outcome"] for one in rows if one["sent_ns"] >= start_ns][:n]
    assert abs(2 * ends.count("bad_reply") - n) <= 2
    return ends.count("bad_reply")


@pytest.mark.long
@pytest.mark.parametrize("is_right", [True, False])
def test_replies_are_held_to_the_right_values_beside_the_data(
    alone: Bench, models: Models, is_right: bool
) -> None:
    data = alone.folder / "data.json"
    right = [{"OUT": [6]}, {"OUT": [8 if is_right else 9]}]
    data.write_text(json.dumps({"data": [{"N": [3]}, {"N": [4]}], "validation_data": right}))
    said, lines, code = ended(
        alone, *models.flags("doubler"), "--input-data", str(data), "--request-count", "40",
        "--request-parameter", "lang:de:string", "--request-parameter", "k:5:int", "--request-parameter", "f:true:bool",
    )  # fmt: skip
    assert code in ((0, 3) if is_right else (99,)), lines
    assert {json.dumps(one, sort_keys=True) for one in models.seen("doubler")} == {
        '{"f": true, "k": 5, "lang": "de"}'
    }
    failed = [line for line in said if "of them failed" in line]
    assert [int(line.split()[1]) for line in failed] == ([] if is_right else [_n_wrong(runs(alone)[-1], 40)])
    checks = runs(alone)[-1].manifest.value_checks
    assert checks is not None
    assert checks.n_checked == len(runs(alone)[-1].read("requests", ["request_id"]))
