"""Kernels of a backend in C whose batches overlap, in a real Triton: tied to the batch that launched them, or to none.

There is no GPU: the backend has a CUPTI of known behaviour make its records. Each operation is as large as the number
of its batch, so that a row of the run says itself where it belongs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.library import built_library
from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench
from tests.integration.test_c_backend import CONFIG
from tests.integration.test_foreign_batches import rows_of, scenario
from tests.kernel_hosts import built
from tests.reporting import NATIVE, SHARED, compiled

pytestmark = pytest.mark.skipif(
    built_library("batches") is None or built_library("kernels") is None,
    reason="a library was not built: no C compiler",
)
KINDS = ["kernels", "copies", "events"]
N_OPERATIONS = 4
"""Of a batch, of which one is a copy."""


def run(bench: Bench, folder: Path) -> RunStore:
    """Two seconds of requests to two instances that take batches while they compute."""
    model = folder / "models" / "minimal"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    told = f'-DTOLD="{folder / "told"}"'
    compiled([NATIVE / "minimal_backend.c"], model / "libtriton_minimal.so", *SHARED, "-O2", told)
    profile = {"batches": "required", "kernels": "required", "kernel_kinds": KINDS, "duty": "whole"}
    mapping = scenario(folder / "models", "minimal", rate_hz=500, **profile)
    live = bench.start_run(mapping, env={"SQUALL_CUPTI": str(built(folder / "built").fake)})
    assert live.end() in (0, 3), live.lines
    return bench.store()


def told(folder: Path) -> dict[int, set[int]]:
    """The requests of each batch of ours by the number that its operations have."""
    lines = [line.split() for line in (folder / "told").read_text().splitlines()]
    return {
        int(number): {int(one) for one in ids} for number, *ids in lines if all(one.isdigit() for one in ids)
    }


def operations(store: RunStore) -> list[tuple[int, dict[str, Any]]]:
    """Each kernel and copy with the number of its batch."""
    kernels = [(row["grid_x"], row) for row in rows_of(store, "kernels")]
    return kernels + [(row["bytes"], row) for row in rows_of(store, "memcpys")]


def of_instances(store: RunStore) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows_of(store, "batches"), key=lambda row: row["exec_start_ns"]):
        found.setdefault(row["instance"], []).append(row)
    return found


def assert_right(store: RunStore, folder: Path) -> tuple[int, int]:
    """What is tied is tied to the batch that the backend says; returns how many are tied, and of how many."""
    requests = told(folder)
    batches = {
        (row["instance"], row["batch_id"]): set(row["request_ids"]) for row in rows_of(store, "batches")
    }
    rows = [(requests[number], row) for number, row in operations(store) if number in requests]
    tied = [(ids, row) for ids, row in rows if row["batch_id"] is not None]
    assert all(batches[row["instance"], row["batch_id"]] == ids for ids, row in tied)
    return len(tied), len(rows)


@pytest.mark.slow
@pytest.mark.beside
def test_operations_of_overlapping_batches_are_tied_by_events(alone: Bench, tmp_path: Path) -> None:
    store = run(alone, tmp_path)
    overlapping = [
        later["exec_start_ns"] < one["exec_end_ns"]
        for own in of_instances(store).values()
        for one, later in pairwise(own)
    ]
    assert sum(overlapping) > 20
    (window,) = rows_of(store, "recordings")
    assert window["kinds"] == "kernels,copies,events"
    n_tied, n = assert_right(store, tmp_path)
    assert n > 500
    assert n_tied > 0.95 * n
    per_batch = Counter(number for number, row in operations(store) if row["batch_id"] is not None)
    assert Counter(per_batch.values()).most_common(1)[0][0] == N_OPERATIONS
    facts = store.manifest.kernels
    assert facts is not None
    assert sum(one.n_ambiguous for one in facts.ties.values()) < 0.05 * n
    assert not [note for note in store.manifest.notes if "kernel_kinds" in note]
    alone.wait_until_gone()
