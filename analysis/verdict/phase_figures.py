"""What the figures of measure phases are: load, latency, outcomes, batches, Triton's own counts, decomposition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from squall.analysis.join.counts import JoinFigures
from squall.analysis.metrics.model_statistics import ModelFigures
from squall.analysis.requests.by_server import ServersFigures
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.requests.load_share import LoadShare
from squall.analysis.requests.sequences import SequenceFigures
from squall.analysis.requests.streams import StreamFigures
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.sealed import Failures
from squall.analysis.verdict.lag_parts import LagPart
from squall.scenarios.records import Frozen, LeftOut, Record


class RateFigures(Frozen):
    """Instants within some phases."""

    n: int
    rate_hz: float | None


class SeriesFigures(RateFigures):
    """Instants within one phase, with their burstiness: None where the phase holds fewer than 10 windows of a figure.

    `safe_load_ratio`: the load above which the busiest window of `safe_load_window_ns`, the longest of 60, 10 and 1 s
    that the phase holds 10 of, brings more than a server can work off in it, whatever the gaps are.
    """

    gap_c2_ratio: float | None
    local_c2_ratio: float | None
    idc_100ms_ratio: float | None
    idc_1s_ratio: float | None
    idc_10s_ratio: float | None
    idc_100s_ratio: float | None
    peak_to_mean_60s_ratio: float | None
    peak_to_mean_10s_ratio: float | None
    peak_to_mean_1s_ratio: float | None
    safe_load_ratio: float | None
    safe_load_window_ns: int | None


class RowFigures(Frozen):
    """Rows of the requests; `mean_count` None without any."""

    mean_count: float | None
    max_count: int


class LoadFigures(Frozen):
    """Intended against delivered load: series of one phase, mere rates of several. `intended` None in a closed loop."""

    intended: SeriesFigures | RateFigures | None
    delivered: SeriesFigures | RateFigures
    rows: RowFigures


class Spread(Frozen):
    """A latency of `n` requests; mean and largest are of those that are finite, None of none."""

    n: int
    n_failed: int
    mean_of_finite_ns: int | None
    max_of_finite_ns: int | None
    quantiles: tuple[Quantile, ...]


class Latency(Record):
    """Response, service and lag; `lag_parts`: of each quantile of response time that there is, what of it is lag. A
    closed loop has no schedule, so that its service time is all there is."""

    response: LeftOut[Spread | None] = None
    service: Spread
    lag: LeftOut[Spread | None] = None
    lag_parts: LeftOut[tuple[LagPart | None, ...]] = ()

    @property
    def spreads(self) -> dict[str, Spread]:
        """By name, those that there are."""
        named = {"response": self.response, "service": self.service, "lag": self.lag}
        return {name: one for name, one in named.items() if one is not None}


class FailureWords(Frozen):
    """`n` requests of one outcome with the same detail."""

    outcome: str
    detail: str
    n: int


class OutcomeFigures(Frozen):
    """How many requests ended how, most frequent first, and the commonest words for failures."""

    n: int
    n_ok: int
    ok_ratio: float | None
    counts: Mapping[str, int]
    details: tuple[FailureWords, ...]


class BatchFigures(Frozen):
    """Sizes of `n` batches; `rows_histogram`: batches by their number of rows. None each of none."""

    n: int
    rows_total_count: int
    rows_mean_count: float | None
    rows_p50_count: int | None
    rows_p95_count: int | None
    rows_max_count: int | None
    requests_mean_count: float | None
    compute_mean_ns: float | None
    rows_histogram: Mapping[str, int]


class TritonFigures(Frozen):
    """Triton's own statistics: counts, and means over the requests that succeeded, None without any."""

    request_count: int
    failure_count: int
    inference_count: int
    execution_count: int
    queue_mean_ns: int | None
    compute_input_mean_ns: int | None
    compute_infer_mean_ns: int | None
    compute_output_mean_ns: int | None
    success_mean_ns: int | None
    batch_size_histogram: Mapping[str, int]
    cache_hit_count: int = 0


class ModelLoad(LoadShare):
    """One of several models under load: the requests that ask it, and what is known of its own batches, statistics and
    join. `servers`: those that its requests were for; `throughput_hz` and `rows_hz`: requests that ended ok and their
    rows, over the length of the phases. `triton`: of the model itself, also where others than these requests asked it.
    `join_levels`: its ok requests by how far they are joined, None without `joined`. `streams` where requests are
    answered response by response.
    """

    servers: tuple[str, ...]
    throughput_hz: float | None
    rows_hz: float | None
    latency: Latency
    outcomes: OutcomeFigures
    batches: BatchFigures | None
    triton: TritonFigures | None
    join: JoinFigures | None
    join_levels: Mapping[str, int] | None
    streams: StreamFigures | None


class PhaseFigures(Frozen):
    """All figures over the requests of some phases; None where their table is absent. `users` of a closed loop only,
    `servers` of several, `streams` where requests are answered response by response, `sequences` where they are of
    sequences, `by_model` of several models under load, by name. `loaded_ns`: of `duration_ns`, in phases whose load
    ended before they did up to its last send; None of a closed loop."""

    WHOLE: ClassVar = ("failures",)
    phases: tuple[str, ...]
    duration_ns: int
    load: LoadFigures
    users: UserFigures | None
    latency: Latency
    failures: Failures
    outcomes: OutcomeFigures
    batches: BatchFigures | None
    triton: TritonFigures | None
    join: JoinFigures | None
    servers: ServersFigures | None
    streams: StreamFigures | None
    sequences: SequenceFigures | None
    by_model: Mapping[str, ModelLoad] | None
    loaded_ns: int | None = field(default=None, kw_only=True)


class MeasureFigures(PhaseFigures):
    """Over all measure phases, with the models behind the one under load."""

    models: tuple[ModelFigures, ...]
