"""What every arrival process does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from squall.scenarios.arrivals.process import Arrivals
from squall.scenarios.config.trace import TraceArrivals
from squall.scenarios.plan.replay import TraceReplay
from tests.contract.processes import ARRIVALS, HORIZON_NS, S

REPLAYS: dict[str, dict[str, object]] = {
    "replay": {},
    "looped replay": {"length": "700ms", "loop": True},
    "thinned replay": {"rate_scale": {"kind": "thin", "keep": 0.5}},
}
NAMES = [*ARRIVALS, *REPLAYS]
N_RUNS = 16


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrivals]:
    """All of them by name, those that replay a file too."""
    file = tmp_path_factory.mktemp("replay") / "trace.csv"
    at_ns = np.cumsum(np.random.default_rng(1).integers(0, S // 50, 300))
    file.write_text("timestamp_ns\n" + "".join(f"{one}\n" for one in at_ns))
    sections = {
        name: TraceArrivals.model_validate({"kind": "trace", "file": str(file), **keys})
        for name, keys in REPLAYS.items()
    }
    return {**ARRIVALS, **{name: TraceReplay(section) for name, section in sections.items()}}


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**64), horizon_ns=st.integers(1, HORIZON_NS))
@example(seed=0, horizon_ns=HORIZON_NS)  # where ticks and constant arrivals would come next
@settings(max_examples=2)
def test_a_schedule_is_sorted_int64_inside_the_horizon_and_the_same_for_the_same_seed(
    every: dict[str, Arrivals], name: str, seed: int, horizon_ns: int
) -> None:
    offsets = every[name].offsets_ns(np.random.default_rng(seed), horizon_ns)
    assert offsets.dtype == np.int64
    assert (np.diff(offsets) >= 0).all()
    assert offsets.size == 0 or (offsets[0] >= 0 and offsets[-1] < horizon_ns)
    assert np.array_equal(offsets, every[name].offsets_ns(np.random.default_rng(seed), horizon_ns))


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_integrates_to_the_expected_count(every: dict[str, Arrivals], name: str) -> None:
    arrivals, n_cells = every[name], 1_000
    cell_ns = HORIZON_NS // n_cells
    rates = arrivals.rate_hz(np.arange(n_cells, dtype=np.int64) * cell_ns + cell_ns // 2)
    assert rates.shape == (n_cells,)
    assert (rates >= 0).all()
    assert arrivals.expected_count(0) == 0
    for n_before in (250, 500, 1_000):  # whole seconds: a replay tells its rate by the second
        count = float(rates[:n_before].sum()) * cell_ns / S
        jumps = 15 * float(rates.max()) * cell_ns / S  # a cell with a jump in it is off by its rate at most
        assert arrivals.expected_count(n_before * cell_ns) == pytest.approx(count, abs=jumps)


@pytest.mark.parametrize("name", NAMES)
def test_as_many_arrive_as_are_expected(every: dict[str, Arrivals], name: str) -> None:
    rng = np.random.default_rng(5)
    runs = [every[name].offsets_ns(rng, HORIZON_NS) for _ in range(N_RUNS)]
    for end_ns in (S, HORIZON_NS):
        counts = np.array([np.searchsorted(run, end_ns) for run in runs])
        # standard error of the mean count by the dispersion of the counts themselves; one of a fixed schedule
        error = 5 * float(counts.std()) / math.sqrt(N_RUNS) + 1
        assert counts.mean() == pytest.approx(every[name].expected_count(end_ns), abs=error)
