from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import squall.actors.net.triton_control
from squall.actors.clock import SystemClock
from squall.actors.net.access import PLAIN
from squall.actors.sampling.sampler import Sampler
from squall.actors.sampling.triton_metrics import FAILURE_REASONS
from squall.actors.sampling.triton_source import TritonSource
from squall.actors.spill import read_spill
from squall.analysis.storage.schema import arrow_schema

TOTALS = ("request_count", "inference_count", "execution_count", "queue_ns", "compute_infer_ns", "success_ns")
LABELS = {"run": "r", "node": "node-0", "server": "server-0"}


def item(
    n: int, batches: dict[int, int] | None = None, name: str = "m", version: str = "1"
) -> dict[str, Any]:
    """Statistics of a model after n requests, in the words of Triton's statistics extension."""
    return {
        "name": name, "version": version, "inference_count": 2 * n, "execution_count": n,
        "inference_stats": {
            "success": {"count": n, "ns": 100 * n}, "fail": {"count": 0, "ns": 0},
            "cache_hit": {"count": n // 2, "ns": n}, "queue": {"count": n, "ns": 10 * n},
            "compute_infer": {"count": n, "ns": 50 * n},
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": count, "ns": 1}}
            for size, count in (batches or {2: n}).items()
        ],
    }  # fmt: skip


def stats(n: int, batches: dict[int, int] | None = None) -> dict[str, Any]:
    return {"model_stats": [item(n, batches)]}


def metrics(success: int, pending: int = 0, name: str = "m", **failures: int) -> str:
    """Metrics of version 1 of a model in Triton's order of labels."""
    lines = [
        f'nv_inference_request_failure{{model="{name}",reason="{reason}",version="1"}} {failures.get(reason, 0)}'
        for reason in FAILURE_REASONS
    ]
    return "\n".join(
        [
            "# TYPE nv_inference_request_success counter",
            f'nv_inference_request_success{{model="{name}",version="1"}} {success}',
            *lines,
            f'nv_inference_pending_request_count{{model="{name}",version="1"}} {pending}',
            "",
        ]
    )


class Scripted:
    """Gives the scripted answers one after the other, then the last for ever; an exception is raised."""

    def __init__(self, path: str, *answers: Any) -> None:
        self._path = path
        self._answers = list(answers)

    def ask_json(self, path: str) -> Any:
        assert path == self._path
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, path: str) -> bytes:
        return str(self.ask_json(path)).encode()


Make = Callable[..., TritonSource]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(
        *answers: Any, texts: list[Any] | None = None, models: Any = "m", with_others: bool = False
    ) -> TritonSource:
        servers = {
            "http://s": Scripted("/v2/models/stats", *answers),
            "http://metrics": Scripted("/metrics", *(texts or [""])),
        }
        monkeypatch.setattr(squall.actors.net.triton_control, "Control", lambda url, *_: servers[url])
        return TritonSource("http://s", "http://metrics" if texts else None, models, PLAIN, with_others)

    return make


def totals(row: Mapping[str, Any]) -> list[int]:
    return [row[name] for name in TOTALS]


def test_rows_are_the_differences_of_the_counters(source: Make) -> None:
    triton = source(stats(10, {2: 10}), stats(13, {2: 11, 4: 2}))
    assert triton.sample(100) == []
    (row,) = triton.sample(150)
    assert (row["t_ns"], row["interval_ns"], row["version"], row["pending_count"]) == (150, 50, "1", None)
    assert totals(row) == [3, 6, 3, 30, 150, 300]
    assert (row["batch_sizes"], row["batch_counts"]) == ([2, 4], [1, 2])
    assert row["cache_hit_count"] == 13 // 2 - 10 // 2
    assert not row["is_reset"]


def test_a_row_has_exactly_the_columns_of_its_table(source: Make) -> None:
    triton = source(stats(1), stats(2), texts=[metrics(1), metrics(2)])
    triton.sample(0)
    (row,) = triton.sample(1)
    assert set(row) == set(arrow_schema("triton_samples").names) - {*LABELS, "phase"}


def several(**counts: int) -> dict[str, Any]:
    """Statistics of several models."""
    return {"model_stats": [item(n, name=name) for name, n in counts.items()]}


def test_other_models_have_rows_from_the_sample_on_in_which_they_took_part(source: Make) -> None:
    triton = source(
        several(m=1, step=5, idle=9), several(m=1, step=5, idle=9), several(m=2, step=7, idle=9),
        several(m=3, step=7, idle=9), with_others=True,
    )  # fmt: skip
    triton.sample(0)
    seen = [
        {row["model"]: (row["request_count"], row["interval_ns"]) for row in triton.sample(t)}
        for t in (10, 20, 30)
    ]
    assert seen == [{"m": (0, 10)}, {"m": (1, 10), "step": (2, 10)}, {"m": (1, 10), "step": (0, 10)}]
    assert triton.facts()["models"] == ["m/1", "step/1"]
    assert triton.losses() == []


def test_a_model_whose_requests_only_wait_takes_part(source: Make) -> None:
    texts = [metrics(5, name="step"), metrics(5, pending=3, name="step")]
    triton = source(several(m=1, step=5), texts=texts, with_others=True)
    triton.sample(0)
    assert {row["model"]: row["pending_count"] for row in triton.sample(1)} == {"m": None, "step": 3}


def test_without_others_no_other_model_has_rows(source: Make) -> None:
    triton = source(several(m=1, step=5), several(m=2, step=7))
    triton.sample(0)
    assert [row["model"] for row in triton.sample(1)] == ["m"]


def test_after_a_restart_of_the_server_the_counters_start_from_zero(source: Make) -> None:
    triton = source(stats(10), stats(4), stats(5))
    triton.sample(0)
    (row,) = triton.sample(1)
    assert totals(row) == [4, 8, 4, 40, 200, 400]
    assert (row["batch_sizes"], row["batch_counts"]) == ([2], [4])
    assert row["is_reset"]
    (row,) = triton.sample(2)
    assert totals(row) == [1, 2, 1, 10, 50, 100]
    assert not row["is_reset"]


def test_all_counters_start_from_zero_when_only_some_went_back(source: Make) -> None:
    before, after = stats(10), stats(30)
    after["model_stats"][0]["inference_stats"]["queue"]["ns"] = 1  # restarted, and more requests since
    triton = source(before, after)
    triton.sample(0)
    (row,) = triton.sample(1)
    assert totals(row) == [30, 60, 30, 1, 1500, 3000]
    assert row["is_reset"]


def test_a_batch_size_that_is_no_longer_counted_tells_of_a_restart(source: Make) -> None:
    triton = source(stats(10, {2: 10}), stats(30, {1: 30}))
    triton.sample(0)
    (row,) = triton.sample(1)
    assert (row["request_count"], row["batch_sizes"], row["batch_counts"]) == (30, [1], [30])
    assert row["is_reset"]


def test_several_models_and_versions_have_rows_of_their_own(source: Make) -> None:
    def answer(n: int) -> dict[str, Any]:
        places = [("a", "1", 1), ("a", "2", 10), ("b", "1", 100), ("other", "1", 1000)]
        return {"model_stats": [item(n * k, None, name, version) for name, version, k in places]}

    triton = source(answer(1), answer(3), models=["a", "b"])
    triton.sample(0)
    counts = {(row["model"], row["version"]): row["request_count"] for row in triton.sample(1)}
    assert counts == {("a", "1"): 2, ("a", "2"): 20, ("b", "1"): 200}
    everything = source(answer(1), answer(3), models=None)
    everything.sample(0)
    assert len(everything.sample(1)) == 4


def test_a_model_that_is_loaded_later_counts_from_its_load(source: Make) -> None:
    triton = source({"model_stats": []}, stats(4), stats(6))
    assert triton.sample(10) == []
    (row,) = triton.sample(30)
    assert (row["request_count"], row["interval_ns"], row["is_reset"]) == (4, 20, False)
    assert triton.sample(40)[0]["request_count"] == 2


def test_a_model_that_was_away_is_a_reset_though_no_counter_is_below_its_old_value(source: Make) -> None:
    triton = source(stats(4), {"model_stats": []}, stats(9))
    triton.sample(0)
    assert triton.sample(10) == []
    (row,) = triton.sample(25)
    assert (row["request_count"], row["interval_ns"], row["is_reset"]) == (9, 15, True)


def test_a_gap_is_in_the_next_row_and_nothing_counts_twice(source: Make) -> None:
    triton = source(stats(10), OSError("gone"), OSError("gone"), stats(17), stats(18))
    triton.sample(0)
    for now_ns in (10, 20):
        with pytest.raises(OSError, match="gone"):
            triton.sample(now_ns)
    (row,) = triton.sample(30)
    assert (row["request_count"], row["interval_ns"], row["is_reset"]) == (7, 30, False)
    (row,) = triton.sample(40)
    assert (row["request_count"], row["interval_ns"]) == (1, 10)


def test_failures_by_reason_are_deltas_and_pending_requests_are_not(source: Make) -> None:
    texts = [metrics(1, 5, REJECTED=2, OTHER=1), metrics(2, 7, REJECTED=6, OTHER=1, BACKEND=1)]
    triton = source(stats(1), stats(2), texts=texts)
    triton.sample(0)
    (row,) = triton.sample(1)
    failures = [row[f"failure_{name}_count"] for name in ("rejected", "canceled", "backend", "other")]
    assert (failures, row["pending_count"], row["is_reset"]) == ([4, 0, 1, 0], 7, False)


def test_metrics_that_start_anew_later_than_the_statistics_count_no_failure_twice(source: Make) -> None:
    triton = source(
        stats(10), stats(2), stats(3), texts=[metrics(10, REJECTED=5), metrics(10, REJECTED=6), metrics(3, REJECTED=2)]
    )  # fmt: skip
    triton.sample(0)
    rows = [triton.sample(now_ns)[0] for now_ns in (1, 2)]
    assert [row["failure_rejected_count"] for row in rows] == [1, 2]
    assert [row["is_reset"] for row in rows] == [True, True]


def test_metrics_that_cannot_be_read_leave_nulls_and_the_next_row_has_their_gap(source: Make) -> None:
    texts = [metrics(1, REJECTED=1), OSError("refused"), "<html>", metrics(4, 3, REJECTED=9)]
    triton = source(stats(1), stats(2), stats(3), stats(4), texts=texts)
    triton.sample(0)
    rows = [triton.sample(now_ns)[0] for now_ns in (1, 2, 3)]
    assert [row["request_count"] for row in rows] == [1, 1, 1]
    assert [row["failure_rejected_count"] for row in rows] == [None, None, 8]
    assert [row["pending_count"] for row in rows] == [None, None, 3]
    (loss,) = triton.losses()
    assert "could not be read 2 times" in loss
    assert "<html>" in loss


def test_metrics_that_come_later_than_the_statistics_first_give_a_baseline(source: Make) -> None:
    texts = [OSError("refused"), metrics(2, REJECTED=50), metrics(3, REJECTED=51)]
    triton = source(stats(1), stats(2), stats(3), texts=texts)
    triton.sample(0)
    assert [triton.sample(now_ns)[0]["failure_rejected_count"] for now_ns in (1, 2)] == [None, 1]


def test_an_old_server_without_reasons_leaves_them_null(source: Make) -> None:
    text = 'nv_inference_request_failure{model="m",version="1"} 3\n'
    triton = source(stats(1), stats(2), texts=[text])
    triton.sample(0)
    (row,) = triton.sample(1)
    assert {row[f"failure_{reason.lower()}_count"] for reason in FAILURE_REASONS} == {None}


def test_a_model_that_was_never_there_is_a_loss_that_the_sampler_tells(source: Make, tmp_path: Path) -> None:
    triton = source(stats(1), models=["m", "typo"])
    sampler = Sampler(triton, LABELS, 3600 * 10**9, tmp_path / "s", SystemClock())
    sampler.start()
    sampler.stop()
    loss = "triton_samples: the server gave no statistics of model 'typo'"
    assert triton.losses() == [loss]
    assert loss in sampler.losses()
    assert triton.facts() == {"models": ["m/1"], "has_metrics": False, "n_unread_metrics": 0}


def rows_of(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as data:
        return [row for table in read_spill(data) for row in table.to_pylist()]


def test_the_samples_of_a_run_add_up_to_the_whole_though_one_failed(source: Make, tmp_path: Path) -> None:
    triton = source(stats(10), stats(11), OSError("gone"), stats(17))
    has_failed = threading.Event()

    class Noting:
        table = triton.table

        def sample(self, now_ns: int) -> list[dict[str, Any]]:
            try:
                return triton.sample(now_ns)
            except OSError:
                has_failed.set()
                raise

    sampler = Sampler(Noting(), LABELS, 1_000_000, tmp_path / "s", SystemClock())
    sampler.start()
    assert has_failed.wait(20)
    sampler.stop()
    rows = rows_of(tmp_path / "s")
    assert sum(row["request_count"] for row in rows) == 7
    assert [row["interval_ns"] for row in rows[1:]] == [b["t_ns"] - a["t_ns"] for a, b in pairwise(rows)]
    assert any("OSError: gone" in loss for loss in sampler.losses())


@pytest.mark.parametrize("name", [5, "../m", "", ["m"], None])
def test_statistics_of_a_model_without_a_name_are_none(source: Make, name: Any) -> None:
    one = source(stats(1), {"model_stats": [item(2, name=name)]}, stats(3), models=None)
    one.sample(0)
    with pytest.raises(ValueError, match="of a model that has no name"):
        one.sample(10)
    (row,) = one.sample(20)
    assert (row["request_count"], row["interval_ns"]) == (2, 20)
    assert one.facts()["models"] == ["m/1"]


def test_a_server_cannot_name_models_without_end(source: Make) -> None:
    answers = [
        {"model_stats": [{**item(1, {}), "version": f"{at}-{number}"} for number in range(6_000)]}
        for at in range(2)
    ]
    one = source(*answers, models=None)
    one.sample(0)
    with pytest.raises(ValueError, match="more than 10,000 versions of models"):
        one.sample(10)
