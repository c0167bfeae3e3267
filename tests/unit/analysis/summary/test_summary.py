from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.record import to_json
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore
from squall.analysis.summary import summary as summary_module
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.sealed import Verdict
from squall.analysis.verdict.measured import MOST_DETAILS, RunTables, outcome_figures
from squall.analysis.verdict.phase_figures import SeriesFigures
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError
from tests.known import known
from tests.many_examples import examples
from tests.request_columns import COLUMNS
from tests.synthetic_runs import START_NS, S, SyntheticRun

MakeRun = Callable[..., RunStore]


@pytest.fixture
def summary(whole_summary: Summary) -> Summary:
    return whole_summary


def measured(store: RunStore, table: str) -> list[dict[str, Any]]:
    return [row for row in store.read(table).to_pylist() if row["phase"] == "burst"]


def test_a_summary_is_plain_json(summary: Summary) -> None:
    found = summary.to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_stored_summary_is_read_as_the_one_that_was_written(
    whole_summary: Summary, closed_summary: Summary
) -> None:
    for made in (whole_summary, closed_summary):
        stored = json.loads(json.dumps(made.to_json()))
        read = Summary.from_json(stored)
        assert read == made
        assert json.dumps(read.to_json()) == json.dumps(stored)


def test_a_stored_summary_of_no_request_is_read_as_well(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    for values in synthetic.tables["requests"].values():
        values.clear()
    made = summarise(make_run(synthetic))
    assert known(made.join).n_by_level is None
    assert Summary.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_what_is_no_summary_is_refused_with_the_key_that_is_at_fault(summary: Summary) -> None:
    found = summary.to_json()
    with pytest.raises(AnalysisError, match=r"^measure\.duration_ns: "):
        Summary.from_json({**found, "measure": {**found["measure"], "duration_ns": "long"}})


def why_unread(store: RunStore, text: str) -> str:
    """What is said of that summary.json, after its path."""
    path = store.run_dir / "summary.json"
    path.write_text(text)
    with pytest.raises(StoreError) as told:
        Summary.read(store)
    assert "\n" not in str(told.value)
    return str(told.value).removeprefix(f"{path} ")


def test_a_summary_of_an_earlier_version_says_which_key_it_lacks_and_what_makes_it_anew(
    make_run: MakeRun, plain: SyntheticRun, summary: Summary
) -> None:
    store, found = make_run(plain), summary.to_json()
    mend = f"squall analyze {store.run_dir}"
    for key in ("recording", "verdict"):
        text = json.dumps({name: value for name, value in found.items() if name != key})
        why = f"is not of this version of squall ({key}: is not there): {mend} makes it anew"
        assert why_unread(store, text) == why
    assert why_unread(store, "[]").startswith("is not of this version of squall (Summary: ")
    assert why_unread(store, json.dumps(found)[:-1]) == f"cannot be read: {mend}"
    (store.run_dir / "summary.json").write_text(json.dumps({**found, "of a later version": 1}))
    assert Summary.read(store) == summary


def test_intended_and_delivered_load_are_counted_over_the_measure_phase(
    whole_run: RunStore, summary: Summary
) -> None:
    rows = measured(whole_run, "requests")
    intended, delivered = known(summary.measure.load.intended), summary.measure.load.delivered
    assert (intended.n, delivered.n) == (len(rows), len(rows))
    assert intended.rate_hz == pytest.approx(len(rows) / 12)
    gaps = np.diff(sorted(row["scheduled_ns"] for row in rows))
    assert isinstance(intended, SeriesFigures)
    assert intended.gap_c2_ratio == pytest.approx(gaps.var(ddof=1) / gaps.mean() ** 2)
    assert intended.idc_10s_ratio is None
    assert summary.measure.load.rows.mean_count == pytest.approx(np.mean([r["rows"] for r in rows]))


def test_planned_against_sent_is_in_the_summary_of_every_measure_phase(
    whole_run: RunStore, summary: Summary
) -> None:
    rows = measured(whole_run, "requests")
    assert summary.stimulus is not None
    assert list(summary.stimulus) == ["burst"]
    stimulus = summary.stimulus["burst"]
    assert (stimulus.n_planned, stimulus.n_sent, stimulus.n_within) == (len(rows),) * 3
    lags = {w: sorted(r["sent_ns"] - r["scheduled_ns"] for r in rows if r["worker"] == w) for w in (0, 1)}
    for one in stimulus.workers:
        own = lags[known(one.worker)]
        assert (one.n, one.max_ns) == (len(own), own[-1])
        assert one.p99_ns == own[-(-99 * len(own) // 100) - 1]
    load = summary.measure.load
    for scale, name in zip(stimulus.dispersion, ("idc_100ms_ratio", "idc_1s_ratio"), strict=True):
        found = (getattr(load.intended, name), getattr(load.delivered, name))
        assert (scale.planned_ratio, scale.sent_ratio) == found
        checked = next(c for c in summary.verdict.checks if c.name == f"dispersion {scale.window_ns / S:g} s")
        assert (checked.value, checked.limit) == (abs(scale.change_ratio), scale.limit_ratio)
    burst = known(stimulus.bursts).largest[-1]
    assert (burst.offset_ns, burst.duration_ns) == (
        5 * S,
        S,
    )  # the synthetic run's burst, from 7 to 8 s
    assert burst.n_planned == sum(7 * S <= r["scheduled_ns"] - START_NS < 8 * S for r in rows)


def test_a_closed_loop_has_no_stimulus(closed_summary: Summary) -> None:
    assert closed_summary.stimulus is None


def test_response_service_and_lag_count_failures_as_infinite(whole_run: RunStore, summary: Summary) -> None:
    rows = measured(whole_run, "requests")
    kinds = {
        "response": ("scheduled_ns", "done_ns"),
        "service": ("sent_ns", "done_ns"),
        "lag": ("scheduled_ns", "sent_ns"),
    }
    for kind, (start, end) in kinds.items():
        spread = summary.measure.latency.spreads[kind]
        failed = [row["outcome"] != "ok" and kind != "lag" for row in rows]
        spans = sorted(np.inf if f else r[end] - r[start] for r, f in zip(rows, failed, strict=True))
        by_q = {quantile.q: quantile for quantile in spread.quantiles}
        assert by_q[0.5].value_ns == spans[-(-len(spans) // 2) - 1]
        assert by_q[0.95].value_ns == spans[-(-95 * len(spans) // 100) - 1]
        assert by_q[0.999].is_refused
        assert spread.n_failed == sum(failed)
        assert spread.max_of_finite_ns == max(span for span in spans if span != np.inf)


def test_outcomes_and_the_words_for_failures_are_counted(whole_run: RunStore, summary: Summary) -> None:
    rows = measured(whole_run, "requests")
    outcomes = summary.measure.outcomes
    assert outcomes.counts == dict(Counter(row["outcome"] for row in rows))
    assert next(iter(outcomes.counts)) == "ok"
    pairs = Counter((row["outcome"], row["detail"]) for row in rows if row["outcome"] != "ok")
    assert {(d.outcome, d.detail): d.n for d in outcomes.details} == dict(pairs)


def test_batches_and_tritons_statistics_are_of_the_measure_phase(
    whole_run: RunStore, summary: Summary
) -> None:
    rows = [batch["rows"] for batch in measured(whole_run, "batches")]
    batches = known(summary.measure.batches)
    assert (batches.n, batches.rows_total_count, batches.rows_max_count) == (
        len(rows),
        sum(rows),
        max(rows),
    )
    assert batches.rows_histogram == {str(size): n for size, n in sorted(Counter(rows).items())}
    samples = measured(whole_run, "triton_samples")
    n = sum(sample["request_count"] for sample in samples)
    triton = known(summary.measure.triton)
    assert triton.request_count == n
    assert triton.queue_mean_ns == round(sum(sample["queue_ns"] for sample in samples) / n)
    assert sum(triton.batch_size_histogram.values()) == triton.execution_count


def test_the_means_of_the_parts_add_up_to_the_mean_response(summary: Summary) -> None:
    parts = known(known(summary.measure.join).accounting).parts
    total = sum(part.mean_ns for name, part in parts.items() if name != "response")
    assert total == pytest.approx(parts["response"].mean_ns, abs=len(parts))  # each is rounded to a whole ns
    assert known(summary.measure.join).joined_ratio == 1.0


def test_every_count_of_independent_sources_agrees(summary: Summary) -> None:
    assert {one.name for one in summary.identities} == {
        "rows", "triton success", "batch rows", "executions", "joined", "batch costs",
    }  # fmt: skip
    assert all(one.is_met for one in summary.identities)


def test_requests_given_up_by_the_client_may_or_may_not_have_been_served(summary: Summary) -> None:
    success = next(one for one in summary.identities if one.name == "triton success")
    assert success.most - success.least == 3  # the three timeouts
    assert success.found == success.most
    executions = next(one for one in summary.identities if one.name == "executions")
    assert executions.most - executions.least == 3  # they may be executed after the last sample
    assert executions.found == executions.least


def lose_batch(run: SyntheticRun) -> None:
    rows = run.tables["batches"]["rows"]
    largest = rows.index(max(rows))  # more rows than those of the three timeouts, which may be missing
    for values in run.tables["batches"].values():
        values.pop(largest)


def miscount(column: str) -> Callable[[SyntheticRun], None]:
    def change(run: SyntheticRun) -> None:
        run.derived = False  # the counts of what is joined know nothing of these samples
        run.tables["triton_samples"][column][5] -= 10

    return change


def lose_request(run: SyntheticRun) -> None:
    for values in run.tables["requests"].values():
        values.pop(100)


def lose_record(run: SyntheticRun) -> None:
    """Of a request that was served: the server's counts may exceed the client's by it."""
    requests = run.tables["requests"]
    requests["outcome"][100] = "lost"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][100] = None


@pytest.mark.parametrize(
    ("break_it", "broken"),
    [
        pytest.param(lose_record, set(), marks=pytest.mark.slow),
        (lose_batch, {"batch rows", "executions", "joined"}),
        (miscount("request_count"), {"triton success"}),
        (miscount("execution_count"), {"executions"}),
        (lose_request, {"rows", "triton success", "batch rows"}),
    ],
)
def test_each_lost_row_breaks_the_counts_that_it_is_in(
    make_run: MakeRun, synthetic: SyntheticRun, break_it: Callable[[SyntheticRun], None], broken: set[str]
) -> None:
    break_it(synthetic)
    found = {one.name for one in summarise(make_run(synthetic)).identities if not one.is_met}
    assert found == broken


def test_what_a_run_did_not_record_is_none_not_zero(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit = {"batches", "triton_samples", "host_samples", "worker_samples"}
    synthetic.derived = False
    summary = summarise(make_run(synthetic))
    for name in ("host", "gpu", "workers", "join"):
        assert getattr(summary, name) is None
    for name in ("batches", "triton", "join"):
        assert getattr(summary.measure, name) is None
    assert [one.name for one in summary.identities] == ["rows"]


def test_two_measure_phases_have_their_own_figures_and_a_common_rate(telling_summary: Summary) -> None:
    assert list(telling_summary.by_phase) == ["warmup", "burst"]
    both = known(telling_summary.measure.load.intended)
    assert both.n == sum(known(one.load.intended).n for one in telling_summary.by_phase.values())
    assert both.rate_hz == pytest.approx(both.n / 14)
    assert list(to_json(both)) == ["n", "rate_hz"]


def test_the_summary_of_an_aborted_run_keeps_its_verdict(make_run: MakeRun, plain: SyntheticRun) -> None:
    plain.seal = False
    store = make_run(plain)
    assert summarise(store).verdict.status == "VALID"
    store.seal(Verdict(status="ABORTED", reasons=("interrupted",)))
    verdict = summarise(store).verdict
    assert (verdict.status, verdict.reasons) == ("ABORTED", ("interrupted",))


def test_a_run_that_never_came_to_its_phases_is_still_summarised(phaseless_summary: Summary) -> None:
    assert phaseless_summary.measure.outcomes.n == 0
    assert phaseless_summary.verdict.status == "INVALID"


def test_without_requests_there_is_no_summary(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit, synthetic.derived, synthetic.seal = {"requests"}, False, False
    with pytest.raises(MissingTable):
        summarise(make_run(synthetic))


def test_host_figures_are_per_node(two_nodes_run: RunStore, two_nodes_summary: Summary) -> None:
    host = known(two_nodes_summary.host)
    own = [r for r in measured(two_nodes_run, "host_samples") if r["node"] == "node-1"]
    assert list(host) == ["node-0", "node-1"]
    busy = [1 - row["cpu_idle"] - row["cpu_iowait"] for row in own]
    assert host["node-1"].cpu_busy_mean == pytest.approx(np.mean(busy))
    assert host["node-1"].cpu_steal_max == max(row["cpu_steal"] for row in own)


def test_worker_figures_are_of_the_measure_phase(whole_run: RunStore, summary: Summary) -> None:
    own = measured(whole_run, "worker_samples")
    assert known(summary.workers).n_workers == 2
    assert known(summary.workers).cpu_mean_ratio == pytest.approx(np.mean([row["cpu_ns"] / S for row in own]))


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


@examples(30)
@given(
    pairs=st.lists(st.tuples(st.sampled_from(["ok", "timeout", "rejected"]), st.sampled_from("abcdefghijkl")))
)
def test_the_commonest_failures_are_listed_and_of_equal_ones_the_first(pairs: list[tuple[str, str]]) -> None:
    columns = {name: pa.array(range(len(pairs)), pa.int64()) for name in COLUMNS}
    columns |= {name: pa.array(["x"] * len(pairs), pa.string()) for name in ("phase", "node")}
    columns |= {
        name: pa.array([pair[i] for pair in pairs], pa.string())
        for i, name in enumerate(("outcome", "detail"))
    }
    found = outcome_figures(Requests.from_table(pa.table(columns))).details
    expected = Counter(pair for pair in pairs if pair[0] != "ok").most_common(MOST_DETAILS)
    assert [((one.outcome, one.detail), one.n) for one in found] == expected
