"""What a run is about to send: the plan's section of the manifest, and the lines on the screen before the start."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.figures import series_figures
from analysis.wording import count_text, intended_lines
from scenarios.closed import ClosedPlan
from scenarios.errors import ScenarioError
from scenarios.plan import Plan


def describe_plan(plan: Plan | ClosedPlan) -> dict[str, Any]:
    """What the manifest says of a plan; how many requests a closed loop sends is known at its end."""
    if isinstance(plan, ClosedPlan):
        return {"load": "closed", "n_users": plan.n_users, "n_arrivals": 0, "sha256": plan.sha256()}
    edges = np.searchsorted(plan.phase, np.arange(len(plan.spans) + 1, dtype=np.uint8)).tolist()
    counts = {
        span.name: last - first
        for span, (first, last) in zip(plan.spans, pairwise(edges), strict=True)
        if span.kind != "drain"
    }
    stimulus = {
        span.name: series_figures(plan.offset_ns, span.start_ns, span.end_ns)
        for span in plan.spans
        if span.kind == "measure"
    }
    sha256 = plan.sha256()
    return {
        "load": "open", "n_arrivals": len(plan), "sha256": sha256, "n_by_phase": counts, "stimulus": stimulus
    }  # fmt: skip


def refuse_empty(plan: Mapping[str, Any]) -> None:
    """Raises ScenarioError for a schedule, from `describe_plan`, that measures nothing."""
    if plan["load"] == "open" and not any(figures["n"] for figures in plan["stimulus"].values()):
        raise ScenarioError(
            f"phases: no arrival falls into {' or '.join(plan['stimulus'])}; use a higher rate, a longer phase or"
            " another seed"
        )


def announce(plan: Mapping[str, Any]) -> list[str]:
    """What the run is about to send, from `describe_plan`: the burstiness of each measure phase, and the digest."""
    digest = f"sha256 {plan['sha256'][:12]}"
    if plan["load"] == "closed":
        return [f"closed loop of {count_text(plan['n_users'])} users: no schedule; plan {digest}"]
    lines = [line for phase, figures in plan["stimulus"].items() for line in intended_lines(phase, figures)]
    return [*lines, f"schedule of {count_text(plan['n_arrivals'])} arrivals, {digest}"]
