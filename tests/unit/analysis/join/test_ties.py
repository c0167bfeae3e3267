"""Which batch holds a record, against a search through all batches; which instance a lane is of; and a run's tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.arrays import Int64s
from squall.analysis.join.holders import FEWEST
from squall.analysis.join.ties import tie_kernels
from squall.analysis.storage.collected import KernelRecordingFacts, KernelTies
from squall.analysis.storage.manifest import Manifest, PhaseFacts
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.cluster.driver.ingest import notes_of_ties
from squall.scenarios.errors import StoreError
from tests.many_examples import many
from tests.overlapping_batches import Batches, Rules, schedule, tied
from tests.plain_runs import START_NS, Row, plain_table

Spans = list[tuple[int, int]]
SPAN = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda one: (one[0], one[0] + one[1]))
EVER = [(0, 10**9)]
LATER = np.arange(1_000_000, 1_003_000)
"""Operations enough in a batch of their own that what a few others do leaves the lane its owner."""


def instance(spans: Spans) -> Batches:
    start, end = (np.array([span[edge] for span in spans], np.int64) for edge in (0, 1))
    return Batches(start, end, np.arange(len(spans)) + 100)


def by_hand(spans: Spans, start: int, end: int) -> tuple[int | None, bool]:
    """The batch id, and whether several hold it."""
    held = [number for number, (first, last) in enumerate(spans) if first <= start and end <= last]
    return held[0] + 100 if len(held) == 1 else None, len(held) > 1


@example([(0, 7), (0, 7), (5, 6)], [(4, 3)])
@given(st.lists(SPAN, max_size=12), st.lists(st.tuples(st.integers(0, 55), st.integers(0, 3)), max_size=20))
@many(60)
def test_the_batch_that_holds_an_operation_is_the_one_found_by_hand(
    spans: Spans, points: list[tuple[int, int]]
) -> None:
    start = np.array([at for at, _ in points], np.int64)
    end = start + np.array([length for _, length in points], np.int64)
    records = {"start_ns": np.append(start, LATER), "end_ns": np.append(end, LATER)}
    own = instance([*spans, (LATER[0], LATER[-1])])
    found = tied([own], records, EVER).slice(0, len(points)).to_pylist()
    for row, first, last in zip(found, start.tolist(), end.tolist(), strict=True):
        is_longer = any(s <= first and last < e for s, e in spans)
        told, wanted = (row["batch_id"], row["is_ambiguous"]), by_hand(spans, first, last)
        assert told == wanted or (is_longer and told == (None, True) and wanted[0] is not None)


def batches(n: int, first: int, every: int, length: int) -> Spans:
    return [(first + number * every, first + number * every + length) for number in range(n)]


def ops_in(spans: Spans, lead: int = 12) -> Int64s:
    return np.array([first + lead for first, _ in spans], np.int64)


A, B = batches(100, 0, 50, 40), batches(100, 20, 50, 40)
CASES: dict[str, tuple[dict[tuple[int, int], Int64s], dict[tuple[int, int], str]]] = {
    "a process is of the instance that holds all of it": (
        {(7, 7): ops_in(A), (8, 7): ops_in(B, 22)}, {(7, 7): "0", (8, 7): "1"}
    ),
    "streams of one process are told apart": (
        {(7, 7): ops_in(A), (7, 13): ops_in(B, 22)}, {(7, 7): "0", (7, 13): "1"}
    ),
    "what both hold nearly always has no owner": ({(7, 7): ops_in(A[:-1], 25)}, {(7, 7): ""}),
    "what both hold mostly is of the one that holds all": (
        {(7, 7): ops_in([*A[:4], *((first + 13, 0) for first, _ in A[4:99])])}, {(7, 7): "0"}
    ),
    "what no instance holds has no owner": ({(7, 7): ops_in([*A[:97], *[(10**6, 0)] * 2])}, {(7, 7): ""}),
    "a few operations tell nothing": ({(7, 7): ops_in(A[: FEWEST - 1])}, {(7, 7): ""}),
    "some more do": ({(7, 7): ops_in(A[:FEWEST])}, {(7, 7): "0"}),
    "a stream of few operations is of the instance of its process": (
        {(7, 7): ops_in(A), (7, 13): ops_in(A[:3])}, {(7, 7): "0", (7, 13): "0"}
    ),
}  # fmt: skip


def owners(
    instances: Sequence[Spans], lanes: dict[tuple[int, int], Int64s], windows: Any = EVER
) -> dict[Any, str]:
    """By process and stream the instance of what is tied of it."""
    start = np.concatenate([*lanes.values()])
    process, stream = np.repeat([*lanes], [len(own) for own in lanes.values()], axis=0).T
    records = {"start_ns": start, "end_ns": start + 1, "process": process, "stream": stream}
    names = tied([instance(one) for one in instances], records, windows)["instance"].to_pylist()
    return {
        lane: max(set(names[n - len(own) : n])) for (lane, own), n in
        zip(lanes.items(), np.cumsum([len(own) for own in lanes.values()]), strict=True)
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_lane_is_of_the_instance_whose_batches_hold_it(case: str) -> None:
    lanes, wanted = CASES[case]
    assert owners([A, B], lanes) == wanted


def test_without_batches_nothing_is_tied() -> None:
    assert owners([], {(7, 7): ops_in(A)}) == {(7, 7): ""}


class TestBusyInstances:
    """Both compute nearly all the time: their batches hold 99 % of anything."""

    SPANS = batches(1_000, 0, 1_000, 990), batches(1_000, 500, 1_000, 990)

    @pytest.mark.parametrize(
        ("n", "n_astray", "windows", "owner"),
        [
            (20_000, 0, EVER, "1"),
            (1_000, 0, EVER, ""),  # too few lie in the other's pauses
            (20_000, 15, EVER, "1"),
            (20_000, 80, EVER, ""),  # it misses too many too
            (20_000, 0, [(0, FEWEST * 1_000 - 1_000)], ""),  # its batches hardly ever begin
        ],
    )
    def test_the_one_that_misses_nothing_is_the_owner(
        self, n: int, n_astray: int, windows: Any, owner: str
    ) -> None:
        """Operations all over the batches of the second, and some in its pauses."""
        at = np.linspace(600, 900_000, n).astype(np.int64)
        start = np.concatenate([at[at % 1_000 // 10 != 49], np.arange(n_astray) * 1_000 + 495])
        assert owners(self.SPANS, {(7, 7): start}, windows) == {(7, 7): owner}


def test_the_lane_of_a_call_is_its_thread() -> None:
    start = np.append(ops_in(A), ops_in(B, 22))
    calls = {"start_ns": start, "end_ns": start + 1, "thread": np.repeat([98, 99], 100)}
    names = tied([instance(A), instance(B)], calls, EVER, table="cuda_api")["instance"].to_pylist()
    assert names == ["0"] * 100 + ["1"] * 100


def open_run(folder: Path, events: bool = True) -> tuple[RunStore, Any]:
    """Of an instance whose batches overlap, with one row of nsys."""
    made = schedule(Rules(gap_us=800))
    facts = PhaseFacts(name="m", kind="measure", start_ns=START_NS, end_ns=START_NS + made.end_ns)
    store = RunStore.create(
        folder, "plain", START_NS, Manifest(phases=(facts,), kernels=KernelRecordingFacts())
    )
    (own,) = made.instances
    ids = ("context", "stream", "correlation_id")
    tables: dict[str, list[Row]] = {
        "recordings": [{"start_ns": START_NS, "end_ns": START_NS + made.end_ns}],
        "batches": [
            {"instance": "a", "instance_device": 3, "start_ns": START_NS, "end_ns": START_NS, "batch_id": batch_id,
             "exec_start_ns": START_NS + start, "exec_end_ns": START_NS + end}
            for start, end, batch_id in zip(*(one.tolist() for one in own), strict=True)
        ],
        "kernels": [
            {name: int(row[name]) for name in ids} | {"process": 11, "recorded_by": "library",
             "start_ns": START_NS + int(row["start_ns"]), "end_ns": START_NS + int(row["end_ns"])}
            for row in made.operations
        ] + [{"recorded_by": "nsys", "instance": "n", "instance_device": 1, "batch_id": 7}],
        "syncs": [  # of no stream
            {"process": 11, "recorded_by": "library", "start_ns": START_NS + at_ns, "end_ns": START_NS + at_ns}
            for at_ns in (int(own.start_ns[0]), made.end_ns)
        ],
        "cuda_events": [
            {"process": 11} | {name: int(row[name]) for name in (*ids, "event")} for row in made.events if events
        ],
    }  # fmt: skip
    for table, some in tables.items():
        if some:
            store.append(table, plain_table(table, store.run, some))
    store.flush()
    return store, made


def test_events_tell_whose_the_operations_of_overlapping_batches_are(tmp_path: Path) -> None:
    store, made = open_run(tmp_path)
    before = store.read("kernels")
    assert tie_kernels(store) == []
    after = store.read("kernels")
    ties = ["instance", "instance_device", "batch_id"]
    assert after.drop_columns(ties).equals(before.drop_columns(ties))
    n = len(made.operations)
    assert after["batch_id"].to_pylist() == [*made.true_batch.tolist(), 7]
    assert after["instance"].to_pylist() == ["a"] * n + ["n"]
    assert after["instance_device"].to_pylist() == [3] * n + [1]
    assert store.read("syncs")["batch_id"].to_pylist() == [100, None]
    assert store.manifest.kernels is not None
    assert store.manifest.kernels.ties == {
        "kernels": KernelTies(n=n, n_tied=n, n_ambiguous=0),
        "syncs": KernelTies(n=2, n_tied=1, n_ambiguous=0),
    }
    again = store.read("kernels")
    tie_kernels(store)
    assert store.read("kernels").equals(again)
    store.seal(Verdict(status="VALID"))
    with pytest.raises(StoreError, match="is sealed"):
        tie_kernels(store)
    assert notes_of_ties(store)[0].startswith("kernels are not tied to their batches: ")


def test_a_driver_that_is_killed_while_it_ties_costs_no_row(tmp_path: Path) -> None:
    store, _ = open_run(tmp_path)
    before = store.read("kernels")
    (store.run_dir / "tables" / "kernels").rename(store.run_dir / ".old-kernels")
    (store.run_dir / ".new-kernels").mkdir()
    again = RunStore.open(store.run_dir)
    again.reopen(["kernels"], lambda _, rows: rows)
    assert again.read("kernels").equals(before)
    assert tie_kernels(again) == []
    assert again.read("kernels")["batch_id"].null_count == 0


def test_a_run_that_recorded_no_events_says_that_they_would_tell(tmp_path: Path) -> None:
    store, made = open_run(tmp_path, events=False)
    (note,) = tie_kernels(store)
    facts = store.manifest.kernels
    assert facts is not None
    n, n_tied, n_ambiguous = (getattr(facts.ties["kernels"], name) for name in ("n", "n_tied", "n_ambiguous"))
    assert (n, n_tied + n_ambiguous) == (len(made.operations), n)
    assert n_ambiguous > 500
    assert facts.losses == (note,)
    assert note.startswith(
        f"kernels: {n_ambiguous} of {n + 2} records lie in several batches of their instance"
    )
    assert note.endswith(
        "; no CUDA event was recorded: add events to profile.kernel_kinds to tell them apart"
    )


def test_a_run_without_kernels_has_nothing_to_tie(tmp_path: Path) -> None:
    assert tie_kernels(RunStore.create(tmp_path, "plain", START_NS, Manifest())) == []
