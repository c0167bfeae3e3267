"""The scenario: defaults, the resolved mapping, the digest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from scenarios.loader import scenario_from_mapping
from scenarios.scenario import Scenario

S = 1_000_000_000


def mapping(**changes: Any) -> dict[str, Any]:
    arrivals = {"kind": "poisson", "rate": "12000/min"}
    return {
        "name": "small",
        "seed": 0,
        "model": {"name": "head", "version": 3, "settings": {"width": 8}, "preferred_batch_sizes": [4, 8]},
        "phases": [
            {"name": "main", "kind": "measure", "duration": "0.5m", "arrivals": arrivals},
            {"name": "end", "kind": "drain", "duration": "1500ms"},
        ],
        **changes,
    }


def full() -> Scenario:
    """Every section and kind that can be combined, away from its defaults."""
    curve = {"kind": "envelope", "rate": "0.1/s", "curve": [1, 0.5], "bin": "10s"}
    kinds: list[dict[str, Any]] = [
        {"kind": "constant", "rate": "1/h"},
        {"kind": "gamma", "rate": "3 kHz", "cv": 1.5},
        {"kind": "gamma", "rate": "3/s", "burstiness": 0.25},
        {"kind": "trace", "file": "a.csv", "unit": "ms", "quantum": "spread", "quantum_width": "3s"},
        curve | {"residual": {"kind": "gamma", "cv": 1.2}},
        curve | {"residual": {"kind": "hawkes", "n": 0.3, "beta": 1.0}},
        curve | {"residual": {"kind": "poisson"}},
        {"kind": "envelope", "rate": "5/s", "preset": "azure-conversation"},
    ]
    phases = [
        {"name": f"m{index}", "kind": "measure", "duration": "7s", "arrivals": arrivals}
        for index, arrivals in enumerate(kinds)
    ]
    return scenario_from_mapping(
        mapping(
            server={"image": "tritonserver:25.01", "runtime": "podman", "http_port": 8000},
            clients={
                "max_in_flight": 7,
                "rows": {"kind": "pareto", "alpha": 1.5, "max": 8},
                "timeout": "123us",
            },
            phases=[*phases, {"name": "end", "kind": "drain", "duration": "1ns"}],
            profile={"nsys": "off", "osrt_threshold": "0s"},
        ),
        "full",
    )


def test_quantities_become_ns_and_hz() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    main = scenario.phases[0]
    assert main.duration_ns == 30 * S
    assert main.arrivals is not None
    assert main.arrivals.kind == "poisson"
    assert main.arrivals.rate_hz == 200.0
    assert scenario.phases[1].duration_ns == 1_500_000_000
    assert scenario.model.version == "3"
    assert scenario.model.preferred_batch_sizes == (4, 8)


def test_what_is_left_out_has_its_default() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    assert (scenario.model.queue_delay_ns, scenario.model.queue.max_size) == (0, 0)
    assert (scenario.server.url, scenario.server.start_timeout_ns) == (None, 60 * S)
    assert (scenario.clients.workers_per_node, scenario.clients.timeout_ns) == (2, 5 * S)
    assert (scenario.profile.nsys, scenario.profile.triton_interval_ns) == ("auto", 100_000_000)


@pytest.mark.parametrize("scenario", [scenario_from_mapping(mapping(), "small"), full()])
def test_the_resolved_mapping_loads_back_to_an_equal_scenario(scenario: Scenario) -> None:
    resolved = scenario.to_mapping()
    for text in (json.dumps(resolved), yaml.safe_dump(resolved)):
        again = scenario_from_mapping(yaml.safe_load(text), "again")
        assert again == scenario
        assert again.digest() == scenario.digest()


def test_the_resolved_mapping_carries_units_and_defaults() -> None:
    resolved = scenario_from_mapping(mapping(), "small").to_mapping()
    assert resolved["phases"][0]["duration"] == "30s"
    assert resolved["phases"][0]["arrivals"]["rate"] == "200/s"
    assert resolved["clients"]["rows"] == {"kind": "constant", "value": 1}
    assert resolved["profile"]["osrt_threshold"] == "100us"


def test_the_digest_does_not_depend_on_how_a_quantity_is_written() -> None:
    written = mapping()
    written["phases"][0]["duration"] = "30s"
    written["phases"][0]["arrivals"]["rate"] = "0.2 kHz"
    assert scenario_from_mapping(written, "a").digest() == scenario_from_mapping(mapping(), "b").digest()


def test_the_digest_is_stable() -> None:
    # A new default or key changes it: results are then no longer of the same scenario, and say so.
    assert scenario_from_mapping(mapping(), "small").digest() == (
        "112232688b0ee23bee34ab4d9c800c7aae070e615fb531845656a4b189b3be12"
    )


def test_the_digest_sees_the_seed() -> None:
    digests = {scenario_from_mapping(mapping(seed=seed), "small").digest() for seed in (0, 1, 2**70)}
    assert len(digests) == 3


def test_a_scenario_cannot_be_changed() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    with pytest.raises(ValidationError, match="frozen"):
        scenario.seed = 1  # type: ignore[misc]
