"""Runs of two models on two servers: what is said of each is of its own requests, batches, counts and join."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from squall.analysis.compare.run_figures import run_figures
from squall.analysis.compare.run_row import read_row
from squall.analysis.render.report import render_html
from squall.analysis.render.screen import render
from squall.analysis.statistics.latency import INFINITE_NS
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from tests.known import known
from tests.synthetic_runs import MIXED, MODEL, OTHER, SLOWER_NS, SyntheticRun, synthesise_two_models

OF_EACH = ("triton success", "batch rows", "executions", "joined")
PLACES = [(f"of {model} at {server}") for server, model in MIXED]


@pytest.fixture
def mixed() -> SyntheticRun:
    """To be broken."""
    return synthesise_two_models()


def unmet(store: RunStore) -> set[str]:
    return {one.name for one in summarise(store).identities if not one.is_met}


def test_a_run_of_two_models_agrees_with_itself_model_by_model(mixed_summary: Summary) -> None:
    assert mixed_summary.verdict.status == "VALID", mixed_summary.verdict.reasons
    of_each = {f"{name} {place}" for name in OF_EACH for place in PLACES}
    assert {one.name for one in mixed_summary.identities} == {"rows", "batch costs", *of_each}
    assert [one.name for one in mixed_summary.identities if not one.is_met] == []
    assert [one.name for one in mixed_summary.self_checks if one.status == "unmet"] == ["in flight"], (
        "made up"
    )


def test_every_request_is_joined_to_a_batch_of_the_model_that_it_asks(mixed_run: RunStore) -> None:
    model_of = {
        (row["server"], row["instance"], row["batch_id"]): row["model"]
        for row in mixed_run.read("batches").to_pylist()
    }
    rows = [row for row in mixed_run.read("joined").to_pylist() if row["outcome"] == "ok"]
    assert len(rows) > 2_000
    for row in rows:
        assert row["join_level"] == "exact"
        assert model_of[row["server"], row["instance"], row["batch_id"]] == row["request_kind"]


def moved(column: str, n: int) -> Callable[[SyntheticRun], None]:
    """Triton counts of one model what is the other's on the same server."""

    def change(run: SyntheticRun) -> None:
        run.derived = False
        run.tables["triton_samples"][column][9] -= n  # rows come in triplets
        run.tables["triton_samples"][column][10] += n

    return change


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("request_count", "triton success"),
        pytest.param("execution_count", "executions", marks=pytest.mark.slow),
    ],
)
def test_what_one_model_counts_too_much_makes_up_for_no_loss_of_the_other(
    tmp_path: Path, mixed: SyntheticRun, column: str, name: str
) -> None:
    moved(column, 5)(mixed)
    assert unmet(mixed.write(tmp_path)) == {f"{name} {place}" for place in PLACES[:2]}


def test_rows_of_a_batch_count_for_its_own_model(tmp_path: Path, mixed: SyntheticRun) -> None:
    """On one server, where the sums over its models agree all the same."""
    mixed.derived = False
    mixed.tables["batches"]["rows"][9] += 1
    mixed.tables["batches"]["rows"][10] -= 1
    assert unmet(mixed.write(tmp_path)) >= {f"batch rows {PLACES[0]}"}


def test_requests_of_an_ensemble_count_for_the_step_that_others_ask_too(
    tmp_path: Path, mixed: SyntheticRun
) -> None:
    """`OTHER` becomes an ensemble on server 0, with `MODEL` as its one step: its batches are those of the step."""
    mixed.derived = False
    batches, samples = mixed.tables["batches"], mixed.tables["triton_samples"]
    for table in (batches, samples):
        ours = [at for at, server in enumerate(table["server"]) if server == "server-0"]
        if table is batches:
            for at in ours:
                table["model"][at] = MODEL
    for at in range(0, len(samples["phase"]), 3):
        for column in ("request_count", "inference_count", "execution_count"):
            samples[column][at] += samples[column][at + 1]
        samples["execution_count"][at + 1] = 0
    first = mixed.manifest["servers"]["server-0"]
    first["others"][0]["steps"] = [MODEL]
    store = mixed.write(tmp_path)
    found = {one.name: one for one in summarise(store).identities}
    assert [name for name, one in found.items() if not one.is_met] == []
    n_ok = Counter(
        row["request_kind"]
        for row in store.read("requests").to_pylist()
        if row["outcome"] == "ok" and row["target"] == "server-0"
    )
    assert found[f"triton success of {MODEL} at server-0"].least == n_ok[MODEL] + n_ok[OTHER]
    assert found[f"triton success of {OTHER} at server-0"].least == n_ok[OTHER]


def test_each_model_has_the_figures_of_its_own_requests(mixed_run: RunStore, mixed_summary: Summary) -> None:
    rows = [row for row in mixed_run.read("requests").to_pylist() if row["phase"] == "burst"]
    batches = [row for row in mixed_run.read("batches").to_pylist() if row["phase"] == "burst"]
    models = known(mixed_summary.measure.by_model)
    assert list(models) == [MODEL, OTHER]
    for name, one in models.items():
        own = [row for row in rows if row["request_kind"] == name]
        ok = [row for row in own if row["outcome"] == "ok"]
        late_ns = sorted(
            row["done_ns"] - row["scheduled_ns"] if row["outcome"] == "ok" else INFINITE_NS for row in own
        )
        assert one.counts == one.outcomes.counts == Counter(row["outcome"] for row in own)
        assert (one.n, one.n_failed) == (len(own), len(own) - len(ok))
        share = 1 / 3 if name == MODEL else 2 / 3
        assert (one.asked_ratio, one.planned_ratio, one.sent_ratio) == (share, share, share)
        assert one.throughput_hz == pytest.approx(len(ok) / 12)
        assert one.rows_hz == pytest.approx(sum(row["rows"] for row in ok) / 12)
        for quantile in one.latency.spreads["response"].quantiles[:3]:
            assert quantile.value_ns == late_ns[-(-round(100 * quantile.q) * len(own) // 100) - 1]
        of_batches = [row["rows"] for row in batches if row["model"] == name]
        assert (known(one.batches).n, known(one.batches).rows_total_count) == (
            len(of_batches),
            sum(of_batches),
        )
        assert (known(one.join).joined_ratio, one.join_levels) == (1.0, {"exact": len(ok)})
    assert models[MODEL].servers == ("server-0",)
    assert models[OTHER].servers == ("server-0", "server-1")
    first, other = (one.latency.spreads["service"].mean_of_finite_ns for one in models.values())
    assert known(other) - known(first) == pytest.approx(1.5 * SLOWER_NS, abs=1)
    assert known(models[OTHER].triton).request_count == 2 * known(models[MODEL].triton).request_count
    assert mixed_summary.by_phase["burst"].by_model == models
    assert mixed_summary.measure.models == (), "none is behind the models under load"


@pytest.mark.parametrize(
    ("own", "models", "asked"),
    [
        ({"shares": {OTHER: 3, MODEL: 1}}, [1, 1], [0.25, 0.75]),
        ({"shares": {OTHER: 3}}, [1, 1], [0.0, 1.0]),
        ({}, [3, 1], [0.75, 0.25]),
        ({}, [None, 1], [None, None]),
    ],
)
def test_the_share_that_is_asked_is_the_phases_own_else_the_models(
    tmp_path: Path,
    mixed: SyntheticRun,
    own: dict[str, Any],
    models: list[int | None],
    asked: list[float | None],
) -> None:
    mixed.derived = False
    scenario = mixed.manifest["scenario"]
    scenario["phases"] = [{"name": "warmup"}, {"name": "burst", **own}]
    scenario["models"] = [
        {"name": name} | ({} if share is None else {"share": share})
        for name, share in zip((MODEL, OTHER), models, strict=True)
    ]
    found = known(summarise(mixed.write(tmp_path)).measure.by_model)
    assert [one.asked_ratio for one in found.values()] == pytest.approx(asked)


def test_a_model_under_load_on_one_server_stands_behind_the_other_there(
    tmp_path: Path, mixed: SyntheticRun
) -> None:
    """Server 1 serves `OTHER` alone; there `MODEL` is what it calls."""
    mixed.derived = False
    samples = mixed.tables["triton_samples"]
    row = {name: values[0] for name, values in samples.items() if values}
    row |= {"server": "server-1", "phase": "burst"}
    for name, value in row.items():
        samples[name].append(value)
    found = summarise(mixed.write(tmp_path))
    (behind,) = found.measure.models
    assert (behind.model, behind.request_count) == (MODEL, row["request_count"])
    own = known(known(found.measure.by_model)[MODEL].triton)
    of_server = [
        n
        for n, server, model, phase in zip(
            samples["request_count"], samples["server"], samples["model"], samples["phase"], strict=True
        )
        if (server, model, phase) == ("server-0", MODEL, "burst")
    ]
    assert own.request_count == sum(of_server)


def test_a_run_of_one_model_says_nothing_of_models(whole_summary: Summary) -> None:
    assert whole_summary.measure.by_model is None


def test_screen_and_report_have_each_model(mixed_run: RunStore, mixed_summary: Summary) -> None:
    console = Console(width=80, file=StringIO(), force_terminal=False)
    console.print(render(mixed_summary, "runs/x", is_verbose=True))
    assert isinstance(console.file, StringIO)
    screen = " ".join(console.file.getvalue().split())
    assert re.search(
        rf"Models {MODEL}: 33\.3 % of requests \(33\.3 % asked\), [\d,]+ of [\d,]+ sent.*, [\d,]+/s ok; resp",
        screen,
    )
    assert re.search(
        rf"{OTHER}: [\d,]+ batches of [\d.]+ rows; queue .* infer .*; 100 % joined by id", screen
    )
    for server, model in MIXED:
        assert f"burst, {server}, {model}, p99: " in screen
    page = render_html(mixed_summary, mixed_run.manifest, [])
    assert page.count("<h2>Models</h2>") == 1
    for model in (MODEL, OTHER):
        assert page.count(f"<tr><td>{model}</td>") == 3
    assert "server-0, server-1" in page
    assert f"burst · server-1, {OTHER} · p99 requests" in page


def test_a_stored_summary_of_several_models_is_read_as_it_was(mixed_summary: Summary) -> None:
    stored = json.loads(json.dumps(mixed_summary.to_json(), allow_nan=False))
    assert Summary.from_json(stored) == mixed_summary


def test_the_parts_of_each_models_latency_are_of_its_own_requests(
    mixed_run: RunStore, mixed_summary: Summary
) -> None:
    rows = [row for row in mixed_run.read("joined").to_pylist() if row["phase"] == "burst"]
    for name, one in known(mixed_summary.measure.by_model).items():
        own = [row for row in rows if row["request_kind"] == name and row["outcome"] == "ok"]
        account = known(known(one.join).accounting)
        assert (account.level, account.n, account.n_of) == ("server", len(own), len(own))
        for part, column in {"response": "response_ns", "queue": "queue_ns", "network": "network_ns"}.items():
            mean_ns = sum(row[column] for row in own) / len(own)
            assert account.parts[part].mean_ns == pytest.approx(mean_ns, abs=1)


def test_a_server_is_asked_for_the_models_that_it_serves(mixed_summary: Summary) -> None:
    """Server 0: all of the one model's third, and half of the other's two thirds."""
    servers = known(mixed_summary.measure.servers).servers
    assert [one.asked_ratio for one in servers.values()] == pytest.approx([2 / 3, 1 / 3])
    assert [one.work_of_asked_ratio for one in servers.values()] == pytest.approx([1.0, 1.0])
    assert mixed_summary.stragglers == (), "one is slower, for it serves the slower model alone"


def test_rows_of_different_models_are_not_held_to_one_another_as_work(
    tmp_path: Path, mixed: SyntheticRun
) -> None:
    mixed.derived = False
    requests = mixed.tables["requests"]
    requests["rows"] = [
        rows * 10 if kind == MODEL else rows
        for kind, rows in zip(requests["request_kind"], requests["rows"], strict=True)
    ]
    servers = known(summarise(mixed.write(tmp_path)).measure.servers).servers
    assert [one.work_ratio for one in servers.values()] == pytest.approx([2 / 3, 1 / 3])


def test_the_p99_of_each_model_is_of_its_own_requests(mixed_run: RunStore, mixed_summary: Summary) -> None:
    rows = mixed_run.read("joined").to_pylist()
    tails = {
        (one.scope.server, one.scope.model): one for one in mixed_summary.findings if one.level == "tail"
    }
    assert set(tails) == set(MIXED)
    for (server, model), one in tails.items():
        worst = {row["request_id"] for row in known(one.rows).worst}
        own = [
            row
            for row in rows
            if (row["target"], row["request_kind"], row["phase"]) == (server, model, "burst")
        ]
        late = sorted((row for row in own if row["outcome"] == "ok"), key=lambda row: -row["response_ns"])
        assert worst == {row["request_id"] for row in late[: len(worst)]}


def test_a_model_without_batches_beside_one_with_them_is_told_by_its_statistics(
    tmp_path: Path, mixed: SyntheticRun
) -> None:
    batches = mixed.tables["batches"]
    kept = [
        at
        for at, place in enumerate(zip(batches["server"], batches["model"], strict=True))
        if place != MIXED[1]
    ]
    mixed.tables["batches"] = {name: [values[at] for at in kept] for name, values in batches.items()}
    mixed.manifest["servers"]["server-0"]["others"][0]["batch_record"] = False
    found = summarise(mixed.write(tmp_path))
    windows = {(one.scope.server, one.scope.instance): one for one in found.findings if one.level == "window"}
    told = windows["server-0", OTHER]
    assert told.rule in ("queue-bound", "compute-bound")
    assert f"odel {OTHER} " in told.claim
    assert set(told.shares) == {f"{OTHER} queue", f"{OTHER} compute"}, (
        "what the other model takes is not in it"
    )
    assert {place for place, one in windows.items() if one is not told} == {
        ("server-0", f"{MODEL}_0_0"), ("server-1", f"{OTHER}_0_0")
    }  # fmt: skip
    models = known(found.measure.by_model)
    assert known(models[OTHER].join_levels)["none"] > 0
    assert 0.49 < known(known(models[OTHER].join).joined_ratio) < 0.51
    assert known(models[MODEL].join).joined_ratio == 1.0


def test_figures_of_the_requests_that_runs_are_compared_by_are_there(mixed_run: RunStore) -> None:
    whole = run_figures(mixed_run)
    assert {name for name, one in whole.pooled.items() if one.value is None} == set()
    side = read_row(mixed_run.run_dir)
    assert (side.status, side.problem) == ("VALID", "")
