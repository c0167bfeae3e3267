"""Figures of requests that are answered response by response: how soon, how evenly, how many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.requests import Requests, rows_in
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.storage.query import over
from squall.analysis.storage.schema import HUNG_UP
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

COLUMNS = ["phase", "request_id", "index", "t_ns", "tokens"]
"""Columns of `responses` that the figures are made of."""


class StreamFigures(Frozen):
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


_OF_REQUESTS = """
-- of each request, in the order asked for: how many responses, the first, the longest and the mean gap between two
SELECT count(t_ns) AS n_of, coalesce(arg_min(t_ns, index), 0) AS first_ns, coalesce(max(gap_ns), 0) AS gap_ns,
    coalesce((arg_max(t_ns, index) - arg_min(t_ns, index)) // nullif(count(t_ns) - 1, 0), 0) AS mean_gap_ns
FROM requests LEFT JOIN gaps USING (request_id) GROUP BY place ORDER BY place
"""
_GAPS = """
CREATE TEMP VIEW gaps AS
SELECT *, t_ns - lag(t_ns) OVER (PARTITION BY request_id ORDER BY index) AS gap_ns FROM responses
"""
_IN_TIME = "SELECT gap_ns FROM gaps WHERE gap_ns IS NOT NULL ORDER BY t_ns, request_id, index"
_WITHIN = """
-- what came within the phases, and its tokens: null where no response has an output that is named for them
SELECT count(*) FILTER ({0}), CASE WHEN count(tokens) > 0 THEN coalesce(sum(tokens) FILTER ({0}), 0) END FROM responses
"""


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
    within = " OR ".join(f"t_ns >= {span.start_ns} AND t_ns < {span.end_ns}" for span in spans)
    seconds = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    with over({"responses": responses}) as connection:
        ((n_within, n_tokens),) = connection.execute(_WITHIN.format(within)).fetchall()
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
        responses_hz=n_within / seconds,
        tokens_hz=None if n_tokens is None else n_tokens / seconds,
        streams_mean_count=mean,
        streams_most_count=most,
        n_cut=int(np.count_nonzero((n_of > 0) & ~is_ok)),
        n_hung_up=int(np.count_nonzero(measured.detail.is_any_of(hung_up) & is_ok)),
    )


class MeasuredTimes(Frozen, eq=False):
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
    with _gaps(own, measured.request_id) as connection:
        found = connection.execute(_OF_REQUESTS).fetchnumpy()
        gaps_ns = connection.execute(_IN_TIME).fetchnumpy()["gap_ns"]
    has_any = found["n_of"] > 0
    is_awaited = has_any | ~measured.is_ok
    waits_ns = (found["first_ns"] - measured.begin_ns)[is_awaited]
    return MeasuredTimes(found["n_of"], is_awaited, waits_ns, has_any[is_awaited], gaps_ns)


class ResponseTimes(Frozen, eq=False):
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
    return times_of(store.read("responses", ["request_id", "index", "t_ns"]), requests.request_id)


def times_of(responses: pa.Table, request_id: Int64s) -> ResponseTimes:
    """Of the requests `request_id`; `responses` has a row for each, in any order: `request_id`, `index`, `t_ns`."""
    with _gaps(responses, request_id) as connection:
        found = connection.execute(_OF_REQUESTS).fetchnumpy()
    return ResponseTimes(found["first_ns"], found["gap_ns"], found["mean_gap_ns"])


@contextmanager
def _gaps(responses: pa.Table, request_id: Int64s) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with views `requests`, with the place of each, and `gaps`: responses, each with the time since the
    one before it of its request, null of the first."""
    requests = pa.table({"request_id": request_id, "place": np.arange(len(request_id))})
    with over({"requests": requests, "responses": responses}) as connection:
        connection.execute(_GAPS)
        yield connection
