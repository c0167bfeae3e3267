"""Hosts whose truth is known, simulated with all their threads: a run is INVALID where others, or the load generator,
really made the response times, and VALID where they did not, however slowly the cores wake."""

from __future__ import annotations

from hypothesis import Phase, given
from hypothesis import strategies as st

from squall.analysis.limits import LIMITS
from squall.analysis.storage.sealed import CheckResult, Starvation
from squall.analysis.verdict.checks import CPU_CHECK
from squall.analysis.verdict.cpu_shares import cpu_line
from squall.analysis.verdict.server_checks import cpu_figure, judge_starvation, makes_invalid
from tests.many_examples import examples
from tests.simulated_host import Host, Truth, truth_of

CORES = st.sampled_from([2, 2, 3, 4, 8, 16])
RATES = st.floats(1.0, 50.0)
SLOW_WAKES = st.floats(64.0, 280.0)
SECONDS = st.integers(4, 20)
SEEDS = st.integers(0, 2**31)
few = examples(25, derandomize=True, phases=[Phase.generate])


def judged(truth: Truth) -> Starvation:
    return judge_starvation(truth.shares)


def check_of(truth: Truth) -> CheckResult:
    figure = cpu_figure([truth.shares])
    assert figure is not None
    return CPU_CHECK.held(figure)


@few
@given(
    CORES,
    RATES,
    SLOW_WAKES,
    SECONDS,
    st.floats(0.0, 45_000.0),
    st.integers(2, 14),
    st.floats(10.0, 60.0),
    SEEDS,
)
def test_an_idle_host_whose_cores_wake_slowly_starves_nobody(
    n_cores: int,
    rate_hz: float,
    wake_us: float,
    seconds: int,
    squall_us: float,
    n_hops: int,
    hop_us: float,
    seed: int,
) -> None:
    truth = truth_of(Host(n_cores, rate_hz, seconds, wake_us, n_hops, hop_us, squall_us=squall_us, seed=seed))
    assert truth.shares.cores["idle"] / n_cores > 0.6  # down to three quarters in what was seen
    starved = judged(truth)
    assert (starved.starved_by, starved.sentence) == ("none", "")
    assert not check_of(truth).is_unmet


@few
@given(RATES, st.floats(300.0, 3_000.0), SECONDS, SEEDS)
def test_cores_that_wake_yet_more_slowly_starve_nobody_where_one_is_nearly_always_free(
    rate_hz: float, wake_us: float, seconds: int, seed: int
) -> None:
    truth = truth_of(Host(2, rate_hz, seconds, wake_us, squall_us=5_000.0, seed=seed))
    assert (truth.shares.full_ratio or 1.0) < LIMITS.consequence_ratio
    assert judged(truth).starved_by == "none"


@few
@given(CORES, RATES, SLOW_WAKES, st.sampled_from(["others", "clients"]), st.integers(1, 4), SECONDS, SEEDS)
def test_who_really_takes_the_cores_of_a_server_is_named(
    n_cores: int, rate_hz: float, wake_us: float, whose: str, n_each: int, seconds: int, seed: int
) -> None:
    truth = truth_of(Host(n_cores, rate_hz, seconds, wake_us, spinners={whose: n_each * n_cores}, seed=seed))
    assert truth.true_ratio > 0.3
    starved = judged(truth)
    assert (starved.starved_by, makes_invalid(starved)) == (whose, True)
    assert (truth.shares.full_ratio or 0.0) > 0.9
    first = {"others": "Others took the CPU", "clients": "The load generator itself took the server's CPU"}
    assert starved.sentence.startswith(first[whose])
    assert "which made " in starved.sentence
    assert "lower the load" not in starved.sentence


@few
@given(CORES, st.floats(5.0, 50.0), SLOW_WAKES, st.floats(5.0, 200.0), st.floats(1.0, 3.0), SEEDS)
def test_a_neighbour_that_takes_all_cores_for_part_of_the_time_is_named_where_it_made_the_times(
    n_cores: int, rate_hz: float, wake_us: float, spin_ms: float, pauses: float, seed: int
) -> None:
    truth = truth_of(
        Host(
            n_cores, rate_hz, 10, wake_us, spinners={"others": 2 * n_cores}, spin_ms=spin_ms,
            pause_ms=2 * spin_ms * pauses, seed=seed,
        )
    )  # fmt: skip
    if truth.true_ratio > 0.7:
        assert judged(truth).starved_by == "others"


@few
@given(CORES, RATES, SLOW_WAKES, st.integers(2, 6), SEEDS)
def test_a_server_with_more_threads_than_cores_starves_itself_which_is_data(
    n_cores: int, rate_hz: float, wake_us: float, n_each: int, seed: int
) -> None:
    truth = truth_of(Host(n_cores, rate_hz, 5, wake_us, spinners={"server": n_each * n_cores}, seed=seed))
    assert (truth.shares.server_wait_ratio or 0.0) > 0.4
    assert judged(truth).starved_by == "none"


@few
@given(CORES, st.floats(8.0, 50.0), SLOW_WAKES, st.floats(600.0, 1_500.0), SEEDS)
def test_a_busy_host_that_changes_nothing_for_requests_that_wait_for_a_gpu_is_noted(
    n_cores: int, rate_hz: float, wake_us: float, sleep_ms: float, seed: int
) -> None:
    truth = truth_of(
        Host(n_cores, rate_hz, 12, wake_us, sleep_ms=sleep_ms, spinners={"others": n_cores}, seed=seed)
    )
    assert truth.true_ratio < 0.06
    assert (
        truth.shares.taken_ratio or 0.0
    ) > LIMITS.taken_ratio  # others had most of what it could have used
    starved = judged(truth)
    assert starved.starved_by == "none"
    assert check_of(truth).not_assessed.startswith("it made ")
    assert "of the response times" in cpu_line(truth.shares)


@few
@given(
    CORES, RATES, st.floats(5.0, 280.0), st.floats(0.0, 3.0), st.sampled_from(["others", "clients"]),
    st.floats(0.0, 30.0), SEEDS,
)  # fmt: skip
def test_what_is_said_of_a_neighbour_of_any_size_is_no_more_than_what_it_did(
    n_cores: int, rate_hz: float, wake_us: float, load: float, whose: str, sleep_ms: float, seed: int
) -> None:
    """Of hosts from idle to three times too full: INVALID only where it made more than a twentieth of the times."""
    spinners = {whose: round(load * n_cores)}
    truth = truth_of(Host(n_cores, rate_hz, 8, wake_us, sleep_ms=sleep_ms, spinners=spinners, seed=seed))
    starved = judged(truth)
    if makes_invalid(starved):
        assert starved.starved_by == whose
        assert truth.true_ratio > 0.05
    if truth.true_ratio > 0.5 and spinners[whose] >= n_cores:
        assert makes_invalid(starved)
