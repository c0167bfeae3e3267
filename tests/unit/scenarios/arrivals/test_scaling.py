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
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.scaling import kept_sessions, other_sessions, scaled
from squall.scenarios.plan.deal import affinity_of, workers_of
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.writing import write_trace

S, MS = 1_000_000_000, 1_000_000
END_NS = 20_000 * S
TICK_NS = 3 * S
G, IDC = 4, 7.0
Offsets = NDArray[np.int64]


@cache
def drawn(seed: int = 5) -> tuple[Offsets, Offsets]:
    """Offsets and sessions of the series above, about 400,000; from 0, as a replay counts, and in multiples of 4 ns."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, END_NS - MS, rng.poisson(5 * END_NS / S))
    sizes = rng.geometric(1 / G, starts.size)
    offsets = np.repeat(starts, sizes) + rng.integers(0, MS, sizes.sum())
    sessions = np.repeat(rng.integers(0, 2**62, starts.size), sizes)
    order = np.argsort(offsets)
    return (offsets[order] - offsets.min()) // 4 * 4, sessions[order]


def poisson() -> Offsets:
    """100,000 arrivals of rate 5/s, the first at 0."""
    offsets = np.sort(np.random.default_rng(2).integers(0, END_NS, 100_000))
    from_first: Offsets = offsets - offsets[0]
    return from_first


def written(path: Path, offsets: Offsets, sessions: Offsets | None = None) -> Path:
    write_trace(path, "parquet", [TracePart(offsets, {}, sessions)])
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn series."""
    return written(tmp_path_factory.mktemp("scaling") / "sessions.parquet", *drawn())


@pytest.fixture(scope="module")
def instants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn series without its sessions, which take most of the time to read it."""
    return written(tmp_path_factory.mktemp("scaling") / "instants.parquet", drawn()[0])


def rows_of(trace: Path, horizon_ns: int = 2 * END_NS, seed: int = 3, **config: Any) -> TracePart:
    """What `config` replays of a trace."""
    arrivals = TraceArrivals.model_validate({"kind": "trace", "file": str(trace), **config})
    rows = arrivals.replay(np.random.default_rng(seed), horizon_ns).rows
    assert (np.diff(rows.stamp_ns) >= 0).all()
    return rows


def replayed(trace: Path, horizon_ns: int = 2 * END_NS, seed: int = 3, **config: Any) -> Offsets:
    return rows_of(trace, horizon_ns, seed, **config).stamp_ns


def thin(keep: float) -> dict[str, Any]:
    return {"kind": "thin", "keep": keep}


def copied(copies: int, jitter: str) -> dict[str, Any]:
    return {"kind": "replicate", "copies": copies, "jitter": jitter}


def idc(offsets: Offsets, window_ns: int, end_ns: int = END_NS) -> tuple[float, float]:
    """var/mean of the counts in windows, and its standard error."""
    counts = np.bincount(offsets // window_ns, minlength=end_ns // window_ns)[: end_ns // window_ns]
    squares = (counts - counts.mean()) ** 2
    return squares.mean() / counts.mean(), squares.std() / counts.size**0.5 / counts.mean()


def assert_idc(offsets: Offsets, window_ns: int, expected: float, end_ns: int = END_NS) -> None:
    found, error = idc(offsets, window_ns, end_ns)
    assert abs(found - expected) < 4 * error, f"{found:.3f} is not {expected:.3f} within 4 x {error:.3f}"


def is_idc(offsets: Offsets, window_ns: int, expected: float) -> bool:
    found, error = idc(offsets, window_ns)
    return abs(found - expected) < 4 * error


def c2(offsets: Offsets) -> float:
    gaps = np.diff(offsets)
    return float(gaps.var() / gaps.mean() ** 2)


def peak_to_mean(offsets: Offsets, window_ns: int, end_ns: int = END_NS) -> float:
    counts = np.bincount(offsets // window_ns, minlength=end_ns // window_ns)[: end_ns // window_ns]
    return float(counts.max() / counts.mean())


def test_the_drawn_series_is_what_the_tests_take_it_for(trace: Path) -> None:
    offsets, sessions = drawn()
    rows = rows_of(trace)
    assert rows.session is not None
    assert (rows.stamp_ns == offsets).all()
    assert (rows.session == sessions).all()
    assert abs(offsets.size - 20 * END_NS / S) < 4 * (IDC * 20 * END_NS / S) ** 0.5
    assert_idc(offsets, S, IDC)
    assert_idc(offsets, 10 * S, IDC)
    assert not is_idc(offsets, S, IDC - 1)
    assert np.unique(sessions).size < offsets.size / 3


@given(
    st.lists(st.integers(0, 2**53 + 3), max_size=30),
    st.integers(1, 10**9),
    st.integers(1, 10**9),
)
@settings(max_examples=50)
def test_times_are_scaled_with_integers(stamps: list[int], num: int, den: int) -> None:
    ratio = Fraction(num, den)
    offsets = np.array(sorted(t for t in stamps if t * num // den < 2**63), np.int64)
    after = scaled(offsets, ratio)
    assert after.dtype == np.int64
    assert after.tolist() == [t * ratio.numerator // ratio.denominator for t in offsets.tolist()]
    assert (np.diff(after) >= 0).all()


def test_a_float_would_not_scale_exactly() -> None:
    stamps = np.array([2**53 + 1, 2**62 + 1], np.int64)
    assert scaled(stamps, Fraction(3, 7)).tolist() == [(2**53 + 1) * 3 // 7, (2**62 + 1) * 3 // 7]
    assert (stamps * (3 / 7)).astype(np.int64).tolist() != scaled(stamps, Fraction(3, 7)).tolist()
    num, den = 10**9 - 63, 10**9
    short = pow(-num, -1, den)  # so that short * num / den is 1e-9 below a whole number of nine digits
    assert short * num % den == den - 1
    assert scaled(np.array([short]), Fraction(num, den)).tolist() == [short * num // den]
    assert int(short * (num / den)) == short * num // den + 1


def test_compressing_time_moves_the_dispersion_curve_and_keeps_c2(instants: Path) -> None:
    offsets, _ = drawn()  # in multiples of 4 ns: nothing is lost, so the two are equal
    quick = replayed(instants, time_scale="1/4")
    for window_ns in (10 * MS, S, 10 * S):
        for measure in (lambda *of: idc(*of)[0], peak_to_mean):
            before = measure(offsets, 4 * window_ns, END_NS)
            assert measure(quick, window_ns, END_NS // 4) == pytest.approx(before, rel=1e-12)
    assert c2(quick) == pytest.approx(c2(offsets), rel=1e-12)
    assert idc(quick, S, END_NS // 4)[0] != pytest.approx(idc(offsets, S)[0], rel=1e-3)


def test_spreading_makes_poisson_arrivals_of_those_that_a_grid_floored(tmp_path: Path) -> None:
    logged = poisson() // TICK_NS * TICK_NS
    log = written(tmp_path / "log.parquet", logged)
    placed = replayed(log, quantum="spread", quantum_width="3s")
    assert (placed // TICK_NS * TICK_NS == logged).all()  # each inside its own tick
    assert_idc(placed, S, 1.0)
    assert_idc(placed, 10 * S, 1.0)
    assert idc(replayed(log), S)[0] > 10  # as they are: 15 at once, then two empty windows
    assert idc(placed, 30 * S)[0] == pytest.approx(idc(logged, 30 * S)[0], rel=1e-12)
    # c2 of exponential gaps: var of the estimate about 8/n (from moments 1, 2, 6, 24), sd 0.009 at 100,000
    assert abs(c2(placed) - 1) < 4 * 0.009
    assert c2(logged) > 2
    # places inside the tick: Kolmogorov-Smirnov at the level 1e-4, and against a spread over only half the tick
    inside = (placed % TICK_NS) / TICK_NS
    assert stats.kstest(inside, "uniform").pvalue > 1e-4
    half = replayed(log, quantum="spread", quantum_width="1500ms")
    assert stats.kstest((half % TICK_NS) / TICK_NS, "uniform").pvalue < 1e-4
    assert not is_idc(half, S, 1.0)


def test_thinning_takes_dispersion_to_one_by_its_share(instants: Path) -> None:
    offsets, _ = drawn()
    kept = replayed(instants, rate_scale=thin(0.25))
    assert abs(kept.size - offsets.size / 4) < 4 * (offsets.size * 0.25 * 0.75) ** 0.5
    for window_ns in (S, 10 * S):
        assert_idc(kept, window_ns, 1 + 0.25 * (IDC - 1))
    assert 1 < c2(kept) < c2(offsets)
    assert peak_to_mean(kept, S) > peak_to_mean(offsets, S)


def test_every_fourth_arrival_is_not_a_thinning(instants: Path) -> None:
    offsets, _ = drawn()
    found, error = idc(offsets[::4], S)
    assert found < 1 + 0.25 * (IDC - 1) - 4 * error
    assert c2(offsets[::4]) < c2(replayed(instants, rate_scale=thin(0.25)))


def test_thinning_by_session_keeps_the_bursts_inside_sessions(trace: Path) -> None:
    offsets, sessions = drawn()
    kept = rows_of(trace, rate_scale={"kind": "thin-by-session", "keep": 0.25})
    assert kept.session is not None
    is_kept = np.isin(sessions, kept.session)
    assert (kept.stamp_ns == offsets[is_kept]).all()  # all of a session or nothing of it
    assert (kept.session == sessions[is_kept]).all()
    # kept sessions are binomial: n = 100,000, sd sqrt(n / 4 * 3 / 4) = 137
    n_sessions = np.unique(sessions).size
    n_kept = np.unique(kept.session).size
    assert abs(n_kept - n_sessions / 4) < 4 * (n_sessions * 0.25 * 0.75) ** 0.5
    assert_idc(kept.stamp_ns, S, IDC)
    assert not is_idc(kept.stamp_ns, S, 1 + 0.25 * (IDC - 1))  # which a random thinning would give
    assert not is_idc(replayed(trace, rate_scale=thin(0.25)), S, IDC)
    assert kept_sessions(sessions, 1.0).all()


def test_sessions_that_are_kept_are_dealt_to_all_workers_evenly() -> None:
    sessions = np.arange(80_000, dtype=np.int64) * 7
    kept = sessions[kept_sessions(sessions, 0.125)]
    workers = workers_of("session", sessions, affinity_of(sessions, sessions), 8)

    def chi2(kept: Offsets) -> float:
        """Of 7 degrees of freedom: mean 7, sd sqrt(14) = 3.7."""
        shares = np.bincount(workers[kept // 7], minlength=8)
        return float(((shares - kept.size / 8) ** 2 / (kept.size / 8)).sum())

    assert chi2(kept) < 7 + 5 * 3.7
    assert chi2(sessions[workers == 0]) == pytest.approx(
        7 * (workers == 0).sum()
    )  # where one hash decides both


def test_rows_without_a_session_are_thinned_one_by_one() -> None:
    none = np.full(40_000, -1, np.int64)
    is_kept = kept_sessions(none, 0.5)
    assert abs(is_kept.sum() - 20_000) < 4 * 100  # sd sqrt(40,000 / 4) = 100


def test_windows_at_once_keep_the_dispersion_and_add_their_rates(instants: Path) -> None:
    offsets, _ = drawn()
    length_ns = 4_900 * S  # 4 of them end before the trace does
    merged = replayed(instants, length="4900s", rate_scale={"kind": "overlap", "copies": 4})
    parts = [offsets[offsets // length_ns == index] - index * length_ns for index in range(4)]
    assert merged.tolist() == np.sort(np.concatenate(parts)).tolist()
    assert_idc(merged, S, IDC, length_ns)
    assert 1 < c2(merged) < c2(offsets)
    excess = [peak_to_mean(part, 10 * S, length_ns) - 1 for part in (merged, *parts)]
    # the excess of the peak halves as the cv of the counts does, and a little more as they are less skewed: over
    # seeds 5 to 12 of the series 0.74 to 0.97 of that half, mean 0.83, sd 0.07
    assert excess[0] == pytest.approx(np.mean(excess[1:]) / 2, rel=1 / 3)
    # one window on top of itself is no independent tenant: 4 times the dispersion, and the same peak
    same = replayed(instants, length="4900s", rate_scale=copied(4, "0s"))
    assert same.tolist() == np.repeat(parts[0], 4).tolist()
    found, error = idc(same, S, length_ns)
    assert found > IDC + 4 * error
    assert peak_to_mean(same, 10 * S, length_ns) - 1 > np.mean(excess[1:]) / 2 * 4 / 3


def test_replicating_multiplies_the_dispersion_above_the_jitter(instants: Path, tmp_path: Path) -> None:
    offsets, _ = drawn()
    again = replayed(instants, rate_scale=copied(4, "0s"))
    assert idc(again, S)[0] == pytest.approx(4 * idc(offsets, S)[0], rel=1e-12)
    assert peak_to_mean(again, S) == pytest.approx(peak_to_mean(offsets, S), rel=1e-12)
    # k - 1 gaps of 0 for each old one; n of them to n - 1, so equal to 1/n
    assert c2(again) == pytest.approx(4 * (c2(offsets) + 1) - 1, rel=1e-4)
    late = replayed(instants, rate_scale=copied(4, "10ms"))
    assert late.size == 4 * offsets.size
    assert_idc(late, S, 4 * IDC)
    assert not is_idc(late, S, IDC)  # which independent tenants would give
    assert c2(late) < c2(again)
    # of Poisson arrivals, in windows well below the jitter, copies are as good as independent
    calm = written(tmp_path / "poisson.parquet", poisson())
    copies = replayed(calm, END_NS, rate_scale=copied(4, "100s"))
    assert_idc(copies, 100 * MS, 1.0)
    assert not is_idc(copies, 100 * MS, 4.0)


@pytest.mark.parametrize(("window_ns", "factor"), [(S // 4, 3.0), (S, 0.5), (4 * S, 3.0)])
def test_an_envelope_drawn_anew_has_the_dispersion_of_its_formula(
    window_ns: int, factor: float, instants: Path
) -> None:
    offsets, _ = drawn()
    scale = {"kind": "envelope", "factor": factor, "bin": "1s"}
    new = replayed(instants, length="20000s", rate_scale=scale)
    # given the counts the new ones are Poisson: sd sqrt(factor n)
    assert abs(new.size - factor * offsets.size) < 4 * (factor * offsets.size) ** 0.5
    whole = max(window_ns, S)
    expected = 1 + factor * (window_ns / whole) * idc(offsets, whole)[0]
    assert_idc(new, window_ns, expected)
    assert not is_idc(new, window_ns, expected + factor)


def test_the_last_bin_of_an_envelope_ends_with_the_window(tmp_path: Path) -> None:
    even = written(tmp_path / "even.parquet", np.arange(0, 15 * S, S // 100))
    scale = {"kind": "envelope", "factor": 5.0, "bin": "10s"}
    new = replayed(even, length="15s", rate_scale=scale)
    assert 14.9 * S < new.max() < 15 * S
    # 2,500 expected in each 5 s: sd 50
    assert (abs(np.bincount(new // (5 * S)) - 2_500) < 4 * 50).all()


def test_a_loop_has_the_same_count_in_every_period(instants: Path, tmp_path: Path) -> None:
    short = written(tmp_path / "short.parquet", np.array([0, 3, 3, 9]))
    laps = replayed(short, 34, length="10ns", loop=True)
    assert laps.tolist() == [0, 3, 3, 9, 10, 13, 13, 19, 20, 23, 23, 29, 30, 33, 33]
    base, _ = drawn()
    rounds = replayed(instants, 3 * END_NS, length="20000s", loop=True)
    assert rounds.size == 3 * base.size
    assert idc(rounds, END_NS, 3 * END_NS)[0] == 0
    assert idc(rounds, S, 3 * END_NS)[0] == pytest.approx(idc(base, S)[0], rel=1e-12)
    # 2 gaps at the seams of 1.2 million: equal to 1e-5
    assert c2(rounds) == pytest.approx(c2(base), rel=1e-4)


def test_copies_are_of_other_sessions_and_the_first_of_the_same() -> None:
    sessions = np.array([5, 5, 9, -1], np.int64)
    first, second, third = (other_sessions(sessions, copy) for copy in range(3))
    assert first.tolist() == sessions.tolist()
    assert second[0] == second[1] != second[2]
    assert second[3] == third[3] == -1
    assert len({*first[:3].tolist(), *second[:3].tolist(), *third[:3].tolist()}) == 6
    assert (np.concatenate([second, third])[[0, 1, 2, 4, 5, 6]] >= 0).all()
