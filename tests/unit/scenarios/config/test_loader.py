"""Files of scenarios, and scenarios asked for in Python: what loads, and one line for what does not."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from squall.scenarios.arrivals.stationary import PoissonArrivals
from squall.scenarios.arrivals.varying import EnvelopeArrivals
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario
from tests.integration.live_runs import scenario_mapping
from tests.unit.scenarios.config.given import ACCEPTED, DEMO

S = 1_000_000_000
CHANGES: dict[str, object] = {"seed": 5, "phases.burst.arrivals.rate": "300/s", "model.settings.width": 128}


def refusal(path: Path, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_demo_sends_a_burst_of_200_requests_a_second() -> None:
    scenario = load_scenario(DEMO)
    assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario
    assert [(phase.name, phase.kind, phase.duration_ns // S) for phase in scenario.phases] == [
        ("warmup", "warmup", 2), ("burst", "measure", 30), ("drain", "drain", 5),
    ]  # fmt: skip
    burst = scenario.phases[1].arrivals
    assert isinstance(burst, EnvelopeArrivals)
    assert (burst.preset, burst.bin_ns, burst.rate_hz) == ("nasa-flash-crowd", S // 2, 200.0)
    # 6000 expected; IDC(infinity) of the residual is 1/(1-0.25)^2
    assert abs(int((plan_scenario(scenario).phase == 1).sum()) - 6000) < 4 * (6000 / 0.75**2) ** 0.5


@pytest.mark.parametrize(("text", "problem"), ACCEPTED["texts"])
def test_a_file_that_is_no_mapping_is_refused_with_line_and_column(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert refusal(path).startswith(f"{path}: {problem}")


@pytest.mark.parametrize("nested", [pytest.param("[" * 100_000, marks=pytest.mark.slow), "{a: " * 50_000])
def test_deep_nesting_is_one_line_in_a_file_and_in_an_override(tmp_path: Path, nested: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: {nested}")
    for text in (refusal(path), refusal(DEMO, (f"name={nested}",))):
        assert text.endswith(": lists and mappings are nested too deep")


def test_a_file_that_cannot_be_read_is_named_and_of_a_large_one_little_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")  # which is not waited for
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    for name, said in {
        "pipe.yaml": "cannot be read: it is no file",
        "large.yaml": "has more than 2 MiB: keep what is long in a trace",
        "none.yaml": "no such scenario file",
        ".": "cannot be read: it is no file",
        "latin.yaml": "is not UTF-8 text",
    }.items():
        assert refusal(tmp_path / name).startswith(f"{tmp_path / name}: {said}")


SMALL = """
name: small
seed: 010
model: {name: head}
phases:
  - {name: one, kind: measure, duration: 1s, arrivals: &load {kind: poisson, rate: 1/s}}
  - {name: two, kind: measure, duration: 1s, arrivals: *load}
  - {name: end, kind: drain, duration: 1s}
profile: {nsys: off}
"""


def test_scalars_follow_yaml_1_2_and_parts_that_an_alias_shares_are_changed_apart(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    scenario = load_scenario(path, ["phases.two.arrivals.rate=9/s"])
    assert (scenario.profile.nsys, scenario.seed) == ("off", 10)
    arrivals = [phase.arrivals for phase in scenario.phases]
    assert [one.rate_hz for one in arrivals if isinstance(one, PoissonArrivals)] == [1.0, 9.0]


def test_a_file_a_mapping_and_a_scenario_make_the_same_and_stay_as_they_were() -> None:
    plain, wanted = (
        load_scenario(DEMO),
        load_scenario(DEMO, [f"{path}={value}" for path, value in CHANGES.items()]),
    )
    for source in (DEMO, str(DEMO), plain.to_mapping(), plain):
        before = deepcopy(source)
        assert make_scenario(source) == plain
        assert make_scenario(source, CHANGES) == wanted
        assert source == before
    mapping = scenario_mapping()
    make_scenario(mapping, CHANGES)
    assert mapping == scenario_mapping()
    load = {"kind": "poisson", "rate": "1/s"}
    for phase in mapping["phases"][:2]:
        phase["arrivals"] = load
    rates = [phase.arrivals for phase in make_scenario(mapping, {"phases.0.arrivals.rate": "9/s"}).phases]
    assert [one.rate_hz for one in rates if isinstance(one, PoissonArrivals)] == [9.0, 1.0]


@pytest.mark.parametrize(
    ("source", "values", "problem"),
    [
        (3, {}, "scenario: a file, a mapping or a Scenario, not a int"),
        (None, {}, "scenario: a file, a mapping or a Scenario, not a NoneType"),
        ("gone.yaml", {}, "gone.yaml: no such scenario file"),
        ({}, {}, "scenario: name: missing, it must be given (and 1 more)"),
        (DEMO, {"seed": "5"}, f"{DEMO}: seed: '5' is not a whole number"),
        (DEMO, {"phases.bursts.duration": "3s"},
         "phases.bursts.duration='3s': phases has no item 'bursts', did you mean 'burst'?"),
        (DEMO, {"sed": 3}, f"{DEMO}: sed: unknown key, did you mean 'seed'?"),
        (DEMO, {"": 3}, "=3: '' is no key path, write for example phases.burst.arrivals.rate=300/s"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(source: Any, values: dict[str, object], problem: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        make_scenario(source, values)
    assert str(raised.value) == problem
