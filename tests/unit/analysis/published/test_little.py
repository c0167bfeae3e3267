"""Little's law on the rows of the articles and on ours: how much of a user's cycle lies outside any request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from squall.analysis.published.result import Cycle
from tests.planted_experiment import MS, judged, published, run

OURS = {"throughput_hz": 2_406.0, "mean_ns": 103.0 * MS, "users_count": 1_000.0, "outside_ratio": 0.75}


def our_cycle(figures: Mapping[str, float | str], given: Mapping[str, float | str] = OURS) -> Cycle | None:
    """Of a row with these figures, of which its part gives the `given`."""
    file = published(parts={"latency": {"about": "once", "gives": [*given]}})
    invalid = run("linear_head", 1, figures, status="INVALID", reason="users accounted for")
    return next((one for one in judged(file, [invalid]).cycles if one.whose == "ours"), None)


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
    found = {one.row: one for one in judged(published(), []).cycles}[row]
    assert (round(found.cycle_ns / MS), found.response_ns) == (cycle_ms, mean_ms * MS)
    assert (found.response_name, round(found.outside_ratio, 2)) == ("mean", outside)
    assert found.claim.startswith("client-bound or thinking: ")


@pytest.mark.parametrize(
    ("stated", "users", "name", "outside", "claim"),
    [  # users of the scenario's closed loop, unless the row states them
        ({"throughput_hz": 941, "p50_ns": "630ms"}, 1_000, "p50, for want of a mean", 0.407, "client-bound"),
        ({"throughput_hz": 100, "mean_ns": "640ms", "users_count": 64}, 64, "mean", 0.0, "accounted for"),
        (
            {"throughput_hz": 4_000, "mean_ns": "300ms"},
            1_000,
            "mean",
            -0.2,
            "the figures do not belong together",
        ),
    ],
)
def test_a_row_says_what_of_its_cycle_is_the_request(
    stated: Mapping[str, float | str], users: int, name: str, outside: float, claim: str
) -> None:
    (found,) = judged(published([{"name": "r", "published": stated}]), []).cycles
    assert (found.users_count, found.response_name) == (users, name)
    assert found.outside_ratio == pytest.approx(outside, abs=1e-3)
    assert found.claim.startswith(claim)
    assert f"{name} " in found.claim


def test_a_row_whose_response_or_throughput_is_not_known_has_no_cycle() -> None:
    rows = [{"name": "a", "published": {"p50_ns": "1s"}}, {"name": "b", "published": {"throughput_hz": 10}}]
    assert judged(published(rows), []).cycles == ()
    for name in OURS:
        assert our_cycle({key: value for key, value in OURS.items() if key != name}) is None


def test_our_rows_are_held_to_the_same_law_and_say_what_their_runs_say() -> None:
    figures: dict[str, float | str] = {**OURS, "regime": "client-bound"}
    ours, said = our_cycle(figures), our_cycle(figures, figures)
    assert ours is not None
    assert said is not None
    assert (round(ours.cycle_ns / MS), ours.throughput_hz, ours.outside_ratio) == (416, 2_406.0, 0.75)
    assert ours.claim.startswith("client-bound or thinking: 75.0 %")
    assert "the run itself says" not in ours.claim  # its part does not give the regime
    assert said.claim.endswith("the run itself says client-bound")


def test_requests_cut_off_at_the_ends_of_a_short_phase_are_no_time_outside() -> None:
    """8 users with 39.2 ms a request, of which 192 a second ended in the phase: 204 would be all of their time."""
    found = our_cycle(
        {"throughput_hz": 192.0, "mean_ns": 39.2 * MS, "users_count": 8.0, "outside_ratio": 1e-4}
    )
    assert found is not None
    assert found.claim.startswith("accounted for")
