"""Figures of requests that are answered response by response: how soon, how evenly, how many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.requests import Requests, numbers, rows_in
from squall.analysis.schema import HUNG_UP
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.storage.store import RunStore
from squall.scenarios.units import NS_PER_S

COLUMNS = ["phase", "request_id", "index", "t_ns", "tokens"]
"""Columns of `responses` that the figures are made of."""


@dataclass(frozen=True)
class StreamFigures:
    """Over the requests of some phases, and their responses.

    `first_response`: from the scheduled instant, in a closed loop from the send, to the first response; a request that
    failed without one counts as infinitely slow, one that ended ok without any is left out. `gaps`: between a response
    and the one before it of its request. `responses_hz` and `tokens_hz`: of what came within the phases.
    `streams_mean_count` and `streams_most_count`: requests in flight over the phases. `n_cut`: requests that failed
    after a response; `n_hung_up`: those that the client cut short, as the scenario asks.
    """

    n_requests: int
    n_responses: int
    responses_mean_count: float
    responses_most_count: int
    first_response: tuple[Quantile, ...]
    first_response_mean_ns: float | None
    gaps: tuple[Quantile, ...]
    gap_mean_ns: float | None
    responses_hz: float
    tokens_hz: float | None
    streams_mean_count: float
    streams_most_count: int
    n_cut: int
    n_hung_up: int


def of_requests(responses: pa.Table | None, requests: Requests) -> pa.Table | None:
    """Those to `requests`; None where there is no table of them."""
    if responses is None:
        return None
    return responses.filter(pc.is_in(responses.column("request_id"), pa.array(requests.request_id)))


def stream_figures(
    responses: pa.Table | None, measured: Requests, spans: Sequence[RunPhase], qs: Sequence[float]
) -> StreamFigures | None:
    """Of the requests `measured`, which are those of the phases `spans`; None where no table of responses is there.

    `responses` has at least `COLUMNS`, of all phases.
    """
    if responses is None or not len(measured):
        return None
    times = measured_times(responses, measured, [span.name for span in spans])
    n_of, waits, has_any, gaps = times.n_of, times.waits_ns, times.has_any, times.gaps_ns
    first = quantiles(waits, qs, ~has_any, run_lengths(measured.phase.codes[times.is_awaited]))
    t_ns = numbers(responses, "t_ns")
    seconds = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    within = sum(int(np.count_nonzero((t_ns >= span.start_ns) & (t_ns < span.end_ns))) for span in spans)
    is_known = measured.is_sent & measured.is_done
    mean, most = at_once(measured.sent_ns[is_known], measured.done_ns[is_known], spans)
    is_ok = measured.is_ok
    hung_up = [word for word in measured.detail.words if word.startswith(HUNG_UP)]
    return StreamFigures(
        n_requests=len(measured),
        n_responses=int(n_of.sum()),
        responses_mean_count=float(n_of.mean()),
        responses_most_count=int(n_of.max()),
        first_response=tuple(first),
        first_response_mean_ns=float(waits[has_any].mean()) if has_any.any() else None,
        gaps=tuple(quantiles(gaps, qs)),
        gap_mean_ns=float(gaps.mean()) if len(gaps) else None,
        responses_hz=within / seconds,
        tokens_hz=_tokens_hz(responses, spans, seconds),
        streams_mean_count=mean,
        streams_most_count=most,
        n_cut=int(np.count_nonzero((n_of > 0) & ~is_ok)),
        n_hung_up=int(np.count_nonzero(measured.detail.is_any_of(hung_up) & is_ok)),
    )


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """Of each request how many responses it has, and whether a first one is to be counted, (n,) each; of these the wait
    for it and whether it came, (m,) each; and all gaps, in order of the later response's instant."""

    n_of: Int64s
    is_awaited: Bools
    waits_ns: Int64s
    has_any: Bools
    gaps_ns: Int64s


def measured_times(responses: pa.Table, measured: Requests, phases: Sequence[str]) -> MeasuredTimes:
    """Of the requests `measured`, those of `phases`; `responses` has at least `COLUMNS`, of all phases."""
    own = rows_in(responses, phases)
    assert own is not None
    ids, index, t_ns = (numbers(own, name) for name in ("request_id", "index", "t_ns"))
    order = np.lexsort((index, ids))
    ids, t_ns = ids[order], t_ns[order]
    n_of, first_ns = _of_requests(measured.request_id, ids, t_ns)
    is_awaited = (n_of > 0) | ~measured.is_ok
    waits_ns = (first_ns - measured.begin_ns)[is_awaited]
    return MeasuredTimes(n_of, is_awaited, waits_ns, (n_of > 0)[is_awaited], _gaps(ids, t_ns))


@dataclass(frozen=True, eq=False)
class ResponseTimes:
    """Of each request, (n,) each: when its first response came, 0 where none did; its longest gap between responses,
    and its mean one, 0 with fewer than two of them."""

    first_ns: Int64s
    gap_ns: Int64s
    mean_gap_ns: Int64s

    def take(self, rows: Int64s) -> ResponseTimes:
        """Those at the places `rows`."""
        return ResponseTimes(self.first_ns[rows], self.gap_ns[rows], self.mean_gap_ns[rows])


def response_times(store: RunStore, requests: Requests) -> ResponseTimes:
    """Of `requests`, of a run that may have no table of responses."""
    if not store.has("responses"):
        return ResponseTimes(*np.zeros((3, len(requests)), np.int64))
    table = store.read("responses", ["request_id", "index", "t_ns"])
    return times_of(requests.request_id, *(numbers(table, name) for name in ("request_id", "index", "t_ns")))


def times_of(request_id: Int64s, ids: Int64s, index: Int64s, t_ns: Int64s) -> ResponseTimes:
    """Of the requests `request_id`; of each response, (m,) each in any order: its request, its place, its instant."""
    order = np.lexsort((index, ids))
    ids, t_ns = ids[order], t_ns[order]
    n_of, first_ns = _of_requests(request_id, ids, t_ns)
    times = ResponseTimes(first_ns, *np.zeros((2, len(request_id)), np.int64))
    has_gaps = n_of > 1
    if not has_gaps.any():
        return times
    begin = np.searchsorted(ids, request_id[has_gaps])
    n_own = n_of[has_gaps]
    gaps = np.diff(t_ns, append=t_ns[-1:])
    bounds = np.stack([begin, begin + n_own - 1], axis=1).ravel()  # the last of each is no gap of its own
    times.gap_ns[has_gaps] = np.maximum.reduceat(gaps, bounds)[::2]
    times.mean_gap_ns[has_gaps] = (t_ns[begin + n_own - 1] - t_ns[begin]) // (n_own - 1)
    return times


def _of_requests(request_id: Int64s, ids: Int64s, t_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Of each request how many responses it has, and the instant of the first; `ids` sorted, then by instant."""
    begin = np.searchsorted(ids, request_id)
    n_of = np.searchsorted(ids, request_id, side="right") - begin
    first_ns = np.zeros(len(request_id), np.int64)
    first_ns[n_of > 0] = t_ns[begin[n_of > 0]]
    return n_of, first_ns


def _gaps(ids: Int64s, t_ns: Int64s) -> Int64s:
    """Between responses that follow each other in one request, in order of the later one's instant."""
    is_next = ids[1:] == ids[:-1]
    gaps, ends_ns = np.diff(t_ns)[is_next], t_ns[1:][is_next]
    found: Int64s = gaps[np.argsort(ends_ns, kind="stable")]
    return found


def _tokens_hz(responses: pa.Table, spans: Sequence[RunPhase], seconds: float) -> float | None:
    """Tokens of the responses that came within the phases, a second; None where no response has an output that is named
    for them."""
    tokens = responses.column("tokens")
    if tokens.null_count == len(tokens):
        return None
    n, t_ns = pc.fill_null(tokens, 0).to_numpy(), numbers(responses, "t_ns")
    inside = [(t_ns >= span.start_ns) & (t_ns < span.end_ns) for span in spans]
    return float(sum(int(n[one].sum()) for one in inside)) / seconds
