"""Overrides: one value changed by key path, and a path that no scenario has refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.scenarios.config.loader import load_scenario
from squall.scenarios.config.overrides import apply_override, kept_override
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError

DEMO = Path(__file__).resolve().parents[4] / "scenarios" / "config" / "demo.yaml"


def value_at(scenario: Scenario, *path: str | int) -> Any:
    here: Any = scenario.to_mapping()
    for part in path:
        here = here[part]
    return here


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("phases.burst.arrivals.rate=300/s", ("phases", 1, "arrivals", "rate"), "300/s"),
        ("phases[1].arrivals.rate=300/s", ("phases", 1, "arrivals", "rate"), "300/s"),
        ("phases.1.arrivals.rate = 300/s", ("phases", 1, "arrivals", "rate"), "300/s"),
        ("seed=0", ("seed",), 0),
        ("profile.nsys=off", ("profile", "nsys"), "off"),
        ("model.settings.width=128", ("model", "settings", "width"), 128),
        ("model.settings.heads=2", ("model", "settings", "heads"), 2),
        ("model.preferred_batch_sizes=[2, 4]", ("model", "preferred_batch_sizes"), [2, 4]),
        ("model.preferred_batch_sizes[1]=16", ("model", "preferred_batch_sizes"), [4, 16]),
        ("server.image=triton:24.10", ("server", "image"), "triton:24.10"),
        ("model.queue.timeout=3s", ("model", "queue", "timeout"), "3s"),
        ("clients.rows={kind: constant, value: 3}", ("clients", "rows"), {"kind": "constant", "value": 3}),
        (
            "phases.burst.arrivals.residual={kind: gamma, cv: 1.2}",
            ("phases", 1, "arrivals", "residual", "cv"),
            1.2,
        ),
        (
            "phases.burst.arrivals.residual.kind=poisson",
            ("phases", 1, "arrivals", "residual", "kind"),
            "poisson",
        ),
    ],
)
def test_an_override_changes_the_value_at_its_path(
    override: str, path: tuple[str | int, ...], value: Any
) -> None:
    assert value_at(load_scenario(DEMO, [override]), *path) == value


def test_the_rest_stays_as_it_was() -> None:
    before, after = load_scenario(DEMO).to_mapping(), load_scenario(DEMO, ["seed=7"]).to_mapping()
    assert after.pop("seed") == 7
    assert before.pop("seed") == 1
    assert after == before


def test_later_overrides_see_earlier_ones() -> None:
    scenario = load_scenario(
        DEMO, ["phases.burst.name=storm", "phases.storm.duration=9s", "seed=2", "seed=3"]
    )
    assert (scenario.phases[1].name, scenario.phases[1].duration_ns, scenario.seed) == ("storm", 9 * 10**9, 3)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("phases.burst.arrivals.rat=3/s", "phases[1].arrivals.rat: unknown key, did you mean 'rate'?"),
        (
            "phases.burst.arrivals.cv=3",
            "phases[1].arrivals.cv: unknown key, allowed are bin, curve, kind, preset, rate, residual, shape",
        ),
        ("clents.timeout=3s", "clents: unknown key, did you mean 'clients'?"),
        ("server.ulr=x", "server.ulr: unknown key, did you mean 'url'?"),
        ("phases.brst.duration=3s", "phases has no item 'brst', did you mean 'burst'?"),
        ("phases[7].duration=3s", "phases has no item '7', there are warmup, burst, drain"),
        ("clients.timeout.x=3s", "clients.timeout is a value, it has no key 'x'"),
        ("clients.timeout", "has no '=', write key.path=value"),
        ("=3", "'' is no key path, write for example phases.burst.arrivals.rate=300/s"),
        ("a..b=3", "'a..b' is no key path, write for example phases.burst.arrivals.rate=300/s"),
        (".seed=3", "'.seed' is no key path, write for example phases.burst.arrivals.rate=300/s"),
        ("seed=[1", "line 1, column 3: expected ',' or ']', but got '<stream end>'"),
        ("server={url: a, url: b}", "line 1, column 10: the key 'url' is given twice"),
    ],
)
def test_a_path_that_no_scenario_has_is_refused_with_the_nearest(override: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(DEMO, [override])
    assert str(caught.value) == f"--set {override}: {problem}"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("seed=x", "seed: 'x' is not a whole number"),
        ("model.settings=", "model.settings: None is not a mapping"),
        ("phases.burst=3", "phases[1]: 3 is not a mapping"),
        (
            "phases.burst.arrivals.curve=[1, 2]",
            "phases[1].arrivals: needs exactly one of preset, curve and shape",
        ),
        (
            "phases.burst.arrivals.residual.cv=1",
            "phases[1].arrivals.residual: needs a kind: poisson, gamma, weibull, lognormal, pareto,"
            " hyperexponential, hawkes",
        ),
        (
            "phases.burst.arrivals.kind=poisson",
            "phases[1].arrivals.preset: unknown key, allowed are kind, rate (and 1 more)",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_as_if_it_stood_in_the_file(override: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(DEMO, [override])
    assert str(caught.value).startswith(f"{DEMO}: {problem}")
    assert "\n" not in str(caught.value)


def test_what_is_named_in_the_file_may_have_any_name() -> None:
    mapping: dict[str, Any] = {"clients": {"inputs": {"ids": {"low": 1}}}}
    apply_override(mapping, "clients.inputs.ids.high=7")
    apply_override(mapping, "clients.inputs.text.length=3")
    assert mapping["clients"]["inputs"] == {"ids": {"low": 1, "high": 7}, "text": {"length": 3}}
    with pytest.raises(
        ScenarioError, match=r"clients\.inputs\.ids\.hihg: unknown key, did you mean 'high'\?"
    ):
        apply_override(mapping, "clients.inputs.ids.hihg=7")


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("clients.headers.Authorization=Bearer s3cret", "clients.headers.Authorization=${AUTHORIZATION}"),
        ("clients.headers.X-Key = s3cret", "clients.headers.X-Key =${X_KEY}"),
        ("clients.headers.'X-Key'=s3cret", "clients.headers.'X-Key'=${_X_KEY_}"),
        ("clients.headers={X-Key: s3cret}", 'clients.headers={"X-Key": "${X_KEY}"}'),
        (
            "clients={headers: {X-Key: s3cret, X-User: '${USER}'}, rows: 2}",
            'clients={"headers": {"X-Key": "${X_KEY}", "X-User": "${USER}"}, "rows": 2}',
        ),
        ("clients.headers={X-Key: [s3cret]}", "clients.headers=[left out]"),
        ("clients.headers.X.Key=s3cret", "clients.headers.X.Key=[left out]"),
        ("clients.headers={X-Key: s3cret", "clients.headers=[left out]"),
        ("clients.headers.X-Key=${KEY}", "clients.headers.X-Key=${KEY}"),
        ("clients={rows: 2}", "clients={rows: 2}"),
        ("clients.sequences.length.mean=5", "clients.sequences.length.mean=5"),
        ("seed=3", "seed=3"),
    ],
)
def test_an_override_is_kept_without_values_of_headers(override: str, kept: str) -> None:
    assert kept_override(override) == kept
