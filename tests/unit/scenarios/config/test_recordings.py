"""Two measured phases that nsys cannot both record are refused before the run, with the pause that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.profile import needed_pause_ns, too_close
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import NS_PER_S

S = NS_PER_S
POISSON = {"kind": "poisson", "rate": "5/s"}


def mapping(pause: str | None, nsys: str = "required", **changes: Any) -> dict[str, Any]:
    """Two measured phases of 6 s, `pause` between them."""
    phases: list[dict[str, Any]] = [
        {"name": name, "kind": kind, "duration": duration, "arrivals": POISSON}
        for name, kind, duration in [
            ("warmup", "warmup", "3s"), ("one", "measure", "6s"), ("pause", "warmup", pause), ("two", "measure", "6s"),
        ]
        if duration is not None
    ]  # fmt: skip
    return {
        "name": "small", "seed": 1, "model": {"name": "seqlen_head"},
        "phases": [*phases, {"name": "end", "kind": "drain", "duration": "1s"}],
        **changes, "profile": {"nsys": nsys, **changes.get("profile", {})},
    }  # fmt: skip


GPU = {"name": "seqlen_head", "framework": "torch"}
OWN = {"name": "mine", "repository": "/models"}


@pytest.mark.parametrize("nsys", ["auto", "required"])
def test_back_to_back_phases_are_refused_with_the_pause_that_is_needed(nsys: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_mapping(mapping(None, nsys), "s.yaml")
    assert str(caught.value) == (
        "s.yaml: phases: nsys would miss the beginning of phase 'two' or all of it: 0s lie between it and 'one',"
        " whose recording takes up to 5s to end; put a warmup phase of 5s in all between the two, or set"
        " profile.nsys=off"
    )


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, 5), ({"model": GPU}, 12), ({"model": OWN}, 12), ({"model": {**GPU, "device": "cpu"}}, 5),
        ({"model": GPU, "profile": {"trace": ["nvtx", "osrt"]}}, 5),
        ({"model": {"name": "mine"}, "server": {"url": "http://h:1"}, "profile": {"nsys_session": "s"}}, 12),
    ],
)  # fmt: skip
def test_the_least_pause_is_taken_and_a_ns_less_is_not(changes: dict[str, Any], needed: int) -> None:
    changes.setdefault("model", {"name": "seqlen_head"})
    scenario_from_mapping(mapping(f"{needed}s", **changes), "s.yaml")
    with pytest.raises(ScenarioError, match=f" lie between .* warmup phase of {needed}s"):
        scenario_from_mapping(mapping(f"{needed * S - 1}ns", **changes), "s.yaml")


@pytest.mark.parametrize(
    "changes",
    [
        {"nsys": "off"},
        {"nsys": "auto", "model": {"name": "mine"}, "server": {"url": "http://h:1"}},
        {"nsys": "auto", "model": OWN, "server": {"image": "x"}},
    ],
)
def test_phases_that_nsys_does_not_record_may_follow_each_other(changes: dict[str, Any]) -> None:
    scenario_from_mapping(mapping(None, **changes), "s.yaml")


def test_nsys_is_off_unless_asked_for() -> None:
    plain = mapping(None)
    del plain["profile"]
    assert scenario_from_mapping(plain, "s.yaml").profile.nsys == "off"


def test_a_session_is_named_only_where_nsys_is_asked_for() -> None:
    named = mapping(None, "off", server={"url": "http://h:1"}, profile={"nsys_session": "s"})
    with pytest.raises(
        ScenarioError, match=r"nsys_session: profile\.nsys is off, add nsys: auto or required"
    ):
        scenario_from_mapping(named, "s.yaml")


def test_several_warmups_make_one_pause_and_every_pair_is_looked_at() -> None:
    phases = [
        ("a", "measure", S), ("x", "warmup", 3 * S), ("y", "warmup", 2 * S), ("b", "measure", S), ("z", "warmup", S),
        ("c", "measure", S),
    ]  # fmt: skip
    assert not list(too_close(phases[:4], may_use_gpu=False))
    (trouble,) = too_close(phases, may_use_gpu=False)
    assert "phase 'c'" in trouble
    assert "1s lie between it and 'b'" in trouble


def test_on_a_gpu_the_pause_grows_with_what_was_recorded() -> None:
    """9.0 s of stop for 6 s of recording on an H200 (docs/results.md), a second to notice it, 0.25 s to start."""
    assert needed_pause_ns(6 * S, may_use_gpu=True) >= (9.0 + 1 + 0.25) * S
    assert needed_pause_ns(60 * S, may_use_gpu=True) == 93 * S
    assert needed_pause_ns(S, may_use_gpu=True) == needed_pause_ns(S, may_use_gpu=False) == 5 * S
