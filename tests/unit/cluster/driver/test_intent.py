"""What a run says before it sends: in the manifest and on the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.record import from_json, to_json
from squall.analysis.storage.manifest import PlanFacts
from squall.analysis.verdict.figures import series_figures
from squall.cluster.driver.intent import (
    announce,
    describe_plan,
    refuse_empty,
    refuse_strange_head,
    seeded_notes,
    trace_notes,
)
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_closed
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.run_plan import plan_run

S = 1_000_000_000
SPANS = (
    PhaseSpan("warmup", "warmup", 0, 2 * S),
    PhaseSpan("burst", "measure", 2 * S, 202 * S),
    PhaseSpan("drain", "drain", 202 * S, 203 * S),
)


def plan_of(offsets: np.ndarray) -> Plan:
    n = len(offsets)
    phase = (offsets >= 2 * S).astype(np.uint8)
    return Plan(np.arange(n), offsets, phase, np.ones(n, np.int32), np.zeros(n, np.uint8), SPANS)


def draw() -> Plan:
    return plan_of(np.sort(np.random.default_rng(2).integers(0, 202 * S, 4_000)))


def test_the_manifest_has_the_burstiness_of_each_measure_phase() -> None:
    plan = draw()
    described = describe_plan(plan)
    assert from_json(PlanFacts, json.loads(json.dumps(to_json(described), allow_nan=False))) == described
    assert described.n_by_phase == {
        "warmup": int((plan.offset_ns < 2 * S).sum()), "burst": int((plan.offset_ns >= 2 * S).sum())
    }  # fmt: skip
    assert described.stimulus == {"burst": to_json(series_figures(plan.offset_ns, 2 * S, 202 * S))}
    assert described.sha256 == plan.sha256()


def test_the_screen_says_it_before_the_start_with_the_schedules_digest() -> None:
    plan = draw()
    lines = announce(describe_plan(plan))
    assert len(lines) == 3
    assert lines[0].startswith("burst: ")
    assert " at 10 s" in lines[0]
    assert " at 100 s" not in lines[0]  # 200 s hold two windows of 100 s
    assert "load its busiest 10.0 s alone overloads the server" in lines[1]
    assert lines[2] == f"schedule of 4,000 arrivals, sha256 {plan.sha256()[:12]}"


def test_a_phase_without_arrivals_is_said_in_one_line() -> None:
    lines = announce(describe_plan(plan_of(np.arange(10) * 100_000_000)))
    assert lines[0] == "burst: 0 arrivals, 0/s; gap c² -, local -"
    assert len(lines) == 2


def test_a_schedule_that_measures_nothing_is_refused_before_anything_starts() -> None:
    with pytest.raises(ScenarioError, match="no arrival falls into burst; use a higher rate"):
        refuse_empty(describe_plan(plan_of(np.arange(10) * 100_000_000)))
    refuse_empty(describe_plan(draw()))
    refuse_empty(PlanFacts(load="closed"))


def test_a_closed_loop_announces_its_users_and_no_schedule() -> None:
    closed = {"kind": "closed", "users": 1_200, "think": {"kind": "constant", "value": "10ms"}}
    phase = {"name": "m", "kind": "measure", "duration": "5s", "arrivals": closed}
    drain = {"name": "d", "kind": "drain", "duration": "1s"}
    mapping = {"name": "try", "seed": 1, "model": {"name": "head"}, "phases": [phase, drain]}
    plan = plan_closed(scenario_from_mapping(mapping, "test"))
    described = describe_plan(plan)
    assert "stimulus" not in to_json(described)
    assert announce(described) == [
        f"closed loop of 1,200 users: no schedule; plan sha256 {plan.sha256()[:12]}"
    ]


def test_users_of_locust_are_announced_with_their_file_and_have_no_schedule(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import locust\n")
    locust = {"file": str(tmp_path / "shop.py"), "users": 1_200, "spawn_rate": 2.5, "run_time": "5s"}
    mapping = {"name": "try", "seed": 1, "model": {"name": "head"}, "load": {"locust": locust}}
    scenario = scenario_from_mapping(mapping, "test")
    plan = plan_run(scenario, None)
    described = describe_plan(plan)
    assert (described.load, described.n_users, described.n_arrivals) == ("locust", 1_200, 0)
    refuse_empty(described)
    digest = plan.sha256()[:12]
    assert announce(described, scenario.load) == [
        f"Locust: 1,200 users of shop.py, 2.5 a second; plan sha256 {digest}"
    ]


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ({}, "clients.check: mine is no head of the zoo; give function or reference, its right values"),
        ({"function": "numpy:negative"}, None),
        ({"reference": "right.npz"}, None),
    ],
)
@pytest.mark.parametrize("where", [{"server": {"url": "http://h:8000"}}, {"repository": "r"}], ids=list)
def test_answers_of_a_model_that_is_no_head_must_be_given(
    where: dict[str, Any], check: dict[str, str], why: str | None
) -> None:
    repository = {key: value for key, value in where.items() if key == "repository"}
    mapping = {
        "name": "x", "seed": 1, "model": {"name": "mine", **repository},
        **({} if repository else where),
        "clients": {"check": check},
        "phases": [
            {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip
    scenario = scenario_from_mapping(mapping, "test")
    if why is None:
        refuse_strange_head(scenario)
        return
    with pytest.raises(ScenarioError) as caught:
        refuse_strange_head(scenario)
    assert str(caught.value) == why


def test_what_is_wrong_with_one_of_several_heads_names_its_key() -> None:
    phases = [
        {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]

    def of(**second: Any) -> Scenario:
        models = [{"name": "linear_head"}, {"name": "seqlen_head", **second}]
        return scenario_from_mapping({"name": "x", "seed": 1, "models": models, "phases": phases}, "test")

    refuse_strange_head(of())
    refuse_strange_head(of(name="mine", repository="r"))
    with pytest.raises(
        ScenarioError, match=r"^models\[1\]\.check: mine is no head of the zoo; give function or"
    ):
        refuse_strange_head(of(name="mine", repository="r", check={}))
    refuse_strange_head(of(name="seqlen_head", repository="r", settings={"width": 3}, check={}))
    with pytest.raises(ScenarioError, match=r"^models\[1\]\.settings\.widht: unknown key"):
        refuse_strange_head(of(name="seqlen_head", repository="r", settings={"widht": 3}, check={}))
    with pytest.raises(ScenarioError, match=r"^models\[1\]\.name: unknown model 'seqlen_haed': did you mean"):
        refuse_strange_head(of(name="seqlen_haed"))
    with pytest.raises(
        ScenarioError, match=r"^models\[1\]\.settings\.widht: unknown key, did you mean 'width'"
    ):
        refuse_strange_head(of(settings={"widht": 3}))


def encoder(**model: Any) -> Scenario:
    phases = [
        {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    own = model if "repository" in model else {"framework": "torch", **model}
    mapping = {"name": "x", "seed": 1, "model": own, "phases": phases}
    return scenario_from_mapping(mapping, "test")


def test_a_model_without_the_framework_or_weights_that_it_is_given_is_refused_before_the_run() -> None:
    refuse_strange_head(encoder(name="bert_tiny"))
    with pytest.raises(ScenarioError, match=r"^model\.framework: bert_tiny is computed by torch alone"):
        refuse_strange_head(encoder(name="bert_tiny", framework="numpy"))
    with pytest.raises(ScenarioError, match=r"^model\.weights: those of seqlen_head are seeded"):
        refuse_strange_head(encoder(name="seqlen_head", weights="w"))
    with pytest.raises(
        ScenarioError, match=r"weights are of an encoder of the zoo, and the model is from repository"
    ):
        encoder(name="bert_tiny", weights="w", repository="r")


def test_right_answers_of_an_encoder_that_is_too_large_are_refused_before_the_run() -> None:
    mapping = encoder(name="multilingual_e5_large").to_mapping()
    refuse_strange_head(scenario_from_mapping(mapping, "test"))
    mapping["clients"]["check"] = {}
    with pytest.raises(
        ScenarioError, match=r"^clients\.check: multilingual_e5_large has 559 million weights"
    ):
        refuse_strange_head(scenario_from_mapping(mapping, "test"))
    mapping["model"]["settings"] = {"hidden": 64, "vocabulary": 99}
    refuse_strange_head(scenario_from_mapping(mapping, "test"))


def test_a_run_says_that_weights_are_seeded_where_an_encoder_has_none_of_its_own() -> None:
    (note,) = seeded_notes(encoder(name="bert_tiny"))
    assert note.startswith(
        "model bert_tiny: seeded random weights of the exact architecture, not trained ones"
    )
    assert seeded_notes(encoder(name="bert_tiny", weights="w")) == []
    assert seeded_notes(encoder(name="bert_tiny", repository="r")) == []
    assert seeded_notes(encoder(name="linear_head")) == []


def shaped(trace: dict[str, Any], kind: str) -> dict[str, Any]:
    if kind == "trace":
        return trace
    own = {"kind": "envelope", "rate": "10/s", "shape": trace}
    return own if kind == "envelope" else {"kind": kind, "parts": [own, {"kind": "poisson", "rate": "1/s"}]}


def test_a_trace_whose_stamps_say_no_side_is_told_before_the_load(tmp_path: Path) -> None:
    log = tmp_path / "t.csv"
    log.write_text("timestamp,latency_ms\n1,20\n2,30\n")

    def notes(kind: str = "trace", **more: str) -> list[str]:
        phases = [
            {
                "name": "m",
                "kind": "measure",
                "duration": "5s",
                "arrivals": shaped({"kind": "trace", "file": str(log), **more}, kind),
            },
            {"name": "d", "kind": "drain", "duration": "1s"},
        ]
        return trace_notes(
            scenario_from_mapping(
                {"name": "t", "seed": 1, "model": {"name": "linear_head"}, "phases": phases}, "t.yaml"
            )
        )

    (note,) = notes()
    assert note.startswith("trace t.csv: timestamp is read as the begin")
    assert notes(stamp_at="begin") == []
    assert notes("envelope") == notes("superpose") == [note]  # as a shape, and as that of a part
    assert "arrivals are up to 1 s early" in notes(stamp_at="end")[-1]
    assert len(notes(stamp_at="end", quantum="spread", quantum_width="1s")) == 1  # placed as asked for
