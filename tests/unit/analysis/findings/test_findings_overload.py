"""A model under a load from half of what it carries to one and a half times that: one diagnosis beyond the edge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from squall.analysis.findings.finding import Finding
from tests.regime_runs import Batcher, diagnose, write_batched_run

LOADS = (0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.5)
FEW_LOADS = (0.7, 0.95, 1.0, 1.05, 1.5)
"""What `make test` takes: below, at and beyond the edge."""
QUICK_S, WHOLE_S = 1.5, 3.0
"""Seconds of each load."""
SLEEPS = Batcher()
BATCHERS = {
    "sleeps": SLEEPS,
    "sleeps, two instances": Batcher(n_instances=2),
    "sleeps, with a long way between batches": Batcher(gap_us=4_000.0),
    "sleeps, one row a batch": Batcher(largest=1, gap_us=3_000.0),
    "computes": Batcher(cores=0.95),
    "computes, with a long way between batches": Batcher(cores=0.75, gap_us=4_000.0),
}


def windows(
    parent: Path, batcher: Batcher, seconds: float, loads: Sequence[float] = FEW_LOADS
) -> dict[float, list[Finding]]:
    """Findings of the window level by load, one for each instance."""
    found: dict[float, list[Finding]] = {load: [] for load in loads}
    for one in diagnose(write_batched_run(parent, batcher, loads, seconds))[0]:
        if one.level == "window":
            found[float(one.scope.phase.removeprefix("load "))].append(one)
    return found


@pytest.mark.parametrize(
    ("name", "seconds", "loads"),
    [
        ("sleeps", QUICK_S, FEW_LOADS),
        ("sleeps, two instances", WHOLE_S, FEW_LOADS),  # at their ceiling two have a shorter queue
        ("sleeps, one row a batch", QUICK_S, FEW_LOADS),
        ("computes", QUICK_S, FEW_LOADS),
        *(pytest.param(one, WHOLE_S, LOADS, marks=pytest.mark.slow) for one in BATCHERS),
    ],
)
def test_beyond_the_edge_the_diagnosis_is_one_and_states_the_ceiling(
    name: str, seconds: float, loads: Sequence[float], tmp_path: Path
) -> None:
    batcher = BATCHERS[name]
    found = windows(tmp_path, batcher, seconds, loads)
    rules = {load: {one.rule for one in own} for load, own in found.items()}
    assert all(len(own) == batcher.n_instances for own in found.values())
    first = next(load for load in loads if rules[load] == {"queue-bound"})
    assert first <= 1.0, rules
    assert all(rules[load] == {"queue-bound"} for load in loads if load >= first), rules
    other = "waits off the CPU" if name.startswith("computes") else "computes on the CPU"
    assert all(other not in {one.rule, *one.also} for own in found.values() for one in own)
    for one in (one for load in loads if load >= 1.0 for one in found[load]):
        told = re.search(r"An instance ends at about ([\d,.]+)/s", one.claim)
        assert told is not None, one.claim
        stated_hz = float(told[1].replace(",", ""))
        assert stated_hz == pytest.approx(batcher.ceiling_hz / batcher.n_instances, rel=0.03)
        n = batcher.n_instances
        assert one.next_step.startswith(f"First: an instance more, {n + 1} in place of {n}; "), one.next_step
    (worst, *_) = found[1.5]
    told_load = re.search(r"the load was ([\d.]+) times", worst.claim)
    assert told_load is not None, worst.claim
    assert float(told_load[1]) == pytest.approx(1.5, rel=0.03)
    saturates = "computes on the CPU" if name.startswith("computes") else "waits off the CPU"
    assert f"What saturates it: {saturates}" in worst.claim


@pytest.mark.slow
def test_a_model_that_computes_on_a_node_without_cpu_to_spare_is_not_given_an_instance(
    tmp_path: Path,
) -> None:
    (one,) = windows(tmp_path, Batcher(cores=15.0), WHOLE_S)[1.5]
    assert one.rule == "queue-bound"
    assert one.next_step.startswith("First: more cores or a cheaper model; 6.25 % of the node's CPU is idle.")


def test_a_model_that_sleeps_beside_threads_that_wait_for_a_cpu_is_not_said_to_compute(
    tmp_path: Path,
) -> None:
    """Nor to wait for something else: which of both is not told then."""
    found = windows(tmp_path, Batcher(waits=1.5), QUICK_S)
    named = {rule for own in found.values() for one in own for rule in (one.rule, *one.also)}
    assert named.isdisjoint({"computes on the CPU", "waits off the CPU"})
    assert {one.rule for load in FEW_LOADS if load >= 1.0 for one in found[load]} == {"queue-bound"}
