"""The bound is hard: whatever offset, drift, wander, delays and losses, the truth lies inside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from squall.analysis.clocks.brackets import NO_HIGH, NO_LOW, Allowance, Brackets
from squall.analysis.clocks.fit import fit_track
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.record import from_json, to_json
from squall.analysis.tables.deployed import ClockKnots
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples

S = 1_000_000_000
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Link:
    """Two clocks and a network between them; the truth is known.

    The drift at source second t is `drift_ppm` + wander_ppm sin(2 pi t / wander_s + seed): within `wander_ppm` of a
    constant always. Delays of each way: a floor, and an exponential part of mean `jitter_us`.
    """

    offset_ns: int
    drift_ppm: float
    wander_ppm: float
    wander_s: float
    floors_us: tuple[float, float]
    jitter_us: tuple[float, float]
    span_s: float
    n_probes: int
    kept_ratio: float
    seed: int

    def offset(self, source_ns: Int64s) -> Int64s:
        """The true offset, rounded down to ns."""
        turn = 2 * np.pi / (self.wander_s * S)
        wandered = -np.cos(turn * source_ns + self.seed) * self.wander_ppm * 1e-6 / turn
        return self.offset_ns + np.asarray(np.floor(self.drift_ppm * 1e-6 * source_ns + wandered), np.int64)

    def probes(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The stamps of the probes that were not lost: sent, got, answered, back."""
        rng = np.random.default_rng(self.seed)
        got = rng.integers(0, round(self.span_s * S), self.n_probes)
        is_kept = rng.random(self.n_probes) < self.kept_ratio
        is_kept[0] = True
        got = got[is_kept]
        answered = got + rng.integers(1_000, 200_000, len(got))
        ways = [
            np.rint(floor * 1e3 + rng.exponential(jitter * 1e3, len(got))).astype(np.int64)
            for floor, jitter in zip(self.floors_us, self.jitter_us, strict=True)
        ]
        return (
            got + self.offset(got) - ways[0],
            got,
            answered,
            answered + self.offset(answered) + ways[1],
        )

    def grid(self) -> Int64s:
        """Instants before, during and after the probes."""
        return np.linspace(-5 * S, (self.span_s + 5) * S, 3_001).astype(np.int64)


links = st.builds(
    Link,
    offset_ns=st.integers(-100 * S, 100 * S) | st.just(1_795_250_252 * S),
    drift_ppm=st.floats(-200, 200),
    wander_ppm=st.floats(0, 15),
    wander_s=st.floats(0.5, 200),
    floors_us=st.tuples(st.floats(1, 5_000), st.floats(1, 5_000)),
    jitter_us=st.tuples(st.floats(0, 2_000), st.floats(0, 2_000)),
    span_s=st.floats(0.01, 40),
    n_probes=st.integers(1, 200),
    kept_ratio=st.floats(0.1, 1),
    seed=st.integers(0, 2**32 - 1),
)

Estimator = Callable[[Link], ClockTrack]


def fitted(link: Link) -> ClockTrack:
    return fit_track(Brackets.of_probes(*link.probes()))


def n_outside(link: Link, estimate: Estimator) -> int:
    """Instants of the grid at which the truth lies outside the stated bound."""
    track = estimate(link)
    grid = link.grid()
    errors = np.abs(track.offsets_at(grid) - link.offset(grid))
    return int(np.count_nonzero(errors > track.error_at(grid)))


@examples(150)
@given(link=links)
def test_the_true_offset_lies_inside_the_bound(link: Link) -> None:
    assert n_outside(link, fitted) == 0


TYPICAL = Link(
    offset_ns=3 * S, drift_ppm=50, wander_ppm=10, wander_s=20, floors_us=(40, 340), jitter_us=(20, 60),
    span_s=30, n_probes=600, kept_ratio=0.9, seed=1,
)  # fmt: skip


def halfway(link: Link) -> ClockTrack:
    """The twin that takes delays as symmetric: the middle of the best probe, within its jitter."""
    sent, got, answered, back = link.probes()
    delay = (back - sent) - (answered - got)
    best = int(np.argmin(delay))
    offset = (int(sent[best] - got[best]) + int(back[best] - answered[best])) // 2
    jitter = int(np.median(delay) - delay[best])
    return ClockTrack.constant(offset, jitter)


def without_drift(link: Link) -> ClockTrack:
    """The twin that takes the best probe's bound, which is true then, for all times."""
    sent, got, answered, back = link.probes()
    best = int(np.argmin((back - sent) - (answered - got)))
    low, high = int(sent[best] - got[best]), int(back[best] - answered[best])
    return ClockTrack.constant((low + high) // 2, (high - low) // 2 + 1)


def without_wander(link: Link) -> ClockTrack:
    """The twin that takes the drift as constant for ever, which the polygon of lines is meant for."""
    return fit_track(Brackets.of_probes(*link.probes()), Allowance(wander_ppm=0, segment_ns=10**15))


@pytest.mark.parametrize(
    ("twin", "link"),
    [
        (halfway, replace(TYPICAL, drift_ppm=0, wander_ppm=0)),
        (without_drift, TYPICAL),
        pytest.param(
            without_wander,
            replace(TYPICAL, wander_s=60, floors_us=(2, 2), jitter_us=(20, 20)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_estimator_that_assumes_too_much_is_refuted_by_the_same_check(twin: Estimator, link: Link) -> None:
    assert n_outside(link, fitted) == 0
    assert n_outside(link, twin) > 0


def test_the_bound_is_about_half_of_the_least_round_trip() -> None:
    link = replace(TYPICAL, floors_us=(40, 60))
    track = fitted(link)
    inside = link.grid()[(link.grid() > S) & (link.grid() < 29 * S)]
    # half of 100 us, and what jitter leaves: 20 probes a second, of which the best of 1 s lies a few us above the floor
    assert 50_000 < np.median(track.error_at(inside)) < 75_000
    assert track.drift_ppm == pytest.approx(50, abs=10)


def test_a_delay_of_one_way_moves_the_middle_and_never_the_truth_out() -> None:
    link = replace(TYPICAL, floors_us=(40, 5_040), jitter_us=(5, 5))
    track, grid = fitted(link), np.arange(S, 29 * S, S)
    errors = np.abs(track.offsets_at(grid) - link.offset(grid))
    assert errors.min() > 2_000_000
    assert n_outside(link, fitted) == 0


def test_outside_the_probes_the_bound_grows() -> None:
    track = fitted(TYPICAL)
    ahead = track.error_at(np.array([30, 31, 33, 36, 60, 4_000]) * S)
    assert (np.diff(ahead) > 0).all()
    # at most 15 ppm and what 5 s leave open of the drift for 5 s; 1015 ppm from there
    assert ahead[2] - ahead[0] < 3 * 200_000
    assert ahead[5] - ahead[4] == pytest.approx(3_940 * 1_015_000, rel=1e-3)


@dataclass(frozen=True)
class Stepping(Link):
    """A link whose source clock jumps by `step_ns` at `step_s`."""

    step_s: float = 0
    step_ns: int = 0

    def offset(self, source_ns: Int64s) -> Int64s:
        return super().offset(source_ns) + np.where(source_ns > self.step_s * S, self.step_ns, 0)


@examples(40)
@given(
    step_s=st.floats(5, 25),
    step_ns=st.integers(1_000_000, 10 * S).flatmap(lambda size: st.sampled_from([size, -size])),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_step_splits_the_track_there_and_is_told(step_s: float, step_ns: int, seed: int) -> None:
    plain = replace(TYPICAL, seed=seed)
    link = Stepping(**plain.__dict__, step_s=step_s, step_ns=step_ns)
    track = fitted(link)
    assert len(track.steps) == 1
    first_ns, last_ns = track.steps[0]
    assert first_ns <= step_s * S <= last_ns
    assert last_ns - first_ns < 2 * S
    assert track.largest_error_ns >= abs(step_ns) // 2
    grid = link.grid()
    errors = np.abs(track.offsets_at(grid) - link.offset(grid))
    assert (errors <= track.error_at(grid)).all()
    away = grid[(grid < first_ns) | (grid > last_ns)]
    away = away[(away > 0) & (away < 30 * S)]
    assert track.error_at(away).max() < 400_000


@pytest.mark.parametrize(
    "best",
    [pytest.param(best, marks=[] if best in (0, 1, 10, 19) else pytest.mark.slow) for best in range(20)],
)
def test_a_step_before_a_last_burst_is_told_whichever_probe_of_it_was_the_quickest(best: int) -> None:
    burst = 100_000 * np.arange(20)
    sent = np.concatenate([S // 20 * np.arange(60), 3 * S + burst])
    delay = np.full(80, 40_000)
    delay[60 + best] = 10_000
    node = sent + np.where(sent >= 3 * S, 3 * S, 0)
    track = fit_track(Brackets.of_probes(sent, node + delay, node + delay + 5_000, sent + 2 * delay + 5_000))
    ((first_ns, last_ns),) = track.steps
    assert sent[59] <= first_ns < last_ns < node[62]
    assert track.largest_error_ns >= 3 * S // 2


def test_a_clock_that_changes_its_rate_beyond_the_allowance_is_split_too() -> None:
    at = np.arange(0, 60 * S, S // 20)
    truth = np.where(at < 30 * S, 0, (at - 30 * S) // 5_000)  # 200 ppm from 30 s on
    track = fit_track(Brackets(at, truth - 20_000, truth + 20_000))
    assert len(track.steps) == 1
    assert track.steps[0][0] <= 30 * S <= track.steps[0][1]
    assert (np.abs(track.offsets_at(at) - truth) <= track.error_at(at)).all()


def test_a_long_silence_is_bounded_by_the_most_drift() -> None:
    link = replace(TYPICAL, drift_ppm=180, n_probes=40, span_s=10)
    sent, got, answered, back = link.probes()
    sent2, got2, answered2, back2 = (stamp.copy() for stamp in replace(link, seed=2).probes())
    late = replace(link, seed=2)
    got2, answered2 = got2 + 200 * S, answered2 + 200 * S
    sent2 = got2 + link.offset(got2) - (late.probes()[1] + late.offset(late.probes()[1]) - late.probes()[0])
    back2 = answered2 + link.offset(answered2) + 400_000
    stamps = (
        np.concatenate(pair) for pair in ((sent, sent2), (got, got2), (answered, answered2), (back, back2))
    )
    track, grid = fit_track(Brackets.of_probes(*stamps)), np.arange(0, 210 * S, S)
    assert track.steps == ()
    assert (np.abs(track.offsets_at(grid) - link.offset(grid)) <= track.error_at(grid)).all()
    assert 50_000_000 < track.error_at(np.array([105 * S]))[0] < 110_000_000


def test_a_single_probe_gives_a_track() -> None:
    track = fit_track(Brackets.of_probes(*(np.array([t]) for t in (1_000, 50_000, 51_000, 4_000))))
    # low end 1,000 - 50,000, high end 4,000 - 51,000; reading, tent (15 ppm x 0.25 s) and rounding on each side
    assert abs(track.target_ns(50_500) - 2_500) <= 2
    assert 1_000 <= track.error_at(np.array([50_500]))[0] <= 1_000 + 3_750 + 6


@pytest.mark.parametrize("side", ["low", "high", "none"])
def test_without_a_reading_from_both_sides_there_is_no_offset(side: str) -> None:
    at = np.array([] if side == "none" else [5], np.int64)
    low = np.full(len(at), 7 if side == "low" else NO_LOW)
    high = np.full(len(at), 7 if side == "high" else NO_HIGH)
    with pytest.raises(AnalysisError, match="read from both sides"):
        fit_track(Brackets(at, low, high))


def test_brackets_that_contradict_at_one_instant_are_refused() -> None:
    with pytest.raises(AnalysisError, match="above 9 ns and below 8 ns at once"):
        Brackets(np.array([1]), np.array([9]), np.array([8]))
    with pytest.raises(AnalysisError, match="readings at 5 ns contradict each other"):
        fit_track(Brackets(np.array([5, 5]), np.array([90, NO_LOW]), np.array([NO_HIGH, 80])))
    with pytest.raises(AnalysisError, match="as many instants"):
        Brackets(np.array([1]), np.array([9]), np.array([], np.int64))


INSTANTS = st.integers(-(2**61), 2**61)


@given(source_ns=INSTANTS, offset_ns=INSTANTS, error_ns=st.integers(0, 2**40))
def test_a_constant_track_is_exact(source_ns: int, offset_ns: int, error_ns: int) -> None:
    track = ClockTrack.constant(offset_ns, error_ns)
    assert track.target_ns(source_ns) == source_ns + offset_ns
    assert track.source_ns(source_ns) == source_ns - offset_ns
    assert track.error_at(np.array([source_ns])).tolist() == [error_ns]
    assert (track.largest_error_ns, track.drift_ppm, track.steps) == (error_ns, 0.0, ())


@given(source_ns=st.integers(-100 * S, 200 * S))
def test_the_way_back_is_within_one_ns(source_ns: int) -> None:
    assert abs(TRACK.source_ns(TRACK.target_ns(source_ns)) - source_ns) <= 1


TRACK = fitted(replace(TYPICAL, offset_ns=1_795_250_252 * S))


def test_conversion_by_floats_would_lose_what_this_keeps() -> None:
    knots = np.array([0, 10 * S])
    track = ClockTrack(knots, np.array([2**60 + 1, 2**60 + 1]), np.zeros(2, np.int64))
    assert track.convert(np.array([3, 7 * S + 1])).tolist() == [2**60 + 4, 2**60 + 7 * S + 2]


def test_errors_by_instants_of_the_target_clock_cover_those_of_the_track() -> None:
    from_ns, errors_ns = TRACK.errors_from()
    source = np.linspace(0, 30 * S, 5_001).astype(np.int64)
    which = np.searchsorted(from_ns, TRACK.convert(source), side="right") - 1
    assert (np.diff(from_ns) > 0).all()
    assert (errors_ns[which] >= TRACK.error_at(source)).all()
    inside = (source > S) & (source < 29 * S)
    assert (errors_ns[which] <= TRACK.error_at(source) + 20_000)[inside].all()
    constant = ClockTrack.constant(5, 7).errors_from()
    assert [column.tolist() for column in constant] == [[-(2**63)], [7]]


@pytest.mark.parametrize(
    "silence_s", [3.0, 9.0, 9.5, *(pytest.param(one, marks=pytest.mark.slow) for one in (5.0, 12.0, 20.0))]
)
@pytest.mark.parametrize(
    "jump_ms", [-30, -8, 5, *(pytest.param(one, marks=pytest.mark.slow) for one in (-5, 30))]
)
def test_a_jump_in_a_silence_is_covered_whatever_its_length(silence_s: float, jump_ms: int) -> None:
    after_ns = round((0.75 + silence_s) * S)
    got_ns = np.concatenate([np.arange(0, S, S // 4), np.arange(after_ns, 40 * S, S // 4)])
    offset_ns = np.where(got_ns < after_ns, 0, jump_ms * 1_000_000)
    one_way_ns, held_ns = 20_000, 1_000
    track = fit_track(
        Brackets.of_probes(
            got_ns + offset_ns - one_way_ns,
            got_ns,
            got_ns + held_ns,
            got_ns + held_ns + offset_ns + one_way_ns,
        )
    )
    assert (np.abs(track.offsets_at(got_ns) - offset_ns) <= track.error_at(got_ns)).all()
    if abs(jump_ms) * 1_000_000 > 1_015e-6 * silence_s * S + 2 * one_way_ns:
        assert track.steps


def test_errors_grow_without_end_after_the_last_probe() -> None:
    from_ns, errors_ns = TRACK.errors_from()
    assert TRACK.probed_ns is not None
    source = TRACK.probed_ns[1] + np.geomspace(S, 10**6 * S, 200).astype(np.int64)
    which = np.searchsorted(from_ns, TRACK.convert(source), side="right") - 1
    true_ns = TRACK.error_at(source)
    assert (np.diff(true_ns) > 0).all()
    assert (errors_ns[which] >= true_ns).all()
    assert (errors_ns[which] <= 2 * true_ns + 2_000_000).all()


def test_after_a_step_one_error_holds_up_to_the_last_probe_and_then_grows() -> None:
    stepped = fitted(Stepping(**TYPICAL.__dict__, step_s=15, step_ns=-S))
    from_ns, errors_ns = stepped.errors_from()
    assert stepped.probed_ns is not None
    assert (from_ns[0], errors_ns[0]) == (-(2**63), stepped.largest_error_ns)
    assert from_ns[1] >= stepped.target_ns(stepped.probed_ns[1])
    far_ns = stepped.probed_ns[1] + 10_000 * S
    which = np.searchsorted(from_ns, stepped.target_ns(far_ns), side="right") - 1
    assert errors_ns[which] >= stepped.error_at(np.array([far_ns]))[0] > stepped.largest_error_ns


def test_the_largest_error_of_a_span_counts_what_no_probe_covers() -> None:
    assert TRACK.probed_ns is not None
    first_ns, last_ns = TRACK.probed_ns
    inside = TRACK.largest_error_between(first_ns, last_ns)
    assert inside == TRACK.largest_error_ns
    late_ns = last_ns + 60 * S
    assert TRACK.largest_error_between(first_ns, late_ns) == TRACK.error_at(np.array([late_ns]))[0] > inside
    assert ClockTrack.constant(5, 7).largest_error_between(0, S) == 7


@pytest.mark.parametrize(("low_at_ns", "high_at_ns"), [(0, S), (S, 0)])
def test_two_readings_that_contradict_each_other_give_no_track(low_at_ns: int, high_at_ns: int) -> None:
    at_ns = np.array([low_at_ns, high_at_ns])
    with pytest.raises(AnalysisError, match="on every side of a step"):
        fit_track(Brackets(at_ns, np.array([S, NO_LOW]), np.array([NO_HIGH, 0])))


def test_a_track_survives_json() -> None:
    again = ClockTrack.from_knots(from_json(ClockKnots, json.loads(json.dumps(to_json(TRACK.to_knots())))))
    for name in ("at_ns", "offset_ns", "error_ns"):
        assert getattr(again, name).tolist() == getattr(TRACK, name).tolist()
    assert (again.probed_ns, again.steps) == (TRACK.probed_ns, TRACK.steps)
    constant = ClockTrack.constant(5, 7)
    assert ClockTrack.from_knots(constant.to_knots()).target_ns(1) == 6


@pytest.mark.parametrize("broken", [{"steps": ((1,),)}, {"probed_ns": (1, 2, 3)}, {"at_ns": (2**63,)}])
def test_broken_knots_are_one_line(broken: dict[str, Any]) -> None:
    with pytest.raises(AnalysisError, match="clock track cannot be read"):
        ClockTrack.from_knots(replace(TRACK.to_knots(), **broken))


def test_a_track_is_checked_when_it_is_made() -> None:
    with pytest.raises(AnalysisError, match="never negative: -1 ns"):
        ClockTrack.constant(0, -1)
    zeros = np.zeros(2, np.int64)
    with pytest.raises(AnalysisError, match="in order of time"):
        ClockTrack(zeros, zeros, zeros)
    with pytest.raises(AnalysisError, match="one or more knots"):
        ClockTrack(zeros[:0], zeros[:0], zeros[:0])
