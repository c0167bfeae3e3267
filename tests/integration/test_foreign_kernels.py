"""Kernels of a model that knows nothing of squall, in a real Triton: recorded in the measured phases, tied to batches.

There is no GPU: the model's processes have a CUPTI of known behaviour, and say themselves what they put on it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.library import built_library
from squall.actors.sampling.gpu.source import missing_reason
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.cluster.node.agent import FIRST_SERVER
from squall.cluster.node.injected.ring_folder import rings_of
from tests.integration.cuda_models import LONGEST_NS, N_KERNELS, Launched, launched, write_cuda_model
from tests.integration.foreign_models import write_model
from tests.integration.live_runs import Bench
from tests.integration.test_foreign_batches import ask, rows_of, scenario, their_server
from tests.kernel_hosts import built

pytestmark = pytest.mark.skipif(
    built_library("batches") is None or built_library("kernels") is None,
    reason="a library was not built: no C compiler",
)
MS = 1_000_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """A run, and what its model says that it did, on the run clock."""

    store: RunStore
    told: list[Launched]
    screen: str

    def rows(self, table: str) -> list[Row]:
        return rows_of(self.store, table) if self.store.has(table) else []

    def within(self, spans: list[tuple[int, int]]) -> list[Launched]:
        """What was made in these stretches."""
        return [
            one
            for one in self.told
            if any(
                start_ns <= one.before_ns and one.after_ns + LONGEST_NS <= end_ns
                for start_ns, end_ns in spans
            )
        ]


def prepared(tmp_path: Path, **profile: object) -> tuple[dict[str, Any], dict[str, str]]:
    """A scenario of two seconds of requests to two instances, with batches by the library, and its environment."""
    models = tmp_path / "models"
    write_cuda_model(models, "cuda", tmp_path / "told", n_instances=2)
    cupti = built(tmp_path / "built").fake
    mapping = scenario(models, "cuda", rate_hz=80, batches="required", kernels="required", **profile)
    return mapping, {"SQUALL_CUPTI": str(cupti)}


def seen_of(bench: Bench, tmp_path: Path) -> Seen:
    """The bench's run, when it has ended."""
    store = bench.store()
    knots = store.manifest.nodes["node-0"].clock_track
    assert knots is not None
    return Seen(store, launched(tmp_path / "told", ClockTrack.from_knots(knots)), bench.stdout())


def run(bench: Bench, tmp_path: Path, **profile: object) -> Seen:
    """A run of what `prepared` gives."""
    mapping, environment = prepared(tmp_path, **profile)
    live = bench.start_run(mapping, "--verbose", env=environment)
    assert live.end() in (0, 3), live.lines
    return seen_of(bench, tmp_path)


def measured(store: RunStore) -> tuple[int, int]:
    (span,) = (one for one in phase_spans(store.manifest) if one.kind == "measure")
    return span.start_ns, span.end_ns


def batch_of(seen: Seen) -> dict[int, Row]:
    """By request."""
    return {one: row for row in seen.rows("batches") for one in row["request_ids"]}


def assert_tied(seen: Seen, spans: list[tuple[int, int]]) -> None:
    """What the model did within the recorded `spans` is in the tables, and what belongs to an execution is tied to the
    batch of its requests, all of it; what does not, to none, unless it lies in the interval of a batch by chance."""
    batches = batch_of(seen)
    rows = {
        (row["process"], row["correlation_id"], what): row
        for table, what in (("kernels", "kernel"), ("memcpys", "copy"))
        for row in seen.rows(table)
    }
    assert {row["recorded_by"] for row in rows.values()} == {"library"}
    n_of: Counter[tuple[str, int]] = Counter()
    for one in seen.within(spans):
        row = rows[one.process, one.number, one.what]
        assert one.before_ns <= row["start_ns"] <= one.after_ns
        if one.requests:
            batch = batches[one.requests[0]]
            assert sorted(one.requests) == sorted(batch["request_ids"])
            assert (row["instance"], row["batch_id"]) == (batch["instance"], batch["batch_id"])
            n_of[row["instance"], row["batch_id"]] += one.what == "kernel"
        elif row["batch_id"] is not None:
            assert any(
                batch["exec_start_ns"] <= row["start_ns"] <= row["end_ns"] <= batch["exec_end_ns"]
                for batch in batches.values()
                if (batch["instance"], batch["batch_id"]) == (row["instance"], row["batch_id"])
            )
    whole = [
        batch
        for batch in batches.values()
        if any(start <= batch["exec_start_ns"] and batch["exec_end_ns"] <= end for start, end in spans)
    ]
    assert whole
    for batch in whole:
        assert n_of[batch["instance"], batch["batch_id"]] == N_KERNELS * batch["n_requests"]


@pytest.mark.slow
@pytest.mark.beside
def test_whole_phases_have_every_kernel_and_each_in_its_batch(alone: Bench, tmp_path: Path) -> None:
    seen = run(alone, tmp_path, duty="whole")
    state = seen.store.manifest.collectors["kernels"]
    assert (state.status, state.how) == ("on", "by the kernel library in the server's processes")
    (window,) = seen.rows("recordings")
    assert window["kinds"] == "kernels,copies"
    processes = {one.process for one in seen.told}
    assert window["n_processes"] >= len(processes) == 2, "Triton itself may use CUDA too"
    start_ns, end_ns = measured(seen.store)
    assert window["begun_ns"] <= window["start_ns"] < start_ns
    assert abs(window["end_ns"] - end_ns) < 1000 * MS, (
        "late where the host is busy; early by the clock's error at most"
    )
    assert_tied(seen, [(start_ns, min(end_ns, window["end_ns"]))])
    n_requests = Counter(row["outcome"] for row in seen.rows("requests"))["ok"]
    tied = [row for row in seen.rows("kernels") if row["batch_id"] is not None]
    assert len(tied) > 0.8 * N_KERNELS * n_requests
    assert not [note for note in seen.store.manifest.notes if "lost" in note]
    facts = seen.store.manifest.kernels
    assert facts is not None
    assert facts.n_windows == 1
    assert processes <= {one.process for one in facts.processes if "kernels recording (" in one.status}
    assert facts.ties["kernels"].n_tied == len(tied)
    assert "kernels recorded by the kernel library in the server's processes" in " ".join(seen.screen.split())
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_a_duty_has_kernels_in_its_windows_alone(alone: Bench, tmp_path: Path) -> None:
    seen = run(alone, tmp_path, duty="200ms/500ms")
    windows = seen.rows("recordings")
    assert len(windows) == 4
    start_ns, _ = measured(seen.store)
    spans = [(row["start_ns"], row["end_ns"]) for row in windows]
    for index, (on_ns, off_ns) in enumerate(spans):
        wanted_ns = start_ns + index * 500 * MS + 150 * MS
        assert abs(on_ns - wanted_ns) < 100 * MS
        assert abs(off_ns - wanted_ns - 200 * MS) < 100 * MS
    assert_tied(seen, spans)
    for table in ("kernels", "memcpys"):
        assert seen.rows(table)
        for row in seen.rows(table):
            assert any(on_ns <= row["start_ns"] <= row["end_ns"] <= off_ns for on_ns, off_ns in spans)
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.single
@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_beside_nsys_that_does_not_trace_cuda_kernels_are_recorded_too(alone: Bench, tmp_path: Path) -> None:
    seen = run(alone, tmp_path, duty="whole", nsys="required", trace=["osrt"], osrt_threshold="10us")
    collectors = seen.store.manifest.collectors
    assert (collectors["nsys"].status, collectors["kernels"].status) == ("on", "on")
    (window,) = seen.rows("recordings")
    start_ns, end_ns = measured(seen.store)
    assert_tied(seen, [(max(start_ns, window["start_ns"]), min(end_ns, window["end_ns"]))])
    assert {row["process"] for row in seen.rows("osrt")} & {one.process for one in seen.told}
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.beside
def test_a_run_whose_driver_was_killed_is_resumed_with_its_kernels(alone: Bench, tmp_path: Path) -> None:
    mapping, environment = prepared(tmp_path, duty="whole")
    live = alone.start_run(mapping, env=environment)
    alone.wait_for_phase("burst", 1.0)
    live.process.kill()
    live.end()
    again = alone.start("resume", alone.store().run_dir)
    assert again.end() == 3, again.lines
    seen = seen_of(alone, tmp_path)
    (window,) = seen.rows("recordings")
    start_ns, end_ns = measured(seen.store)
    assert window["start_ns"] < start_ns < window["end_ns"]
    assert_tied(seen, [(start_ns, min(end_ns, window["end_ns"]))])
    facts = seen.store.manifest.kernels
    assert facts is not None
    assert facts.n_windows == 1
    alone.wait_until_gone()
    folder = seen.store.manifest.nodes["node-0"].folder
    assert folder is not None
    assert rings_of(Path(folder) / FIRST_SERVER, "kernels") is None


@pytest.mark.slow
@pytest.mark.beside
def test_a_server_that_somebody_else_started_with_what_inject_prints_has_its_kernels_recorded(
    alone: Bench, tmp_path: Path
) -> None:
    mapping, environment = prepared(tmp_path, duty="whole")
    live = alone.start("inject", "--folder", tmp_path / "rings", env=environment)
    assert live.end() == 0, live.lines
    injected = alone.stdout().splitlines()
    with their_server(tmp_path / "server", tmp_path / "models", "cuda", injected) as url:
        ask(url, "cuda", 5)
        del mapping["model"]["repository"]
        live = alone.start_run(mapping, "--server", url, env=environment)
        assert live.end() in (0, 3), live.lines
    seen = seen_of(alone, tmp_path)
    (window,) = seen.rows("recordings")
    assert window["n_processes"] >= 2
    start_ns, end_ns = measured(seen.store)
    assert_tied(seen, [(max(window["start_ns"], start_ns), min(end_ns, window["end_ns"]))])


@pytest.mark.slow
@pytest.mark.beside
def test_kernels_that_are_required_on_a_node_without_a_gpu_are_an_error(alone: Bench, tmp_path: Path) -> None:
    if missing_reason() is None:
        pytest.skip("there is a GPU here")
    write_model(tmp_path / "models", "plain")
    live = alone.start_run(scenario(tmp_path / "models", "plain", kernels="required"))
    assert live.end() == 1
    assert "profile.kernels is required, but the node has no GPU" in live.error_line()
    alone.aborted()
