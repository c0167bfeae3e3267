"""What `windows` says of batches, queue, GPU activity and samples, against sums over rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.derive import derive
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.windows import SLACK_NS, WINDOW_NS, window_notes, write_windows
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.store import RunStore
from tests.plain_runs import plain_run
from tests.synthetic_runs import MS, PHASES, START_NS, S, SyntheticRun, synthesise

MakeRun = Callable[..., RunStore]
STEP_NS = MS
"""Operations begin and end at multiples of this, so that a set of steps is a union of intervals."""
GPU_COLUMNS = (
    "gpu_kernel_ratio",
    "gpu_busy_ratio",
    "gpu_copy_ratio",
    "copy_overlap_ratio",
    "gpu_streams_mean",
)


def with_gpu(
    run: SyntheticRun, spans: list[tuple[int, int]], n: int = 400
) -> dict[str, list[dict[str, Any]]]:
    """Adds kernels, copies and sets in `spans` (s after the start) on two GPUs; returns their rows."""
    rng = np.random.default_rng(7)
    rows: dict[str, list[dict[str, Any]]] = {"kernels": [], "memcpys": [], "memsets": []}
    for first_s, last_s in spans:
        for _ in range(n):
            start = START_NS + int(rng.integers(first_s * S // STEP_NS, last_s * S // STEP_NS)) * STEP_NS
            table = str(rng.choice(list(rows), p=[0.6, 0.3, 0.1]))
            process = int(rng.integers(10, 12))
            rows[table].append({
                "node": "node-0", "server": "server-0", "process": process, "device": 0,
                "gpu_uuid": f"GPU-{process}", "context": 1, "stream": int(rng.integers(7, 9)), "start_ns": start,
                "end_ns": start + int(rng.choice([0, 1, 3, 8, 250], p=[0.1, 0.3, 0.3, 0.2, 0.1])) * STEP_NS,
                "correlation_id": 1, "instance": "", "bytes": 0,
            })  # fmt: skip
    for table, own in rows.items():
        own.sort(key=lambda row: row["start_ns"])
        run.tables[table] = columns_of(table, own)
    return rows


def columns_of(table: str, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """`rows` as columns; a column that they lack is 0 or empty where the schema wants a value."""
    columns = {}
    for field in arrow_schema(table):
        empty: Any = None if field.nullable else "" if "dictionary" in str(field.type) else 0
        columns[field.name] = [row.get(field.name, empty) for row in rows]
    return {
        **columns,
        "phase": [phase_at(row["start_ns"] if "start_ns" in row else row["t_ns"]) for row in rows],
    }


def phase_at(t_ns: int) -> str:
    return next((name for name, _, a, b in PHASES if START_NS + a * S <= t_ns < START_NS + b * S), "")


def steps(rows: list[dict[str, Any]]) -> set[int]:
    return {step for row in rows for step in range(row["start_ns"] // STEP_NS, row["end_ns"] // STEP_NS)}


Occupied = list[tuple[set[int], set[int], set[int], list[set[int]]]]


def occupied(rows: dict[str, list[dict[str, Any]]]) -> Occupied:
    """Steps of kernels, of every operation, of copies and of each stream, for each process."""
    found = []
    for process in (10, 11):
        own = {table: [one for one in some if one["process"] == process] for table, some in rows.items()}
        every = [one for some in own.values() for one in some]
        streams = [steps([one for one in every if one["stream"] == stream]) for stream in (7, 8)]
        found.append((steps(own["kernels"]), steps(every), steps(own["memcpys"]), streams))
    return found


def by_hand(taken: Occupied, t_ns: int) -> list[float | None]:
    """`GPU_COLUMNS` of the window at `t_ns`."""
    window = set(range(t_ns // STEP_NS, (t_ns + WINDOW_NS) // STEP_NS))
    found = [
        (len(kernels & window), len(every & window), len(copies & window), len(kernels & copies & window),
         sum(len(one & window) for one in streams))
        for kernels, every, copies, streams in taken
    ]  # fmt: skip
    kernel, busy, copy, both, stream = (sum(column) for column in zip(*found, strict=True))
    n = 2 * len(window)
    return [kernel / n, busy / n, copy / n, both / copy if copy else None, stream / busy if busy else None]


Windows = dict[int, dict[str, Any]]


def windows_of(run: SyntheticRun, parent: Path) -> Windows:
    """Rows of `windows` by their start."""
    run.derived = run.seal = False
    store = run.write(parent)
    write_joined(store)
    write_windows(store, 64 * 1024**2)
    return {row["t_ns"]: row for row in store.read("windows").to_pylist()}


def profiled() -> SyntheticRun:
    """The made-up run, its burst phase recorded from 0.35 s before it on."""
    run = synthesise()
    run.manifest["profiled_phases"] = {"burst": {"is_profiled": True, "profiled_after_ns": -350 * MS}}
    return run


def sample(t_ms: int, uuid: str, util: float, mig_instance: str = "") -> dict[str, Any]:
    return {
        "node": "node-0", "gpu_uuid": uuid, "t_ns": START_NS + t_ms * MS, "interval_ns": 100 * MS, "read_ns": 1,
        "mig_instance": mig_instance, "util": util, "gpm_interval_ns": 100 * MS, "sm_util": util, "tensor_util": util,
        "dram_util": util,
    }  # fmt: skip


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Windows, Occupied]:
    """Two GPUs with operations and samples, and six without operations: windows and what was planted."""
    run = profiled()
    taken = occupied(with_gpu(run, [(2, 14)]))
    idle = [sample(3000, f"GPU-idle-{i}", 0.0) for i in range(6)]
    used = [sample(3000, "GPU-10", 0.9), sample(3000, "GPU-11", 0.7), sample(3000, "GPU-10", 0.1, "1/0")]
    run.tables["gpu_samples"] = columns_of("gpu_samples", [*idle, *used])
    return windows_of(run, tmp_path_factory.mktemp("operated")), taken


def test_gpu_activity_is_cut_at_the_edges_of_windows(operated: tuple[Windows, Occupied]) -> None:
    windows = [row for row in operated[0].values() if row["phase"] == "burst"]
    assert len(windows) == 120
    for row in windows:
        expected = by_hand(operated[1], row["t_ns"])
        assert [row[name] for name in GPU_COLUMNS] == pytest.approx(expected, abs=1e-12)
    assert len({row["copy_overlap_ratio"] for row in windows}) > 10


def test_samples_are_of_the_whole_gpus_that_operations_ran_on(operated: tuple[Windows, Occupied]) -> None:
    row = operated[0][START_NS + 3 * S]
    names = ("gpu_util", "gpu_sm_util", "gpu_tensor_util", "gpu_dram_util")
    assert [row[name] for name in names] == pytest.approx([0.8] * 4)


def test_windows_that_no_report_covers_from_edge_to_edge_say_nothing_of_the_gpu(
    tmp_path: Path,
) -> None:
    run = profiled()
    with_gpu(run, [(1, 2), (5, 6)])
    windows = list(windows_of(run, tmp_path).values())
    known = [row["t_ns"] for row in windows if row["gpu_kernel_ratio"] is not None]
    assert known[0] == START_NS + 17 * WINDOW_NS, "1.65 to 1.7 s is part of a window only"
    assert known[-1] == START_NS + 139 * WINDOW_NS, "the recording ended with the phase at 14 s"
    idle = next(row for row in windows if row["t_ns"] == START_NS + 9 * S)
    assert (idle["gpu_kernel_ratio"], idle["gpu_busy_ratio"]) == (0.0, 0.0), "covered, and nothing ran"
    assert idle["gpu_streams_mean"] is None


def test_without_a_statement_a_phase_with_events_is_covered(tmp_path: Path) -> None:
    run = synthesise(rate_hz=20.0)
    with_gpu(run, [(3, 4)])
    windows = windows_of(run, tmp_path)
    assert {row["phase"] for row in windows.values() if row["gpu_busy_ratio"] is not None} == {"burst"}


def test_without_a_report_every_gpu_column_is_null(whole_run: RunStore) -> None:
    windows = whole_run.read("windows")
    for name in (*GPU_COLUMNS, "gpu_util", "gpu_sm_util", "gpu_tensor_util", "gpu_dram_util"):
        assert windows[name].null_count == windows.num_rows


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Windows:
    """Samples at 3 s of one GPU, and at 6 s of two, of which no operations are known."""
    rows = [
        {**sample(at, "GPU-1", util), "sm_util": sm, "tensor_util": None, "dram_util": 0.5}
        for at, util, sm in [(3000, 0.1, 0.2), (3050, 0.3, None), (3099, 0.8, 0.4), (3100, 1.0, 1.0)]
    ]
    rows += [sample(6000, "GPU-1", 0.2), sample(6000, "GPU-2", 0.4), sample(6000, "GPU-2", 1.0, "1/0")]
    run = profiled()
    run.tables["gpu_samples"] = columns_of("gpu_samples", rows)
    return windows_of(run, tmp_path_factory.mktemp("sampled"))


def test_samples_count_in_the_window_in_which_they_end(sampled: Windows) -> None:
    row = sampled[START_NS + 3 * S]
    assert row["gpu_util"] == pytest.approx(0.4)
    assert row["gpu_sm_util"] == pytest.approx(0.3)
    assert (row["gpu_tensor_util"], row["gpu_dram_util"]) == (None, 0.5)
    assert sampled[START_NS + 3 * S + WINDOW_NS]["gpu_util"] == 1.0
    assert sampled[START_NS + 4 * S]["gpu_util"] is None


def test_without_operations_samples_are_of_all_whole_gpus(sampled: Windows) -> None:
    assert sampled[START_NS + 6 * S]["gpu_util"] == pytest.approx(0.3)


def test_a_stray_instant_makes_no_days_of_windows_and_is_noted(tmp_path: Path) -> None:
    phase = {"name": "p", "kind": "measure", "start_ns": START_NS, "end_ns": START_NS + S}
    sent = [START_NS, START_NS + 250 * MS, START_NS - 48 * 3600 * S]
    rows = [
        {"request_id": i, "scheduled_ns": t, "sent_ns": t, "done_ns": t + MS, "outcome": "ok", "response_ns": MS,
         "service_ns": MS} for i, t in enumerate(sent)
    ]  # fmt: skip
    rows[1]["done_ns"] = START_NS + 600 * 3600 * S
    store = plain_run(
        tmp_path, {"joined": rows[:1]}, start_ns=START_NS, phases=[phase], plan={"load": "open"}
    )
    assert (write_windows(store), window_notes(store)) == (1, [])
    plain = plain_run(tmp_path, {"joined": rows}, start_ns=START_NS, phases=[phase], plan={"load": "open"})
    n_expected = (2 * SLACK_NS + S) // WINDOW_NS + 1
    assert write_windows(plain) == n_expected
    windows = plain.read("windows")
    assert windows["t_ns"][0].as_py() == START_NS - SLACK_NS
    assert sum(windows["n_arrivals"].to_pylist()) == 2, "the row before the first window has none"
    in_flight = windows["in_flight"].to_numpy()
    assert in_flight[0] == 0, "what was sent and ended before is over"
    assert in_flight[-1] == 1, "what ended later is still there"
    assert window_notes(plain) == [
        "requests with an instant more than 1 h off the phases of the run: 2; table windows does not reach there, "
        "table joined has them"
    ]


@pytest.mark.slow
def test_a_summary_notes_what_windows_leave_out(tmp_path: Path) -> None:
    run = synthesise(rate_hz=50)
    run.tables["requests"]["done_ns"][5] += 48 * 3600 * S
    summary = derive(run.write(tmp_path))
    assert [note for note in summary.notes if "h off the phases of the run: 1;" in note]


def test_queue_and_compute_are_means_of_the_requests_whose_batch_began(whole_run: RunStore) -> None:
    joined = whole_run.read("joined").to_pylist()
    n_known = 0
    for row in whole_run.read("windows").to_pylist():
        own = [
            one
            for one in joined
            if one["queue_ns"] is not None and row["t_ns"] <= one["batch_start_ns"] < row["t_ns"] + WINDOW_NS
        ]
        n_known += bool(own)
        expected = [
            sum(one[name] for one in own) // len(own) if own else None for name in ("queue_ns", "compute_ns")
        ]
        assert [row["queue_mean_ns"], row["compute_mean_ns"]] == expected
    assert n_known > 100
