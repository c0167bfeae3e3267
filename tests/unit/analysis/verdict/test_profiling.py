"""What profiling changed, as a run of a comparison is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.verdict.profiling import profiling_cost
from tests.known import known
from tests.overhead_runs import profiled_pairs, write_run


def test_each_run_of_a_comparison_is_told_what_profiling_changed(tmp_path: Path) -> None:
    bare, profiled = profiled_pairs(tmp_path)
    found = known(profiling_cost(tmp_path / "b" / profiled[1]))
    assert found.runs == tuple(profiled)
    assert known(profiling_cost(tmp_path / "a" / bare[0])).runs == tuple(bare)
    assert found.p50_ratio == pytest.approx((1.03 * (1.06 / 1.02) * (1.0 / 0.99)) ** (1 / 3), abs=2e-3)
    assert found.told == (
        "profiling changed p99 of the response time by +2.6 % (95 %: -1.0 % to +6.4 %) over 3 pairs; not"
        " distinguishable from none"
    )


def test_a_change_without_an_interval_is_not_assessed(tmp_path: Path) -> None:
    _, profiled = profiled_pairs(
        tmp_path, runs={0: {"n_failed": 30}, 2: {"n_failed": 30}, 4: {"n_failed": 30}}
    )
    found = known(profiling_cost(tmp_path / "b" / profiled[0]))
    assert found.told.startswith("p99 of the response time: the cost of profiling is not assessed, ")
    assert found.p50_ratio is not None


def _other_key(found: dict[str, Any]) -> None:
    found["differs"].append({"key": "model.instances", "a": "1", "b": "2"})


@pytest.mark.parametrize(
    "spoil",
    [
        _other_key,
        lambda found: found["differs"].clear(),
        lambda found: found.pop("changes"),
        lambda found: found.update(pairs=7),
        lambda found: found["changes"][0].update(change="much"),
        lambda found: found["pairs"][0].update(run_b="../elsewhere"),
    ],
)
def test_a_comparison_of_something_else_or_a_damaged_one_tells_nothing(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    _, profiled = profiled_pairs(tmp_path)
    found = json.loads((tmp_path / "compare.json").read_text())
    spoil(found)
    (tmp_path / "compare.json").write_text(json.dumps(found))
    assert profiling_cost(tmp_path / "b" / profiled[0]) is None
    (tmp_path / "compare.json").write_text("{")
    assert profiling_cost(tmp_path / "b" / profiled[0]) is None


def test_a_run_alone_is_told_nothing(tmp_path: Path) -> None:
    assert profiling_cost(write_run(tmp_path).run_dir) is None
