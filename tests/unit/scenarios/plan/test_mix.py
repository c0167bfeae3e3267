"""Row counts: within their bounds and of the law asked for, by chi-square; a law next to it is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy import stats

from squall.scenarios.arrays import Floats
from squall.scenarios.config.rows import (
    ConstantRows,
    EmpiricalRows,
    ParetoRows,
    RowsConfig,
    TraceRows,
    max_rows,
    possible_rows,
)
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.mix import draw_rows, settled, trace_rows
from tests.many_examples import examples
from tests.point_checks import is_correlated, misses_shares, misses_tail

N = 100_000
SIZES = (0, 1, 100, 101, 250, 250, 999, 1_000_000)


def draw(config: RowsConfig, count: int = N) -> NDArray[np.int32]:
    return draw_rows(config, np.random.default_rng(7), count)


def lognormal_shares(mean: float, cv: float, most: int) -> Floats:
    """P(rint(X) = k) for 0 to `most`, with what is below 1 and above `most` put there."""
    sigma = math.sqrt(math.log(1 + cv**2))
    cdf = stats.lognorm(sigma, scale=mean / math.sqrt(1 + cv**2)).cdf
    edges = np.concatenate([[0.0, 0.0], np.arange(1, most) + 0.5, [np.inf]])
    shares: Floats = np.diff(cdf(edges))
    return shares


def pareto_shares(alpha: float, low: int, high: int) -> Floats:
    """P(floor(X) = k) of a Pareto law cut to [low, high + 1)."""
    survival = np.arange(low, high + 2, dtype=np.float64) ** -alpha
    shares = (survival[:-1] - survival[1:]) / (survival[0] - survival[-1])
    return np.concatenate([np.zeros(low), shares])


def zipf_shares(exponent: float, most: int) -> Floats:
    weights = np.array([0.0, *(k**-exponent for k in range(1, most + 1))])
    shares: Floats = weights / weights.sum()
    return shares


LAWS: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    # the law, what another one next to it has instead, P(rows = k) for k from 0 on
    ({"kind": "uniform", "low": 2, "high": 5}, {"high": 6}, [0, 0, 0.25, 0.25, 0.25, 0.25]),
    ({"kind": "lognormal", "mean": 2, "cv": 1, "max": 16}, {"mean": 2.05}, lognormal_shares(2.0, 1.0, 16)),
    ({"kind": "pareto", "alpha": 1.3, "min": 2, "max": 64}, {"alpha": 1.35}, pareto_shares(1.3, 2, 64)),
    (  # next to log-uniform
        {"kind": "pareto", "alpha": 1e-300, "max": 32},
        {"alpha": 0.05},
        np.array([0.0, *np.diff(np.log(np.arange(1, 34)))]) / np.log(33),
    ),
    ({"kind": "zipf", "exponent": 1.1, "max": 50}, {"exponent": 1.13}, zipf_shares(1.1, 50)),
    ({"kind": "zipf", "exponent": 0.0, "max": 8}, {"exponent": 0.05}, [0.0, *[1 / 8] * 8]),
    ({"kind": "empirical", "values": (7, 2, 4, 2)}, {"values": (7, 2, 4)}, [0, 0, 0.5, 0, 0.25, 0, 0, 0.25]),
    (
        {"kind": "empirical", "values": (7, 2, 4), "weights": (1.0, 0.0, 3.0)},
        {"weights": (1.0, 0.0, 3.2)},
        [0, 0, 0, 0, 0.75, 0, 0, 0.25],
    ),
    (  # whose sum is beyond float64
        {"kind": "empirical", "values": (1, 2), "weights": (1e308, 1e308)},
        {"weights": (1e308, 1.1e308)},
        [0, 0.5, 0.5],
    ),
]


def law(keys: dict[str, Any]) -> RowsConfig:
    config: RowsConfig = TypeAdapter(RowsConfig).validate_python(keys)
    return config


def is_refused(config: RowsConfig, shares: Any) -> bool:
    counts = np.bincount(draw(config), minlength=len(shares))
    return counts.size > len(shares) or misses_shares(counts, np.array(shares) * N)


@pytest.mark.parametrize(("keys", "others", "shares"), LAWS)
def test_rows_are_of_their_law_and_not_of_the_one_next_to_it(
    keys: dict[str, Any], others: dict[str, Any], shares: Any
) -> None:
    assert sum(shares) == pytest.approx(1)
    assert not is_refused(law(keys), shares)
    assert is_refused(law(keys | others), shares)
    assert not is_correlated(draw(law(keys)) + np.random.default_rng(8).random(N))  # ties broken at random


@pytest.mark.parametrize("keys", [*(keys for keys, _, _ in LAWS), {"kind": "constant", "value": 3}])
def test_rows_are_int32_within_what_is_possible(keys: dict[str, Any]) -> None:
    config = law(keys)
    rows = draw(config)
    assert rows.dtype == np.int32
    assert rows.shape == (N,)
    assert set(rows.tolist()) <= set(possible_rows(config))
    assert rows.min() >= 1
    assert rows.max() == max_rows(config)
    assert draw(config, 0).size == 0
    assert np.array_equal(rows, draw(config))
    rng = np.random.default_rng(7)
    first, next_ones = draw_rows(config, rng, 64), draw_rows(config, rng, 64)
    assert np.array_equal(first, next_ones) == (keys["kind"] == "constant")


def test_a_pareto_has_the_tail_of_its_index() -> None:
    rows = draw(ParetoRows(kind="pareto", alpha=1.3, min=1, max=2**31 - 2))
    # floor(X) + U is not exactly Pareto, but beyond 40 rows within 1 % of it: k = 500 is P(X > 60)
    spread = rows + np.random.default_rng(9).random(N)
    assert not misses_tail(spread, 1.3, 500)
    assert misses_tail(spread, 1.8, 500)


# --- sizes of a trace ---------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{index},{size}" for index, size in enumerate(SIZES)] + ["8,"]
    path.write_text("timestamp_s,tokens\n" + "".join(f"{row}\n" for row in rows))
    return path


def empirical(file: Path, **keys: object) -> EmpiricalRows:
    given = {"size": "tokens", "per_row": 100.0, "max": 12, **keys}
    return EmpiricalRows.model_validate({"kind": "empirical", "file": str(file), **given})


@given(
    st.lists(st.integers(-1, 2**40) | st.sampled_from(SIZES), max_size=50),
    st.floats(0.1, 1e6),
    st.integers(1, 1_000),
)
@examples(60)
def test_rows_of_sizes_are_the_least_that_hold_them(sizes: list[int], per_row: float, most: int) -> None:
    config = TraceRows(kind="trace", size="x", per_row=per_row, max=most)
    rows = trace_rows(config, np.array(sizes, np.int64))
    assert rows.tolist() == [min(max(math.ceil(size / per_row), 1), most) for size in sizes]
    assert rows.dtype == np.int32
    assert possible_rows(config) == range(1, most + 1)
    with pytest.raises(ValueError, match="they are not drawn"):
        draw(config)


def test_rows_of_a_file_are_drawn_as_often_as_it_has_them(file: Path) -> None:
    # the row without a size is left out: 1 1 1 2 3 3 10 12
    shares = np.array([0, 3, 1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 1]) / 8
    assert not is_refused(empirical(file), shares)
    assert is_refused(empirical(file, per_row=101.0), shares)


def test_a_settled_law_is_the_same_without_its_file(file: Path) -> None:
    config = empirical(file)
    law = settled(config)
    weights = tuple(n / 3 for n in (3, 1, 2, 1, 1))
    assert law == EmpiricalRows(kind="empirical", values=(1, 2, 3, 10, 12), weights=weights)
    assert np.array_equal(draw(law), draw(config))
    file.unlink()
    assert settled(law) == law
    twice = EmpiricalRows(kind="empirical", values=(2, 1, 2, 3), weights=(1.0, 1.0, 3.0, 2.0))
    assert settled(twice) == EmpiricalRows(kind="empirical", values=(1, 2, 3), weights=(0.25, 1.0, 0.5))
    assert settled(ConstantRows(value=3)) == ConstantRows(value=3)
    assert (possible_rows(config), possible_rows(law)) == (range(1, 13), range(1, 13))


def test_a_file_without_those_sizes_is_refused_with_what_it_has(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"trace\.csv: has no size in a column 'token', .* tokens"):
        draw(empirical(file, size="token"))
    file.write_text("timestamp_s,tokens\n1,\n2,\n")
    with pytest.raises(ScenarioError, match=r"trace\.csv"):
        draw(empirical(file))
    with pytest.raises(ScenarioError, match=r"none\.csv"):
        draw(empirical(tmp_path / "none.csv"))
