"""Figures of steps, against those of planted paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.join import write_joined
from squall.analysis.report.step_figures import StepFigures, StepsFigures, step_figures
from squall.analysis.storage.store import RunStore
from tests.known import known
from tests.plain_runs import plain_run

MS = 1_000_000
N = 100
EVERY = 1_000 * MS
SLOW = range(N - 4, N)
"""Requests whose embedding waits; beyond the p95."""


def batch(model: str, number: int, span: tuple[int, int], *ids: int) -> dict[str, Any]:
    at = number * EVERY
    return {
        "model": model, "instance": model, "batch_id": number, "recorded_by": "library", "phase": "burst",
        "start_ns": at + span[0] * MS, "end_ns": at + span[1] * MS, "request_ids": list(ids), "rows": 1,
        "n_requests": 1, "n_foreign": 0 if ids else 1,
    }  # fmt: skip


def run_of(parent: Path, with_child: bool = False, is_open: bool = True) -> RunStore:
    """Of 100 ms each, sent 1 ms late: tokenize 10 ms after 4, embed 50 ms after 5; the slow ones wait 60 ms for it."""
    batches, requests = [], []
    for i in range(N):
        late = 60 if i in SLOW else 5
        batches += [batch("tokenize", i, (5, 15), i), batch("embed", i, (15 + late, 65 + late), i)]
        batches += [batch("child", i, (25 + late, 45 + late))] if with_child else []
        scheduled = i * EVERY
        requests.append({
            "request_id": i, "target": "server-0", "outcome": "ok", "phase": "warmup" if i == 0 else "burst", "rows": 1,
            "scheduled_ns": scheduled if is_open else None, "sent_ns": scheduled + MS,
            "done_ns": scheduled + (155 if i in SLOW else 100) * MS,
        })  # fmt: skip
    store = plain_run(parent, {"requests": requests, "batches": batches})
    write_joined(store)
    return store


def figures(store: RunStore, is_open: bool = True) -> StepsFigures:
    return known(step_figures(store, ["burst"], is_open))


def test_each_step_has_its_share_of_the_latency_and_its_quantiles(tmp_path: Path) -> None:
    found = figures(run_of(tmp_path))
    n, n_slow = N - 1, len(SLOW)
    latency = (n - n_slow) * 100 + n_slow * 155
    assert found == StepsFigures(
        n,
        (
            StepFigures(
                "embed", n, 1.0, ((n - n_slow) * 55 + n_slow * 110) / latency, 110 / 155,
                50 * MS, 50 * MS, 5 * MS, 5 * MS,
            ),
            StepFigures("tokenize", n, 1.0, n * 14 / latency, 14 / 155, 10 * MS, 10 * MS, 4 * MS, 4 * MS),
        ),
        (),
    )  # fmt: skip


def test_a_closed_loop_has_shares_of_the_service_time(tmp_path: Path) -> None:
    found = figures(run_of(tmp_path, is_open=False), is_open=False)
    assert found.models[0].tail_latency_ratio == pytest.approx(110 / 154)


def test_a_child_takes_no_share_and_is_said_to_be_tied_by_time(tmp_path: Path) -> None:
    found = figures(run_of(tmp_path, with_child=True))
    embed, tokenize, child = found.models
    assert (embed.model, tokenize.model, child.model) == ("embed", "tokenize", "child")
    assert (child.on_path_ratio, child.latency_ratio, child.tail_latency_ratio) == (0.0, 0.0, 0.0)
    assert (child.n_requests, child.compute_p95_ns, child.wait_p50_ns) == (N - 1, 20 * MS, 10 * MS)
    (whose,) = found.children
    assert (whose.parent, whose.n_batches, whose.n_tied) == ("embed", N, N)


def test_a_run_of_one_model_has_no_figures_of_steps(tmp_path: Path) -> None:
    rows = {"requests": [{"request_id": 1, "outcome": "ok"}], "batches": [batch("alone", 0, (0, 1), 1)]}
    store = plain_run(tmp_path, rows)
    write_joined(store)
    assert step_figures(store, ["burst"], is_open=True) is None
