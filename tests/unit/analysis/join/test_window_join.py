"""`batch_costs` and `joined` of runs that the kernel library recorded in windows: all of an execution or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.storage.store import RunStore
from tests.many_examples import folder_in
from tests.planted_runs import FEATURES, MS, START_NS, STYLES, US, Shape, plant, shapes
from tests.reference_join import key, reference
from tests.unit.analysis.join.test_planted_join import check_tables
from tests.window_runs import by_library, window, windows_of

Row = dict[str, Any]
Key = tuple[str, int]
S = 1_000_000_000


def recorded(shape: Shape, parent: Path, on_ns: int, period_ns: int, edge_ns: int = 20 * US) -> RunStore:
    """The planted run as the library records it on `on_ns` of every `period_ns`; its tables derived."""
    whole = plant(shape).write(parent)
    last_ns = START_NS + 2 * shape.span_ns
    windows = {
        f"server-{number}": windows_of(START_NS + number * 3 * MS, last_ns, on_ns, period_ns, edge_ns)
        for number in range(len(shape.servers))
    }
    store = by_library(whole, parent, windows)
    write_batch_costs(store)
    write_joined(store)
    return store


def check_sums(store: RunStore) -> None:
    """Each recorded kernel of a batch that a window holds counts once, and no other does."""
    costs = {key(row): row for row in store.read("batch_costs").to_pylist()}
    whole = {name[:1] + name[2:] for name, row in costs.items() if row["tie"] == "range"}
    kernels = store.read("kernels").to_pylist() if store.has("kernels") else []
    own = [
        row["end_ns"] - row["start_ns"]
        for row in kernels
        if row["end_ns"] >= row["start_ns"]
        and (row["server"], row["instance"], row["instance_device"], row["batch_id"]) in whole
    ]
    assert sum(own) == sum(row["kernel_ns"] for row in costs.values() if row["tie"] == "range")


@pytest.mark.slow
@settings(max_examples=4)
@given(shape=shapes(), on_ms=st.integers(2, 80), pause_ms=st.integers(1, 60))
def test_any_run_in_windows_is_joined_as_loops_join_it(
    shape: Shape, on_ms: int, pause_ms: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with folder_in(tmp_path_factory.getbasetemp()) as folder:
        store = recorded(shape, folder, on_ms * MS, (on_ms + pause_ms) * MS)
        check_tables(store, reference(store))
        check_sums(store)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Every kind of server, recorded for 40 ms of every 80."""
    shape = Shape(seed=3, n_requests=90, servers=STYLES, n_instances=2, n_nodes=3)
    return recorded(shape, tmp_path_factory.mktemp("half"), 40 * MS, 80 * MS)


def test_a_run_with_every_kind_of_server_in_windows_is_joined_as_loops_join_it(half: RunStore) -> None:
    check_tables(half, reference(half))
    ties = {row["tie"] for row in half.read("batch_costs").to_pylist()}
    assert ties == {"range", "window", "none"}
    levels = [row["join_level"] for row in half.read("joined").to_pylist() if row["target"] == "server-4"]
    assert {"window", "none"} == set(levels), "requests of a server without ids within windows, and others"


def test_shares_of_requests_add_up_to_the_kernels_of_the_batches_in_windows(tmp_path: Path) -> None:
    shape = Shape(seed=6, n_requests=100, n_instances=2, features=frozenset({"blocks", "streams", "graphs"}))
    store = recorded(shape, tmp_path, 50 * MS, 90 * MS)
    check_sums(store)
    shared = [row["kernel_share_ns"] for row in store.read("joined").to_pylist() if row["tie"] == "range"]
    costs = store.read("batch_costs").to_pylist()
    assert sum(shared) == sum(row["kernel_ns"] or 0 for row in costs) > 0
    assert {row["tie"] for row in costs} == {"range", "none"}


def test_one_window_over_everything_gives_what_nsys_gives_but_for_calls(tmp_path: Path) -> None:
    features = frozenset(FEATURES) - {"lost_ranges", "open_ranges", "lost_batches", "partial_profile"}
    whole = plant(Shape(seed=9, n_requests=60, features=features)).write(tmp_path / "nsys")
    windows = {"server-0": [window(START_NS - S, START_NS + 10 * S)]}
    store = by_library(whole, tmp_path, windows)
    found, expected = (_costs(one) for one in (store, whole))
    names = ("n_kernels", "n_copies", "kernel_ns", "kernel_busy_ns", "copy_exposed_ns", "head_ns", "tail_ns",
             "h2d_ns", "d2h_bytes", "pageable_bytes", "overrun_ns", "gpu_uuid")  # fmt: skip
    tied = [one for one, row in expected.items() if row["tie"] == "range"]
    assert len(tied) > 10
    for one in tied:
        assert {name: found[one][name] for name in names} == {name: expected[one][name] for name in names}
        assert found[one]["sync_wait_ns"] is found[one]["n_launches"] is found[one]["thread"] is None


def _costs(store: RunStore) -> dict[Any, Row]:
    write_batch_costs(store)
    return {key(row): row for row in store.read("batch_costs").to_pylist()}
