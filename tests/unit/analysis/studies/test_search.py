"""What a search finds over planted levels of load, edge or none, and the formulas of its interval and safe load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from squall.analysis.compare.figures import BROKEN, KEPT
from squall.analysis.statistics.student import student_quantile
from squall.analysis.statistics.tolerance import tolerance_factor
from squall.analysis.studies.capacity_edge import upper_edge
from squall.analysis.studies.capacity_probe import BRACKET, CONFIRM, LOW, Probe
from squall.analysis.studies.capacity_search import Found, Options, search
from tests.fields import field

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "searches.yaml").read_text())
OPTIONS = {"n_seeds": 3, "first_seed": 1, "start_hz": 50.0, "most_hz": 5_000.0}


@dataclass
class Odd:
    """Levels that are otherwise, as `searches.yaml` says."""

    seeds: Sequence[int] = (1, 99)
    above: float = 0.0
    below: float = math.inf
    times: int = 1_000
    verdict: str = ""
    margin: float = 0.0
    slope: float = 0.0
    edge: float = 1.0
    is_saturated: bool = False
    reason: str = ""
    cause: str = ""
    n_asked: int = 0

    def fits(self, seed: int, rate_hz: float) -> bool:
        is_within = self.seeds[0] <= seed <= self.seeds[1] and self.above < rate_hz < self.below
        return is_within and self.n_asked < self.times

    def probe(self, seed: int, rate_hz: float) -> Probe:
        self.n_asked += 1
        if self.verdict:
            return Probe(seed, rate_hz, self.verdict, reason=self.reason, cause=self.cause)
        margin = self.margin + self.slope * math.log(rate_hz / self.edge)
        verdict = KEPT if margin < 0.0 else BROKEN
        return Probe(
            seed, rate_hz, verdict, margin if math.isfinite(margin) else None, "p", self.is_saturated
        )


class Levels:
    """The planted levels; `asked`: what was measured, in turn."""

    def __init__(
        self, edges: dict[int, float] | None = None, odd: Sequence[dict[str, Any]] = (), **_: Any
    ) -> None:
        self.asked: list[tuple[int, float, str]] = []
        self.odd = [Odd(**one) for one in odd]
        self._edges = edges or {}

    def __call__(self, seed: int, rate_hz: float, purpose: str) -> Probe:
        self.asked.append((seed, rate_hz, purpose))
        edge_hz = self._edges.get(seed, 100.0)
        plain = Odd(slope=4.0, edge=edge_hz, is_saturated=rate_hz > edge_hz * math.exp(0.25))
        return next((one for one in self.odd if one.fits(seed, rate_hz)), plain).probe(seed, rate_hz)


def asked(found: Found, levels: Levels, precision: float) -> dict[str, Any]:
    """What was asked for. `steps`: of the loads that confirm and of the safe one, in precisions below the first."""
    of: dict[str, list[tuple[int, float]]] = {BRACKET: [], LOW: [], CONFIRM: []}
    for seed, rate_hz, purpose in levels.asked:
        of[purpose].append((seed, rate_hz))
    rates_hz = [rate_hz for _, rate_hz, _ in levels.asked]
    safe = [*(rate_hz for _, rate_hz in of[CONFIRM]), found.safe.rate_hz] if found.safe else []
    return {
        "n": len(rates_hz),
        "hz": [min(rates_hz), max(rates_hz)],
        "seeds": sorted({seed for seed, *_ in levels.asked}),
        "first_hz": [*dict(reversed(of[BRACKET])).values()][::-1],
        "hz_of_seed_2": [rate_hz for seed, rate_hz in of[BRACKET] if seed == 2],
        "low": of[LOW],
        "confirming": [seed for seed, _ in of[CONFIRM]],
        "steps": [math.log(found.safe.first_hz / one) / precision for one in safe if found.safe],
        "odd": sum(one.n_asked for one in levels.odd),
    }


def is_alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_alike, found, expected))
    is_figure = isinstance(expected, int | float)
    return bool(found == (pytest.approx(expected, rel=0.02, abs=1e-9) if is_figure else expected))


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_over_planted_levels(name: str) -> None:
    case, n_told = CASES[name], list[int]()
    levels, options = Levels(**case), Options(**{**OPTIONS, **case.get("options", {})})
    found = search(levels, options, lambda so_far: n_told.append(len(so_far.seeds)))
    of_asked = asked(found, levels, options.precision)
    assert n_told == [*range(1, len(found.seeds) + 1)]
    for path, expected in case["finds"].items():
        name = path.removesuffix(" within")
        known = of_asked[name[6:]] if name.startswith("asked ") else field(found, name)
        if name == path:
            assert is_alike(known, expected), (path, known)
        else:
            least, most = expected
            assert all(least <= one <= most for one in np.ravel(known)), (path, known)


def test_the_interval_and_the_safe_load_are_those_of_the_formulas() -> None:
    edges = {1: 100.0, 2: 110.0, 3: 95.0}
    found = search(Levels(edges), Options(3, 1, 50.0, 5_000.0, precision=0.001))
    logs = [math.log(one) for one in edges.values()]
    mean = sum(logs) / 3
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2)
    reach = student_quantile(0.975, 2) * spread / math.sqrt(3)
    safe_hz = math.exp(mean - tolerance_factor(3) * spread)
    assert found.interval is not None
    assert found.safe is not None
    assert (found.interval.rate_hz, found.interval.low_hz, found.interval.high_hz) == pytest.approx(
        (math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)), rel=1e-5
    )
    assert (found.safe.first_hz, found.safe.rate_hz) == pytest.approx((safe_hz, safe_hz), rel=1e-5)


@pytest.mark.parametrize("start", [0.2, 3.0, 99.0, 101.0, 700.0, 4_000.0])
@pytest.mark.parametrize("precision", [0.001, 0.02, 0.2])
def test_an_edge_is_found_from_anywhere_to_the_precision(start: float, precision: float) -> None:
    edge = upper_edge(lambda rate: Levels()(1, rate, ""), start, 50_000.0, precision)
    assert edge.low is not None
    assert edge.high is not None
    assert math.log(edge.high.rate_hz / edge.low.rate_hz) <= precision * (1 + 1e-9)
    assert edge.kind == "found"
    assert edge.slope == pytest.approx(4.0, rel=1e-6)
    assert edge.rate_hz == pytest.approx(100.0, rel=precision)
    assert edge.n_probes <= 20
