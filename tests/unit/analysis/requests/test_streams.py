"""Figures of streams, held to a brute force and to what is known of parts of a run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.streams import StreamFigures, of_requests, stream_figures, times_of
from squall.analysis.statistics.latency import quantiles
from squall.analysis.storage.schema import HUNG_UP
from squall.analysis.storage.timeline import RunPhase
from tests.many_examples import examples
from tests.unit.analysis.requests.made_requests import requests_of

MS, S = 1_000_000, 1_000_000_000
SPANS = [RunPhase("main", "measure", 0, 10 * S)]
QS = (0.5, 0.9)


def responses_of(given: dict[int, list[int]], tokens: int | None = None, phase: str = "main") -> pa.Table:
    """Responses by request at those instants."""
    rows = [(one, index, t_ns, tokens) for one, of in given.items() for index, t_ns in enumerate(of)]
    names = ("request_id", "index", "t_ns", "tokens")
    columns = {name: pa.array([row[k] for row in rows], pa.int64()) for k, name in enumerate(names)}
    return pa.table({**columns, "phase": pa.array([phase] * len(rows), pa.string())})


def figures_of(requests: Requests, responses: pa.Table, spans: list[RunPhase] = SPANS) -> StreamFigures:
    found = stream_figures(responses, requests, spans, QS)
    assert found is not None
    return found


ENDS = st.tuples(
    st.sampled_from([("ok", ""), ("ok", f"{HUNG_UP} 1 responses"), ("timeout", ""), ("transport_error", "closed")]),
    st.integers(0, 9_000), st.integers(0, 50), st.lists(st.integers(0, 3_000), max_size=6), st.integers(0, 3_000),
)  # fmt: skip
"""How a request ends, when it is due, its lag, when its responses come after that and how long it takes, ms."""


@given(ends=st.lists(ENDS, min_size=1, max_size=40), is_open=st.booleans(), tokens=st.sampled_from([None, 2]))
@examples(60)
def test_figures_are_those_of_a_brute_force(ends: list[Any], is_open: bool, tokens: int | None) -> None:
    ends = sorted(ends, key=lambda end: end[1] if is_open else end[1] + end[2])
    due, lag, took = (np.array([end[k] for end in ends]) * MS for k in (1, 2, 4))
    sent = due + lag + np.arange(len(ends))  # each at an instant of its own
    # users' requests come in the order of their sends, whatever their numbers
    ids = np.arange(len(ends))[:: 1 if is_open else -1]
    requests = requests_of(
        due if is_open else sent, is_open, request_id=ids, sent_ns=sent, done_ns=sent + took,
        outcome=[end[0][0] for end in ends], detail=[end[0][1] for end in ends],
    )  # fmt: skip
    came = {i: [int(sent[i]) + ms * MS for ms in sorted(end[3])] for i, end in enumerate(ends)}
    responses = responses_of({int(ids[i]): of for i, of in came.items()}, tokens)
    responses = responses.take(np.random.default_rng(len(ends)).permutation(len(responses)))
    found = figures_of(requests, responses)
    begin = due if is_open else sent
    awaited = [i for i, end in enumerate(ends) if came[i] or end[0][0] != "ok"]
    waits = np.array([came[i][0] - begin[i] if came[i] else 0 for i in awaited], np.int64)
    is_missing = np.array([not came[i] for i in awaited], np.bool_)
    timed = sorted(
        (later, ids[i], k, later - one)
        for i, of in came.items()
        for k, (one, later) in enumerate(pairwise(of))
    )
    gaps = np.array([row[3] for row in timed], np.int64)
    assert found.first_response == tuple(quantiles(waits, QS, is_missing))
    assert found.gaps == tuple(quantiles(gaps, QS))
    means = (found.first_response_mean_ns, found.gap_mean_ns)
    expected = [values.mean() if len(values) else None for values in (waits[~is_missing], gaps)]
    assert means == pytest.approx(expected)
    times, own = times_of(responses, requests.request_id), [np.diff(of).tolist() for of in came.values()]
    assert times.first_ns.tolist() == [of[0] if of else 0 for of in came.values()]
    assert times.gap_ns.tolist() == [max(one, default=0) for one in own]
    assert times.mean_gap_ns.tolist() == [sum(one) // len(one) if one else 0 for one in own]
    n_of = [len(of) for of in came.values()]
    assert (found.n_requests, found.n_responses) == (len(ends), sum(n_of))
    assert found.responses_mean_count == np.mean(n_of)
    assert found.responses_most_count == max(n_of)
    responses_hz = sum(t_ns < 10 * S for of in came.values() for t_ns in of) / 10
    assert found.responses_hz == responses_hz
    assert found.tokens_hz == (2 * responses_hz if tokens and sum(n_of) else None)
    assert (found.streams_mean_count, found.streams_most_count) == at_once(sent, sent + took, SPANS)
    assert found.n_cut == sum(end[0][0] != "ok" and bool(end[3]) for end in ends)
    assert found.n_hung_up == sum(HUNG_UP in end[0][1] for end in ends)


def test_only_responses_of_the_phases_count() -> None:
    spans = [RunPhase("main", "measure", 0, 4 * S), RunPhase("other", "measure", 4 * S, 8 * S)]
    requests = requests_of([1 * S, 5 * S], done_ns=[4 * S, 6 * S], phase=["main", "other"])
    both = pa.concat_tables([responses_of({0: [2 * S, 4 * S]}), responses_of({1: [6 * S]}, phase="other")])
    for own, expected in ((spans[:1], (1, 2, 1 / 4)), (spans, (2, 3, 3 / 8))):
        found = figures_of(requests.in_phases([one.name for one in own]), both, own)
        assert (found.n_requests, found.n_responses, found.responses_hz) == expected


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
    assert stream_figures(None, requests, SPANS, QS) is None
