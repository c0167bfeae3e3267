"""What is said beside an answer: figures that do not follow the load."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from squall.analysis.capacity.notes import notes_of
from squall.analysis.capacity.rows import Row
from squall.analysis.capacity.search import Found


def row(seed: int, rate_hz: float, margin: float | None, purpose: str = "bracket") -> Row:
    empty: dict[str, Any] = dict.fromkeys(get_type_hints(Row))
    return dataclasses.replace(
        Row(**empty), seed=seed, rate_hz=rate_hz, margin=margin, purpose=purpose, run=f"{seed}-{rate_hz}"
    )


def said(*rows: Row, scale: str = "time") -> list[str]:
    return [one for one in notes_of(Found("found", ()), scale, "", rows, None) if one.startswith("noise")]


def test_a_figure_that_is_higher_at_less_load_is_the_hosts_noise() -> None:
    (note,) = said(row(1, 1_150.0, -0.03), row(2, 1_151.0, 0.2), row(2, 1_056.0, 0.5), row(2, 900.0, -1.0))
    assert "seed 2 had a figure 35.0 % higher at 1,056/s than at 1,151/s" in note


@pytest.mark.parametrize(
    "rows",
    [
        (row(1, 100.0, -0.5), row(1, 110.0, 0.1), row(1, 120.0, 0.4)),  # in order
        (row(1, 100.0, 0.1), row(1, 101.0, 0.0)),  # as little as a step moves it
        (row(1, 100.0, 0.5), row(2, 110.0, -0.5)),  # two schedules
        (row(1, 100.0, 0.5, "low"), row(1, 900.0, -0.5)),  # a probe for something else
        (row(1, 100.0, None), row(1, 900.0, -0.5)),  # INVALID, or infinite
    ],
)
def test_what_another_cause_explains_is_none(rows: tuple[Row, ...]) -> None:
    assert said(*rows) == []


def test_schedules_drawn_anew_at_each_load_need_not_be_in_order() -> None:
    assert said(row(1, 100.0, 0.5), row(1, 110.0, -0.5), scale="amplitude") == []
