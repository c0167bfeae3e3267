"""Figures of streams, held to what is known: by hand, against a brute force, and to quantiles in theory."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.render.templates import sentences
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.streams import StreamFigures, of_requests, stream_figures, times_of
from squall.analysis.schema import HUNG_UP

MS, S = 1_000_000, 1_000_000_000
QS = (0.5, 0.9)
SPANS = [RunPhase("main", "measure", 0, 10 * S)]


def requests_of(ends: list[dict[str, Any]], is_open: bool = True) -> Requests:
    """Requests by the instants `begin`, `sent` (else as begin) and `done`, with `outcome` and `detail`."""
    rows = [
        {
            "request_id": index, "worker": 0, "node": "node-0", "target": "server-0", "phase": one.get("phase", "main"),
            "scheduled_ns": one["begin"] if is_open else None, "sent_ns": one.get("sent", one["begin"]),
            "done_ns": one["done"], "rows": 1, "request_kind": "m", "outcome": one.get("outcome", "ok"),
            "detail": one.get("detail", ""),
        }
        for index, one in enumerate(ends)
    ]  # fmt: skip
    texts = ("node", "target", "request_kind", "phase", "outcome", "detail")
    schema = pa.schema([(name, pa.string() if name in texts else pa.int64()) for name in rows[0]])
    return Requests.from_table(pa.Table.from_pylist(rows, schema), is_open)


def responses_of(given: dict[int, list[int]], tokens: int | None = None, phase: str = "main") -> pa.Table:
    """Responses by request at those instants."""
    rows = [
        {"phase": phase, "request_id": one, "index": index, "t_ns": t_ns, "tokens": tokens}
        for one, instants in given.items()
        for index, t_ns in enumerate(instants)
    ]
    schema = pa.schema(
        [("phase", pa.string()), *((name, pa.int64()) for name in ("request_id", "index", "t_ns", "tokens"))]
    )
    return pa.Table.from_pylist(rows, schema)


def figures_of(requests: Requests, responses: pa.Table, spans: list[RunPhase] | None = None) -> StreamFigures:
    found = stream_figures(responses, requests, spans or SPANS, QS)
    assert found is not None
    return found


def test_every_figure_by_hand() -> None:
    requests = requests_of(
        [
            {"begin": 1 * S, "sent": 1 * S + MS, "done": 3 * S},
            {"begin": 2 * S, "done": 5 * S, "outcome": "transport_error"},  # cut after one
            {"begin": 4 * S, "done": 6 * S, "outcome": "timeout"},  # without any
            {"begin": 6 * S, "done": 7 * S, "detail": f"{HUNG_UP} 1 responses"},
            {"begin": 8 * S, "done": 9 * S},  # ok, and nothing to say
        ]
    )
    given = {0: [1 * S + 30 * MS, 2 * S, 3 * S], 1: [4 * S], 3: [7 * S]}
    found = figures_of(requests, responses_of(given, tokens=2))
    assert (found.n_requests, found.n_responses) == (5, 5)
    assert (found.responses_mean_count, found.responses_most_count) == (1.0, 3)
    assert [(one.n, one.n_failed) for one in found.first_response] == [(4, 1), (4, 1)]
    assert found.first_response_mean_ns == pytest.approx((30 * MS + 2 * S + 1 * S) / 3)
    assert found.gap_mean_ns == pytest.approx((970 * MS + 1 * S) / 2)
    assert (found.responses_hz, found.tokens_hz) == (0.5, 1.0)
    assert found.streams_mean_count == pytest.approx((1.999 + 3 + 2 + 1 + 1) / 10)
    assert found.streams_most_count == 2
    assert (found.n_cut, found.n_hung_up) == (1, 1)
    assert (
        sentences("streams", found)[-1]
        == "1 failed after a response; 1 were cut short by the client, as asked"
    )


def test_a_closed_loop_counts_from_the_send() -> None:
    requests = requests_of([{"begin": 1 * S, "sent": 1 * S, "done": 2 * S}], is_open=False)
    found = figures_of(requests, responses_of({0: [1 * S + 7 * MS]}))
    assert found.first_response_mean_ns == 7 * MS
    assert found.tokens_hz is None


def test_a_run_without_the_table_has_no_figures() -> None:
    requests = requests_of([{"begin": 0, "done": 1}])
    assert stream_figures(None, requests, SPANS, QS) is None


def test_only_responses_of_the_phases_count() -> None:
    spans = [RunPhase("main", "measure", 0, 4 * S), RunPhase("other", "measure", 4 * S, 8 * S)]
    ends: list[dict[str, Any]] = [
        {"begin": 1 * S, "done": 2 * S},
        {"begin": 5 * S, "done": 6 * S, "phase": "other"},
    ]
    both = pa.concat_tables([responses_of({0: [2 * S]}), responses_of({1: [6 * S]}, phase="other")])
    requests = requests_of(ends)
    first = figures_of(requests.in_phases(["main"]), both, spans[:1])
    assert (first.n_requests, first.n_responses, first.responses_hz) == (1, 1, 0.25)
    whole = figures_of(requests, both, spans)
    assert (whole.n_requests, whole.n_responses, whole.responses_hz) == (2, 2, 0.25)


def test_of_several_models_only_own_responses_count_and_tokens_where_there_are_any() -> None:
    """Requests 0 and 2 ask a model with tokens, 1 one without; each alone is what it is in a run of its own."""
    requests = requests_of([{"begin": n * S, "done": (n + 1) * S} for n in range(3)])
    with_tokens = responses_of({0: [S // 2, S], 2: [5 * S // 2, 3 * S]}, tokens=4)
    both = pa.concat_tables([with_tokens, responses_of({1: [2 * S]})])
    whole = figures_of(requests, both)
    assert (whole.n_responses, whole.tokens_hz) == (5, 1.6)
    for rows, own, alone in (([0, 2], (4, 1.6), with_tokens), ([1], (1, None), responses_of({1: [2 * S]}))):
        asked = requests.take(np.array(rows))
        found = figures_of(asked, of_requests(both, asked))
        assert (found.n_responses, found.tokens_hz) == own
        assert found == figures_of(asked, alone)
    assert of_requests(None, requests) is None


@given(st.lists(st.tuples(st.integers(0, 9 * S), st.integers(1, 3 * S)), min_size=1, max_size=30))
def test_requests_in_flight_are_those_of_a_sweep(made: list[tuple[int, int]]) -> None:
    ends = [{"begin": begin, "done": begin + length} for begin, length in sorted(made)]
    found = figures_of(requests_of(ends), responses_of({0: [ends[0]["done"]]}))
    end_ns = SPANS[0].end_ns
    spans = [(one["begin"], min(one["done"], end_ns)) for one in ends]
    at_once = [sum(begin <= t < end for begin, end in spans) for t, _ in spans]
    assert found.streams_most_count == max(at_once)
    assert found.streams_mean_count == pytest.approx(sum(end - begin for begin, end in spans) / end_ns)


@pytest.mark.slow
def test_quantiles_known_in_theory_are_inside_their_intervals() -> None:
    """Waits uniform in 0 to 100 ms, gaps exponential of mean 10 ms: of 60 runs 95 % of the intervals hold the truth.

    A binomial of 60 at 0.95 is below 51 once in a thousand.
    """
    rng = np.random.default_rng(11)
    gap_q = -math.log(0.1) * 10 * MS
    n_held = {"first": 0, "gap": 0}
    for _ in range(60):
        begins = np.sort(rng.integers(0, 9 * S, 600))
        given = {}
        for index, begin in enumerate(begins.tolist()):
            first = begin + int(rng.uniform(0, 100 * MS))
            given[index] = (first + np.r_[0, rng.exponential(10 * MS, 4).cumsum()]).astype(np.int64).tolist()
        requests = requests_of([{"begin": b, "done": given[i][-1]} for i, b in enumerate(begins.tolist())])
        found = figures_of(requests, responses_of(given))
        for name, one, truth in (("first", found.first_response[1], 90 * MS), ("gap", found.gaps[1], gap_q)):
            assert one.low_ns is not None, one.interval_reason
            assert one.high_ns is not None
            n_held[name] += one.low_ns <= truth <= one.high_ns
    assert min(n_held.values()) >= 51, n_held


def test_lines_leave_out_what_is_not_there() -> None:
    found = figures_of(requests_of([{"begin": 0, "done": 1 * S}]), responses_of({0: [1 * S]}))
    lines = sentences("streams", replace(found, first_response=(), gaps=(), gap_mean_ns=None))
    assert [line.split()[0] for line in lines] == ["first", "1", "in"]
    assert "tokens" not in lines[1]


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=12), st.randoms(use_true_random=False))
def test_times_of_each_request_are_those_of_a_brute_force(given_: list[list[int]], shuffle: Any) -> None:
    instants = [sorted(one) for one in given_]
    rows = [(i, at, t_ns + 1) for i, of in enumerate(instants) for at, t_ns in enumerate(of)]
    shuffle.shuffle(rows)
    asked = list(range(len(instants)))
    shuffle.shuffle(asked)  # users' requests are in order of their sends
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    responses = pa.table(dict(zip(("request_id", "index", "t_ns"), columns, strict=True)))
    found = times_of(responses, np.array(asked, np.int64))
    for place, i in enumerate(asked):
        of = [t_ns + 1 for t_ns in instants[i]]
        gaps = [b - a for a, b in pairwise(of)]
        assert found.first_ns[place] == (of[0] if of else 0)
        assert found.gap_ns[place] == max(gaps, default=0)
        assert found.mean_gap_ns[place] == (sum(gaps) // len(gaps) if gaps else 0)
