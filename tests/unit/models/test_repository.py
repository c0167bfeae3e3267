"""The model repository that is written: config.pbtxt of every backend, read by the protobuf that Triton's clients have
of its configuration, and the files of a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from squall.models.encoders import weights_of
from squall.models.repository import Serving, config_pbtxt, graph_sizes, write_repository, zoo_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError
from tests.unit.models.cases import cases
from tests.unit.models.test_checkpoint import write_safetensors
from tests.unit.models.test_encoders import SMALL, small_sizes

HEAD = {"name": "linear_head", "settings": {"width": 16, "layers": 3, "classes": 2}}
ENCODER = {"name": "bert_tiny", "framework": "torch", "settings": SMALL}


def parsed(text: str) -> Any:
    """Raises where a field is not one of Triton's."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def config_of(keys: dict[str, Any], **serving: Any) -> Any:
    model = ModelConfig.model_validate(keys)
    return parsed(config_pbtxt(zoo_spec(model)[0], model, Serving(**serving)))


def parameters_of(folder: Path) -> dict[str, str]:
    """Those of the configuration that was written to the folder of a model."""
    config = parsed((folder / "config.pbtxt").read_text())
    return {key: value.string_value for key, value in config.parameters.items()}


@pytest.mark.parametrize(("keys", "serving", "expected"), cases("test_a_configuration_is_what_is_asked_for"))
def test_a_configuration_is_what_is_asked_for(
    keys: dict[str, Any], serving: dict[str, Any], expected: str
) -> None:
    assert config_of(keys, **serving) == parsed(expected)


def test_every_batch_has_one_cuda_graph_and_it_is_the_next_larger() -> None:
    sizes = graph_sizes(50, (12,))
    assert sizes == (1, 2, 4, 8, 12, 16, 32, 50)
    assert (graph_sizes(1, ()), graph_sizes(2, ())) == ((1,), (1, 2))
    config = config_of({**HEAD, "framework": "torch"}, backend="tensorrt", graph_sizes=sizes)
    ranges = [
        range(one.graph_lower_bound.batch_size, one.batch_size + 1)
        for one in config.optimization.cuda.graph_spec
    ]
    for rows in range(1, 51):
        assert [one[-1] for one in ranges if rows in one] == [min(size for size in sizes if size >= rows)]


@pytest.mark.parametrize(
    ("keys", "files", "computed", "others"), cases("test_what_computes_a_model_is_what_the_scenario_says")
)
def test_what_computes_a_model_is_what_the_scenario_says(
    tmp_path: Path, keys: dict[str, Any], files: list[str], computed: dict[str, Any], others: dict[str, str]
) -> None:
    model = ModelConfig.model_validate(keys)
    write_repository(tmp_path, model, None)
    folder = tmp_path / model.name
    assert sorted(path.name for path in (folder / "1").iterdir()) == files
    parameters = parameters_of(folder)
    assert json.loads(parameters.pop("forward")) == {
        **computed,
        "head": model.name,
        "sizes": zoo_spec(model)[1],
    }
    assert parameters == others


def test_the_weights_of_an_encoder_are_read_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_safetensors(file, weights_of("bert_tiny", small_sizes("bert_tiny"), None))
    model = ModelConfig.model_validate({**ENCODER, "version": "2", "weights": str(tmp_path)})
    write_repository(tmp_path, model, tmp_path / "rec")
    assert (tmp_path / "bert_tiny" / "2" / "checkpoint.py").is_file()
    parameters = parameters_of(tmp_path / "bert_tiny")
    assert (parameters["weights"], parameters["record_dir"]) == (str(file), str(tmp_path / "rec"))


@pytest.mark.parametrize(("keys", "why"), cases("test_what_a_model_cannot_have_is_refused"))
def test_what_a_model_cannot_have_is_refused(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        write_repository(tmp_path, ModelConfig.model_validate({**ENCODER, **keys}), None)
