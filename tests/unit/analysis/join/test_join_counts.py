"""How many requests of each phase are joined, against the rows of `joined` themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from squall.analysis.join.counts import Accounting, JoinCounts, JoinFigures, join_counts, join_figures
from squall.analysis.storage.store import RunStore


def test_the_counts_are_those_of_the_rows(whole_run: RunStore) -> None:
    found = join_counts(whole_run)
    assert found is not None
    rows = whole_run.read("joined").to_pylist()
    assert set(found) == {row["phase"] for row in rows}
    for phase, counts in found.items():
        own = [row for row in rows if row["phase"] == phase]
        ok = [row for row in own if row["outcome"] == "ok"]
        joined = [row for row in ok if row["join_level"] in ("exact", "batch")]
        errors = [row["clock_error_ns"] for row in joined if row["clock_error_ns"] is not None]
        n_exact = Counter(row["target"] for row in ok if row["join_level"] == "exact")
        assert counts == (len(own), len(ok), len(joined), n_exact, max(errors, default=None))
    assert any(0 < counts.n_ok < counts.n for counts in found.values())


def test_figures_add_up_the_phases_asked_for() -> None:
    counts = {
        "a": JoinCounts(10, 8, 6, {"s": 5}, 30),
        "b": JoinCounts(4, 4, 4, {}, 70),
        "c": JoinCounts(9, 9, 0, {}, None),
    }
    account = Accounting("batch", 4, 4, {}, {}, None)

    def of(*phases: str) -> Any:
        return join_figures(counts, phases, account)

    assert of("a", "b") == JoinFigures(14, 12, 10, 10 / 12, 70, account)
    assert (of("c").joined_ratio, of("c").clock_error_max_ns) == (0.0, None)
    assert (of("none").n, of("none").joined_ratio) == (0, None)
    assert join_figures(None, ["a"], None) is None
