"""Whether cells can be run at all, as far as no server is needed to tell: what a run would refuse at its start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from squall.cluster.driver.intent import describe_plan, refuse_empty, refuse_strange_head
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiment import Cell
from squall.scenarios.run_plan import plan_run


def refuse_unrunnable(cells: Iterable[Cell], path: Path) -> None:
    """Raises ScenarioError, one line that names the cell, for a head of the zoo that is not there, or not with these
    settings, and for a load that cannot be planned. Each load is planned once, with the first seed."""
    planned: set[str] = set()
    for cell in cells:
        try:
            refuse_strange_head(cell.scenario)
            load = _load_of(cell.scenario)
            if load not in planned:
                refuse_empty(describe_plan(plan_run(cell.scenario, cell.scenario.servers)))
                planned.add(load)
        except ScenarioError as error:
            raise ScenarioError(f"{path}: cell {cell.label}: {error}") from error


def _load_of(scenario: Scenario) -> str:
    """Equal for scenarios that differ in their model and promises at most."""
    mapping = scenario.to_mapping()
    return json.dumps(
        {key: value for key, value in mapping.items() if key not in ("model", "promises")}, sort_keys=True
    )
