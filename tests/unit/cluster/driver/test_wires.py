"""What `generate_stream` carries of `clients.request`."""

from __future__ import annotations

from typing import Any

import pytest

from squall.cluster.driver.payload_wires import asked_of, stream_rule
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError
from tests.unit.scenarios.config.given import scenario_of

SPEC = ModelSpec("m", "1", (TensorSpec("x", "INT32", (1,)),), (TensorSpec("y", "INT32", (1,)),), 8)


@pytest.mark.parametrize(
    ("key", "value"),
    [("priority", 1), ("timeout", "2ms"), ("binary", False), ("compression", "gzip")],
)
def test_what_it_does_not_carry_is_named(key: str, value: Any) -> None:
    request = {key: value, "parameters": {"lang": "de"}, "outputs": ["y"]}
    with pytest.raises(ScenarioError, match=rf"clients\.request\.{key}: generate_stream takes outputs and"):
        stream_rule(scenario_of(clients={"stream": True, "request": request}), [SPEC])
    if key != "binary":
        assert stream_rule(
            scenario_of(clients={"stream": True, "request": request, "protocol": "grpc"}), [SPEC]
        )


def test_outputs_and_parameters_it_carries() -> None:
    request = {"parameters": {"lang": "de"}, "outputs": ["y"]}
    assert stream_rule(scenario_of(clients={"stream": True, "request": request}), [SPEC])


@pytest.mark.parametrize(("priority", "is_there"), [(1, True), (2, True), (3, False)])
def test_a_priority_that_the_model_has_not_is_told(priority: int, is_there: bool) -> None:
    config = {
        "name": "m", "max_batch_size": 8, "dynamic_batching": {"priority_levels": "2", "default_priority_level": "1"},
    }  # fmt: skip
    scenario = scenario_of(clients={"request": {"priority": priority}})
    assert asked_of(scenario.models[0], SPEC) == SPEC  # which states none
    spec = ModelSpec.from_config(config, "1")
    if is_there:
        assert asked_of(scenario.models[0], spec) == spec
        return
    with pytest.raises(
        ScenarioError, match=r"^clients\.request\.priority: 3, and model m has 1 to 2: Triton takes"
    ):
        asked_of(scenario.models[0], spec)
