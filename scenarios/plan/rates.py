"""The mean rate of a scenario, and the same scenario at another rate: faster, or with higher rates."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from squall.scenarios.arrivals.kinds import UserArrivals
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, placed
from squall.scenarios.fields import Keys
from squall.scenarios.units import NS_PER_S, format_rate, parse_rate

Scale = Literal["time", "amplitude"]
"""What changes with the rate: time, one schedule compressed or stretched; or the rates over the same durations."""
_DIGITS = 6
"""Significant decimal digits of a factor: finer than any search resolves, and legible."""


def mean_rate_hz(scenario: Scenario) -> float:
    """Arrivals per second that the measured phases are expected to have, at their `speed`; of a trace those recorded.

    Raises ScenarioError for a trace that cannot be used and parameters that do not suit a phase, ValueError for a
    closed loop, which has no rate of its own.
    """
    expected, length_ns = 0.0, 0
    for phase in scenario.phases:
        if phase.kind != "measure":
            continue
        if phase.arrivals is None or isinstance(phase.arrivals, UserArrivals):
            raise ValueError(f"phase {phase.name!r} is closed-loop: it has no rate")
        with placed(f"phases.{phase.name}.arrivals", ScenarioError, ValueError):
            expected += phase.arrivals.expected_count(phase.drawn_ns, phase.drawn_ns)
        length_ns += phase.duration_ns
    return expected * NS_PER_S / length_ns


def factor_of(ratio: float) -> Fraction:
    """The factor of a few decimal digits that is nearest to `ratio`, above 0."""
    return Fraction(f"{ratio:.{_DIGITS}g}")


def scaled_scenario(scenario: Scenario, factor: Fraction, scale: Scale) -> Scenario:
    """The scenario at `factor` times its rate, warm-up included: by `speed`, or by the rates of its arrivals.

    Raises ScenarioError for a closed loop, a trace where rates are to be scaled, and a rate that cannot be.
    """
    mapping = scenario.to_mapping()
    for phase, config in zip(mapping["phases"], scenario.phases, strict=True):
        if phase.get("arrivals") is None:
            continue
        if isinstance(config.arrivals, UserArrivals):
            raise ScenarioError(
                f"phases.{config.name}.arrivals: a closed loop follows its server and has no rate that could be scaled"
            )
        if scale == "time":
            phase["speed"] = str((config.speed or Fraction(1)) * factor)
        else:
            _raise_rates(phase["arrivals"], factor, f"phases.{config.name}.arrivals")
    return scenario_from_mapping(mapping, scenario.name)


def _raise_rates(arrivals: Keys, factor: Fraction, where: str) -> None:
    """Every rate of a process, in place; its time constants stay."""
    if arrivals["kind"] == "trace":
        raise ScenarioError(f"{where}: a trace has no rate whose height could be scaled: use --scale time")
    if arrivals["kind"] in ("superpose", "concatenate"):
        for index, part in enumerate(arrivals["parts"]):
            _raise_rates(part.get("arrivals", part), factor, f"{where}.parts[{index}]")
        return
    arrivals["rate"] = format_rate(parse_rate(arrivals["rate"]) * float(factor))
