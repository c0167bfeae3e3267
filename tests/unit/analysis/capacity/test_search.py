"""What a search says where there is no plain edge: nothing passes, nothing fails, the client's limit, odd levels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from squall.analysis.capacity.edge import upper_edge
from squall.analysis.capacity.probe import CONFIRM, LOW, Probe
from squall.analysis.capacity.search import Found, Options, interval_of, search
from squall.analysis.decisions.figures import BROKEN, INVALID, KEPT, UNDECIDED
from squall.analysis.statistics.student import student_quantile
from squall.analysis.statistics.tolerance import tolerance_factor

OPTIONS = Options(3, 1, 50.0, 5_000.0)


class Levels:
    """An edge at `edges[seed]` (100/s where there is none), margin of slope 4; `odd` overrides a level."""

    def __init__(
        self, edges: dict[int, float] | None = None, odd: Callable[[int, float], Probe | None] | None = None
    ) -> None:
        self.asked: list[tuple[int, float, str]] = []
        self._edges = edges or {}
        self._odd = odd or (lambda _seed, _rate: None)

    def __call__(self, seed: int, rate_hz: float, purpose: str) -> Probe:
        self.asked.append((seed, rate_hz, purpose))
        found = self._odd(seed, rate_hz)
        if found is not None:
            return found
        margin = 4.0 * math.log(rate_hz / self._edges.get(seed, 100.0))
        return Probe(seed, rate_hz, KEPT if margin < 0.0 else BROKEN, margin, "p", margin > 1.0)


def invalid(seed: int, rate_hz: float) -> Probe:
    return Probe(seed, rate_hz, INVALID, reason="worker-0: CPU at 99 %")


def test_the_interval_and_the_safe_load_are_those_of_the_formulas() -> None:
    edges = {1: 100.0, 2: 110.0, 3: 95.0}
    found = search(Levels(edges), Options(3, 1, 50.0, 5_000.0, precision=0.001))
    logs = [math.log(one) for one in edges.values()]
    mean = sum(logs) / 3
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2)
    assert found.interval is not None
    assert found.interval.rate_hz == pytest.approx(math.exp(mean), rel=1e-6)
    reach = student_quantile(0.975, 2) * spread / math.sqrt(3)
    assert found.interval.low_hz == pytest.approx(math.exp(mean - reach), rel=1e-5)
    assert found.interval.high_hz == pytest.approx(math.exp(mean + reach), rel=1e-5)
    assert found.safe is not None
    assert found.safe.first_hz == pytest.approx(math.exp(mean - tolerance_factor(3) * spread), rel=1e-5)
    assert (found.kind, found.safe.is_confirmed, found.safe.rate_hz) == ("found", True, found.safe.first_hz)


def test_later_seeds_begin_at_the_edge_of_the_ones_before() -> None:
    levels = Levels({2: 104.0, 3: 96.0})
    found = search(levels, OPTIONS)
    firsts = {seed: rate_hz for seed, rate_hz, purpose in reversed(levels.asked) if purpose == "bracket"}
    assert firsts[2] == pytest.approx(100.0, rel=0.02)
    assert firsts[3] == pytest.approx(math.sqrt(100.0 * 104.0), rel=0.02)
    assert [one.edge.n_probes for one in found.seeds[1:]] == [3, 3]


def test_a_step_down_takes_other_seeds_and_never_the_same_load() -> None:
    edges = {4: 60.0}  # the first seed that confirms: a burst that the three did not have
    levels = Levels(edges)
    found = search(levels, OPTIONS)
    confirming = [(seed, rate_hz) for seed, rate_hz, purpose in levels.asked if purpose == CONFIRM]
    assert [seed for seed, _ in confirming] == [4, 5, 6]
    assert found.safe is not None
    assert (found.safe.is_confirmed, found.safe.n_steps_down) == (True, 1)
    assert found.safe.rate_hz == pytest.approx(found.safe.first_hz * math.exp(-0.02))
    assert confirming[0][1] != confirming[1][1] == confirming[2][1]


def test_a_safe_load_that_fresh_seeds_never_keep_is_not_confirmed() -> None:
    found = search(Levels(dict.fromkeys(range(4, 40), 10.0)), OPTIONS)
    assert found.safe is not None
    assert (found.safe.is_confirmed, found.safe.n_steps_down) == (False, 5)


def test_a_fresh_seed_that_cannot_be_measured_is_no_failure() -> None:
    edges = {2: 104.0, 3: 97.0}
    levels = Levels(edges, lambda seed, rate: invalid(seed, rate) if seed == 4 else None)
    found = search(levels, OPTIONS)
    assert found.safe is not None
    assert (found.safe.is_confirmed, found.safe.n_steps_down) == (True, 0)
    assert [seed for seed, _, purpose in levels.asked if purpose == CONFIRM] == [4, 5, 6]
    found = search(Levels(edges, lambda seed, rate: invalid(seed, rate) if seed > 3 else None), OPTIONS)
    assert found.safe is not None
    assert (found.safe.is_confirmed, found.safe.n_steps_down) == (None, 0)


def test_nothing_passes() -> None:
    levels = Levels(odd=lambda seed, rate: Probe(seed, rate, BROKEN, 1.0, "p", False))
    found = search(levels, OPTIONS)
    assert (found.kind, found.interval, found.safe) == ("nothing passes", None, None)
    assert {seed for seed, _, _ in levels.asked} == {1}
    assert min(rate for _, rate, _ in levels.asked) < 50.0 < max(rate for _, rate, _ in levels.asked)


def test_failures_at_every_load_end_as_nothing_passes_too() -> None:
    found = search(Levels(odd=lambda seed, rate: Probe(seed, rate, BROKEN, None, "p", True)), OPTIONS)
    assert found.kind == "nothing passes"


def test_nothing_fails_up_to_the_most() -> None:
    levels = Levels(odd=lambda seed, rate: Probe(seed, rate, KEPT, -3.0, "p", False))
    found = search(levels, Options(2, 1, 50.0, 400.0))
    assert (found.kind, found.interval) == ("nothing fails", None)
    assert max(rate for _, rate, _ in levels.asked) == pytest.approx(400.0)
    assert [one.edge.low.rate_hz for one in found.seeds if one.edge.low] == [pytest.approx(400.0)] * 2


def test_a_seed_without_an_edge_leaves_none_to_all() -> None:
    def never(seed: int, rate: float) -> Probe | None:
        return Probe(seed, rate, BROKEN, 1.0, "p", False) if seed == 2 else None

    found = search(Levels(odd=never), OPTIONS)
    assert (found.kind, found.interval) == ("nothing passes", None)
    assert [one.edge.kind for one in found.seeds] == ["found", "nothing passes", "found"]


def test_a_level_that_cannot_be_measured_is_a_limit_of_the_client_and_no_failure() -> None:
    levels = Levels(odd=lambda seed, rate: invalid(seed, rate) if rate > 80.0 else None)
    found = search(levels, OPTIONS)
    assert (found.kind, found.interval, found.safe) == ("client limit", None, None)
    for one in found.seeds:
        assert one.edge.low is not None
        assert one.edge.low.is_kept
        assert 80.0 / 1.12 < one.edge.low.rate_hz <= 80.0
        assert one.edge.high is not None
        assert one.edge.high.is_invalid


@pytest.mark.parametrize(
    ("n_stopped", "cause", "kind"),
    [
        (1, "others took the CPU", "found"),
        (2, "others took the CPU", "client limit"),
        (1, "client", "client limit"),
        (1, "", "client limit"),
    ],
)
def test_a_seed_that_the_host_stopped_is_left_out_while_two_of_three_have_an_edge(
    n_stopped: int, cause: str, kind: str
) -> None:
    def odd(seed: int, rate: float) -> Probe | None:
        is_stopped = seed > 3 - n_stopped and rate > 90.0
        return Probe(seed, rate, INVALID, reason="-", cause=cause) if is_stopped else None

    found = search(Levels({1: 100.0, 2: 103.0}, odd=odd), OPTIONS)
    assert found.kind == kind
    assert (found.interval is not None) == (kind == "found")
    if found.interval is not None:
        assert found.interval.n_seeds == 2


def test_a_server_that_breaks_below_the_clients_limit_is_found_all_the_same() -> None:
    levels = Levels(odd=lambda seed, rate: invalid(seed, rate) if rate > 108.0 else None)
    found = search(levels, Options(3, 1, 90.0, 5_000.0))
    assert found.kind == "found"
    assert found.interval is not None
    assert found.interval.rate_hz == pytest.approx(100.0, rel=0.01)


def test_no_load_can_be_measured() -> None:
    levels = Levels(odd=invalid)
    found = search(levels, OPTIONS)
    assert len(levels.asked) == 3
    assert (found.kind, found.seeds[0].edge.kind) == ("not measured", "not measured")


def test_one_level_within_a_bracket_that_cannot_be_measured_is_passed_by() -> None:
    seen: list[float] = []

    def odd(seed: int, rate: float) -> Probe | None:
        if 90.0 < rate < 120.0 and not seen:
            seen.append(rate)
            return invalid(seed, rate)
        return None

    edge = upper_edge(lambda rate: Levels(odd=odd)(1, rate, ""), 140.0, 5_000.0, 0.02)
    assert seen
    assert edge.kind == "found"
    assert edge.rate_hz == pytest.approx(100.0, rel=0.01)


def test_infinite_figures_are_bisected() -> None:
    def odd(seed: int, rate: float) -> Probe | None:
        return Probe(seed, rate, BROKEN, None, "p", True) if rate >= 100.0 else None

    edge = upper_edge(lambda rate: Levels(odd=odd)(1, rate, ""), 50.0, 5_000.0, 0.02)
    assert edge.kind == "found"
    assert edge.rate_hz == pytest.approx(100.0, rel=0.02)
    assert edge.n_probes <= 10


def test_a_probe_far_below_says_that_less_load_is_kept() -> None:
    levels = Levels()
    found = search(levels, OPTIONS)
    (low,) = [(seed, rate) for seed, rate, purpose in levels.asked if purpose == LOW]
    assert low[0] == 1
    assert low[1] == pytest.approx(10.0, rel=0.02)
    assert found.low is None
    assert found.low_probe is not None
    assert found.low_probe.is_kept
    levels = Levels()
    assert search(levels, Options(2, 1, 50.0, 500.0, low_ratio=0.0)).low_probe is None
    assert all(purpose != LOW for _, _, purpose in levels.asked)


def test_where_less_load_is_not_kept_the_lower_edge_is_found() -> None:
    def odd(seed: int, rate: float) -> Probe | None:
        margin = -2.0 * math.log(rate / 30.0)
        return Probe(seed, rate, BROKEN, margin, "p", False) if rate <= 30.0 else None

    found = search(Levels(odd=odd), OPTIONS)
    assert found.low is not None
    assert found.low.rate_hz == pytest.approx(30.0, rel=0.05)
    assert found.kind == "found"


def test_a_run_that_decides_nothing_ends_the_search_with_its_reason() -> None:
    def odd(seed: int, rate: float) -> Probe | None:
        return Probe(seed, rate, UNDECIDED, reason="no request is about it") if seed == 2 else None

    found = search(Levels(odd=odd), OPTIONS)
    assert (found.kind, found.undecided) == (UNDECIDED, "no request is about it")
    assert len(found.seeds) == 1


def test_what_is_known_is_told_after_each_seed() -> None:
    told: list[Found] = []
    search(Levels(), OPTIONS, told.append)
    assert [len(one.seeds) for one in told] == [1, 2, 3]


def test_one_seed_has_a_capacity_and_no_interval() -> None:
    found = search(Levels(), Options(1, 1, 50.0, 500.0))
    assert (found.kind, found.interval, found.safe) == ("found", None, None)
    assert found.seeds[0].edge.rate_hz == pytest.approx(100.0, rel=0.01)


def test_the_interval_of_equal_seeds_is_a_point() -> None:
    found = interval_of([100.0, 100.0])
    assert found.low_hz == pytest.approx(100.0)
    assert found.high_hz == pytest.approx(100.0)


@pytest.mark.parametrize("start", [0.2, 3.0, 99.0, 101.0, 700.0, 4_000.0])
@pytest.mark.parametrize("precision", [0.001, 0.02, 0.2])
def test_an_edge_is_found_from_anywhere_to_the_precision(start: float, precision: float) -> None:
    levels = Levels()
    edge = upper_edge(lambda rate: levels(1, rate, ""), start, 50_000.0, precision)
    assert edge.kind == "found"
    assert edge.low is not None
    assert edge.high is not None
    assert math.log(edge.high.rate_hz / edge.low.rate_hz) <= precision * (1 + 1e-9)
    assert edge.rate_hz == pytest.approx(100.0, rel=precision)
    assert edge.slope == pytest.approx(4.0, rel=1e-6)
    assert edge.n_probes <= 20


def stalling(seed: int) -> Callable[[int, float], Probe | None]:
    """A host that stalls: of this seed the figure is above its limit from 85/s on, and higher below 96/s than above."""

    def odd(asked: int, rate: float) -> Probe | None:
        if asked != seed or not 85.0 < rate < 120.0:
            return None
        return Probe(seed, rate, BROKEN, 0.5 if rate < 96.0 else 0.2, "p", False)

    return odd


def test_a_stall_below_the_edge_of_a_later_seed_does_not_send_the_search_above() -> None:
    """It did: 19 runs up to five times the edge, and "nothing passes" of all seeds, on a GPU host that stalled."""
    levels = Levels(odd=stalling(2))
    found = search(levels, OPTIONS)
    assert found.kind == "found"
    assert max(rate for seed, rate, _ in levels.asked if seed == 2) < 110.0
    assert found.seeds[1].edge.rate_hz == pytest.approx(85.0, rel=0.02)


def test_steps_down_that_do_not_help_a_later_seed_are_not_the_end_where_others_keep_as_much() -> None:
    """They were, with "nothing passes" of all seeds, where five searches at once met a host that got slower."""
    margins = iter([0.1, 0.2, 0.9, 0.8])

    def stalled(seed: int, rate: float) -> Probe | None:
        margin = next(margins, None) if seed == 2 else None
        return None if margin is None else Probe(seed, rate, BROKEN, margin, "p", False)

    found = search(Levels(odd=stalled), OPTIONS)
    assert found.kind == "found"
    assert found.interval is not None
    assert found.interval.low_hz < 100.0 < found.interval.high_hz


def test_a_seed_that_keeps_nothing_and_does_worse_at_less_load_leaves_it_undecided() -> None:
    def worse(seed: int, rate: float) -> Probe | None:
        return Probe(seed, rate, BROKEN, 0.1 + 10.0 / rate, "p", False) if seed == 2 else None

    found = search(Levels(odd=worse), OPTIONS)
    assert (found.kind, found.interval, found.safe) == (UNDECIDED, None, None)
    assert "seed 2 kept no load, and did much worse at less of it than at more" in found.undecided


def test_one_step_down_that_does_not_help_is_not_the_end_for_the_first_seed() -> None:
    edge = upper_edge(lambda rate: Levels(odd=stalling(1))(1, rate, ""), 104.0, 5_000.0, 0.02)
    assert edge.kind == "found"
    assert edge.rate_hz == pytest.approx(85.0, rel=0.02)
