"""Which cell is best and which cannot be told apart, and what the machine drifts by: held to scipy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from squall.analysis.studies.sweep_drift import drift_of
from squall.analysis.studies.sweep_rivals import rank, values_of
from squall.analysis.studies.sweep_rows import DONE, INVALID, REFERENCE, SweepRow
from tests.fields import field
from tests.known import known
from tests.sweep_runs import figures

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "rankings.yaml").read_text())


@pytest.mark.parametrize("name", CASES)
def test_cells_rank_as_stated(name: str) -> None:
    case = CASES[name]
    values = {}
    for cell, own in enumerate(case["cells"]):
        blocks = case["at"][cell] if "at" in case else [("here", seed) for seed in range(len(own))]
        values[cell] = {tuple(at): one for at, one in zip(blocks, own, strict=True) if one is not None}
    found = rank(values, len(values), case.get("objective", "p95"))
    for path, value in case["finds"].items():
        own = field(found, path)
        assert (list(own) if isinstance(own, tuple) else own) == pytest.approx(value), path


def test_p_values_are_those_of_the_paired_t_test_after_holm_over_all_pairs() -> None:
    rng = np.random.default_rng(1)
    seeds = np.log([1.0, 1.7, 0.8, 1.2, 2.0, 0.9])
    logs = [seeds + math.log(factor) + rng.normal(0, 0.05, 6) for factor in (1.0, 1.04, 1.1)]
    p = {(a, b): stats.ttest_rel(logs[a], logs[b]).pvalue for a, b in ((0, 1), (0, 2), (1, 2))}
    expected, largest = {}, 0.0
    for place, pair in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, (3 - place) * p[pair]))
        expected[pair] = largest
    cells = {
        cell: {("here", at): math.exp(one) for at, one in enumerate(own)} for cell, own in enumerate(logs)
    }
    found = rank(cells, 3, "p95")
    assert found.best == 0
    assert {one.cell: one.p for one in found.others} == pytest.approx({1: expected[0, 1], 2: expected[0, 2]})
    assert [one.is_apart for one in found.others] == [expected[0, one.cell] <= 0.05 for one in found.others]


def row(position: int, p95_ns: float | None, **changes: Any) -> SweepRow:
    known: dict[str, Any] = {
        "key": str(position), "position": position, "block": -1, "role": REFERENCE, "cell": 0, "label": "a", "seed": 1,
        "attempt": 1, "outcome": DONE, "status": "VALID", "reason": "", "run": "", "site": "here", "host": "one",
        "wall_s": 1.0, "figures": figures(p95_ns) if p95_ns is not None else figures(infinite=("p95_ns",)), **changes,
    }  # fmt: skip
    return SweepRow(**known)


def test_only_valid_runs_that_no_other_stands_for_count() -> None:
    rows = [
        row(0, 1e6, block=0),
        row(1, 2e6, block=1, outcome=INVALID),
        row(2, 3e6, block=2, is_replaced=True),
    ]
    assert values_of(rows, "p95") == {0: {("here", 0): 1e6}}


def test_a_drift_has_the_slope_and_the_interval_of_least_squares_with_a_level_for_each_host() -> None:
    rng = np.random.default_rng(5)
    at = np.array([0, 5, 10, 15, 20, 25, 30, 2, 9, 20])
    is_there = np.arange(10) > 6
    logs = np.log(5e6) + 0.6 * is_there + 0.01 * at + rng.normal(0, 0.02, 10)
    rows = [
        row(int(x), math.exp(y), site="there" if there else "here")
        for x, y, there in zip(at, logs, is_there, strict=True)
    ]
    found = known(drift_of(rows, "p95"))
    terms = np.column_stack([~is_there, is_there, at]).astype(float)
    fit, (rest,), *_ = np.linalg.lstsq(terms, logs, rcond=None)
    half = stats.t.ppf(0.975, 7) * math.sqrt(rest / 7 * np.linalg.inv(terms.T @ terms)[2, 2])
    ends = tuple(math.exp(30 * slope) for slope in (fit[2], fit[2] - half, fit[2] + half))
    assert (found.ratio, found.low, found.high) == pytest.approx(ends, rel=1e-9)
    assert found.is_drifting == (fit[2] > half)


def test_what_two_hosts_differ_by_is_no_drift_and_too_few_runs_say_nothing() -> None:
    hosts = {"here": 5e6, "there": 9e6}
    found = drift_of(
        [row(x, ns * (1 + 0.001 * (x % 2)), site=site) for x in range(6) for site, ns in hosts.items()], "p95"
    )
    assert not known(found).is_drifting
    assert drift_of([], "p95") is None
    found = known(drift_of([row(0, 5e6), row(9, 6e6), row(12, None)], "p95"))
    assert (found.ratio, found.is_drifting, found.reason) == (
        None,
        False,
        "2 valid reference runs are too few",
    )
