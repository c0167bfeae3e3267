"""Instances whose server lacked CPU, and models on the CPU with a report of nsys and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from squall.analysis.findings.finding import Finding
from squall.analysis.render.templates import sentences
from tests.regime_runs import Op, Phase, diagnose, write_regime_run

REPORT = ("kernels", "memcpys", "cuda_api", "nvtx", "syncs", "osrt")
"""Tables that only a report of nsys fills."""
COMPUTING = Phase("computing", head_us=1_000.0, period_us=1_250.0, server="server-cpu")
CPU = {"server": 1.0, "others": 2.0, "clients": 0.5}
STARVED = {"server": 2.0, "others": 13.5, "clients": 0.5, "wait": 6.0}
PHASES = (
    replace(COMPUTING, name="alone", cpu={**CPU, "wait": 0.01}),
    replace(COMPUTING, name="pinched", cpu={**CPU, "wait": 0.16}),
    replace(COMPUTING, name="starved", cpu=STARVED),
    replace(COMPUTING, name="by the client", cpu={**STARVED, "others": 0.5, "clients": 13.5}),
    replace(COMPUTING, name="throttled", cpu={
        **CPU, "wait": 3.0, "server_quota_cores": 1.0, "server_periods": 20, "server_throttled_periods": 9}),
)  # fmt: skip

# a model that computes for 61 % of the wall and more, and so slowed by nsys that the rest falls below a fifth
BARE = Phase("bare", head_us=1_000.0, period_us=1_640.0, wait_us=1_600.0, server="server-cpu")
UNDER_NSYS = replace(BARE, name="under nsys", head_us=1_330.0)
WAITING = Phase("waiting", (Op(50.0),) * 12, period_us=910.0, wait_us=900.0)
REPORTED = (
    BARE, UNDER_NSYS, COMPUTING, WAITING, replace(WAITING, name="full", period_us=0.0, wait_us=2_000.0)
)  # fmt: skip
"""Without samples of the CPU."""


def windows(parent: Path, phases: Sequence[Phase]) -> dict[str, Finding]:
    """Findings of the window level by phase."""
    return {
        one.scope.phase: one for one in diagnose(write_regime_run(parent, phases))[0] if one.level == "window"
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return windows(tmp_path_factory.mktemp("cpu"), [*PHASES, *REPORTED])


def test_with_its_cpu_an_instance_is_what_it_does(found: dict[str, Finding]) -> None:
    assert (found["alone"].rule, found["alone"].confidence) == ("computes on the CPU", "high")


def test_a_little_cpu_taken_makes_what_it_does_less_sure(found: dict[str, Finding]) -> None:
    pinched = found["pinched"]
    assert (pinched.rule, pinched.confidence) == ("computes on the CPU", "medium")
    (reason,) = pinched.confidence_reasons
    assert reason == (
        "clients, squall and others had 13.8 % of the CPU that the server could have used, "
        "which made 13.8 % of the response times"
    )


@pytest.mark.parametrize(
    ("phase", "rule"), [("starved", "starved by others"), ("by the client", "starved by the client")]
)
def test_a_starved_instance_is_named_so_and_what_it_seems_to_do_comes_after(
    phase: str, rule: str, found: dict[str, Finding]
) -> None:
    one = found[phase]
    assert (one.rule, one.confidence) == (rule, "high")
    assert one.runner_up is not None
    assert (one.runner_up.rule, one.runner_up.holds) == ("computes on the CPU", True)
    assert "75.0 %" in one.claim  # had 2 cores, waited for 6
    (line,) = sentences("findings", [one])
    assert line == f"{phase}, m_0: {rule} (high), then computes on the CPU"


def test_a_throttled_instance_is_named_so_before_its_own_regime(found: dict[str, Finding]) -> None:
    one = found["throttled"]
    assert one.rule == "throttled by a CPU quota"
    assert "used up in 45.0 % of its periods" in one.claim
    assert one.also == ("computes on the CPU",)


def test_a_model_on_the_cpu_has_one_name_with_nsys_and_without(found: dict[str, Finding]) -> None:
    bare, slowed = found["bare"], found["under nsys"]
    assert bare.shares["computing"] == pytest.approx(0.61, abs=0.03)
    assert (bare.shares["between_waiting"] or 0.0) > 0.2 > (slowed.shares["between_waiting"] or 0.0)
    assert bare.rule == slowed.rule == "computes on the CPU"
    assert bare.also == ("scheduler/IPC-bound",)
    assert sentences("findings", [bare])[0].endswith("then scheduler/IPC-bound")


def test_without_the_tables_of_the_report_no_other_cause_is_named(
    found: dict[str, Finding], tmp_path: Path
) -> None:
    bare = windows(tmp_path, [replace(phase, lost=REPORT) for phase in REPORTED])
    assert {phase.name: found[phase.name].rule for phase in REPORTED} == {
        name: one.rule for name, one in bare.items()
    }
