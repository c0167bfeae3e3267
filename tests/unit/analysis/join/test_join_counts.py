"""How many requests of each phase are joined, against the rows of `joined` themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from squall.analysis.join.counts import Accounting, JoinCounts, JoinFigures, join_counts, join_figures
from squall.analysis.storage.store import RunStore


@pytest.mark.parametrize("name", ["whole_run", "mixed_run"])
def test_the_counts_are_those_of_the_rows(name: str, request: pytest.FixtureRequest) -> None:
    whole_run: RunStore = request.getfixturevalue(name)
    found = join_counts(whole_run)
    assert found is not None
    rows = whole_run.read("joined").to_pylist()
    assert set(found) == {row["phase"] for row in rows}
    for phase, counts in found.items():
        own = [row for row in rows if row["phase"] == phase]
        assert {(one.target, one.model) for one in counts} == {
            (row["target"], row["request_kind"]) for row in own
        }
        for one in counts:
            held_to_rows(one, [row for row in own if (row["target"], row["request_kind"]) == one[:2]])


def held_to_rows(found: JoinCounts, own: list[dict[str, Any]]) -> None:
    ok = [row for row in own if row["outcome"] == "ok"]
    joined = [row for row in ok if row["join_level"] in ("exact", "batch")]
    errors = [row["clock_error_ns"] for row in joined if row["clock_error_ns"] is not None]
    by_level = Counter(row["join_level"] for row in ok)
    assert found[2:] == (len(own), len(ok), by_level, max(errors, default=None))
    assert found.n_ok_joined == len(joined)


def test_each_server_and_model_is_counted_by_itself(mixed_run: RunStore) -> None:
    found = join_counts(mixed_run)
    assert found is not None
    assert [one[:2] for one in found["burst"]] == [
        ("server-0", "linear_head"), ("server-0", "seqlen_head"), ("server-1", "linear_head"),
    ]  # fmt: skip
    assert all(0 < one.n_ok == one.n_ok_joined < one.n for one in found["burst"])


def test_figures_add_up_the_phases_asked_for() -> None:
    counts = {
        "a": (
            JoinCounts("s", "m", 7, 5, {"exact": 3, "window": 2}, 20),
            JoinCounts("s", "n", 3, 3, {"exact": 3}, 30),
        ),
        "b": (JoinCounts("s", "m", 4, 4, {"batch": 4}, 70),),
        "c": (JoinCounts("s", "m", 9, 9, {"none": 9}, None),),
    }
    account = Accounting("batch", 4, 4, {}, {}, None)

    def of(*phases: str) -> Any:
        return join_figures(counts, phases, account)

    assert of("a", "b") == JoinFigures(14, 12, 10, 10 / 12, 70, account)
    assert (of("c").joined_ratio, of("c").clock_error_max_ns) == (0.0, None)
    assert (of("none").n, of("none").joined_ratio) == (0, None)
    assert join_figures(None, ["a"], None) is None
