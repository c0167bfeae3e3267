"""Figures of streams, held to what is known: by hand, against a brute force, and to quantiles in theory."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.streams import StreamFigures, of_requests, stream_figures, times_of
from squall.analysis.schema import HUNG_UP
from tests.unit.analysis.requests.made_requests import requests_of

MS, S = 1_000_000, 1_000_000_000
SPANS = [RunPhase("main", "measure", 0, 10 * S)]


def responses_of(given: dict[int, list[int]], tokens: int | None = None, phase: str = "main") -> pa.Table:
    """Responses by request at those instants."""
    rows = [(one, index, t_ns, tokens) for one, of in given.items() for index, t_ns in enumerate(of)]
    names = ("request_id", "index", "t_ns", "tokens")
    columns = {name: pa.array([row[k] for row in rows], pa.int64()) for k, name in enumerate(names)}
    return pa.table({**columns, "phase": pa.array([phase] * len(rows), pa.string())})


def figures_of(requests: Requests, responses: pa.Table, spans: list[RunPhase] = SPANS) -> StreamFigures:
    found = stream_figures(responses, requests, spans, (0.5, 0.9))
    assert found is not None
    return found


def test_every_figure_by_hand() -> None:
    begin_ns = np.array([1, 2, 4, 6, 8]) * S
    requests = requests_of(
        begin_ns,
        sent_ns=begin_ns + np.array([MS, 0, 0, 0, 0]),
        done_ns=np.array([3, 5, 6, 7, 9]) * S,
        # one is cut after a response, one times out without any, and the last has nothing to say
        outcome=["ok", "transport_error", "timeout", "ok", "ok"],
        detail=["", "", "", f"{HUNG_UP} 1 responses", ""],
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


def test_a_closed_loop_counts_from_the_send_and_a_run_without_the_table_has_no_figures() -> None:
    requests = requests_of([1 * S], is_open=False, done_ns=2 * S)
    found = figures_of(requests, responses_of({0: [1 * S + 7 * MS]}))
    assert (found.first_response_mean_ns, found.tokens_hz) == (7 * MS, None)
    assert stream_figures(None, requests, SPANS, (0.5,)) is None


def test_only_responses_of_the_phases_count() -> None:
    spans = [RunPhase("main", "measure", 0, 4 * S), RunPhase("other", "measure", 4 * S, 8 * S)]
    requests = requests_of([1 * S, 5 * S], done_ns=[2 * S, 6 * S], phase=["main", "other"])
    both = pa.concat_tables([responses_of({0: [2 * S]}), responses_of({1: [6 * S]}, phase="other")])
    for own, n in ((spans[:1], 1), (spans, 2)):
        found = figures_of(requests.in_phases([one.name for one in own]), both, own)
        assert (found.n_requests, found.n_responses, found.responses_hz) == (n, n, 0.25)


def test_of_several_models_only_own_responses_count_and_tokens_where_there_are_any() -> None:
    """Requests 0 and 2 ask a model with tokens, 1 one without; each alone is what it is in a run of its own."""
    requests = requests_of([0, S, 2 * S], done_ns=[S, 2 * S, 3 * S])
    with_tokens = responses_of({0: [S // 2, S], 2: [5 * S // 2, 3 * S]}, tokens=4)
    without = responses_of({1: [2 * S]})
    both = pa.concat_tables([with_tokens, without])
    whole = figures_of(requests, both)
    assert (whole.n_responses, whole.tokens_hz) == (5, 1.6)
    for rows, tokens_hz, alone in (([0, 2], 1.6, with_tokens), ([1], None, without)):
        asked = requests.take(np.array(rows))
        found = figures_of(asked, of_requests(both, asked))
        assert found == figures_of(asked, alone)
        assert (found.n_responses, found.tokens_hz) == (alone.num_rows, tokens_hz)
    assert of_requests(None, requests) is None


@pytest.mark.slow
def test_quantiles_known_in_theory_are_inside_their_intervals() -> None:
    """Waits uniform in 0 to 100 ms, gaps exponential of mean 10 ms: of 60 runs 95 % of the intervals hold the truth.

    A binomial of 60 at 0.95 is below 51 once in a thousand.
    """
    rng = np.random.default_rng(11)
    truths_ns = (90 * MS, -math.log(0.1) * 10 * MS)
    n_held = np.zeros(2)
    for _ in range(60):
        begins = np.sort(rng.integers(0, 9 * S, 600))
        firsts = begins + rng.uniform(0, 100 * MS, 600).astype(np.int64)
        later = rng.exponential(10 * MS, (600, 4)).cumsum(axis=1).astype(np.int64)
        times = np.c_[firsts, firsts[:, None] + later]
        requests = requests_of(begins, done_ns=times[:, -1])
        found = figures_of(requests, responses_of(dict(enumerate(times.tolist()))))
        intervals = [(one[1].low_ns, one[1].high_ns) for one in (found.first_response, found.gaps)]
        n_held += [
            (low or 0) <= t <= (high or 0) for (low, high), t in zip(intervals, truths_ns, strict=True)
        ]
    assert n_held.min() >= 51


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
