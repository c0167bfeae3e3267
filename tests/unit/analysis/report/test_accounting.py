"""Where the latency went: the parts add up at every level, and the finest level that most rows have is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.report.accounting import BANDS, LEVELS, accounting
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from tests.overhead_runs import START_NS, table

COMPUTE = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
BEFORE = ("network_ns", "queue_ns", "input_ns", "handover_ns")
AFTER = ("output_ns", "residual_ns")


def rows_of(n: int, rng: np.random.Generator, omit: Sequence[str] = ()) -> list[dict[str, Any]]:
    """`n` ok rows of `joined` with random parts that add up; columns named in `omit` are null."""
    found = []
    for i in range(n):
        own = {name: int(rng.integers(0, 10**6)) for name in (*BEFORE, *COMPUTE, *AFTER, "lag_ns")}
        own["residual_ns"] -= 500_000
        own["n_kernels"] = 1
        compute_ns = sum(own[name] for name in COMPUTE)
        service_ns = compute_ns + sum(own[name] for name in (*BEFORE, *AFTER))
        wait_ns = sum(own[name] for name in BEFORE)
        row = {
            **own, "compute_ns": compute_ns, "service_ns": service_ns, "response_ns": service_ns + own["lag_ns"],
            "wait_ns": wait_ns, "reply_ns": service_ns - wait_ns - compute_ns, "request_id": i,
        }  # fmt: skip
        found.append({name: None if name in omit else value for name, value in row.items()})
    return found


def write(parent: Path, rows: Sequence[dict[str, Any]]) -> RunStore:
    texts = ("run", "node", "target", "request_kind", "detail", "gpu_uuid")
    same = {
        **dict.fromkeys(texts, ""), "phase": "burst", "outcome": "ok", "join_level": "exact", "parts_level": "trace",
        "tie": "range", "worker": 0, "rows": 1, "request_bytes": 1, "response_bytes": 1,
    }  # fmt: skip
    store = RunStore.create(parent, "made", START_NS, Manifest())
    store.replace_derived("joined", table("joined", [{**same, **row} for row in rows]))
    return store


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_open", [True, False])
def test_the_means_of_the_parts_add_up_to_that_of_the_latency(
    tmp_path: Path, level: str, is_open: bool
) -> None:
    omit = {"device": (), "server": ("n_kernels",), "batch": ("n_kernels", "residual_ns")}[level]
    rows = rows_of(400, np.random.default_rng(1), omit)
    found = accounting(write(tmp_path, rows), ["burst"], is_open)
    assert found is not None
    assert (found.level, found.n, found.n_of) == (level, 400, 400)
    latency = "response" if is_open else "service"
    means = {name: part.mean_ns for name, part in found.parts.items()}
    assert next(iter(means)) == latency
    assert ("lag" in means) == is_open
    whole = means.pop(latency)
    assert abs(sum(means.values()) - whole) <= len(means)  # each is rounded to a whole ns
    assert whole == round(np.mean([row[f"{latency}_ns"] for row in rows]))


def test_bands_hold_the_means_of_their_own_rows(tmp_path: Path) -> None:
    rows = rows_of(1_000, np.random.default_rng(2))
    found = accounting(write(tmp_path, rows), ["burst"], True)
    assert found is not None
    ordered = sorted(rows, key=lambda row: row["response_ns"])
    edges = [0, 500, 900, 950, 990, 1_000]
    for place in range(len(BANDS)):
        own = ordered[edges[place] : edges[place + 1]]
        for name, column in {"lag": "lag_ns", **LEVELS["device"]}.items():
            assert found.bands[name][place] == pytest.approx(np.mean([row[column] for row in own]))
    assert found.residual_p50_ratio == pytest.approx(
        np.median([abs(row["residual_ns"]) / row["response_ns"] for row in rows])
    )


def test_a_level_that_too_few_rows_have_is_not_taken(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rows_of(89, rng) + rows_of(11, rng, ("n_kernels",))
    found = accounting(write(tmp_path, rows), ["burst"], True)
    assert found is not None
    assert (found.level, found.n) == ("server", 100)
    rows[-1]["n_kernels"] = 3
    found = accounting(write(tmp_path, rows), ["burst"], True)
    assert found is not None
    assert (found.level, found.n, found.n_of) == ("device", 90, 100)


def test_without_a_joined_request_there_is_no_accounting(tmp_path: Path) -> None:
    rows = [{**row, "join_level": "none"} for row in rows_of(5, np.random.default_rng(4))]
    store = write(tmp_path, rows)
    assert accounting(store, ["burst"], True) is None
    assert accounting(write(tmp_path, rows_of(5, np.random.default_rng(5))), ["other"], True) is None
