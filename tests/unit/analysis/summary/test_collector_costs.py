"""What a run states about the cost of its collectors, from whatever its manifest has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.compare.overhead import evaluate
from squall.analysis.render.templates import sentences
from squall.analysis.summary.collector_costs import NOT_MEASURED, CollectorCosts, collector_costs
from squall.analysis.tables.manifest import read_manifest

S = 1_000_000_000
MANIFEST: dict[str, Any] = {
    "observers": {
        "node-0": {
            "cpu_ns": S // 10, "wall_ns": 20 * S,
            "samplers": {
                "host_samples": {"cpu_ns": S // 50, "n_ticks": 20, "n_late": 1},
                "triton_samples": {"cpu_ns": S // 20, "wall_ns": 10 * S, "n_ticks": 100, "n_late": 0},
            },
        }
    },
    "nsys": {
        "version": "2022.4.2",
        "steps": [
            {"phase": "burst", "step": "start", "seconds": 0.11, "cpu_s": 0.1},
            {"phase": "burst", "step": "record", "seconds": 10.0, "cpu_s": 1.0},
            {"phase": "burst", "step": "stop", "seconds": 6.0, "cpu_s": 5.0},
            {"phase": "burst", "step": "export", "seconds": 1.5, "cpu_s": 1.0},
        ],
        "reports": {"burst": {"report_bytes": 2_500_000}},
    },
}  # fmt: skip


def test_shares_of_a_core_are_cpu_over_wall() -> None:
    costs = collector_costs(read_manifest(MANIFEST))
    observer = (costs.observers or {})["node-0"]
    assert observer.core_ratio == pytest.approx(0.005)
    assert observer.sources == pytest.approx({"host_samples": 0.001, "triton_samples": 0.005})
    assert (observer.n_ticks, observer.n_late) == (120, 1)
    assert (costs.nsys or {})["burst"].core_ratio == pytest.approx(0.1), "while it recorded"
    assert sentences("costs", costs) == [
        "observer of node-0: 0.50 % of a core (host_samples 0.10 %, triton_samples 0.50 %); 1 of 120 samples late",
        "nsys in burst: 10.0 % of a core, start 110 ms, stop 6.00 s, export 1.50 s, report 2.5 MB",
        NOT_MEASURED,
    ]


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"observers": {}, "nsys": {}},
    ],
)
def test_a_manifest_without_facts_states_that_nothing_is_known(manifest: dict[str, Any]) -> None:
    costs = collector_costs(read_manifest(manifest))
    assert costs == CollectorCosts(None, None, NOT_MEASURED)
    assert sentences("costs", costs) == [NOT_MEASURED]


def test_facts_that_are_missing_are_none_and_not_zero() -> None:
    stated = {
        "observers": {"node-0": {"cpu_ns": 5}},
        "nsys": {"steps": [{"phase": "burst", "step": "start", "seconds": 0.1}]},
    }
    costs = collector_costs(read_manifest(stated))
    assert (costs.observers or {})["node-0"].core_ratio is None
    assert (costs.nsys or {})["burst"].core_ratio is None
    assert (costs.nsys or {})["burst"].stop_s is None


def test_a_measured_cost_replaces_the_hint(tmp_path: Path) -> None:
    measured = replace(evaluate(tmp_path, [], 0), verdict="profiling changed p99 by +1.0 %")
    costs = collector_costs(read_manifest(MANIFEST), measured)
    assert sentences("costs", costs)[-1] == "profiling changed p99 by +1.0 %"
