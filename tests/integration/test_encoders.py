"""Encoders in PyTorch, served by a real Triton: right answers with seeded weights and with those of a file, and why one
does not load."""

from __future__ import annotations

import importlib.util
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.sampling.gpu.source import missing_reason
from squall.cluster.node.endpoint import Endpoint
from squall.models.encoders import encode, weights_of
from squall.models.spec import ENCODERS, HEADS
from squall.scenarios.errors import ScenarioError, TargetError
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet
from tests.integration.serving import Array, records, server_of, serving
from tests.tolerance import TOLERANCE
from tests.unit.models.test_checkpoint import write_safetensors
from tests.unit.models.test_encoders import SMALL, inputs_of

NO_GPU = missing_reason()
HAS_TORCH = importlib.util.find_spec("torch") is not None
pytestmark = [pytest.mark.beside, pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")]
needs_gpu = pytest.mark.skipif(NO_GPU is not None, reason=f"no GPU: {NO_GPU}")
CPU: dict[str, Any] = {"settings": SMALL, "max_batch_size": 8, "framework": "torch", "device": "cpu"}


def answer(endpoint: Endpoint, ids: Any, mask: Any) -> Array:
    """What the model says to one request of these rows."""
    tensors = [
        {"name": name, "shape": list(x.shape), "datatype": "INT64", "data": x.ravel().tolist()}
        for name, x in (("input_ids", ids), ("attention_mask", mask))
    ]
    url = f"{endpoint.url}/v2/models/{endpoint.models[0].spec.name}/infer"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, json.dumps({"inputs": tensors}).encode(), timeout=30) as reply:
        output = json.load(reply)["outputs"][0]
    assert (output["name"], output["datatype"]) == ("OUTPUT", "FP32")
    return np.array(output["data"], np.float32).reshape(output["shape"])


def check(
    name: str, precision: str, endpoint: Endpoint, rows: int, weights: Any = None, **settings: int
) -> None:
    """A request of so many rows is answered with the encoder's own vectors."""
    sizes = ENCODERS[name].sizes({**SMALL, **settings})
    ids, mask = inputs_of(sizes, rows)
    found = answer(endpoint, ids, mask)
    expected = encode(name, sizes, weights or weights_of(name, sizes, None), ids, mask)
    rtol, atol = TOLERANCE[precision]
    scale = float(np.sqrt(np.mean(expected**2)))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol * scale)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("bert_tiny", "fp32"), pytest.param("multilingual_e5_large", "fp16", marks=pytest.mark.slow)],
)
def test_an_encoder_gives_the_reference_answer(tmp_path: Path, name: str, precision: str) -> None:
    with serving(tmp_path, name=name, precision=precision, **CPU) as (server, endpoint):
        assert [one.drawn for one in endpoint.models[0].spec.inputs] == [(5, 119), (1, 1)]
        for rows in (8, 5, 2):
            check(name, precision, endpoint, rows)
        ids, mask = inputs_of(ENCODERS[name].sizes(SMALL), 2)
        with pytest.raises(urllib.error.HTTPError) as refused:
            answer(endpoint, ids + 120, mask)
        assert "the vocabulary is 0 to 119" in refused.value.read().decode()
        refused.value.close()
        check(name, precision, endpoint, 3)
    (lines,) = records(server).values()
    assert [line["r"] for line in lines[1:]] == [8, 5, 2, 3]


@pytest.mark.slow
def test_an_encoder_with_weights_of_a_file_gives_their_answer(tmp_path: Path) -> None:
    sizes = ENCODERS["bert_tiny"].sizes({**SMALL, "weights_seed": 5})
    weights = weights_of("bert_tiny", sizes, None)
    write_safetensors(tmp_path / "model.safetensors", {f"bert.{key}": one for key, one in weights.items()})
    with serving(tmp_path / "run", name="bert_tiny", weights=str(tmp_path), **CPU) as (_, endpoint):
        check("bert_tiny", "fp32", endpoint, 5, weights)


def test_weights_that_do_not_fit_are_told_before_the_server_starts(tmp_path: Path) -> None:
    weights = weights_of("bert_tiny", ENCODERS["bert_tiny"].sizes(SMALL), None)
    write_safetensors(tmp_path / "model.safetensors", weights)
    keys: dict[str, Any] = {**CPU, "settings": {**SMALL, "hidden": 64}}
    server = server_of(tmp_path / "run", name="bert_tiny", weights=str(tmp_path), **keys)
    with pytest.raises(
        ScenarioError, match=r"^model.weights: .* of other sizes: set model.settings to hidden: 32$"
    ):
        server.start()
    assert server.pids() == []


@pytest.mark.slow
def test_a_model_that_answers_wrongly_does_not_load_and_says_so(tmp_path: Path) -> None:
    weights = weights_of("bert_tiny", ENCODERS["bert_tiny"].sizes(SMALL), None)
    weights["embeddings.LayerNorm.bias"][3] = np.nan  # what is served then is never right
    write_safetensors(tmp_path / "model.safetensors", weights)
    server = server_of(tmp_path / "run", name="bert_tiny", weights=str(tmp_path), **CPU)
    with pytest.raises(TargetError, match=r"bert_tiny: what is to be served in fp32 differs .* by nan times"):
        server.start()
    assert server.pids() == []


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_encoder_gives_the_reference_answer(tmp_path: Path) -> None:
    patient: dict[str, Any] = {**CPU, "start_timeout": "300s"}  # it compiles on the cores of other tests
    with serving(tmp_path, name="bert_tiny", compile=True, **patient) as (_, endpoint):
        for rows in (8, 5, 2):
            check("bert_tiny", "fp32", endpoint, rows)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_a_run_of_an_encoder_checks_every_reply_and_says_what_its_weights_are(
    alone: Bench, protocol: str
) -> None:
    mapping = scenario_mapping(
        model={"name": "bert_tiny", "queue_delay": "1ms", **CPU},
        clients={
            "workers_per_node": 1, "timeout": "20s", "protocol": protocol, "payload_variants": 16,
            "rows": {"kind": "uniform", "low": 1, "high": 4}, "check": {"share": 1.0},
        },
        phases=[
            {"name": "main", "kind": "measure", "duration": "2s", "arrivals": {"kind": "poisson", "rate": "60/s"}},
            {"name": "drain", "kind": "drain", "duration": "20s"},
        ],
    )  # fmt: skip
    live = alone.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert unmet(store) == []
    rows = planned_rows(store)
    assert rows["request_id"]
    assert set(rows["outcome"]) == {"ok"}
    assert any(
        "bert_tiny: seeded random weights of the exact architecture" in note for note in store.manifest.notes
    )


@needs_gpu
@pytest.mark.parametrize(
    "keys", [{}, {"cuda_graphs": True}, {"pinned": False}], ids=["eager", "graphs", "pageable"]
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_on_a_gpu_gives_the_reference_answer(
    tmp_path: Path, name: str, precision: str, keys: dict[str, Any]
) -> None:
    keys = {"settings": SMALL, "max_batch_size": 24, "framework": "torch", "instances": 2, **keys}
    with serving(tmp_path, name=name, precision=precision, preferred_batch_sizes=[12], **keys) as (
        _,
        endpoint,
    ):
        for rows in (12, 5, 2, 9):
            check(name, precision, endpoint, rows)


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_tiny", *HEADS])
def test_a_compiled_model_loads_on_a_gpu(tmp_path: Path, name: str) -> None:
    """That it is ready says that its answers are the module's."""
    settings = SMALL if name in ENCODERS else {"width": 64, "layers": 3}
    keys = {
        "settings": settings,
        "max_batch_size": 24,
        "framework": "torch",
        "compile": True,
        "cuda_graphs": True,
    }
    with serving(tmp_path, name=name, precision="fp16", **keys) as (_, endpoint):
        assert endpoint.models[0].spec.name == name
