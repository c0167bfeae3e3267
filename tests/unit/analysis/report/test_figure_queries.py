"""Each query that a report shows, run over every recorded run, returns the figure that stands there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.report.figure_queries import figure_queries
from squall.analysis.report.summary_file import Summary
from squall.analysis.sql import answered
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.phase_figures import Spread
from tests.reference import ROOT, names, run_dirs

Rows = list[dict[str, Any]]
RUNS = [run for name in names() for run in run_dirs(ROOT / name)]


def same(made: float | None, shown: float | None) -> bool:
    """Whether a figure is that of the page: whole ones to the unit, others but for the order of sums."""
    if made is None or shown is None:
        return made is shown
    return round(made) == shown if isinstance(shown, int) else math.isclose(made, shown, rel_tol=1e-9)


def quantiles(shown: Sequence[Quantile], made: list[float]) -> bool:
    return all(
        one.is_refused or same(value, math.inf if one.is_infinite else one.value_ns)
        for one, value in zip(shown, made, strict=True)
    )


def spread(shown: Spread, rows: Rows) -> bool:
    (row,) = rows
    return (
        row["n"] == shown.n
        and same(row["mean_ns"], shown.mean_of_finite_ns)
        and same(row["max_ns"], shown.max_of_finite_ns)
        and quantiles(shown.quantiles, row["quantiles_ns"])
    )


def latency(name: str) -> Callable[[Summary, Rows], bool]:
    return lambda summary, rows: spread(summary.measure.latency.spreads[name], rows)


def of_groups(summary: Summary, rows: Rows, key: str) -> bool:
    """Latency of each server or model in each phase."""
    shown: dict[tuple[str, str], tuple[int, list[Quantile]]] = {}
    for phase, one in summary.by_phase.items():
        if key == "target":
            of_key = (
                {name: (own.n, own.quantiles) for name, own in one.servers.servers.items()}
                if one.servers
                else {}
            )
        else:
            latencies = {
                name: own.latency.spreads[summary.latency_name] for name, own in (one.by_model or {}).items()
            }
            of_key = {name: (own.n, own.quantiles) for name, own in latencies.items()}
        shown |= {
            (phase, name): (n, [one for one in own if one.q in (0.5, 0.95, 0.99)])
            for name, (n, own) in of_key.items()
        }
    made = {(row["phase"], row[key]): row for row in rows}
    return set(made) == set(shown) and all(
        made[group]["n"] == n and quantiles(own, made[group]["quantiles_ns"])
        for group, (n, own) in shown.items()
    )


def batches(summary: Summary, rows: Rows) -> bool:
    (row,), shown = rows, summary.measure.batches
    assert shown is not None
    figures = (
        shown.n,
        shown.rows_mean_count,
        shown.rows_max_count,
        shown.requests_mean_count,
        shown.compute_mean_ns,
    )
    return all(
        map(
            same,
            (row[name] for name in ("n", "rows_mean", "rows_max", "requests_mean", "compute_mean_ns")),
            figures,
        )
    ) and row["rows_p50_p95"] == [shown.rows_p50_count, shown.rows_p95_count]


def triton(summary: Summary, rows: Rows) -> bool:
    (row,), shown = rows, summary.measure.triton
    assert shown is not None
    figures = (
        shown.request_count, shown.failure_count, shown.execution_count, shown.queue_mean_ns,
        shown.compute_input_mean_ns, shown.compute_infer_mean_ns, shown.compute_output_mean_ns,
    )  # fmt: skip
    return all(map(same, row.values(), figures))


def parts(summary: Summary, rows: Rows) -> bool:
    assert summary.measure.join is not None
    assert summary.measure.join.accounting is not None
    shown = summary.measure.join.accounting.parts
    return [*shown] == [row["part"] for row in rows] and all(
        same(row["mean_ns"], shown[row["part"]].mean_ns) and row["p95_ns"] == shown[row["part"]].p95_ns
        for row in rows
    )


def instances(summary: Summary, rows: Rows) -> bool:
    assert summary.metrics is not None
    shown = [
        (phase, one.server, one.instance, one.n_profiled, one.mean_ns)
        for phase, figures in summary.metrics.phases.items()
        for one in figures.instances.values()
        if one.n_profiled
    ]
    made = {(row["phase"], row["server"], row["instance"]): row for row in rows}
    return len(made) == len(rows) == len(shown) and all(
        made[(phase, server, instance)]["n_profiled"] == n
        and all(same(made[(phase, server, instance)][f"{name}_ns"], value) for name, value in means.items())
        for phase, server, instance, n, means in shown
    )


SHOWN: dict[str, Callable[[Summary, Rows], bool]] = {
    "outcomes": lambda s, rows: {row["outcome"]: row["n"] for row in rows} == s.measure.outcomes.counts,
    **{name: latency(name) for name in ("response", "service", "lag")},
    "servers": lambda s, rows: of_groups(s, rows, "target"),
    "models": lambda s, rows: of_groups(s, rows, "request_kind"),
    "batches": batches,
    "batch sizes": lambda s, rows: (
        {str(row["rows"]): row["executions"] for row in rows}
        == (s.measure.batches and s.measure.batches.rows_histogram)
    ),
    "triton": triton,
    "parts": parts,
    "instances": instances,
}


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
        if not SHOWN[name](summary, rows):
            wrong.append((name, rows))
    assert not wrong


def test_every_kind_of_figure_was_in_a_recorded_run(seen: set[str]) -> None:
    assert seen == set(SHOWN)
