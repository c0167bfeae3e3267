"""What `generate_stream` carries of `clients.request`."""

from __future__ import annotations

from typing import Any

import pytest

from squall.cluster.driver.payloads.wires import stream_rule
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError
from tests.unit.scenarios.config.test_client_options import scenario_of

SPEC = ModelSpec("m", "1", (TensorSpec("x", "INT32", (1,)),), (TensorSpec("y", "INT32", (1,)),), 8)


@pytest.mark.parametrize(
    ("key", "value"),
    [("priority", 1), ("timeout", "2ms"), ("binary", False), ("compression", "gzip")],
)
def test_what_it_does_not_carry_is_named(key: str, value: Any) -> None:
    request = {key: value, "parameters": {"lang": "de"}, "outputs": ["y"]}
    with pytest.raises(ScenarioError, match=rf"clients\.request\.{key}: generate_stream takes outputs and"):
        stream_rule(scenario_of({"stream": True, "request": request}), [SPEC])
    if key != "binary":
        assert stream_rule(scenario_of({"stream": True, "request": request, "protocol": "grpc"}), [SPEC])


def test_outputs_and_parameters_it_carries() -> None:
    request = {"parameters": {"lang": "de"}, "outputs": ["y"]}
    assert stream_rule(scenario_of({"stream": True, "request": request}), [SPEC])
