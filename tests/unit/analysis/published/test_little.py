"""Little's law on the rows of the articles: how much of a user's cycle lies outside any request."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.published.little import cycle_of, our_cycle, published_cycles, stated_users
from tests.planted_experiment import MS, judged, noisy_runs, published, run


@pytest.mark.parametrize(
    ("row", "cycle_ms", "mean_ms", "outside"),
    [
        ("linear_head", 869, 441, 0.49),
        ("linear_head_stacked", 836, 419, 0.50),
        ("seqlen_head", 995, 684, 0.31),
    ],
)
def test_users_of_the_article_spent_a_third_to_half_of_each_cycle_outside_any_request(
    row: str, cycle_ms: int, mean_ms: int, outside: float
) -> None:
    found = {one.row: one for one in published_cycles(published())}[row]
    assert round(found.cycle_ns / MS) == cycle_ms
    assert found.response_ns == mean_ms * MS
    assert found.response_name == "mean"
    assert round(found.outside_ratio, 2) == outside
    assert found.claim.startswith("client-bound or thinking: ")


def test_a_median_stands_in_for_a_mean_and_that_is_said() -> None:
    rows = [{"name": "4 instances", "published": {"throughput_hz": 941, "p50_ns": "630ms"}}]
    (found,) = published_cycles(published(rows))
    assert found.users_count == 1_000  # of the scenario's closed loop
    assert found.response_name == "p50, for want of a mean"
    assert round(found.outside_ratio, 3) == 0.407
    assert "p50, for want of a mean 630 ms" in found.claim


def test_a_row_whose_users_or_throughput_are_not_known_has_no_cycle() -> None:
    rows = [
        {"name": "one", "published": {"p50_ns": "1s"}},
        {"name": "two", "published": {"throughput_hz": 10}},
    ]
    assert published_cycles(published(rows)) == []
    assert stated_users(published([{"name": "one", "published": {"users_count": 64}}])) == 64


def test_a_cycle_that_is_the_request_is_accounted_for() -> None:
    assert cycle_of("r", "ours", 1_000, 4_000.0, 245 * MS).claim.startswith("accounted for")
    assert cycle_of("r", "ours", 1_000, 4_000.0, 300 * MS).claim.startswith(
        "the figures do not belong together"
    )


def test_our_rows_are_held_to_the_same_law_and_say_what_their_runs_say() -> None:
    figures = {"throughput_hz": 2_406.0, "mean_ns": 103.0 * MS, "users_count": 1_000.0}
    assert our_cycle("linear_head", figures) is None  # what was measured is the share outside
    mine: dict[str, float | str] = {**figures, "outside_ratio": 0.75, "regime": "client-bound"}
    found = judged(published(), [run("linear_head", 1, mine, status="INVALID", reason="users accounted for")])
    (ours,) = (one for one in found.cycles if one.whose == "ours")
    assert round(ours.cycle_ns / MS) == 416
    assert ours.outside_ratio == pytest.approx(0.75)
    assert round(ours.throughput_hz) == 2_406
    assert ours.claim.startswith("client-bound or thinking: 75.0 %")
    assert "the run itself says" not in ours.claim  # its part does not give the regime
    parts = {"latency": {"about": "once", "gives": [*mine]}}
    said = judged(published(parts=parts), found.runs).cycles[-1].claim
    assert said.endswith("the run itself says client-bound")
    assert our_cycle("linear_head", {"throughput_hz": 1.0}) is None


def test_requests_cut_off_at_the_ends_of_a_short_phase_are_no_time_outside() -> None:
    """8 users with 39.2 ms a request, of which 192 a second ended in the phase: 204 would be all of their time."""
    found = our_cycle(
        "r", {"throughput_hz": 192.0, "mean_ns": 39.2 * MS, "users_count": 8.0, "outside_ratio": 1e-4}
    )
    assert found is not None
    assert found.claim.startswith("accounted for")


def test_rows_without_users_of_ours_have_none() -> None:
    truth = {"linear_head": {"throughput_hz": 100.0}}
    found = judged(published(), noisy_runs(truth, 2, np.random.default_rng(1)))
    assert [one for one in found.cycles if one.whose == "ours"] == []
