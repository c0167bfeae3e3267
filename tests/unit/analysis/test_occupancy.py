"""What an SM holds, by compute capability and by nsys; what a launch makes of it, by hand and as an array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.nsys.report import NsysReport
from squall.analysis.occupancy import (
    DeviceLimits,
    Launch,
    Launches,
    filling,
    limits_of,
    sm_count,
    theoretical_occupancy,
)
from tests.known import known

CASES = yaml.safe_load((Path(__file__).parent / "occupancy.yaml").read_text())
KNOWN = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))
_LIMITS = """
SELECT smCount, maxWarpsPerSm, maxRegistersPerSm, maxShmemPerSm, maxBlocksPerSm, computeMajor, computeMinor
FROM TARGET_INFO_GPU
"""


@pytest.mark.parametrize("name", ["linear_head", "seqlen_head", "two_heads"])
def test_the_limits_of_an_h200_are_those_that_nsys_reported_of_one(
    h200_report: Callable[[str], NsysReport], name: str
) -> None:
    with h200_report(name).connect() as connection:
        ((*limits, minor),) = connection.execute(_LIMITS).fetchall()
    reported = DeviceLimits(*limits)
    assert limits_of((reported.compute_major, minor), reported.sm_count) == reported


@pytest.mark.parametrize("gpu", CASES["sms"])
def test_cores_tell_how_many_sms_there_are(gpu: str) -> None:
    capability, n_cores, n_sms = CASES["sms"][gpu]
    assert sm_count(tuple(capability), n_cores) == n_sms


def test_of_what_is_not_known_nothing_is_guessed() -> None:
    assert [limits_of((6, 1), 28), limits_of((13, 0), 200)] == [None, None]


@pytest.mark.parametrize("case", CASES["launches"], ids=str)
def test_occupancy_is_that_of_the_tightest_limit(case: list[Any]) -> None:
    capability, *sizes, n_warps, most_warps = case
    filled = filling(Launch(1_000, *sizes), known(limits_of(tuple(capability), 10)))
    assert known(filled).occupancy_ratio == n_warps / most_warps


SIZES = st.tuples(st.integers(0, 2_048), st.integers(0, 255), st.integers(0, 300_000), st.sampled_from(KNOWN))


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_of_many_launches_each_has_what_it_has_alone(
    sizes: list[tuple[int, int, int, tuple[int, int]]],
) -> None:
    of_each: list[Any] = [limits_of(capability, 7) for *_, capability in sizes]
    launches = Launches(*np.array([one[:3] for one in sizes], np.int64).T)
    found = theoretical_occupancy(launches, np.array(of_each, np.int64))
    for one, limits, ratio in zip(sizes, of_each, found.tolist(), strict=True):
        alone = filling(Launch(1, *one[:3]), limits)
        assert (ratio == alone.occupancy_ratio and 0 < ratio <= 1) if alone is not None else np.isnan(ratio)
