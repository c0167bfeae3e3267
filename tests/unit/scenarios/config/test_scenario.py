"""The scenario: defaults, the resolved mapping, the digest."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
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
    """`full.yaml`, with the example of each kind of arrivals."""
    whole = yaml.safe_load((Path(__file__).parent / "full.yaml").read_text())
    arrivals, rows = whole.pop("arrivals"), whole.pop("rows")
    arrivals += [parse_yaml(section.example, "example") for section in get_args(OpenArrivals)]
    trace_rows = {"kind": "trace", "size": "tokens", "per_row": 32.5, "max": 7}
    trace = next(one for one in arrivals if one["kind"] == "trace")
    sent = [*zip(arrivals, cycle(rows), strict=False), (trace, trace_rows)]
    phases = [
        {"name": f"m{index}", "kind": "measure", "duration": "7s", "arrivals": arrivals, "rows": rows}
        for index, (arrivals, rows) in enumerate(sent)
    ]
    end = {"name": "end", "kind": "drain", "duration": "1ns"}
    return scenario_from_mapping({**whole, "phases": [*phases, end]}, "full")


def test_the_full_scenario_has_every_kind_of_arrivals_shape_and_rows() -> None:
    phases = full().phases
    parts = [part for phase in phases if phase.arrivals for part in (phase.arrivals,)]
    kinds = {get_args(config.model_fields["kind"].annotation)[0] for config in get_args(OpenArrivals)}
    assert {part.kind for part in parts} == kinds
    shapes = {get_args(shape.model_fields["kind"].annotation)[0] for shape in get_args(get_args(AnyShape)[0])}
    found = [part.shape for part in parts if isinstance(part, EnvelopeArrivals)]
    assert {shape.kind for shape in found if shape is not None} == shapes
    rows = {get_args(law.model_fields["kind"].annotation)[0] for law in get_args(get_args(RowsConfig)[0])}
    assert {full().models[0].rows_of(phase.rows).kind for phase in phases} | {"constant"} == rows


def test_quantities_become_ns_and_hz() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    main = scenario.phases[0]
    assert main.duration_ns == 30 * S
    assert main.arrivals is not None
    assert main.arrivals.kind == "poisson"
    assert main.arrivals.rate_hz == 200.0
    assert scenario.phases[1].duration_ns == 1_500_000_000
    assert scenario.models[0].model.version == "3"
    assert scenario.models[0].model.preferred_batch_sizes == (4, 8)


def test_what_is_left_out_has_its_default() -> None:
    scenario = scenario_from_mapping(mapping(), "small")
    assert (scenario.models[0].model.queue_delay_ns, scenario.models[0].model.queue.max_size) == (0, 0)
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
