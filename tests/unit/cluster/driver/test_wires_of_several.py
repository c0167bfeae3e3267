"""What several models cannot be loaded with is refused by the model's name, when the server has said what it is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from squall.actors.load.streams import StreamRule
from squall.cluster.driver.payload_wires import stream_rule
from squall.models.spec import ModelSpec, TensorSpec
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
    mapping = {"name": "x", "seed": 1, "models": models, "phases": phases, **more}
    return scenario_from_mapping(mapping, "test")


def test_models_that_answer_once_and_keep_nothing_are_loaded_together() -> None:
    assert stream_rule(scenario(), SPECS) is None


def test_a_stateful_model_is_loaded_alone() -> None:
    specs = [SPECS[0], replace(SPECS[1], is_stateful=True)]
    with pytest.raises(ScenarioError) as raised:
        stream_rule(scenario(), specs)
    assert str(raised.value) == (
        "models.text: it is stateful, and such a model is loaded alone; use model instead of models"
    )


WORDS = TensorSpec("words", "BYTES", (-1,))
WRITER = ModelSpec("text", "1", (), (WORDS,), 8, is_decoupled=True)


def test_beside_a_decoupled_model_all_answer_response_by_response() -> None:
    """Its tokens are counted, the other has none."""
    rule = stream_rule(scenario(clients={"stream": {"tokens": "words"}}), [SPECS[0], WRITER])
    assert rule is not None
    assert [rule.tokens_of(spec) for spec in (SPECS[0], WRITER)] == [None, "words"]
    assert stream_rule(scenario(), [SPECS[0], WRITER]) == StreamRule()
    assert stream_rule(scenario(clients={"stream": True}), SPECS) == StreamRule()


@pytest.mark.parametrize(
    ("own", "where"),
    [({"clients": {"request": {"priority": 1}}}, "clients"), ({"request": {"priority": 1}}, "models[1]")],
)
def test_what_generate_stream_does_not_carry_is_named_where_it_stands(
    own: dict[str, Any], where: str
) -> None:
    of_clients = own.pop("clients", {})
    models = [{"name": "dense"}, {"name": "text", **own}]
    asked = scenario(models=models, clients=of_clients)
    with pytest.raises(
        ScenarioError, match=rf"^{re.escape(where)}\.request\.priority: generate_stream takes"
    ):
        stream_rule(asked, [SPECS[0], WRITER])


def test_tokens_that_no_model_has_are_refused() -> None:
    with pytest.raises(ScenarioError) as raised:
        stream_rule(
            scenario(clients={"stream": {"tokens": "ids"}}), [replace(SPECS[0], outputs=(WORDS,)), WRITER]
        )
    assert str(raised.value) == (
        "clients.stream.tokens: model dense has no output 'ids', it has words; model text has no output 'ids', it has"
        " words"
    )


def test_a_first_response_is_promised_of_models_that_answer_so() -> None:
    promised = {"promises": {"first_response": "p(95)<1s"}}
    with pytest.raises(ScenarioError, match=r"^promises\.first_response: the models answer with one reply"):
        stream_rule(scenario(**promised), SPECS)
    assert stream_rule(scenario(**promised), [SPECS[0], WRITER]) is not None
