"""Right answers of several models, each to entries of its own data: from its own file, under the plan's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.net.access import PLAIN
from squall.cluster.driver.client_workers import Expected, expected_replies
from squall.cluster.driver.payload_packing import encoded_by_model
from squall.cluster.node.endpoint import Endpoint, ServedModel
from squall.cluster.progress import Screen
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import plan_run

VALUE = TensorSpec("IN", "FP32", (1,))
SPECS = [
    ModelSpec(name, "1", (VALUE,), (TensorSpec("OUT", "FP32", (1,)),), 8) for name in ("one", "two", "three")
]
ENDPOINT = Endpoint(
    "http://127.0.0.1:9", PLAIN, 8001, None, "url", "2.51.0", tuple(map(ServedModel, SPECS)), False,
)  # fmt: skip
N_ENTRIES = (5, 7, 3)


def model_of(folder: Path, number: int, check: dict[str, Any] | None) -> dict[str, Any]:
    """Entry *k* of model *n* is 100 n + k, its right answer half of it more."""
    name = SPECS[number].name
    values = [[100.0 * number + entry] for entry in range(N_ENTRIES[number])]
    document = {
        "data": [{"IN": value} for value in values],
        "validation_data": [{"OUT": [value[0] + 0.5]} for value in values],
    }
    (folder / f"{name}.json").write_text(json.dumps(document))
    answers: Any = {f"OUT/1/{entry}": np.array([[value[0] + 0.5]]) for entry, value in enumerate(values)}
    np.savez(folder / f"{name}.npz", **answers)
    data = {"path": str(folder / f"{name}.json"), "order": "random"}
    return {"name": name, "data": data, "repository": "/r", **({"check": check} if check is not None else {})}


def expected(folder: Path, checks: list[dict[str, Any] | None]) -> tuple[Expected, Plan]:
    (folder / "right.py").write_text("def more(inputs):\n    return {'OUT': inputs['IN'] + 0.5}\n")
    scenario = scenario_from_mapping({
        "name": "s", "seed": 3, "models": [model_of(folder, number, check) for number, check in enumerate(checks)],
        "phases": [
            {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "constant", "rate": "300/s"}},
            {"name": "d", "kind": "drain", "duration": "1s"},
        ],
    }, "s")  # fmt: skip
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, Plan)
    encoded = encoded_by_model(scenario, plan, [ENDPOINT])
    found = expected_replies(scenario, plan, 2, {"server-0": ENDPOINT}, Screen(), encoded)
    assert found is not None
    return found, plan


def test_each_models_entries_have_the_answers_of_its_own_check(tmp_path: Path) -> None:
    found, plan = expected(tmp_path, [
        {"reference": str(tmp_path / "one.json")},
        {"function": f"{tmp_path / 'right.py'}:more"},
        {"reference": str(tmp_path / "three.npz")},
    ])  # fmt: skip
    variants = np.unique(plan.variant)
    assert set(found.answers) == {(1, variant) for variant in variants.tolist()}
    assert variants.size == sum(N_ENTRIES)
    for variant, number in zip(variants.tolist(), models_of(variants, plan.models).tolist(), strict=True):
        outputs: Any = found.answers[1, variant]
        assert outputs["OUT"].ravel().tolist() == [100.0 * number + variant - plan.models[number].first + 0.5]


def test_a_file_that_lacks_an_entry_of_its_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"^models\.two: clients\.check\.reference: .*three\.npz: has no array"
    ):
        expected(tmp_path, [None, {"reference": str(tmp_path / "three.npz")}, None])
