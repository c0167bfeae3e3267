"""Each query that a report shows, run over every recorded run, returns the figure that stands there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.report.figure_queries import figure_queries
from squall.analysis.report.summary_file import Summary
from squall.analysis.sql import answered
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.store import RunStore
from tests.known import known
from tests.reference import ROOT, names, run_dirs

Rows = list[dict[str, Any]]
RUNS = [run for name in names() for run in run_dirs(ROOT / name)]


def same(made: Any, shown: Any) -> bool:
    """Whether what a query returns is what the page shows: whole figures to the unit, others but for the order of sums;
    a quantile that is refused may be any."""
    if isinstance(shown, Quantile):
        return shown.is_refused or same(made, math.inf if shown.is_infinite else shown.value_ns)
    if isinstance(shown, dict):
        return all(same(made[name], value) for name, value in shown.items())
    if isinstance(shown, list | tuple):
        return len(made) == len(shown) and all(map(same, made, shown))
    if made is None or shown is None or isinstance(shown, str):
        return bool(made == shown)
    return round(made) == shown if isinstance(shown, int) else math.isclose(made, shown, rel_tol=1e-9)


def latency(name: str) -> Callable[[Summary], Rows]:
    def shown(summary: Summary) -> Rows:
        one = summary.measure.latency.spreads[name]
        means = {"mean_ns": one.mean_of_finite_ns, "max_ns": one.max_of_finite_ns}
        return [{"n": one.n, **means, "quantiles_ns": one.quantiles}]

    return shown


def of_groups(summary: Summary, key: str) -> Rows:
    """Latency of each server or model in each phase."""
    found = []
    for phase, one in summary.by_phase.items():
        servers = one.servers.servers if one.servers else {}
        of_key = {name: (own.n, own.quantiles) for name, own in servers.items()}
        if key == "request_kind":
            spreads = {name: own.latency.spreads for name, own in (one.by_model or {}).items()}
            of_key = {
                name: (own[summary.latency_name].n, own[summary.latency_name].quantiles)
                for name, own in spreads.items()
            }
        for name, (n, own) in of_key.items():
            shown = [each for each in own if each.q in (0.5, 0.95, 0.99)]
            found.append({"phase": phase, key: name, "n": n, "quantiles_ns": shown})
    return found


def batches(summary: Summary) -> Rows:
    one = known(summary.measure.batches)
    return [
        {
            "n": one.n, "rows_mean": one.rows_mean_count, "rows_p50_p95": [one.rows_p50_count, one.rows_p95_count],
            "rows_max": one.rows_max_count, "requests_mean": one.requests_mean_count,
            "compute_mean_ns": one.compute_mean_ns,
        }
    ]  # fmt: skip


def triton(summary: Summary) -> Rows:
    one = known(summary.measure.triton)
    return [
        {
            "succeeded": one.request_count, "failed": one.failure_count, "executions": one.execution_count,
            "queue_ns": one.queue_mean_ns, "input_ns": one.compute_input_mean_ns,
            "infer_ns": one.compute_infer_mean_ns, "output_ns": one.compute_output_mean_ns,
        }
    ]  # fmt: skip


def parts(summary: Summary) -> Rows:
    found = known(known(summary.measure.join).accounting).parts
    return [{"part": name, "mean_ns": one.mean_ns, "p95_ns": one.p95_ns} for name, one in found.items()]


def instances(summary: Summary) -> Rows:
    return [
        {
            "phase": phase, "server": one.server, "instance": one.instance, "n_profiled": one.n_profiled,
            **{f"{name}_ns": value for name, value in one.mean_ns.items()},
        }
        for phase, figures in known(summary.metrics).phases.items()
        for one in figures.instances.values()
        if one.n_profiled
    ]  # fmt: skip


SHOWN: dict[str, Callable[[Summary], Rows]] = {
    "outcomes": lambda s: [{"outcome": name, "n": n} for name, n in s.measure.outcomes.counts.items()],
    **{name: latency(name) for name in ("response", "service", "lag")},
    "servers": lambda s: of_groups(s, "target"),
    "models": lambda s: of_groups(s, "request_kind"),
    "batches": batches,
    "batch sizes": lambda s: [
        {"rows": int(size), "executions": n} for size, n in known(s.measure.batches).rows_histogram.items()
    ],
    "triton": triton,
    "parts": parts,
    "instances": instances,
}


def in_order(rows: Rows) -> Rows:
    """By the names of what each is of."""
    return sorted(rows, key=lambda row: sorted(value for value in row.values() if isinstance(value, str)))


def answers(run: Path) -> Iterator[tuple[str, Summary, Rows]]:
    store = RunStore.open(run)
    summary = Summary.read(store)
    for name, sql in figure_queries(summary, store.manifest).items():
        with answered([store], sql) as answer:
            rows = [dict(zip(answer.names, values, strict=True)) for values in answer.rows()]
        yield name, summary, rows


@pytest.fixture(scope="module")
def seen() -> set[str]:
    return set()


@pytest.mark.parametrize("run", RUNS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_query_returns_the_figure_beside_it(run: Path, seen: set[str]) -> None:
    wrong = []
    for name, summary, rows in answers(run):
        seen.add(name)
        if not same(in_order(rows), in_order(SHOWN[name](summary))):
            wrong.append((name, rows))
    assert not wrong


def test_every_kind_of_figure_was_in_a_recorded_run(seen: set[str]) -> None:
    assert seen == set(SHOWN)
