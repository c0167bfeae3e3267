"""What several models cannot be loaded with is refused by the model's name, when the server has said what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from squall.cluster.driver.payloads.wires import stream_rule
from squall.models.spec import ModelSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError

SPECS = [ModelSpec(name, "1", (), (), 8) for name in ("dense", "text")]


def scenario(**more: Any) -> Scenario:
    phases = [
        {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
        {"name": "d", "kind": "drain", "duration": "1s"},
    ]
    models = [{"name": spec.name} for spec in SPECS]
    return scenario_from_mapping({"name": "x", "seed": 1, "models": models, "phases": phases, **more}, "test")


def test_models_that_answer_once_and_keep_nothing_are_loaded_together() -> None:
    assert stream_rule(scenario(), SPECS) is None


@pytest.mark.parametrize(
    ("change", "what"),
    [({"is_decoupled": True}, "decoupled, or a step of it is"), ({"is_stateful": True}, "stateful")],
)
def test_a_decoupled_or_stateful_model_is_loaded_alone(change: dict[str, Any], what: str) -> None:
    specs = [SPECS[0], replace(SPECS[1], **change)]
    with pytest.raises(ScenarioError) as raised:
        stream_rule(scenario(), specs)
    assert str(raised.value) == (
        f"models.text: it is {what}, and such a model is loaded alone; use model instead of models"
    )


def test_a_first_response_is_not_promised_of_several_models() -> None:
    promised = scenario(promises={"first_response": "p(95)<1s"})
    with pytest.raises(
        ScenarioError, match=r"^promises\.first_response: several models answer with one reply each"
    ):
        stream_rule(promised, SPECS)
