"""Figures of sequences, held to what is known by hand and to a brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.render.templates import sentences
from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.sequences import SequenceFigures, run_sequences, sequence_figures
from squall.analysis.tables.manifest import Manifest
from squall.scenarios.sequences import CUT
from tests.many_examples import examples
from tests.unit.analysis.requests.test_streams import requests_of

MS, S = 1_000_000, 1_000_000_000
SPANS = [RunPhase("main", "measure", 0, 10 * S)]


def manifest_of(concurrent: int = 2, length: Any = 3) -> Manifest:
    clients = {"sequences": {"length": length, "concurrent": concurrent}}
    return Manifest(run="r", scenario={"seed": 1, "clients": clients})


def figures_of(ends: list[dict[str, Any]], spans: list[RunPhase] = SPANS, **told: Any) -> SequenceFigures:
    found = sequence_figures(run_sequences(requests_of(ends), manifest_of(**told)), spans, (0.5,))
    assert found is not None
    return found


def test_every_figure_by_hand() -> None:
    """Lane 0 has 0 2 4 and 6 8, lane 1 has 1 3 5 and 7."""
    cut: dict[str, Any] = {
        "outcome": "unsent",
        "sent": None,
        "done": None,
        "detail": f"{CUT}: an earlier request of it failed",
    }
    found = figures_of(
        [
            {"begin": 0 * S, "sent": 0 * S + MS, "done": 1 * S},
            {"begin": 1 * S, "done": 2 * S},
            {"begin": 1 * S, "done": 3 * S},
            {"begin": 2 * S, "done": 3 * S, "outcome": "timeout"},
            {"begin": 3 * S, "sent": 4 * S, "done": 5 * S},  # the first of lane 0 has ended
            {"begin": 4 * S, **cut},
            {"begin": 5 * S, "done": 6 * S},
            {"begin": 6 * S, "done": 7 * S, "phase": "later"},
            {"begin": 7 * S, "done": 9 * S, "outcome": "cancelled"},  # the run ended
        ]
    )
    assert (found.n_begun, found.n_ended, found.n_cut, dict(found.cut_by)) == (3, 1, 1, {"timeout": 1})
    assert found.length_asked_mean_count == 3
    assert found.length_got_mean_count == pytest.approx((3 + 1 + 1) / 3)
    assert found.duration_mean_ns == 5 * S
    assert [(one.n, one.n_failed) for one in found.durations] == [(2, 1)]
    assert found.at_once_mean_count == pytest.approx((4.999 + 2 + 4 + 1) / 10)
    assert found.at_once_most_count == 2
    lines = sentences("sequences", found)
    assert lines[1] == "3 begun, 1 ended, 1 cut (1 by timeout), 1 left when the load ended"
    assert "3 requests a sequence asked for, 1.67 got" in lines[2]


def test_a_sequence_is_of_the_phase_of_its_first_request_and_of_none_where_that_was_not_sent() -> None:
    spans = [*SPANS, RunPhase("later", "measure", 10 * S, 20 * S)]
    ends: list[dict[str, Any]] = [
        {"begin": i * S, "done": i * S + MS, "phase": "main" if i < 2 else "later"} for i in range(8)
    ]  # two sequences begin in main, and end in later
    assert figures_of(ends, spans[:1]).n_ended == 2
    assert figures_of(ends, spans[1:]).n_begun == 2
    ends[0] |= {"outcome": "unsent", "sent": None, "done": None}
    assert figures_of(ends, spans[:1]).n_begun == 1


def test_what_a_lost_workers_sequences_left_is_cut() -> None:
    ends: list[dict[str, Any]] = [{"begin": i * S, "done": i * S + MS} for i in range(6)]
    ends[4] |= {"outcome": "unsent", "sent": None, "done": None, "detail": f"{CUT}: its earlier requests"}
    found = figures_of(ends)
    assert (found.n_ended, found.n_cut, dict(found.cut_by)) == (1, 1, {"unsent": 1})


def test_requests_of_no_sequence_have_no_figures() -> None:
    requests = requests_of([{"begin": 0, "done": S}])
    assert run_sequences(requests, Manifest(run="r", scenario={"seed": 1, "clients": {}})) is None
    assert sequence_figures(None, SPANS, (0.5,)) is None


@given(
    n_lanes=st.integers(1, 5),
    outcomes=st.lists(st.sampled_from(["ok", "ok", "ok", "timeout", "rejected"]), min_size=1, max_size=60),
)
@examples(40)
def test_counts_are_those_of_a_brute_force(n_lanes: int, outcomes: list[str]) -> None:
    ends = [{"begin": i * MS, "done": (i + 9) * MS, "outcome": one} for i, one in enumerate(outcomes)]
    found = figures_of(ends, concurrent=n_lanes, length=4)
    sequences: dict[tuple[int, int], list[str]] = {}
    for i, one in enumerate(outcomes):
        sequences.setdefault((i % n_lanes, i // n_lanes // 4), []).append(one)
    bad = [next((one for one in of if one != "ok"), "") for of in sequences.values()]
    assert found.n_begun == len(sequences)
    assert found.n_ended == sum(of == ["ok"] * 4 for of in sequences.values())
    assert dict(found.cut_by) == {one: bad.count(one) for one in {*bad} - {""}}
    assert found.n_cut == sum(map(bool, bad))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), min_size=1, max_size=30))
def test_how_many_are_at_once_is_that_of_a_brute_force(intervals: list[tuple[int, int]]) -> None:
    begin = np.array([at for at, _ in intervals], np.int64)
    end = begin + np.array([length for _, length in intervals], np.int64)
    counts = [int(((begin <= t) & (end > t)).sum()) for t in range(10, 90)]
    mean, most = at_once(begin, end, [RunPhase("m", "measure", 10, 90)])
    assert mean == pytest.approx(np.mean(counts))
    assert most == max(counts)
