"""The plan of a run with its servers: drawn, and routed to as many as there are."""

from __future__ import annotations

from collections.abc import Sequence

from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.drafting import is_closed, plan_closed, plan_scenario
from squall.scenarios.plan.plan import Plan
from squall.scenarios.plan.route import route, route_closed


def plan_run(scenario: Scenario, entries: Sequence[ServerEntry] | None) -> Plan | ClosedPlan:
    """The plan of the whole run, the same wherever it is made. `entries`: one for each server in its order; None: it is
    not known yet how many there are, and the plan is not routed. Raises as `plan_scenario` and `route` do.
    """
    routing, weights = scenario.clients.routing, [entry.weight for entry in entries or ()]
    if is_closed(scenario):
        closed = plan_closed(scenario)
        return route_closed(closed, routing, weights, scenario.seed) if weights else closed
    plan = plan_scenario(scenario)
    return route(plan, routing, weights, scenario.seed) if weights else plan
