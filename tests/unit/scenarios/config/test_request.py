"""`clients.request`: what it may say, and that it says it once."""

from __future__ import annotations

from typing import Any

from squall.cluster.driver.payload_wires import request_options
from squall.scenarios.config.clients.request import LARGEST_PRIORITY
from squall.scenarios.config.loader import make_scenario, scenario_from_mapping
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


def test_an_option_may_be_set_where_there_was_none() -> None:
    given = make_scenario(scenario_of({}), {"clients.request.priority": 2, "clients.request.outputs": ["a"]})
    assert given.clients.request is not None
    assert (given.clients.request.priority, given.clients.request.outputs) == (2, ("a",))
