"""Figures of runs of one server, of two servers and of two models, by loops over the rows that each is of."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.compare.run_row import read_row
from squall.analysis.record import to_json
from squall.analysis.report import summary as summary_module
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import INFINITE_NS, Quantile
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.measured import MOST_DETAILS, RunTables, outcome_figures
from squall.analysis.verdict.run_figures import run_figures
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError
from tests.known import known
from tests.many_examples import examples
from tests.request_columns import COLUMNS
from tests.synthetic_runs import (
    MIXED,
    MODEL,
    OTHER,
    SLOWER_NS,
    START_NS,
    S,
    SyntheticRun,
    synthesise_two_models,
    synthesise_two_servers,
)

MakeRun = Callable[..., RunStore]
Row = dict[str, Any]


@pytest.fixture
def summary(whole_summary: Summary) -> Summary:
    return whole_summary


@pytest.fixture
def mixed() -> SyntheticRun:
    """To be broken; nothing is derived."""
    run = synthesise_two_models()
    run.derived = False
    return run


def measured(store: RunStore, table: str) -> list[Row]:
    return [row for row in store.read(table).to_pylist() if row["phase"] == "burst"]


def late_ns(rows: list[Row], start: str = "scheduled_ns", end: str = "done_ns") -> list[int]:
    """Of each, sorted; what did not end ok is later than all, unless it is about the sends."""
    return sorted(
        row[end] - row[start] if row["outcome"] == "ok" or end == "sent_ns" else INFINITE_NS for row in rows
    )


def assert_quantiles(quantiles: tuple[Quantile, ...], values_ns: list[int]) -> None:
    """By nearest rank, where they are not refused."""
    assert [one.q for one in quantiles if one.is_refused] in ([], [0.999])
    for one in quantiles:
        if not one.is_refused:
            value_ns = values_ns[-(-round(1000 * one.q) * len(values_ns) // 1000) - 1]
            assert one.value_ns == (None if value_ns == INFINITE_NS else value_ns)


# the file


@pytest.mark.parametrize("kind", ["whole", "closed", "mixed", "phaseless"])
def test_a_stored_summary_is_read_as_the_one_that_was_written(
    kind: str, request: pytest.FixtureRequest
) -> None:
    made: Summary = request.getfixturevalue(f"{kind}_summary")
    text = json.dumps(made.to_json(), allow_nan=False)
    read = Summary.from_json(json.loads(text))
    assert read == made
    assert json.dumps(read.to_json()) == text


def test_a_stored_summary_of_no_request_is_read_as_well(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.keep("requests", lambda _: False)
    made = summarise(make_run(synthetic))
    assert known(made.join).n_by_level is None
    assert Summary.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_what_is_no_summary_says_which_key_is_at_fault_and_what_makes_it_anew(
    make_run: MakeRun, plain: SyntheticRun, summary: Summary
) -> None:
    store, found = make_run(plain), summary.to_json()
    path, mend = store.run_dir / "summary.json", f"squall analyze {store.run_dir}"
    of_version = f"is not of this version of squall ({{}}): {mend} makes it anew"
    lacking = {
        key: {name: value for name, value in found.items() if name != key} for key in ("recording", "verdict")
    }
    for text, why in (
        *((json.dumps(one), of_version.format(f"{key}: is not there")) for key, one in lacking.items()),
        ("[]", "is not of this version of squall (Summary: "),
        (json.dumps(found)[:-1], f"cannot be read: {mend}"),
    ):
        path.write_text(text)
        with pytest.raises(StoreError) as told:
            Summary.read(store)
        assert "\n" not in str(told.value)
        assert str(told.value).startswith(f"{path} {why}")
    path.write_text(json.dumps({**found, "of a later version": 1}))
    assert Summary.read(store) == summary
    with pytest.raises(AnalysisError, match=r"^measure\.duration_ns: "):
        Summary.from_json({**found, "measure": {**found["measure"], "duration_ns": "long"}})


# of requests


@pytest.mark.parametrize("kind", ["whole", "two_servers", "mixed"])
def test_outcomes_and_quantiles_are_of_the_requests_of_each_group(
    kind: str, request: pytest.FixtureRequest
) -> None:
    store: RunStore = request.getfixturevalue(f"{kind}_run")
    measure = request.getfixturevalue(f"{kind}_summary").measure
    rows = measured(store, "requests")
    assert measure.outcomes.counts == Counter(row["outcome"] for row in rows)
    assert next(iter(measure.outcomes.counts)) == "ok"
    spread_of = measure.latency.spreads
    for name, start, end in (("response", "scheduled_ns", "done_ns"), ("service", "sent_ns", "done_ns"),
                             ("lag", "scheduled_ns", "sent_ns")):  # fmt: skip
        values = late_ns(rows, start, end)
        assert_quantiles(spread_of[name].quantiles, values)
        assert spread_of[name].n_failed == values.count(INFINITE_NS)
        assert spread_of[name].max_of_finite_ns == max(value for value in values if value != INFINITE_NS)
    of_servers = known(measure.servers).servers if measure.servers else {}
    of_models = measure.by_model or {}
    assert [*of_servers] == {"whole": []}.get(kind, ["server-0", "server-1"])
    assert [*of_models] == ([MODEL, OTHER] if kind == "mixed" else [])
    for column, groups in (("target", of_servers), ("request_kind", of_models)):
        for name, one in groups.items():
            own = [row for row in rows if row[column] == name]
            assert one.counts == Counter(row["outcome"] for row in own)
            assert (one.n, one.n_failed) == (len(own), len(own) - one.counts["ok"])
            assert one.planned_ratio == one.sent_ratio == pytest.approx(len(own) / len(rows))
            of_group = (
                one.latency.spreads["response"].quantiles if column == "request_kind" else one.quantiles
            )
            assert_quantiles(of_group, late_ns(own))


def test_loads_are_counted_over_the_measure_phase(whole_run: RunStore, summary: Summary) -> None:
    rows, load = measured(whole_run, "requests"), summary.measure.load
    intended: Any = load.intended
    assert (intended.n, load.delivered.n) == (len(rows), len(rows))
    assert intended.rate_hz == pytest.approx(len(rows) / 12)
    gaps = np.diff(sorted(row["scheduled_ns"] for row in rows))
    assert intended.gap_c2_ratio == pytest.approx(gaps.var(ddof=1) / gaps.mean() ** 2)
    assert intended.idc_10s_ratio is None
    assert load.rows.mean_count == pytest.approx(np.mean([row["rows"] for row in rows]))
    pairs = Counter((row["outcome"], row["detail"]) for row in rows if row["outcome"] != "ok")
    assert {(one.outcome, one.detail): one.n for one in summary.measure.outcomes.details} == dict(pairs)


def test_planned_against_sent_is_in_the_summary_of_every_measure_phase(
    whole_run: RunStore, summary: Summary, closed_summary: Summary
) -> None:
    assert closed_summary.stimulus is None
    rows, load = measured(whole_run, "requests"), summary.measure.load
    ((phase, stimulus),) = known(summary.stimulus).items()
    assert (phase, stimulus.n_planned, stimulus.n_sent, stimulus.n_within) == ("burst", *(len(rows),) * 3)
    for one in stimulus.workers:
        own = late_ns([row for row in rows if row["worker"] == one.worker], end="sent_ns")
        assert (one.n, one.max_ns, one.p99_ns) == (len(own), own[-1], own[-(-99 * len(own) // 100) - 1])
    for scale, name in zip(stimulus.dispersion, ("idc_100ms_ratio", "idc_1s_ratio"), strict=True):
        found = (getattr(load.intended, name), getattr(load.delivered, name))
        assert (scale.planned_ratio, scale.sent_ratio) == found
        checked = next(c for c in summary.verdict.checks if c.name == f"dispersion {scale.window_ns / S:g} s")
        assert (checked.value, checked.limit) == (abs(scale.change_ratio), scale.limit_ratio)
    burst = known(stimulus.bursts).largest[-1]
    assert (burst.offset_ns, burst.duration_ns) == (5 * S, S)  # of the made-up run from 7 to 8 s
    assert burst.n_planned == sum(7 * S <= row["scheduled_ns"] - START_NS < 8 * S for row in rows)


def test_two_measure_phases_have_their_own_figures_and_a_common_rate(telling_summary: Summary) -> None:
    assert list(telling_summary.by_phase) == ["warmup", "burst"]
    both = known(telling_summary.measure.load.intended)
    assert both.n == sum(known(one.load.intended).n for one in telling_summary.by_phase.values())
    assert both.rate_hz == pytest.approx(both.n / 14)
    assert list(to_json(both)) == ["n", "rate_hz"]


@examples(30)
@given(
    pairs=st.lists(st.tuples(st.sampled_from(["ok", "timeout", "rejected"]), st.sampled_from("abcdefghijkl")))
)
def test_the_commonest_failures_are_listed_and_of_equal_ones_the_first(pairs: list[tuple[str, str]]) -> None:
    columns = {name: pa.array(range(len(pairs)), pa.int64()) for name in COLUMNS}
    texts = {"outcome": [one for one, _ in pairs], "detail": [one for _, one in pairs]}
    texts |= {name: ["x"] * len(pairs) for name in ("phase", "node")}
    columns |= {name: pa.array(values, pa.string()) for name, values in texts.items()}
    found = outcome_figures(Requests.from_table(pa.table(columns))).details
    expected = Counter(pair for pair in pairs if pair[0] != "ok").most_common(MOST_DETAILS)
    assert [((one.outcome, one.detail), one.n) for one in found] == expected


# of what was sampled


def test_batches_and_samples_are_of_the_measure_phase(
    whole_run: RunStore, summary: Summary, two_nodes_run: RunStore, two_nodes_summary: Summary
) -> None:
    rows = [batch["rows"] for batch in measured(whole_run, "batches")]
    batches, triton = known(summary.measure.batches), known(summary.measure.triton)
    assert (batches.n, batches.rows_total_count, batches.rows_max_count) == (len(rows), sum(rows), max(rows))
    assert batches.rows_histogram == {str(size): n for size, n in sorted(Counter(rows).items())}
    samples = measured(whole_run, "triton_samples")
    n = sum(sample["request_count"] for sample in samples)
    assert (triton.request_count, triton.queue_mean_ns) == (
        n,
        round(sum(one["queue_ns"] for one in samples) / n),
    )
    assert sum(triton.batch_size_histogram.values()) == triton.execution_count
    workers = known(summary.workers)
    cpu_ns = [row["cpu_ns"] for row in measured(whole_run, "worker_samples")]
    assert workers.n_workers == 2
    assert workers.cpu_mean_ratio == pytest.approx(np.mean(cpu_ns) / S)
    host = known(two_nodes_summary.host)
    assert list(host) == ["node-0", "node-1"]
    own = [row for row in measured(two_nodes_run, "host_samples") if row["node"] == "node-1"]
    busy = [1 - row["cpu_idle"] - row["cpu_iowait"] for row in own]
    one = host["node-1"]
    assert (one.cpu_busy_mean, one.cpu_busy_max) == pytest.approx((np.mean(busy), max(busy)))
    assert one.cpu_steal_max == max(row["cpu_steal"] for row in own)


def test_what_a_run_did_not_record_is_none_not_zero(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit = {"batches", "triton_samples", "host_samples", "worker_samples"}
    synthetic.derived = False
    summary = summarise(make_run(synthetic))
    assert [getattr(summary, name) for name in ("host", "gpu", "workers", "join")] == [None] * 4
    assert [getattr(summary.measure, name) for name in ("batches", "triton", "join")] == [None] * 3
    assert [one.name for one in summary.identities] == ["rows"]


# of runs that ended otherwise


def test_the_summary_of_an_aborted_run_keeps_its_verdict(make_run: MakeRun, plain: SyntheticRun) -> None:
    plain.seal = False
    store = make_run(plain)
    assert summarise(store).verdict.status == "VALID"
    store.seal(Verdict(status="ABORTED", reasons=("interrupted",)))
    verdict = summarise(store).verdict
    assert (verdict.status, verdict.reasons) == ("ABORTED", ("interrupted",))


def test_a_run_that_never_came_to_its_phases_is_still_summarised(
    phaseless_summary: Summary, make_run: MakeRun, synthetic: SyntheticRun
) -> None:
    assert (phaseless_summary.measure.outcomes.n, phaseless_summary.verdict.status) == (0, "INVALID")
    synthetic.omit, synthetic.derived, synthetic.seal = {"requests"}, False, False
    with pytest.raises(MissingTable):
        summarise(make_run(synthetic))


class _ReachedError(Exception):
    """The step that is waited for begins."""


def test_the_requests_are_let_go_before_the_events_are_read(
    whole_run: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def n_held() -> int:
        gc.collect()
        return sum(issubclass(type(one), (Requests, RunTables)) for one in gc.get_objects())

    def step(*_given: Any) -> Any:
        held.append(n_held())
        raise _ReachedError

    held = [n_held()]
    monkeypatch.setattr(summary_module, "self_checks", step)
    with pytest.raises(_ReachedError):
        summarise(whole_run)
    assert held[1] == held[0]


# of two servers


def test_servers_have_their_own_work_and_speed(two_servers_summary: Summary, summary: Summary) -> None:
    assert summary.measure.servers is None
    figures = known(two_servers_summary.measure.servers)
    first, second = figures.servers.values()
    for one in (first, second):
        assert (one.n_sent, one.asked_ratio, one.work_ratio, one.work_of_asked_ratio) == (
            one.n,
            0.5,
            0.5,
            1.0,
        )
    p95s = [known(one.quantiles[1].value_ns) for one in (first, second)]
    assert p95s[1] - p95s[0] == SLOWER_NS
    assert figures.p95_ratio == p95s[1] / p95s[0] > 1
    assert "autocorrelation times" in first.quantiles[1].interval_reason, (
        "an interval takes as much as anywhere"
    )
    assert two_servers_summary.by_phase["burst"].servers == figures


def test_work_is_held_to_what_the_routing_asked(tmp_path: Path) -> None:
    """Server 1 was to have a quarter, has half of the requests, and answers none of them."""
    two = synthesise_two_servers(rate_hz=60.0)
    two.derived = False
    weights = [{"weight": 3.0}, {"weight": 1.0}]
    two.manifest["scenario"] |= {"servers": weights, "clients": {"routing": {"kind": "weighted"}}}
    two.set("requests", "outcome", lambda row: "timeout" if row["target"] == "server-1" else row["outcome"])
    figures = known(summarise(two.write(tmp_path)).measure.servers)
    told = [(one.asked_ratio, one.work_ratio, one.work_of_asked_ratio) for one in figures.servers.values()]
    assert told == [(0.75, 1.0, 1 / 0.75), (0.25, 0.0, 0.0)]
    assert figures.servers["server-1"].quantiles[0].is_infinite
    assert figures.p95_ratio is None


def test_a_server_that_got_nothing_stands_beside_the_others(tmp_path: Path, plain: SyntheticRun) -> None:
    plain.manifest["servers"]["server-1"] = plain.manifest["servers"]["server-0"]
    figures = known(summarise(plain.write(tmp_path)).measure.servers)
    busy, idle = figures.servers.values()
    assert (idle.n, idle.planned_ratio, idle.sent_ratio, idle.work_ratio) == (0, 0.0, 0.0, 0.0)
    assert all(one.is_refused for one in idle.quantiles)
    assert (busy.planned_ratio, figures.p95_ratio) == (1.0, None)


# of two models


def test_each_model_has_its_own_batches_join_and_rates(mixed_run: RunStore, mixed_summary: Summary) -> None:
    batches = mixed_run.read("batches").to_pylist()
    joined = [row for row in mixed_run.read("joined").to_pylist() if row["outcome"] == "ok"]
    model_of = {(row["server"], row["instance"], row["batch_id"]): row["model"] for row in batches}
    assert len(joined) > 2_000
    for row in joined:
        assert row["join_level"] == "exact"
        assert model_of[row["server"], row["instance"], row["batch_id"]] == row["request_kind"]
    models = known(mixed_summary.measure.by_model)
    for name, one in models.items():
        ok = [row for row in joined if (row["request_kind"], row["phase"]) == (name, "burst")]
        assert one.outcomes.counts == one.counts
        assert one.asked_ratio == {MODEL: 1 / 3, OTHER: 2 / 3}[name]
        assert (one.throughput_hz, one.rows_hz) == pytest.approx(
            (len(ok) / 12, sum(row["rows"] for row in ok) / 12)
        )
        rows = [row["rows"] for row in batches if (row["model"], row["phase"]) == (name, "burst")]
        assert (known(one.batches).n, known(one.batches).rows_total_count) == (len(rows), sum(rows))
        assert (known(one.join).joined_ratio, one.join_levels) == (1.0, {"exact": len(ok)})
        account = known(known(one.join).accounting)
        assert (account.level, account.n, account.n_of) == ("server", len(ok), len(ok))
        for part in ("response", "queue", "network"):
            mean_ns = sum(row[f"{part}_ns"] for row in ok) / len(ok)
            assert account.parts[part].mean_ns == pytest.approx(mean_ns, abs=1)
    assert [one.servers for one in models.values()] == [("server-0",), ("server-0", "server-1")]
    first, other = (one.latency.spreads["service"].mean_of_finite_ns for one in models.values())
    assert known(other) - known(first) == pytest.approx(1.5 * SLOWER_NS, abs=1)
    assert known(models[OTHER].triton).request_count == 2 * known(models[MODEL].triton).request_count
    assert mixed_summary.by_phase["burst"].by_model == models
    assert mixed_summary.measure.models == (), "none is behind the models under load"
    # server 0 is asked for all of the one model's third, and half of the other's two thirds
    servers = known(mixed_summary.measure.servers).servers.values()
    assert [one.asked_ratio for one in servers] == pytest.approx([2 / 3, 1 / 3])
    assert [one.work_of_asked_ratio for one in servers] == pytest.approx([1.0, 1.0])
    assert mixed_summary.stragglers == (), "one is slower, for it serves the slower model alone"
    assert {name for name, one in run_figures(mixed_run).items() if one.value is None} == set()
    assert (read_row(mixed_run.run_dir).status, read_row(mixed_run.run_dir).problem) == ("VALID", "")


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
    tmp_path: Path, mixed: SyntheticRun, own: Row, models: list[int | None], asked: list[float | None]
) -> None:
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
    """Server 1 serves `OTHER` alone; there `MODEL` is what it calls. Rows of different models are no common work."""
    samples = mixed.rows("triton_samples")
    row = {**samples[0], "server": "server-1", "phase": "burst"}
    for name, value in row.items():
        mixed.tables["triton_samples"][name].append(value)
    mixed.set("requests", "rows", lambda one: one["rows"] * (10 if one["request_kind"] == MODEL else 1))
    measure = summarise(mixed.write(tmp_path)).measure
    (behind,) = measure.models
    assert (behind.model, behind.request_count) == (MODEL, row["request_count"])
    place = ("server-0", MODEL, "burst")
    own = [one["request_count"] for one in samples if (one["server"], one["model"], one["phase"]) == place]
    assert known(known(measure.by_model)[MODEL].triton).request_count == sum(own)
    assert [one.work_ratio for one in known(measure.servers).servers.values()] == pytest.approx(
        [2 / 3, 1 / 3]
    )


def test_the_p99_of_each_model_is_of_its_own_requests(mixed_run: RunStore, mixed_summary: Summary) -> None:
    rows = [row for row in measured(mixed_run, "joined") if row["outcome"] == "ok"]
    tails = {
        (one.scope.server, one.scope.model): one for one in mixed_summary.findings if one.level == "tail"
    }
    assert set(tails) == set(MIXED)
    for place, one in tails.items():
        worst = {row["request_id"] for row in known(one.rows).worst}
        own = [row for row in rows if (row["target"], row["request_kind"]) == place]
        late = sorted(own, key=lambda row: -row["response_ns"])
        assert worst == {row["request_id"] for row in late[: len(worst)]}


def test_a_model_without_batches_beside_one_with_them_is_told_by_its_statistics(tmp_path: Path) -> None:
    run = synthesise_two_models()
    run.keep("batches", lambda row: (row["server"], row["model"]) != MIXED[1])
    run.manifest["servers"]["server-0"]["others"][0]["batch_record"] = False
    found = summarise(run.write(tmp_path))
    windows = {(one.scope.server, one.scope.instance): one for one in found.findings if one.level == "window"}
    told = windows.pop(("server-0", OTHER))
    assert told.rule in ("queue-bound", "compute-bound")
    assert f"odel {OTHER} " in told.claim
    assert set(told.shares) == {f"{OTHER} queue", f"{OTHER} compute"}, (
        "what the other model takes is not in it"
    )
    assert set(windows) == {("server-0", f"{MODEL}_0_0"), ("server-1", f"{OTHER}_0_0")}
    models = known(found.measure.by_model)
    assert known(models[OTHER].join_levels)["none"] > 0
    assert 0.49 < known(known(models[OTHER].join).joined_ratio) < 0.51
    assert known(models[MODEL].join).joined_ratio == 1.0
