"""Which part of a measured phase is recorded: its windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.duty import LEAST_ON_NS, LONGEST_PERIOD_NS, Duty

MS, S = 1_000_000, 1_000_000_000
DUTIES = st.builds(
    lambda on_ns, more_ns: Duty(on_ns, min(on_ns + more_ns, LONGEST_PERIOD_NS)),
    st.integers(LEAST_ON_NS, 10 * S),
    st.integers(1, 50 * S),
)


def test_windows_lie_in_the_middle_of_each_period_and_a_shorter_phase_has_one() -> None:
    duty = Duty(200 * MS, 2 * S)
    assert duty.windows(S, 6 * S) == [(1900 * MS, 2100 * MS), (3900 * MS, 4100 * MS)]
    assert duty.windows(0, S) == [(400 * MS, 600 * MS)]
    assert duty.windows(0, 100 * MS) == [(0, 100 * MS)]


@given(DUTIES, st.integers(0, S), st.integers(1, 100 * S))
def test_windows_follow_one_another_within_the_phase_and_take_their_share(
    duty: Duty, start_ns: int, length_ns: int
) -> None:
    windows = duty.windows(start_ns, start_ns + length_ns)
    edges = [edge for window in windows for edge in window]
    assert edges == sorted(set(edges))
    assert start_ns <= edges[0]
    assert edges[-1] <= start_ns + length_ns
    assert len(windows) == max(1, length_ns // duty.period_ns)
