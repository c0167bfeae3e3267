"""The query that makes a figure of the report again, over the tables of the run: what its definition is, to be run.

Each returns the figures that `summary.json` has at the place named above it; means are not rounded here. Quantiles are
nearest-rank, a request that failed counts as infinitely slow, and those that too few rows carry are not on the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from shlex import quote

from squall.analysis.metrics.model_statistics import executed_models, models_under_load
from squall.analysis.report.accounting import parts_query
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.parquet import literal
from squall.analysis.verdict.measured import QUANTILES
from squall.analysis.wording import LATENCY_LABELS

_ENDS = {
    "response": ("done_ns - scheduled_ns", "outcome = 'ok'"),
    "service": ("done_ns - sent_ns", "outcome = 'ok'"),
    "lag": ("sent_ns - scheduled_ns", "sent_ns IS NOT NULL"),
}
"""Of each latency the span, and which requests have one: all others are infinitely slow."""

# measure.latency
_LATENCY = """
SELECT count(*) AS n, avg({ns}) FILTER ({ended}) AS mean_ns,
    quantile_disc(CASE WHEN {ended} THEN {ns} ELSE 'Infinity'::DOUBLE END, {quantiles}) AS quantiles_ns,
    max({ns}) FILTER ({ended}) AS max_ns
FROM requests WHERE {measured}
"""
# by_phase.*.servers, by_phase.*.by_model
_LATENCY_BY = """
SELECT phase, {key}, count(*) AS n,
    quantile_disc(CASE WHEN {ended} THEN {ns} ELSE 'Infinity'::DOUBLE END, [0.5, 0.95, 0.99]) AS quantiles_ns
FROM requests WHERE {measured} GROUP BY phase, {key} ORDER BY phase, {key}
"""
# measure.outcomes
_OUTCOMES = """
SELECT outcome, count(*) AS n FROM requests WHERE {measured} GROUP BY outcome ORDER BY n DESC
"""
# measure.batches
_BATCHES = """
SELECT count(*) AS n, avg(rows) AS rows_mean, quantile_disc(rows, [0.5, 0.95]) AS rows_p50_p95, max(rows) AS rows_max,
    avg(n_requests) AS requests_mean, avg(end_ns - start_ns) AS compute_mean_ns
FROM batches WHERE {measured}{executed}
"""
# measure.batches.rows_histogram
_BATCH_SIZES = """
SELECT rows, count(*) AS executions FROM batches WHERE {measured}{executed} GROUP BY rows ORDER BY rows
"""
# measure.triton: Triton's counts between samples
_TRITON = """
SELECT sum(request_count) AS succeeded, sum(failure_count) AS failed, sum(execution_count) AS executions,
    sum(queue_ns) / sum(request_count) AS queue_ns, sum(compute_input_ns) / sum(request_count) AS input_ns,
    sum(compute_infer_ns) / sum(request_count) AS infer_ns, sum(compute_output_ns) / sum(request_count) AS output_ns
FROM triton_samples WHERE {measured}{asked}
"""
# metrics.phases.*.instances.*.mean_ns: of the batches that are tied to a profile
_INSTANCES = """
SELECT phase, server, instance, instance_device, model, count(*) AS n_profiled, avg(end_ns - start_ns) AS exec_ns,
    avg(head_ns) AS head_ns, avg(kernel_busy_ns) AS kernel_busy_ns, avg(copy_exposed_ns) AS copy_exposed_ns,
    avg(sync_wait_ns) AS sync_wait_ns, avg(launch_idle_ns) AS launch_idle_ns, avg(tail_ns) AS tail_ns
FROM batch_costs WHERE {measured} AND tie <> 'none' GROUP BY ALL ORDER BY ALL
"""


def figure_queries(summary: Summary, manifest: Manifest) -> dict[str, str]:
    """The query of each figure that the run has and that one query makes, by the name that the page has it under."""
    return dict(_queries(summary, manifest))


def query_command(sql: str) -> str:
    """What makes the figure on a command line; RUN is the run directory."""
    is_plain = set(sql).isdisjoint('"$`!\\')  # a shell takes nothing in double quotes for its own
    quoted = f'"{sql}"' if is_plain else quote(sql)
    return f"squall sql RUN {quoted}"


def _queries(summary: Summary, manifest: Manifest) -> Iterator[tuple[str, str]]:
    measure = summary.measure
    if not measure.phases:
        return
    measured = f"phase IN ({', '.join(map(literal, measure.phases))})"
    yield "outcomes", _filled(_OUTCOMES, measured=measured)
    # outside the windows of a recording: which requests these are is no condition on a row
    if summary.recording is None or summary.recording.headline == "all":
        for name in LATENCY_LABELS[summary.load]:
            ns, ended = _ENDS[name]
            yield name, _filled(_LATENCY, ns=ns, ended=ended, quantiles=[*QUANTILES], measured=measured)
        ns, ended = _ENDS[summary.latency_name]
        for name, key, is_there in (
            ("servers", "target", any(one.servers for one in summary.by_phase.values())),
            ("models", "request_kind", any(one.by_model for one in summary.by_phase.values())),
        ):
            if is_there:
                yield name, _filled(_LATENCY_BY, key=key, ns=ns, ended=ended, measured=measured)
    if measure.batches is not None:
        executed = _of_models(executed_models(manifest))
        yield "batches", _filled(_BATCHES, measured=measured, executed=executed)
        yield "batch sizes", _filled(_BATCH_SIZES, measured=measured, executed=executed)
    if measure.triton is not None:
        yield "triton", _filled(_TRITON, measured=measured, asked=_of_models(models_under_load(manifest)))
    if measure.join is not None and measure.join.accounting is not None:
        yield "parts", parts_query(measure.join.accounting.level, measured, summary.load == "open")
    if summary.metrics is not None and any(one.instances for one in summary.metrics.phases.values()):
        yield "instances", _filled(_INSTANCES, measured=measured)


def _filled(template: str, **parts: object) -> str:
    """On one line; names in `parts` keep their blanks."""
    return " ".join(template.split()).format(**parts)


def _of_models(models: Collection[tuple[str, str]]) -> str:
    pairs = ", ".join(f"({literal(server)}, {literal(model)})" for server, model in sorted(models))
    return f" AND (server, model) IN ({pairs})" if pairs else ""
