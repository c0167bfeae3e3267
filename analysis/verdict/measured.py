"""Figures of any measured requests, batches and samples: latency, outcomes, sizes, Triton's own counts.

Each function returns a record of `phase_figures`, or None where its table is absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.join.counts import Accounting, JoinCounts, join_figures
from squall.analysis.requests.failures import MOST_DETAIL
from squall.analysis.requests.requests import Requests, rows_in, together
from squall.analysis.requests.sequences import RunSequences
from squall.analysis.requests.streams import of_requests, stream_figures
from squall.analysis.statistics.latency import quantiles
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.storage.deployed import ModelFacts
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.lag_parts import lag_parts
from squall.analysis.verdict.phase_figures import (
    BatchFigures,
    FailureWords,
    Latency,
    OutcomeFigures,
    Spread,
    TritonFigures,
)
from squall.scenarios.records import Frozen

QUANTILES = (0.50, 0.90, 0.95, 0.99, 0.999)
BATCH_COLUMNS = ["phase", "server", "model", "start_ns", "end_ns", "rows", "n_requests", "n_foreign"]
"""Columns of `batches` that figures and identities read: not the ids of its requests."""
MOST_DETAILS = 8
"""Different words for failures that a summary lists; the table holds all."""


class RunTables(Frozen, eq=False):
    """What figures are made of. None where the table is absent; of `joined` its counts by phase.

    `batches` has at least `BATCH_COLUMNS`.
    """

    manifest: Manifest
    requests: Requests
    joined: Mapping[str, Sequence[JoinCounts]] | None
    batches: pa.Table | None
    triton_samples: pa.Table | None
    responses: pa.Table | None
    sequences: RunSequences | None = None
    undisturbed: Requests | None = None
    """The requests that latencies are of, where these are not all: those sent outside the windows of a recording."""
    locust_samples: pa.Table | None = None
    """All of them, of a run whose load was Locust's."""

    def in_phases(self, names: Sequence[str]) -> RunTables:
        """With the requests, batches and statistics of these phases alone."""
        return replace(
            self,
            requests=self.requests.in_phases(names),
            batches=rows_in(self.batches, names),
            triton_samples=rows_in(self.triton_samples, names),
            undisturbed=None if self.undisturbed is None else self.undisturbed.in_phases(names),
        )

    def of_model(self, name: str) -> RunTables:
        """With the requests that ask a model, and its own batches and statistics, alone."""
        requests, counts = self.requests.of_model(name), self.joined
        return replace(
            self,
            requests=requests,
            joined=counts and {at: [one for one in own if one.model == name] for at, own in counts.items()},
            batches=rows_of_model(self.batches, name),
            triton_samples=rows_of_model(self.triton_samples, name),
            responses=of_requests(self.responses, requests),
            undisturbed=None if self.undisturbed is None else self.undisturbed.of_model(name),
        )


def answer_figures(own: RunTables, spans: Sequence[RunPhase], account: Accounting | None) -> dict[str, Any]:
    """How requests of some phases, of all models or of one, were answered, by the names of `PhaseFigures`."""
    requests = own.requests
    return {
        "latency": latency_figures(requests if own.undisturbed is None else own.undisturbed),
        "outcomes": outcome_figures(requests),
        "batches": batch_figures(own.batches),
        "triton": triton_figures(own.triton_samples),
        "join": join_figures(own.joined, [span.name for span in spans], account),
        "streams": stream_figures(own.responses, requests, spans, QUANTILES),
    }


def latency_figures(measured: Requests) -> Latency:
    """Response, service and lag: quantiles with intervals, mean and largest of those that ended ok.

    A request that did not end ok counts as infinitely slow in response and service, one whose record was lost too: no
    quantile is better for what nobody saw. For lag, one never sent or lost does.
    """
    parts = run_lengths(measured.phase.codes)
    is_failed = ~measured.is_ok
    service = _spread(measured.service_ns, is_failed, parts)
    if not measured.is_open:
        return Latency(service=service)
    return Latency(
        response=_spread(measured.response_ns, is_failed, parts),
        service=service,
        lag=_spread(measured.lag_ns, ~measured.is_sent, parts),
        lag_parts=tuple(lag_parts(measured, QUANTILES)),
    )


def _spread(values_ns: Int64s, is_failed: Bools, stretches: Sequence[int]) -> Spread:
    finite_ns = values_ns[together(~is_failed)]
    mean_ns = round(float(finite_ns.mean())) if len(finite_ns) else None
    max_ns = int(finite_ns.max()) if len(finite_ns) else None
    del finite_ns  # before the quantiles, which hold as much
    found = quantiles(values_ns, QUANTILES, is_failed, stretches)
    return Spread(len(values_ns), int(is_failed.sum()), mean_ns, max_ns, tuple(found))


def outcome_figures(measured: Requests) -> OutcomeFigures:
    """How many requests ended how, and the commonest words for failures."""
    is_failed = ~measured.is_ok
    outcome, detail = measured.outcome.take(is_failed), measured.detail.take(is_failed)
    n_words = max(1, len(detail.words))
    pairs, firsts, counts = np.unique(
        outcome.codes.astype(np.int64) * n_words + detail.codes, return_index=True, return_counts=True
    )
    commonest = np.lexsort((firsts, -counts))[:MOST_DETAILS]
    details = [
        FailureWords(outcome.words[pair // n_words], detail.words[pair % n_words][:MOST_DETAIL], n)
        for pair, n in zip(pairs[commonest].tolist(), counts[commonest].tolist(), strict=True)
    ]
    n_ok = int(measured.is_ok.sum())
    return OutcomeFigures(
        n=len(measured),
        n_ok=n_ok,
        ok_ratio=n_ok / len(measured) if len(measured) else None,
        counts=dict(sorted(measured.outcome.counts().items(), key=lambda item: -item[1])),
        details=tuple(details),
    )


def batch_figures(batches: pa.Table | None) -> BatchFigures | None:
    """Sizes of the batches that the models themselves recorded."""
    if batches is None:
        return None
    rows = batches.column("rows").to_numpy()
    sizes, counts = np.unique(rows, return_counts=True)
    n_requests = batches.column("n_requests").to_numpy()
    compute_ns = batches.column("end_ns").to_numpy() - batches.column("start_ns").to_numpy()
    return BatchFigures(
        n=len(rows),
        rows_total_count=int(rows.sum()),
        rows_mean_count=mean(rows),
        rows_p50_count=rank_value(rows, 0.50),
        rows_p95_count=rank_value(rows, 0.95),
        rows_max_count=rank_value(rows, 1.0),
        requests_mean_count=mean(n_requests),
        compute_mean_ns=mean(compute_ns),
        rows_histogram={str(size): int(n) for size, n in zip(sizes, counts, strict=True)},
    )


def triton_figures(samples: pa.Table | None) -> TritonFigures | None:
    """Triton's own statistics: counts, and times as means over the requests that succeeded."""
    if samples is None:
        return None

    def total(name: str) -> int:
        return int(samples.column(name).to_numpy().sum())

    n = total("request_count")

    def mean_ns(name: str) -> int | None:
        return round(total(name) / n) if n else None

    sizes = samples.column("batch_sizes").combine_chunks().flatten().to_pylist()
    counts = samples.column("batch_counts").combine_chunks().flatten().to_pylist()
    histogram: Counter[int] = Counter()
    for size, count in zip(sizes, counts, strict=True):
        histogram[size] += count
    return TritonFigures(
        request_count=n,
        failure_count=total("failure_count"),
        inference_count=total("inference_count"),
        execution_count=total("execution_count"),
        queue_mean_ns=mean_ns("queue_ns"),
        compute_input_mean_ns=mean_ns("compute_input_ns"),
        compute_infer_mean_ns=mean_ns("compute_infer_ns"),
        compute_output_mean_ns=mean_ns("compute_output_ns"),
        success_mean_ns=mean_ns("success_ns"),
        batch_size_histogram={str(size): histogram[size] for size in sorted(histogram)},
        cache_hit_count=cache_hits(samples),
    )


def cache_hits(samples: pa.Table | None) -> int:
    """Requests that the response cache answered; 0 where the samples, as those of an earlier squall, do not say."""
    if samples is None or "cache_hit_count" not in samples.column_names:
        return 0
    return int(pc.sum(samples.column("cache_hit_count")).as_py() or 0)


def unbatched_requests(samples: pa.Table | None, models: Iterable[ModelFacts]) -> int:
    """At most so many requests to `models`, those under load of a server, were answered from the response cache alone,
    and have no batch: those that an ensemble's own cache answered, and those of which every step was. `samples`: of
    these models and their steps."""
    most = 0
    for model in models:
        most += cache_hits(rows_of_model(samples, model.model))
        if model.steps:
            times = Counter(model.steps)
            most += min(cache_hits(rows_of_model(samples, step)) // n for step, n in times.items())
    return most


def rows_of_model(table: pa.Table | None, name: str | None) -> pa.Table | None:
    """The rows of a model; None where there are none, as it has no such record."""
    if table is None:
        return None
    own = table.filter(pc.equal(table.column("model").cast(pa.string()), name))
    return own if own.num_rows else None


def mean(values: npt.NDArray[Any]) -> float | None:
    """Arithmetic mean; None of none."""
    return float(values.mean()) if len(values) else None
