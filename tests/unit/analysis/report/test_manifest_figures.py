"""What a run states of its collectors and its profiler, from whatever its manifest has, in words and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.report.collector_costs import NOT_MEASURED, CollectorCosts, collector_costs
from squall.analysis.report.profile_figures import latency_under, profile_figures
from squall.analysis.report.templates import sentences
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.verdict.profiling import ProfilingCost

CASES = yaml.safe_load((Path(__file__).parent / "manifests.yaml").read_text())


@pytest.mark.parametrize("case", CASES["profiles"], ids=str)
def test_a_profile_is_told_phase_by_phase(case: dict[str, Any]) -> None:
    manifest = read_manifest(case["manifest"])
    figures, under = profile_figures(manifest), latency_under(manifest)
    assert (sentences("profile", figures, under) if figures else []) == case["told"]
    assert (dict(under.unrecorded) if under else None) == case.get("unrecorded")
    assert under is None or under.profiler == "nsys"


@pytest.mark.parametrize("case", CASES["costs"], ids=str)
def test_costs_are_cpu_over_wall_and_what_is_missing_is_none(case: dict[str, Any]) -> None:
    costs = collector_costs(read_manifest(case["manifest"]))
    assert sentences("costs", costs) == [*case["told"], NOT_MEASURED]
    for name, by_place in case.get("figures", {}).items():
        for place, expected in by_place.items():
            found = getattr(costs, name)[place]
            assert {key: getattr(found, key) for key in expected} == pytest.approx(expected)
    assert ("figures" in case) is (costs != CollectorCosts(None, None, NOT_MEASURED))


def test_a_measured_cost_replaces_the_hint() -> None:
    measured = ProfilingCost((), None, "profiling changed p99 by +1.0 %")
    assert sentences("costs", collector_costs(read_manifest({}), measured)) == [
        "profiling changed p99 by +1.0 %"
    ]
