"""Figures of sequences, held to what is known by hand and to a brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.sequences import run_sequences, sequence_figures
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.sequences import CUT
from tests.many_examples import examples
from tests.unit.analysis.requests.made_requests import requests_of

MS = 1_000_000
SPANS = [RunPhase("main", "measure", 0, 60 * MS)]
CUT_OFF, AT_END = "cut", "unsent"
"""A request that was not sent for what became of one before it, or since the load ended."""
OUTCOMES = ["ok"] * 6 + ["timeout", "rejected", "cancelled", CUT_OFF, AT_END]


def manifest_of(**clients: Any) -> Manifest:
    return Manifest(run="r", scenario={"seed": 1, "clients": clients})


@given(
    n_lanes=st.integers(1, 5),
    n_main=st.integers(0, 60),
    drawn=st.lists(
        st.tuples(st.sampled_from(OUTCOMES), st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=60
    ),
)
@examples(60)
def test_figures_are_those_of_a_brute_force(
    n_lanes: int, n_main: int, drawn: list[tuple[str, int, int]]
) -> None:
    """Sequences of four in lanes, of requests with an outcome, a lag and a service time; the first are of main."""
    rows = []
    for i, (outcome, lag, took) in enumerate(drawn):
        sent_ns = None if outcome in (CUT_OFF, AT_END) else (i + lag) * MS
        rows.append((outcome, i * MS, sent_ns, None if sent_ns is None else sent_ns + took * MS, i < n_main))
    requests = requests_of(
        [row[1] for row in rows], sent_ns=[row[2] for row in rows], done_ns=[row[3] for row in rows],
        outcome=["unsent" if row[0] == CUT_OFF else row[0] for row in rows],
        detail=[f"{CUT}: one before it" if row[0] == CUT_OFF else "" for row in rows],
        phase=["main" if row[4] else "later" for row in rows],
    )  # fmt: skip
    manifest = manifest_of(sequences={"length": 4, "concurrent": n_lanes})
    found = sequence_figures(run_sequences(requests, manifest), SPANS, (0.5,))
    assert found is not None
    sequences: dict[tuple[int, int], list[Any]] = {}
    for i, row in enumerate(rows):
        sequences.setdefault((i % n_lanes, i // n_lanes // 4), []).append(row)
    begun = [of for of in sequences.values() if of[0][2] is not None]
    ends_ns = [max(row[3] or 0 for row in of) for of in begun]
    main = [(of, end_ns - of[0][1]) for of, end_ns in zip(begun, ends_ns, strict=True) if of[0][4]]
    ended = [took for of, took in main if [row[0] for row in of] == ["ok"] * 4]
    bad = [[row[0] for row in of if row[0] not in ("ok", "cancelled", AT_END)][:1] for of, _ in main]
    cut_by = Counter("unsent" if one == CUT_OFF else one for first in bad for one in first)
    assert (found.n_begun, found.n_ended, found.n_cut) == (len(main), len(ended), cut_by.total())
    assert dict(found.cut_by) == cut_by
    n_ok = sum(row[0] == "ok" for of, _ in main for row in of)
    lengths = (found.length_asked_mean_count, found.length_got_mean_count)
    assert lengths == pytest.approx((4, n_ok / len(main)) if main else (0, 0))
    assert found.duration_mean_ns == (pytest.approx(np.mean(ended)) if ended else None)
    n_over = len(ended) + cut_by.total()
    assert [(one.n, one.n_failed) for one in found.durations] == [(n_over, cut_by.total())] * bool(n_over)
    at = at_once(np.array([of[0][2] for of in begun], np.int64), np.array(ends_ns, np.int64), SPANS)
    assert (found.at_once_mean_count, found.at_once_most_count) == at


def test_requests_of_no_sequence_have_no_figures() -> None:
    assert run_sequences(requests_of([0]), manifest_of()) is None
    assert sequence_figures(None, SPANS, (0.5,)) is None


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), min_size=1, max_size=30))
def test_how_many_are_at_once_is_that_of_a_brute_force(intervals: list[tuple[int, int]]) -> None:
    begin, length = np.array(intervals, np.int64).T
    counts = [int(((begin <= t) & (begin + length > t)).sum()) for t in range(10, 90)]
    mean, most = at_once(begin, begin + length, [RunPhase("m", "measure", 10, 90)])
    assert mean == pytest.approx(np.mean(counts))
    assert most == max(counts)
