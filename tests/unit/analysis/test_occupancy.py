"""What an SM holds, by compute capability and by nsys; what a launch makes of it, by hand and as an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
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
    assert sm_count((9, 0), 16_896) == reported.sm_count, "cores of an H200, as NVML counts them"


@pytest.mark.parametrize(
    ("capability", "n_cores", "n_sms"),
    [
        ((7, 5), 2_560, 40),
        ((8, 0), 6_912, 108),
        ((8, 6), 9_216, 72),
        ((8, 9), 7_424, 58),
        ((10, 0), 18_944, 148),
    ],
    ids=["T4", "A100", "A10", "L4", "B200"],
)
def test_cores_tell_how_many_sms_there_are(capability: tuple[int, int], n_cores: int, n_sms: int) -> None:
    assert sm_count(capability, n_cores) == n_sms


def test_of_what_is_not_known_nothing_is_guessed() -> None:
    assert limits_of((6, 1), 28) is None
    assert limits_of((13, 0), 200) is None
    assert (sm_count((6, 1), 3_584), sm_count((9, 0), 16_897), sm_count((9, 0), 0)) == (None, None, None)


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "occupancy"),
    [
        ((7, 5), 256, 32, 0, 1.0),  # 32 warps: 4 blocks of 8
        ((7, 5), 32, 16, 0, 0.5),  # 16 blocks of a warp
        ((7, 5), 256, 32, 32_768, 0.5),  # 64 KiB: 2 blocks
        ((8, 0), 128, 32, 49_152, 12 / 64),  # 164 KiB: 3 blocks of 48 + 1
        ((8, 6), 128, 32, 0, 1.0),  # 48 warps: 12 blocks of 4
        ((8, 6), 32, 16, 0, 16 / 48),
        ((8, 9), 32, 16, 0, 24 / 48),
        ((9, 0), 384, 168, 213_000, 12 / 64),  # a matrix product of cuBLAS
        ((9, 0), 128, 33, 0, 0.75),  # 40 registers: 12 warps in each quarter
        ((12, 0), 1024, 32, 0, 32 / 48),  # one block of 32 warps
    ],
)
def test_occupancy_is_that_of_the_tightest_limit(
    capability: tuple[int, int], threads: int, registers: int, shared: int, occupancy: float
) -> None:
    limits = limits_of(capability, 10)
    assert limits is not None
    filled = filling(Launch(1_000, threads, registers, shared), limits)
    assert filled is not None
    assert filled.occupancy_ratio == occupancy


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
