"""New traces from a fit or from a scenario's arrivals: longer ones, or of another rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.kinds import OpenArrivals, SuperposeArrivals
from squall.scenarios.config.loader import read_mapping
from squall.scenarios.config.problems import describe_problem
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.traces.part import TracePart
from squall.scenarios.units import format_duration, parse_duration, parse_rate

if TYPE_CHECKING:
    from squall.analysis.traces.fitted import Fitted

BLOCK_ROWS = 64
"""Consecutive rows whose sizes stay together: what one request's size says of the next one's is kept this far."""


def synthesise(
    arrivals: OpenArrivals, horizon_ns: int, seed: int, sizes: TracePart | None = None
) -> TracePart:
    """Arrivals in [0, horizon_ns), with sizes from `sizes` if given; a seed gives times and sizes streams of their own.

    Sizes are whole rows of `sizes`, so that all columns of a request stay together, in blocks of 64 consecutive rows
    from random places (circular block bootstrap: Politis, Romano, 1992). Sessions are left out: rows of one session
    would come again in every copy of its block.
    """
    times, rows = np.random.default_rng(seed).spawn(2)
    try:
        stamp_ns = arrivals.draw(times, horizon_ns)
    except ValueError as error:  # what only the whole length shows: too many arrivals, too many pieces
        raise ScenarioError(f"--duration {format_duration(horizon_ns)}: {error}") from error
    if sizes is None or not sizes.sizes or not len(sizes):
        return TracePart(stamp_ns, {})
    picked = _block_rows(rows, len(sizes), stamp_ns.size)
    return TracePart(stamp_ns, {name: column[picked] for name, column in sizes.sizes.items()})


def synthesise_fit(
    fitted: Fitted,
    end_ns: int,
    old: TracePart,
    duration: str | None = None,
    rate: str | None = None,
    seed: int = 1,
) -> TracePart:
    """From a fit of the trace `old`, whose span is [0, end_ns), as long as that and at its rate unless told otherwise.

    `duration` as `2h`, `rate` as `20/s`. An envelope's curve begins again when it is over; a higher rate leaves its
    times as they are, and those of the bursts: more of the same users.
    """
    horizon_ns = end_ns if duration is None else _duration(duration)
    scenario = _with_rate(fitted.scenario, rate)
    return synthesise(_arrivals(scenario, fitted.name), horizon_ns, seed, old)


def synthesise_file(file: Path, duration: str | None, rate: str | None, seed: int = 1) -> TracePart:
    """From a YAML file with `arrivals`, as `squall trace fit --snippet` writes it. Raises ScenarioError."""
    if duration is None:
        raise ScenarioError(f"{file}: has no length of its own, add --duration, such as --duration 1h")
    scenario = read_mapping(file, "file of arrivals").get("arrivals")
    if not isinstance(scenario, dict):
        raise ScenarioError(
            f"{file}: has no mapping `arrivals`, write for example arrivals: {{kind: poisson, rate: 5/s}}"
        )
    horizon_ns = _duration(duration)
    return synthesise(_arrivals(_with_rate(scenario, rate), str(file)), horizon_ns, seed)


def _with_rate(scenario: Mapping[str, Any], rate: str | None) -> dict[str, Any]:
    if rate is None:
        return dict(scenario)
    try:
        parse_rate(rate)
    except ValueError as error:
        raise ScenarioError(f"--rate {rate}: {error}") from error
    if "rate" not in scenario:
        raise ScenarioError(
            f"--rate {rate}: arrivals of kind {scenario.get('kind')} have no rate of their own"
        )
    return {**scenario, "rate": rate}


def _duration(duration: str) -> int:
    try:
        horizon_ns = parse_duration(duration)
    except ValueError as error:
        raise ScenarioError(f"--duration {duration}: {error}") from error
    if not horizon_ns:
        raise ScenarioError(f"--duration {duration}: must be above 0")
    return horizon_ns


def _arrivals(scenario: Mapping[str, Any], origin: str) -> OpenArrivals:
    whole = {"kind": "superpose", "parts": [dict(scenario)]}
    try:
        return SuperposeArrivals.model_validate(whole).parts[0]
    except ValueError as error:
        problem: Any = error
        text = describe_problem(problem, SuperposeArrivals)
        raise ScenarioError(f"{origin}: {text.replace('parts[0]', 'arrivals')}") from error


def _block_rows(rng: np.random.Generator, n_old: int, n_new: int) -> NDArray[np.int64]:
    """Rows of the old trace, (n_new,), in runs of 64 that go on at the first after the last."""
    if n_old < 1:
        raise AnalysisError("a trace without rows has no sizes to draw from")
    starts = rng.integers(0, n_old, -(-n_new // BLOCK_ROWS))
    rows = (starts[:, None] + np.arange(BLOCK_ROWS)).ravel()[:n_new]
    return rows % n_old
