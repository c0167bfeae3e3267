"""What `windows` says of samples and stray instants; `test_planted_metrics.py` has the rest, against loops."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.analysis.metrics.windows import SLACK_NS, WINDOW_NS, window_notes, write_windows
from squall.analysis.report.derive import derive
from squall.analysis.storage.store import RunStore
from tests.plain_runs import START_NS, Row, plain_run
from tests.synthetic_runs import MS, S, synthesise

SAMPLED = ("gpu_util", "gpu_sm_util", "gpu_tensor_util", "gpu_dram_util")


def run_of(parent: Path, spans_ns: list[tuple[int, int]], **tables: list[Row]) -> RunStore:
    """A second of load of requests, sent and done so long after its start; instants in `tables` likewise."""
    joined = [
        {"request_id": i, "scheduled_ns": sent, "sent_ns": sent, "done_ns": done, "outcome": "ok",
         "response_ns": done - sent, "service_ns": done - sent} for i, (sent, done) in enumerate(spans_ns)
    ]  # fmt: skip
    moved = {
        table: [{k: v + START_NS if k in INSTANTS else v for k, v in row.items()} for row in rows]
        for table, rows in {"joined": joined, **tables}.items()
    }
    phase = {"name": "p", "kind": "measure", "start_ns": START_NS, "end_ns": START_NS + S}
    return plain_run(parent, moved, start_ns=START_NS, phases=[phase], plan={"load": "open"})


INSTANTS = ("scheduled_ns", "sent_ns", "done_ns", "start_ns", "end_ns", "t_ns")


def sample(t_ms: int, gpu: str, util: float, **more: object) -> Row:
    same = dict.fromkeys(("util", "sm_util", "tensor_util", "dram_util"), util)
    return {"gpu_uuid": gpu, "t_ns": t_ms * MS, "interval_ns": 100 * MS, **same, **more}


OF_TWO = [sample(650, "a", 0.2), sample(650, "b", 0.4), sample(650, "b", 1.0, mig_instance="1/0")]
IDLE = [sample(650, f"idle-{i}", 0.0) for i in range(6)]


@pytest.mark.parametrize(
    ("samples", "used", "expected"),
    [
        # a sample counts in the window in which it ends, a value that it lacks in none
        ([sample(0, "a", 0.5), sample(300, "a", 0.1, sm_util=0.2), sample(350, "a", 0.3, sm_util=None),
          sample(399, "a", 0.8, sm_util=0.4), sample(400, "a", 1.0)],
         [], {0: [0.5] * 4, 300: [0.4, 0.3, 0.4, 0.4], 400: [1.0] * 4}),
        # of whole GPUs, and where operations are known of those that these ran on
        (OF_TWO, [], {600: [0.3] * 4}),
        ([*OF_TWO, *IDLE], ["a", "b"], {600: [0.3] * 4}),
        ([*OF_TWO, *IDLE], ["b"], {600: [0.4] * 4}),
    ],
)  # fmt: skip
def test_samples_are_of_the_whole_gpus_that_operations_ran_on(
    samples: list[Row], used: list[str], expected: dict[int, list[float]], tmp_path: Path
) -> None:
    kernels = [{"gpu_uuid": gpu, "start_ns": 0, "end_ns": MS, "phase": "p"} for gpu in used]
    store = run_of(tmp_path, [(0, MS), (900 * MS, 901 * MS)], gpu_samples=samples, kernels=kernels)
    write_windows(store)
    rows = store.read("windows").to_pylist()
    found = {(row["t_ns"] - START_NS) // MS: [row[name] for name in SAMPLED] for row in rows}
    assert {t_ms: one for t_ms, one in found.items() if one != [None] * 4} == {
        t_ms: pytest.approx(values) for t_ms, values in expected.items()
    }
    # without a statement of what was recorded a phase with events is covered
    covered = [row["gpu_busy_ratio"] is not None for row in rows]
    assert covered == [bool(used)] * len(rows)


def test_quantiles_of_a_window_are_nearest_ranks(tmp_path: Path) -> None:
    store = run_of(tmp_path, [(0, n * MS) for n in range(1, 21)])
    write_windows(store)
    (row,) = store.read("windows").to_pylist()
    assert [row[f"response_p{percent}_ns"] for percent in (50, 95)] == [10 * MS, 19 * MS]


def test_a_stray_instant_makes_no_days_of_windows_and_is_noted(tmp_path: Path) -> None:
    store = run_of(tmp_path, [(0, MS)])
    assert (write_windows(store), window_notes(store)) == (1, [])
    long_before_ns = -48 * 3600 * S
    store = run_of(tmp_path, [(0, MS), (250 * MS, 600 * 3600 * S), (long_before_ns, long_before_ns + MS)])
    n_expected = (2 * SLACK_NS + S) // WINDOW_NS + 1
    assert write_windows(store) == n_expected
    windows = store.read("windows")
    assert windows["t_ns"][0].as_py() == START_NS - SLACK_NS
    assert sum(windows["n_arrivals"].to_pylist()) == 2, "the row before the first window has none"
    # what was sent and ended before is over, what ended later is still there
    assert windows["in_flight"].to_numpy()[[0, -1]].tolist() == [0, 1]
    (note,) = window_notes(store)
    assert "requests with an instant more than 1 h off the phases of the run: 2;" in note


@pytest.mark.slow
def test_a_summary_notes_what_windows_leave_out(tmp_path: Path) -> None:
    run = synthesise(rate_hz=50)
    run.tables["requests"]["done_ns"][5] += 48 * 3600 * S
    summary = derive(run.write(tmp_path))
    assert [note for note in summary.notes if "h off the phases of the run: 1;" in note]
