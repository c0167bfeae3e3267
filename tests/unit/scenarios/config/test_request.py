"""`clients.request`: what it may say, and that it says it once."""

from __future__ import annotations

from typing import Any

import pytest

from squall.cluster.driver.payload_wires import request_options
from squall.scenarios.config.clients.request import LARGEST_PRIORITY
from squall.scenarios.config.loader import make_scenario, scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from tests.unit.scenarios.config.test_client_options import scenario_of

PARAMETERS = {
    "lang": "de",
    "top_k": 50,
    "low": -(2**63),
    "is_long": True,
    "is_odd": False,
    "t": 0.5,
    "one": 1.0,
}


def test_options_are_written_as_they_were_given() -> None:
    given: dict[str, Any] = {
        "outputs": ["b", "a"], "parameters": PARAMETERS, "priority": 2, "timeout": "1500us", "binary": True,
    }  # fmt: skip
    scenario = scenario_of({"request": given})
    assert scenario.to_mapping()["clients"]["request"] == given
    again = scenario_from_mapping(scenario.to_mapping(), "again")
    assert again == scenario
    assert again.clients.request is not None
    parameters = again.clients.request.parameters
    assert {name: type(value) for name, value in parameters.items()} == {
        name: type(value) for name, value in PARAMETERS.items()
    }


def test_without_options_a_scenario_is_what_it_was() -> None:
    assert scenario_of({"request": None}).digest() == scenario_of({}).digest()
    assert "request" not in scenario_of({}).to_mapping()["clients"]
    assert request_options(scenario_of({}).clients).parameters == {}


def test_priority_and_timeout_travel_as_parameters() -> None:
    sent = request_options(
        scenario_of(
            {"request": {"parameters": {"x": 1}, "priority": LARGEST_PRIORITY, "timeout": "2ms"}}
        ).clients
    )
    assert sent.parameters == {"x": 1, "priority": LARGEST_PRIORITY, "timeout": 2_000}
    assert sent.is_binary


def test_requests_of_sequences_are_not_compressed() -> None:
    given = {"request": {"compression": "gzip"}}
    assert request_options(scenario_of(given).clients).is_gzip
    with pytest.raises(
        ScenarioError, match=r"clients: request\.compression: requests of sequences are not compressed"
    ):
        scenario_of({**given, "sequences": {"length": 3, "concurrent": 2}})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"compression": "deflate"}, "clients.request.compression: 'deflate'"),
        ({"outputs": []}, "clients.request.outputs: [] is empty, it needs at least one entry"),
        ({"outputs": ["a", "a"]}, "clients.request.outputs: 'a' is named twice"),
        ({"outputs": "a"}, "clients.request.outputs: 'a' is not a list"),
        ({"priority": 0}, "clients.request.priority: 0 must be at least 1"),
        ({"priority": 65_536}, "clients.request.priority: 65536 must be at most 65535"),
        ({"timeout": "0s"}, "clients.request.timeout: '0s' must be above 0"),
        ({"timeout": "1500ns"}, "clients.request.timeout: must be whole microseconds, as Triton counts it"),
        ({"timeout": 5}, "clients.request.timeout: 5"),
        ({"parameters": {"timeout": 5}}, "clients.request.parameters: timeout: is clients.request.timeout"),
        (
            {"parameters": {"priority": 5}},
            "clients.request.parameters: priority: is clients.request.priority",
        ),
        ({"parameters": {"sequence_id": 5}}, "sequence_id: is clients.sequences"),
        ({"parameters": {"triton_x": 5}}, "triton_x: Triton keeps names that begin with triton_ for itself"),
        ({"parameters": {"binary_data_output": True}}, "binary_data_output: is clients.request.binary"),
        ({"parameters": {"x": 2**63}}, f"x: {2**63} is no text, true, false, whole number of 64 bits"),
        ({"parameters": {"x": float("nan")}}, "x: nan is no text"),
        ({"parameters": {"x": [1]}}, "x: [1] is no text"),
        ({"parameters": {"x": None}}, "x: None is no text"),
        ({"parameters": [1]}, "clients.request.parameters: [1] is not a mapping"),
        ({"output": ["a"]}, "clients.request.output: unknown key, did you mean 'outputs'?"),
    ],
)
def test_a_wrong_option_is_one_line(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_of({"request": request_})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_may_be_set_where_there_was_none() -> None:
    given = make_scenario(scenario_of({}), {"clients.request.priority": 2, "clients.request.outputs": ["a"]})
    assert given.clients.request is not None
    assert (given.clients.request.priority, given.clients.request.outputs) == (2, ("a",))


def test_json_is_of_http() -> None:
    assert not request_options(scenario_of({"request": {"binary": False}}).clients).is_binary
    with pytest.raises(
        ScenarioError, match=r"clients: request.binary: false is for protocol http, gRPC carries"
    ):
        scenario_of({"protocol": "grpc", "request": {"binary": False}})
