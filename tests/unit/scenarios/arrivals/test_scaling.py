"""Scaling a replayed trace: exact where it is, and on drawn data what `squall.scenarios.arrivals.scaling` says of
burstiness.

The drawn series has sessions: 5/s Poisson of them, each of K arrivals within 1 ms, K geometric with mean G = 4. In
windows well above 1 ms its IDC is E[K²]/E[K] = 2G - 1 = 7 (a compound Poisson process), its rate 20/s. Bounds are four
standard errors of the mean of squared deviations, taken from the counts themselves: windows above 1 ms are independent.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squall.scenarios.arrays import Bools, Int64s
from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.scaling import kept_sessions, other_sessions, scaled
from squall.scenarios.plan.deal import affinity_of, workers_of
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.writing import write_trace
from tests.many_examples import examples

S, MS = 1_000_000_000, 1_000_000
END_NS = 20_000 * S
TICK_NS = 3 * S
LENGTH_NS = 4_900 * S  # of windows, 4 of which end before the trace does
G, IDC = 4, 7.0
Offsets = Int64s


@cache
def drawn() -> tuple[Offsets, Offsets]:
    """Offsets and sessions of the series above, about 400,000; from 0, as a replay counts, and in multiples of 4 ns."""
    rng = np.random.default_rng(5)
    starts = rng.integers(0, END_NS - MS, rng.poisson(5 * END_NS / S))
    sizes = rng.geometric(1 / G, starts.size)
    offsets = np.repeat(starts, sizes) + rng.integers(0, MS, sizes.sum())
    sessions = np.repeat(rng.integers(0, 2**62, starts.size), sizes)
    order = np.argsort(offsets)
    return (offsets[order] - offsets.min()) // 4 * 4, sessions[order]


POISSON: Offsets = np.sort(np.random.default_rng(2).integers(0, END_NS, 100_000))
POISSON -= POISSON[0]
LOGGED = POISSON // TICK_NS * TICK_NS
"""The same floored to a grid."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the traces; of the drawn series one without its sessions, which take most of the time to read."""
    folder = tmp_path_factory.mktemp("scaling")
    offsets, sessions = drawn()
    for name, part in {
        "sessions": TracePart(offsets, {}, sessions),
        "instants": TracePart(offsets, {}),
        "poisson": TracePart(POISSON, {}),
        "logged": TracePart(LOGGED, {}),
        "even": TracePart(np.arange(0, 15 * S, S // 100), {}),
    }.items():
        write_trace(folder / f"{name}.parquet", "parquet", [part])
    return folder


def rows_of(folder: Path, name: str, horizon_ns: int = 2 * END_NS, **config: Any) -> TracePart:
    """What `config` replays of a trace."""
    keys = {"kind": "trace", "file": str(folder / f"{name}.parquet"), **config}
    rows = TraceArrivals.model_validate(keys).replay(np.random.default_rng(3), horizon_ns).rows
    assert (np.diff(rows.stamp_ns) >= 0).all()
    return rows


def replayed(folder: Path, name: str, horizon_ns: int = 2 * END_NS, **config: Any) -> Offsets:
    return rows_of(folder, name, horizon_ns, **config).stamp_ns


def scale(kind: str, **keys: Any) -> dict[str, Any]:
    return {"rate_scale": {"kind": kind, **keys}}


def counts_of(offsets: Offsets, window_ns: int, end_ns: int) -> Offsets:
    return np.bincount(offsets // window_ns, minlength=end_ns // window_ns)[: end_ns // window_ns]


def idc(offsets: Offsets, window_ns: int, end_ns: int = END_NS) -> float:
    counts = counts_of(offsets, window_ns, end_ns)
    return float(counts.var() / counts.mean())


def errors_off(offsets: Offsets, window_ns: int, expected: float, end_ns: int = END_NS) -> float:
    """How many standard errors the IDC is above what is expected."""
    counts = counts_of(offsets, window_ns, end_ns)
    error = ((counts - counts.mean()) ** 2).std() / counts.size**0.5 / counts.mean()
    return float((idc(offsets, window_ns, end_ns) - expected) / error)


def c2(offsets: Offsets) -> float:
    gaps = np.diff(offsets)
    return float(gaps.var() / gaps.mean() ** 2)


def peak_to_mean(offsets: Offsets, window_ns: int, end_ns: int = END_NS) -> float:
    counts = counts_of(offsets, window_ns, end_ns)
    return float(counts.max() / counts.mean())


THINNED = 1 + 0.25 * (IDC - 1)
SPREAD = {"quantum": "spread", "quantum_width": "3s"}
WINDOW: dict[str, Any] = {"length": "4900s"}
DISPERSIONS: dict[str, tuple[str, dict[str, Any], int, float, dict[int, float], float]] = {
    # trace, config, end of what is counted, its expected count; IDC by window, and one that it has not in the last
    "as it is": ("instants", {}, END_NS, 400_000, {10 * S: IDC, S: IDC}, IDC - 1),
    "thin": ("instants", scale("thin", keep=0.25), END_NS, 100_000, {10 * S: THINNED, S: THINNED}, IDC),
    "by session": ("sessions", scale("thin-by-session", keep=0.25), END_NS, 100_000, {S: IDC}, THINNED),
    "overlap": ("instants", WINDOW | scale("overlap", copies=4), LENGTH_NS, 392_000, {S: IDC}, 4 * IDC),
    "one window on itself": (
        "instants", WINDOW | scale("replicate", copies=4, jitter="0s"), LENGTH_NS, 392_000, {S: 4 * IDC}, IDC,
    ),
    "replicate": (
        "instants", scale("replicate", copies=4, jitter="10ms"), END_NS, 1_600_000, {S: 4 * IDC}, IDC,
    ),
    "copies within a long jitter": (
        "poisson", scale("replicate", copies=4, jitter="100s"), END_NS, 400_000, {100 * MS: 1.0}, 4.0,
    ),
    "spread": ("logged", SPREAD, END_NS, 100_000, {10 * S: 1.0, S: 1.0}, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DISPERSIONS)
def test_what_is_scaled_has_the_rate_and_the_dispersion_of_its_formula(name: str, files: Path) -> None:
    trace, config, end_ns, count, expected, wrong = DISPERSIONS[name]
    found = replayed(files, trace, **config)
    # of copies of one session together; a count has the dispersion of windows that long
    assert abs(found.size - count) < 4 * (4 * IDC * count) ** 0.5
    for window_ns, value in expected.items():
        assert abs(errors_off(found, window_ns, value, end_ns)) < 4
    assert abs(errors_off(found, window_ns, wrong, end_ns)) > 4


@given(
    st.lists(st.integers(0, 2**53 + 3), max_size=30),
    st.integers(1, 10**9),
    st.integers(1, 10**9),
)
@examples(50)
def test_times_are_scaled_with_integers(stamps: list[int], num: int, den: int) -> None:
    ratio = Fraction(num, den)
    offsets = np.array(sorted(t for t in stamps if t * num // den < 2**63), np.int64)
    after = scaled(offsets, ratio)
    assert after.dtype == np.int64
    assert after.tolist() == [t * ratio.numerator // ratio.denominator for t in offsets.tolist()]


def test_a_float_would_not_scale_exactly() -> None:
    stamps = np.array([2**53 + 1, 2**62 + 1], np.int64)
    assert scaled(stamps, Fraction(3, 7)).tolist() == [(2**53 + 1) * 3 // 7, (2**62 + 1) * 3 // 7]
    num, den = 10**9 - 63, 10**9
    short = pow(-num, -1, den)  # so that short * num / den is 1e-9 below a whole number of nine digits
    assert scaled(np.array([short]), Fraction(num, den)).tolist() == [short * num // den]
    assert int(short * (num / den)) == short * num // den + 1


def test_compressing_time_moves_the_dispersion_curve_and_keeps_c2(files: Path) -> None:
    offsets, _ = drawn()  # in multiples of 4 ns: nothing is lost, so the two are equal
    quick = replayed(files, "instants", time_scale="1/4")
    for window_ns in (10 * MS, S, 10 * S):
        for measure in (idc, peak_to_mean):
            before = measure(offsets, 4 * window_ns, END_NS)
            assert measure(quick, window_ns, END_NS // 4) == pytest.approx(before, rel=1e-12)
    assert c2(quick) == pytest.approx(c2(offsets), rel=1e-12)
    assert idc(quick, S, END_NS // 4) != pytest.approx(idc(offsets, S), rel=1e-3)


def test_spreading_makes_poisson_arrivals_of_those_that_a_grid_floored(files: Path) -> None:
    placed, half = (
        replayed(files, "logged", quantum="spread", quantum_width=width) for width in ("3s", "1500ms")
    )
    assert (placed // TICK_NS * TICK_NS == LOGGED).all()  # each inside its own tick
    assert idc(LOGGED, S) > 10  # as they are: 15 at once, then two empty windows
    assert idc(placed, 30 * S) == pytest.approx(idc(LOGGED, 30 * S), rel=1e-12)
    # c2 of exponential gaps: var of the estimate about 8/n (from moments 1, 2, 6, 24), sd 0.009 at 100,000
    assert abs(c2(placed) - 1) < 4 * 0.009
    assert c2(LOGGED) > 2
    # places inside the tick: Kolmogorov-Smirnov at the level 1e-4, and against a spread over only half the tick
    assert stats.kstest((placed % TICK_NS) / TICK_NS, "uniform").pvalue > 1e-4
    assert stats.kstest((half % TICK_NS) / TICK_NS, "uniform").pvalue < 1e-4
    assert abs(errors_off(half, S, 1.0)) > 4


def test_thinning_goes_to_poisson_which_every_fourth_arrival_does_not(files: Path) -> None:
    offsets, _ = drawn()
    thinned = replayed(files, "instants", **scale("thin", keep=0.25))
    assert c2(offsets[::4]) < c2(thinned) < c2(offsets)
    assert c2(thinned) > 1
    assert peak_to_mean(thinned, S) > peak_to_mean(offsets, S)
    assert errors_off(offsets[::4], S, THINNED) < -4


def test_rows_without_a_session_are_thinned_one_by_one_and_a_share_of_1_keeps_all() -> None:
    none = np.full(40_000, -1, np.int64)
    assert abs(kept_sessions(none, 0.5).sum() - 20_000) < 4 * 100  # sd sqrt(40,000 / 4) = 100
    assert kept_sessions(np.append(none, drawn()[1]), 1.0).all()


def test_sessions_that_are_kept_are_dealt_to_all_workers_evenly() -> None:
    sessions = np.arange(80_000, dtype=np.int64) * 7
    workers = workers_of("session", sessions, affinity_of(sessions, sessions), 8)

    def chi2(kept: Bools) -> float:
        """Of 7 degrees of freedom: mean 7, sd sqrt(14) = 3.7."""
        shares = np.bincount(workers[kept], minlength=8)
        return float(((shares - kept.sum() / 8) ** 2 / (kept.sum() / 8)).sum())

    assert chi2(kept_sessions(sessions, 0.125)) < 7 + 5 * 3.7
    assert chi2(workers == 0) == pytest.approx(7 * (workers == 0).sum())  # where one hash decides both


def test_windows_at_once_halve_the_excess_of_the_peak(files: Path) -> None:
    offsets, _ = drawn()
    merged = replayed(files, "instants", **WINDOW, **scale("overlap", copies=4))
    parts = [offsets[offsets // LENGTH_NS == index] - index * LENGTH_NS for index in range(4)]
    assert 1 < c2(merged) < c2(offsets)
    excess = [peak_to_mean(part, 10 * S, LENGTH_NS) - 1 for part in (merged, *parts)]
    # the excess of the peak halves as the cv of the counts does, and a little more as they are less skewed: over
    # seeds 5 to 12 of the series 0.74 to 0.97 of that half, mean 0.83, sd 0.07
    half = np.mean(excess[1:]) / 2
    assert excess[0] == pytest.approx(half, rel=1 / 3)
    # one window on top of itself is no independent tenant: the same peak
    same = replayed(files, "instants", **WINDOW, **scale("replicate", copies=4, jitter="0s"))
    assert same.tolist() == np.repeat(parts[0], 4).tolist()
    assert peak_to_mean(same, 10 * S, LENGTH_NS) - 1 > half * 4 / 3
    # k - 1 gaps of 0 for each old one; n of them to n - 1, so equal to 1/n
    assert c2(same) == pytest.approx(4 * (c2(parts[0]) + 1) - 1, rel=1e-4)


@pytest.mark.parametrize(("window_ns", "factor"), [(S // 4, 3.0), (S, 0.5), (4 * S, 3.0)])
def test_an_envelope_drawn_anew_has_the_dispersion_of_its_formula(
    window_ns: int, factor: float, files: Path
) -> None:
    offsets, _ = drawn()
    new = replayed(files, "instants", length="20000s", **scale("envelope", factor=factor, bin="1s"))
    # given the counts the new ones are Poisson: sd sqrt(factor n)
    assert abs(new.size - factor * offsets.size) < 4 * (factor * offsets.size) ** 0.5
    whole_ns = max(window_ns, S)
    expected = 1 + factor * (window_ns / whole_ns) * idc(offsets, whole_ns)
    assert abs(errors_off(new, window_ns, expected)) < 4
    assert abs(errors_off(new, window_ns, expected + factor)) > 4


def test_the_last_bin_of_an_envelope_ends_with_the_window(files: Path) -> None:
    new = replayed(files, "even", length="15s", **scale("envelope", factor=5.0, bin="10s"))
    assert 14.9 * S < new.max() < 15 * S
    # 2,500 expected in each 5 s: sd 50
    assert (abs(np.bincount(new // (5 * S)) - 2_500) < 4 * 50).all()


def test_a_loop_has_the_same_count_in_every_period(files: Path) -> None:
    base, _ = drawn()
    rounds = replayed(files, "instants", 3 * END_NS, length="20000s", loop=True)
    assert rounds.size == 3 * base.size
    assert idc(rounds, END_NS, 3 * END_NS) == 0
    assert idc(rounds, S, 3 * END_NS) == pytest.approx(idc(base, S), rel=1e-12)
    # 2 gaps at the seams of 1.2 million: equal to 1e-5
    assert c2(rounds) == pytest.approx(c2(base), rel=1e-4)


def test_copies_are_of_other_sessions_and_the_first_of_the_same() -> None:
    sessions = np.array([5, 5, 9, -1], np.int64)
    first, second, third = (other_sessions(sessions, copy).tolist() for copy in range(3))
    assert first == sessions.tolist()
    assert second[3] == third[3] == -1
    assert second[0] == second[1]
    assert len({*first, *second, *third}) == 7
    assert min(second[:3] + third[:3]) >= 0
