"""`squall init` of a real Triton with models of many kinds: what it writes runs as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.scenarios.config.loader import load_scenario
from tests.integration.foreign_models import BY_ONE, write_ensemble, write_model, write_stream
from tests.integration.foreign_serving import ForeignTriton, foreign_triton
from tests.integration.live_runs import Bench, planned_rows
from tests.reporting import NATIVE, SHARED, compiled

pytestmark = pytest.mark.beside

COUNTS = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with the number of elements of its first input."""

    def execute(self, requests):
        if any(tensor.name() == "picture" for request in requests for tensor in request.inputs()):
            raise ValueError("a picture, which is optional, is not for everybody")
        sizes = [np.from_dlpack(request.inputs()[0]).shape for request in requests]
        outs = [np.full((size[0], 1) if ROWS else (1,), np.prod(size), np.int32) for size in sizes]
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", out)]) for out in outs]
'''
TAIL = """
output [ {{ name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
backend: "{backend}"
max_batch_size: {rows}
"""
MIXED = """
input [
  { name: "ids", data_type: TYPE_INT64, dims: [ -1 ] },
  { name: "attention_mask", data_type: TYPE_INT64, dims: [ -1 ] },
  { name: "scale", data_type: TYPE_FP16, dims: [ 2 ] },
  { name: "is_odd", data_type: TYPE_BOOL, dims: [ 1 ] },
  { name: "picture", data_type: TYPE_UINT8, dims: [ 3, -1, -1 ], optional: true }
]
"""
LONE = """
input [
  { name: "IN", data_type: TYPE_FP32, dims: [ -1, 4 ] },
  { name: "half", data_type: TYPE_BF16, dims: [ 8 ] },
  { name: "small", data_type: TYPE_INT8, dims: [ 2, -1 ] }
]
"""
TEXT = """
backend: "minimal"
max_batch_size: 4
input [ { name: "TEXT", data_type: TYPE_STRING, dims: [ 2 ] } ]
output [ { name: "OUTPUT", data_type: TYPE_STRING, dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU, count: 1 } ]
"""
LATE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 4 ] } ]
ensemble_scheduling { step [ { model_name: "stream" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }
"""
STATEFUL = MIXED + "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n"


def write_counting(folder: Path, name: str, *, rows: int) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(COUNTS.replace("ROWS", str(rows > 0)))


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignTriton]:
    """Batched, unbatched, text, an ensemble, decoupled, stateful: nine models."""
    folder = tmp_path_factory.mktemp("init")
    models = folder / "models"
    for name in ("tokenize", "classify"):
        write_model(models, name, BY_ONE)
    write_ensemble(models, "pipe")
    write_stream(models, "stream")
    for name, rows in (("mixed", 8), ("lone", 0), ("steps", 8)):
        write_counting(models, name, rows=rows)
    (models / "text" / "1").mkdir(parents=True)
    compiled([NATIVE / "minimal_backend.c"], models / "text" / "libtriton_minimal.so", *SHARED, "-O2")
    configs = {
        "mixed": MIXED + TAIL.format(backend="python", rows=8),
        "lone": LONE + TAIL.format(backend="python", rows=0),
        "steps": STATEFUL + TAIL.format(backend="python", rows=8),
        "text": TEXT,
        "late": LATE,
    }
    with foreign_triton(
        folder, {name: f'name: "{name}"\n{config}' for name, config in configs.items()}
    ) as one:
        yield one


def grpc_port(triton: ForeignTriton) -> str:
    """As the process was told."""
    (option,) = [one for one in triton.process.args if str(one).startswith("--grpc-port=")]  # type: ignore[union-attr]
    return str(option).partition("=")[2]


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        pytest.param("mixed", "http", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("text", "grpc", marks=pytest.mark.slow),
        pytest.param("mixed", "grpc", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("text", "http", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("lone", "http", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("lone", "grpc", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("pipe", "http", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("pipe", "grpc", marks=pytest.mark.slow),
    ],
)
def test_what_is_written_runs_as_it_is(
    triton: ForeignTriton, joined: Bench, model: str, protocol: str
) -> None:
    path = joined.folder / "made.yaml"
    port = ("--grpc-port", grpc_port(triton)) if protocol == "grpc" else ()
    made = joined.start(
        "init", "--server", triton.url, "--model", model, "--protocol", protocol, *port, "--out", path
    )
    assert made.end() == 0, made.lines
    assert made.lines == [f"{path} is written: squall run {path}"]
    assert load_scenario(path).clients.protocol == protocol
    shorter = ("phases.warmup.duration=500ms", "phases.measure.duration=2s")
    options = [word for one in shorter for word in ("--set", one)]
    assert joined.ray is not None
    live = joined.start("run", path, "--out", joined.out, "--ray", joined.ray, *options)
    assert live.end() in (0, 3), live.lines
    store = joined.store()
    assert store.is_sealed
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}
    assert len(rows["outcome"]) > 10


def test_several_models_are_listed_and_what_cannot_be_loaded_is_said(
    triton: ForeignTriton, joined: Bench
) -> None:
    path = joined.folder / "made.yaml"
    listed = joined.start("init", "--server", triton.url, "--out", path, env={"COLUMNS": "160"})
    assert listed.end() == 2
    assert listed.error_line() == (
        f"squall: --model: {triton.url} has 9 models that are ready, name one: classify, late, lone, mixed, pipe,"
        " steps, stream, text, tokenize"
    )
    rows = {line.split()[0]: " ".join(line.split()) for line in listed.lines if line}
    for name, words in {
        "mixed": ("ids INT64 [-1], attention_mask INT64 [-1], scale FP16 [2]", "8 batched"),
        "lone": ("IN FP32 [-1, 4], half BF16 [8], small INT8 [2, -1]", "1 unbatched"),
        "text": ("TEXT STRING [2]", "4 batched"),
        "pipe": ("IN FP32 [4]", "8 ensemble"),
        "steps": ("ids INT64 [-1]", "8 stateful"),
        "stream": ("IN FP32 [4]", "8 decoupled"),
    }.items():
        assert all(one in rows[name] for one in words), rows[name]
    nobody = ("--protocol", "grpc", "--grpc-port", "1")
    refused = joined.start("init", "--server", triton.url, "--model", "mixed", *nobody, "--out", path)
    assert refused.end() == 1
    assert refused.error_line() == (
        "squall: nothing listens for gRPC at 127.0.0.1:1: Connection refused; its port is given with --grpc-port"
    )
    assert not path.exists()
