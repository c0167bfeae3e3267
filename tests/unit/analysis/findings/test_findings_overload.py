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
SLEEPS, COMPUTES = ("waits off the CPU", "computes on the CPU"), ("computes on the CPU", "waits off the CPU")
"""What saturates it, and what must not be said of it."""
BATCHERS = {
    "sleeps": (Batcher(), SLEEPS),
    "sleeps, two instances": (Batcher(n_instances=2), SLEEPS),
    "sleeps, with a long way between batches": (Batcher(gap_us=4_000.0), SLEEPS),
    "sleeps, one row a batch": (Batcher(largest=1, gap_us=3_000.0), SLEEPS),
    "computes": (Batcher(cores=0.95), COMPUTES),
    "computes, with a long way between batches": (Batcher(cores=0.75, gap_us=4_000.0), COMPUTES),
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


def figure_in(text: str, pattern: str) -> float:
    (figure,) = re.findall(pattern, text)
    return float(figure.replace(",", ""))


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
    batcher, (saturates, other) = BATCHERS[name]
    n = batcher.n_instances
    found = windows(tmp_path, batcher, seconds, loads)
    rules = {load: {one.rule for one in own} for load, own in found.items()}
    first = next(load for load in loads if rules[load] == {"queue-bound"})
    assert first <= 1.0, rules
    for load, own in found.items():
        assert len(own) == n
        assert load < first or rules[load] == {"queue-bound"}, rules
        for one in own:
            assert other not in {one.rule, *one.also}
            if load >= 1.0:
                stated_hz = figure_in(one.claim, r"An instance ends at about ([\d,.]+)/s")
                assert stated_hz == pytest.approx(batcher.ceiling_hz / n, rel=0.03)
                assert one.next_step.startswith(f"First: an instance more, {n + 1} in place of {n}; ")
    worst = found[1.5][0].claim
    assert figure_in(worst, r"the load was ([\d.]+) times") == pytest.approx(1.5, rel=0.03)
    assert f"What saturates it: {saturates}" in worst


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
    assert named.isdisjoint(SLEEPS)
    assert {one.rule for load in FEW_LOADS if load >= 1.0 for one in found[load]} == {"queue-bound"}
