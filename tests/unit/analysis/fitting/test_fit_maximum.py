"""A search that found no greatest value says so, and one that did does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.fitting import maximum
from squall.analysis.fitting.fitted import Excerpt
from squall.analysis.fitting.maximum import maximise
from squall.analysis.fitting.renewal import FAMILIES, GapFamily, fit_renewal


def test_the_top_of_a_parabola_is_no_failure() -> None:
    found = maximise(lambda at: -float((at[0] - 1) ** 2), [np.array([0.0])], [(-3.0, 3.0)], 1)
    assert (found.failure, found.at[0]) == ("", pytest.approx(1.0, abs=1e-4))
    assert found.likelihood == found.value
    at_bound = maximise(lambda at: float(at[0]), [np.array([0.0])], [(-3.0, 3.0)], 1)
    assert (at_bound.failure, at_bound.at[0]) == ("", 3.0), "a bound is no failure: it has no standard error"


@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_a_likelihood_without_a_value_is_a_failure(nothing: float) -> None:
    found = maximise(lambda _: nothing, [np.array([0.0]), np.array([1.0])], [(-3.0, 3.0)], 10, n_tried=2)
    assert found.failure == "its likelihood has no value at any start"
    assert found.likelihood is None
    assert found.stderr((1.0,)) is None


def test_a_search_cut_short_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maximum, "_OPTIONS", {"maxiter": 1})
    valley = maximise(
        lambda at: -float((1 - at[0]) ** 2 + 100 * (at[1] - at[0] ** 2) ** 2),
        [np.array([-1.2, 1.0])], [(-3.0, 3.0), (-3.0, 3.0)], 1,
    )  # fmt: skip
    assert valley.failure == "the search stopped after 1 steps"


def test_a_process_whose_likelihood_has_no_value_carries_the_failure() -> None:
    gaps = np.random.default_rng(1).exponential(1.0, 600)
    excerpt = Excerpt(np.cumsum(gaps), float(gaps.sum()) + 1)
    gamma = FAMILIES[0]
    no_density = GapFamily(
        gamma.name, gamma.shape, lambda *_: math.nan, gamma.transform, gamma.slope, gamma.bounds, gamma.starts
    )
    broken = fit_renewal(no_density, [excerpt], 1.0)
    assert broken.failure
    assert (broken.log_likelihood, broken.aic_per_arrival) == (None, None)
    assert fit_renewal(gamma, [excerpt], 1.0).failure == ""
