"""A search that found no greatest value says so, and one that did does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from squall.analysis.traces import maximum
from squall.analysis.traces.fitted import LOG, PLAIN, Coordinate, Excerpt
from squall.analysis.traces.maximum import maximise
from squall.analysis.traces.renewal import FAMILIES, fit_renewal

X, Y = (Coordinate(name, PLAIN, -3.0, 3.0) for name in "xy")


def test_the_top_of_a_parabola_is_no_failure_and_its_curvature_the_error() -> None:
    found = maximise(lambda x: -2.0 * (x - 1) ** 2, [X], [(0.0,)], 1)
    (x,) = found.parameters
    assert found.failure == ""
    assert found.log_likelihood == pytest.approx(0.0, abs=1e-8)
    assert [x.value, x.stderr] == pytest.approx([1.0, 0.5], abs=1e-4)
    # ln L of ln s: the error of s is s times as large
    scaled = Coordinate("s", LOG, 0.01, 100.0, "s", scale=8.0)
    (s,) = maximise(lambda s: -2.0 * (math.log(s) - 1) ** 2, [scaled], [(3.0,)], 1).parameters
    assert [s.value, s.stderr] == pytest.approx([math.e, 0.5 * math.e], rel=1e-3)
    at_bound = maximise(lambda x: x, [X], [(0.0,)], 1)  # no failure, and no standard error
    (x,) = at_bound.parameters
    assert (at_bound.failure, x.value, x.stderr) == ("", 3.0, None)


@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_a_likelihood_without_a_value_is_a_failure_that_a_process_carries(nothing: float) -> None:
    found = maximise(lambda _: nothing, [X], [(0.0,), (1.0,)], 10, n_tried=2)
    assert found.failure == "its likelihood has no value at any start"
    assert (found.log_likelihood, found.parameters[0].stderr) == (None, None)
    excerpt = Excerpt(np.cumsum(np.random.default_rng(1).exponential(1.0, 600)), 700.0)
    broken = fit_renewal(replace(FAMILIES[0], log_density=lambda *_: nothing), [excerpt], 1.0)
    assert (bool(broken.failure), broken.log_likelihood, broken.aic_per_arrival) == (True, None, None)
    assert fit_renewal(FAMILIES[0], [excerpt], 1.0).failure == ""


def test_a_search_cut_short_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maximum, "_OPTIONS", {"maxiter": 1})
    valley = maximise(lambda x, y: -((1 - x) ** 2 + 100 * (y - x**2) ** 2), [X, Y], [(-1.2, 1.0)], 1)
    assert valley.failure == "the search stopped after 1 steps"
