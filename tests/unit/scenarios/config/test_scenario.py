"""The scenario: defaults, the resolved mapping, the digest."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.arrivals.varying import AnyShape, EnvelopeArrivals
from squall.scenarios.config.clients.rows import RowsConfig
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.strict_yaml import parse_yaml

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
    second, pareto = {"kind": "exponential", "mean": "1s"}, {"kind": "pareto", "mean": "90ms", "alpha": 1.5}
    curve = {"kind": "envelope", "rate": "0.1/s", "curve": [1, 0.5], "bin": "10s"}
    states = [{"level": 3, "stay": "1s"}, {"level": 0.5, "stay": "250ms"}]
    trace = {"kind": "trace", "file": "a.csv", "unit": "ms", "quantum": "spread", "quantum_width": "3s"}
    shapes: list[dict[str, Any]] = [
        {"kind": "piecewise", "points": [{"at": "1s", "level": 1.0}, {"at": "1s", "level": 0.1}]},
        {"kind": "ramp", "from": 0.1, "to": 2, "over": "3s"},
        {"kind": "ramp", "from": 0.1, "to": 2},
        {"kind": "step", "at": "3s", "factor": 0},
        {"kind": "spike", "at": "3s", "width": "1ms", "factor": 9},
        {"kind": "pulses", "width": "1s", "period": "3s", "factor": 9},
        {"kind": "diurnal", "peak": 1.5, "period": "24h", "peak_at": "15h"},
        {"kind": "log-ar1", "sigma": 0.3, "tau": "1m", "bin": "1s"},
        {"kind": "fgn", "sigma": 0.3, "hurst": 0.8, "bin": "1s"},
        trace | {"bin": "30s", "time_scale": "7/3"},
    ]
    scales: list[dict[str, Any]] = [
        {"kind": "thin", "keep": 0.25},
        {"kind": "thin-by-session", "keep": 1},
        {"kind": "overlap", "copies": 3},
        {"kind": "replicate", "copies": 3, "jitter": "2ms"},
        {"kind": "envelope", "factor": 2.5, "bin": "30s"},
    ]
    kinds: list[dict[str, Any]] = [
        *[parse_yaml(section.example, "example") for section in get_args(OpenArrivals)],
        {"kind": "constant", "rate": "1/h"},
        {"kind": "poisson", "rate": "7/min"},
        {"kind": "gamma", "rate": "3 kHz", "cv": 1.5},
        {"kind": "gamma", "rate": "3/s", "burstiness": 0.25},
        {"kind": "weibull", "rate": "3/s", "shape": 0.5},
        {"kind": "pareto", "rate": "3/s", "cv": 2},
        {"kind": "hawkes", "rate": "3/s", "preset": "nasa-web"},
        {"kind": "mmpp", "rate": "3/s", "states": states},
        {"kind": "mmpp", "rate": "3/s", "states": states, "jumps": [[0, 1], [1, 0]]},
        {"kind": "mmpp", "rate": "3/s", "preset": "nasa-web"},
        {"kind": "on-off", "rate": "3/s", "sources": 9, "on": pareto, "off": second},
        {"kind": "fgn", "rate": "3/s", "hurst": 0.9, "sigma": 0.5, "bin": "2s"},
        {"kind": "fgn", "rate": "3/s", "preset": "nasa-web"},
        {"kind": "b-model", "rate": "3/s", "preset": "nasa-web", "bin": "250ms"},
        {"kind": "clients", "rate": "3/s", "preset": "servegen-large"},
        trace,
        trace
        | {"start": "1h", "length": "30m", "repair": ["sort"], "column": "at", "loop": True, "format": "csv"},
        *[trace | {"rate_scale": scale} for scale in scales],
        curve | {"residual": {"kind": "gamma", "cv": 1.2}},
        curve | {"residual": {"kind": "hawkes", "n": 0.3, "beta": 1.0}},
        curve | {"residual": {"kind": "poisson"}},
        {"kind": "envelope", "rate": "5/s", "preset": "azure-conversation"},
        *[{"kind": "envelope", "rate": "5/s", "shape": shape} for shape in shapes],
        {"kind": "superpose", "parts": [{"kind": "poisson", "rate": "1/s"}, curve, trace]},
        {
            "kind": "concatenate",
            "parts": [
                {"duration": "2s", "arrivals": {"kind": "superpose", "parts": [curve]}},
                {"duration": "1500ms", "arrivals": {"kind": "poisson", "rate": "1/s"}},
            ],
        },
    ]
    rows: list[dict[str, Any] | None] = [
        None,
        {"kind": "uniform", "low": 2, "high": 5},
        {"kind": "lognormal", "mean": 2, "cv": 1, "max": 9},
        {"kind": "zipf", "exponent": 1.2, "max": 9},
        {"kind": "empirical", "values": [3, 9], "weights": [0.5, 0]},
        {"kind": "empirical", "file": "b.csv", "size": "tokens", "per_row": 100, "max": 9},
    ]
    phases = [
        {
            "name": f"m{index}",
            "kind": "measure",
            "duration": "7s",
            "arrivals": arrivals,
            "rows": rows[index % 6],
        }
        for index, arrivals in enumerate(kinds)
    ]
    trace_rows = {"kind": "trace", "size": "tokens", "per_row": 32.5, "max": 7}
    phases.append({"name": "t", "kind": "measure", "duration": "7s", "arrivals": trace, "rows": trace_rows})
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


def test_the_full_scenario_has_every_kind_of_arrivals_shape_and_rows() -> None:
    phases = full().phases
    parts = [part for phase in phases if phase.arrivals for part in (phase.arrivals,)]
    kinds = {get_args(config.model_fields["kind"].annotation)[0] for config in get_args(OpenArrivals)}
    assert {part.kind for part in parts} == kinds
    shapes = {get_args(shape.model_fields["kind"].annotation)[0] for shape in get_args(get_args(AnyShape)[0])}
    found = [part.shape for part in parts if isinstance(part, EnvelopeArrivals)]
    assert {shape.kind for shape in found if shape is not None} == shapes
    rows = {get_args(law.model_fields["kind"].annotation)[0] for law in get_args(get_args(RowsConfig)[0])}
    assert {full().rows_of(phase).kind for phase in phases} | {"constant"} == rows


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
    assert (scenario.profile.nsys, scenario.profile.triton_interval_ns) == ("off", 100_000_000)


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
        "832db60d1a87a9427beca8e7f085b9ae7bed18ce02738e6b6ce770cd1e316c0a"
    )


def test_the_digest_sees_the_seed() -> None:
    digests = {scenario_from_mapping(mapping(seed=seed), "small").digest() for seed in (0, 1, 2**70)}
    assert len(digests) == 3


def test_a_scenario_cannot_be_changed() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    with pytest.raises(ValidationError, match="frozen"):
        scenario.seed = 1  # type: ignore[misc]
