"""The plan of a run with its servers: drawn, and routed to as many as there are; or Locust's."""

from __future__ import annotations

from collections.abc import Sequence

from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.locust_plan import LocustPlan, read_locust_files
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.drafting import lay_out, plan_closed, plan_scenario
from squall.scenarios.plan.plan import Plan
from squall.scenarios.plan.route import route

RunPlan = Plan | ClosedPlan | LocustPlan
"""Of a whole run."""


def plan_run(scenario: Scenario, entries: Sequence[ServerEntry] | None) -> RunPlan:
    """The plan of the whole run, the same wherever it is made. `entries`: one for each server in its order; None: it is
    not known yet how many there are, and `routed` is to follow. Raises as `plan_scenario`, `route` and
    `read_locust_files` do.
    """
    if scenario.load is not None:
        config = scenario.load.locust
        return LocustPlan(config, read_locust_files(config), lay_out(scenario.phases))
    plan = plan_closed(scenario) if scenario.is_closed else plan_scenario(scenario)
    return plan if entries is None else routed(plan, scenario, entries)


def routed(plan: RunPlan, scenario: Scenario, entries: Sequence[ServerEntry]) -> RunPlan:
    """A plan that is not routed yet, with the server of each arrival; Locust's as it is. Raises as `route` does."""
    routing, weights = scenario.clients.routing, [entry.weight for entry in entries]
    served = scenario.served_at(len(entries))
    if isinstance(plan, LocustPlan):
        return plan
    return route(plan, routing, weights, scenario.seed, served)
