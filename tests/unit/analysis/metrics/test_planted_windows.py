"""`windows` of planted runs against loops over plain rows, and against what must hold whatever was planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.windows import write_windows
from tests.planted_runs import FEATURES, MS, Planted, Shape, plant
from tests.reference_join import Row, reference
from tests.reference_windows import of_windows, window_rows


def derived(planted: Planted, parent: Path) -> tuple[list[Row], list[Row]]:
    """Rows of `windows` as they came out, and as they must."""
    store = planted.write(parent)
    write_batch_costs(store)
    write_joined(store)
    write_windows(store)
    return store.read("windows").to_pylist(), window_rows(store, reference(store))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


def test_windows_of_a_long_run_add_up_to_the_run(parent: Path) -> None:
    shape = Shape(
        seed=5, n_requests=150, servers=("record", "bare", "blind"), n_nodes=2, span_ns=1500 * MS,
        features=frozenset(FEATURES) - {"partial_profile"},
    )  # fmt: skip
    planted = plant(shape)
    found, expected = derived(planted, parent)
    assert not of_windows(found, expected), "column: (found, expected)"
    done = [one for one in planted.requests if one.outcome == "ok"]
    assert sum(row["n_done"] for row in found) == len(done) > 100
    assert found[-1]["in_flight"] == found[-1]["queue_depth"] == 0
    assert sum(row["gpu_kernel_ratio"] is not None for row in found) >= 8, "the phases that were recorded"
