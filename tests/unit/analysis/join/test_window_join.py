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
from tests.plain_runs import plain_run
from tests.planted_runs import FEATURES, MS, START_NS, STYLES, US, Shape, plant, shapes
from tests.reference_join import key, reference
from tests.unit.analysis.join.test_planted_join import check_tables
from tests.window_runs import by_library, window, windows_of

Row = dict[str, Any]
Key = tuple[str, int]
FIRST_NS = 1_000_000
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


def batch(batch_id: int, start_ns: int, end_ns: int) -> Row:
    span = {"start_ns": FIRST_NS + start_ns, "end_ns": FIRST_NS + end_ns}
    return {"batch_id": batch_id, "instance": "i0", "rows": 1, "n_requests": 1, "phase": "p", **span}


def kernel(batch_id: int | None, start_ns: int, end_ns: int) -> Row:
    span = {"start_ns": FIRST_NS + start_ns, "end_ns": FIRST_NS + end_ns}
    tie = {"instance": "i0" if batch_id is not None else "", "batch_id": batch_id}
    return {**span, **tie, "process": 7, "gpu_uuid": "GPU-0", "phase": "p", "recorded_by": "library"}


def recording(start_ns: int, end_ns: int, kinds: str = "kernels,copies") -> Row:
    return window(FIRST_NS + start_ns, FIRST_NS + end_ns, 0, kinds)


def edges(kinds: str = "kernels,copies") -> dict[str, list[Row]]:
    """A window [100, 200]: batches before, over either edge, exactly its own length, inside without a kernel."""
    return {
        "batches": [batch(0, 0, 50), batch(1, 90, 110), batch(2, 120, 150), batch(3, 155, 160),
                    batch(4, 190, 210), batch(5, 300, 400)],
        "kernels": [kernel(1, 102, 105), kernel(2, 125, 135), kernel(4, 191, 195), kernel(5, 300, 400),
                    kernel(None, 156, 158)],
        "recordings": [recording(100, 200, kinds), recording(300, 400, kinds)],
    }  # fmt: skip


def made(tmp_path: Path, tables: dict[str, list[Row]]) -> dict[int, Row]:
    store = plain_run(tmp_path, tables)
    write_batch_costs(store)
    return {row["batch_id"]: row for row in store.read("batch_costs").to_pylist()}


def test_an_execution_at_the_edge_of_a_window_has_no_part_of_its_kernels(tmp_path: Path) -> None:
    found = made(tmp_path, edges())
    assert [found[n]["tie"] for n in range(6)] == ["none", "none", "range", "range", "none", "range"]
    assert [found[n]["n_kernels"] for n in range(6)] == [None, None, 1, 0, None, 1]
    for n in (0, 1, 4):
        assert {
            found[n][name] for name in ("kernel_ns", "head_ns", "copy_exposed_ns", "h2d_bytes", "process")
        } == {None}
    assert (found[2]["head_ns"], found[2]["kernel_busy_ns"], found[2]["tail_ns"]) == (5, 10, 15)
    assert (found[5]["head_ns"], found[5]["tail_ns"], found[5]["process"]) == (0, 0, 7)
    assert (found[3]["head_ns"], found[3]["kernel_ns"], found[3]["gpu_uuid"]) == (5, 0, "")
    assert {found[n][name] for n in found for name in ("n_launches", "sync_wait_ns", "launch_idle_ns")} == {
        None
    }


def test_what_a_window_did_not_ask_for_is_not_known(tmp_path: Path) -> None:
    found = made(tmp_path, edges("kernels"))[2]
    assert (found["tie"], found["n_kernels"], found["kernel_busy_ns"]) == ("range", 1, 10)
    assert {found[name] for name in ("n_copies", "copy_ns", "head_ns", "copy_exposed_ns", "h2d_ns")} == {None}


def test_a_server_that_ran_nothing_in_its_windows_has_zeros(tmp_path: Path) -> None:
    tables = edges()
    del tables["kernels"]
    found = made(tmp_path, tables)
    assert [found[n]["kernel_ns"] for n in range(6)] == [None, None, 0, 0, None, 0]


def test_without_batch_ids_a_kernel_is_the_executions_that_alone_was_open_when_it_began(
    tmp_path: Path,
) -> None:
    tables = edges()
    tables["kernels"] = [{**row, "instance": "", "batch_id": None} for row in tables["kernels"]]
    found = made(tmp_path, tables)
    assert [found[n]["tie"] for n in range(6)] == ["none", "none", "window", "window", "none", "window"]
    assert [found[n]["n_kernels"] for n in range(6)] == [None, None, 1, 1, None, 1]


def test_a_window_that_never_held_records_nothing(tmp_path: Path) -> None:
    tables = edges()
    tables["recordings"] = [recording(200, 100), *tables["recordings"][1:]]
    assert [made(tmp_path, tables)[n]["tie"] for n in (2, 5)] == ["none", "range"]
