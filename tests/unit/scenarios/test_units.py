"""Units: exact, inverse to each other, and never guessed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.units import (
    digits_text,
    format_bandwidth,
    format_duration,
    format_rate,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_rate,
    parse_share,
    parse_size,
)

READ: dict[Any, dict[object, float]] = {
    parse_duration: {
        "30s": 30 * 10**9, "250ms": 250_000_000, "100us": 100_000, "100 µs": 100_000, "10ns": 10, "0s": 0,
        "2m": 120 * 10**9, "2 min": 120 * 10**9, "1.5h": 5_400 * 10**9, "0.1s": 10**8, "1e3 ms": 10**9,
        "13m50s": 830 * 10**9, "1h30m": 5_400 * 10**9, "2 min 30.5 s": 150_500_000_000,
        "1h1m1s1ms1us1ns": 3_661_001_001_001,
        "9007199.254740993s": 9_007_199_254_740_993,  # 2^53 + 1: a float would lose the last digit
    },
    parse_rate: {
        "200/s": 200.0, "12000/min": 200.0, "3/h": 3 / 3600, "200 Hz": 200.0, "0.5 kHz": 500.0, "0.1/s": 0.1,
        "5 / s": 5.0, "0/s": 0.0,
    },
    parse_share: {"3%": 0.03, " 12.5 % ": 0.125, "0.03": 0.03, "0": 0.0},
    parse_size: {"64 MiB": 64 * 2**20, "1KB": 1000, "1.5 KiB": 1536, "12 B": 12, "2GB": 2 * 10**9},
    parse_bandwidth: {"50MB/s": 50_000_000, "1 MiB / s": 2**20, "7B/s": 7, "0B/s": 0, 0: 0},
}  # fmt: skip
REFUSED: dict[Any, dict[str, list[object]]] = {
    parse_duration: {
        "has no unit, write a duration such as 30s": [30, 1.5, "30"],
        "is not a duration, write for example 30s": ["soon", True, None, math.nan, [30]],
        "unknown unit": ["1 fortnight", "1h30", "5M", "1e999999 h", "1e999999999999999999999 h"],
        "is negative": ["-1s", "-1h30m"],
        "is not a whole number of ns": ["1.5ns", "1s0.5ns", "1e-9999 s"],
        "is too large": ["1e30 h", "99999999999h1s", "1e9999 h"],
        "from larger units to smaller": ["50s13m", "1m1min", "1.5h30m"],
    },
    parse_rate: {
        "has no unit, write a rate such as 200/s": [200],
        "is not a rate, write for example 200/s": ["nan/s", "inf Hz", math.inf],
        "is negative": ["-3/s"],
        "unknown unit": ["3/day"],
        "is too large for a rate": ["1e400/s"],
    },
    parse_share: {"is no share": ["", "%", "much", "nan", "inf%", "3 %%"]},
    parse_size: {"has no unit": [64], "is not a whole number of byte": ["0.5 B"], "unknown unit": ["1 XB"]},
    parse_bandwidth: {
        "bandwidth|byte": ["50MB", "50/s", 50, True, None, "-1MB/s", "50MB/min", "MB/s", "1.0000001KB/s"],
    },
    format_duration: {"is 0 or more, not -1 ns": [-1]},
    format_rate: {"is finite and 0 or more, not nan Hz": [math.nan]},
}  # fmt: skip


@pytest.mark.parametrize("parse", READ)
def test_what_people_write_is_read_exactly(parse: Any) -> None:
    assert {text: parse(text) for text in READ[parse]} == READ[parse]


@pytest.mark.parametrize("convert", REFUSED)
def test_what_is_refused_says_what_to_write(convert: Any) -> None:
    for said, values in REFUSED[convert].items():
        for value in values:
            with pytest.raises(ValueError, match=said):
                convert(value)


@given(st.integers(0, 2**63 - 1))
def test_what_is_written_is_read_back(number: int) -> None:
    assert parse_duration(format_duration(number)) == number
    assert parse_size(format_size(number)) == number
    assert parse_bandwidth(format_bandwidth(number)) == number


@given(st.floats(0, allow_nan=False, allow_infinity=False))
def test_a_rate_survives_format_and_parse(rate_hz: float) -> None:
    assert parse_rate(format_rate(rate_hz)) == rate_hz


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 10**9 - 1))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int, ns: int) -> None:
    expected = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + ns
    assert parse_duration(f"{hours}h{minutes}m{seconds}s{ns}ns") == expected


def test_a_quantity_is_written_in_the_largest_unit_that_keeps_it_whole() -> None:
    written = [format_duration(ns) for ns in (0, 90 * 10**9, 3_600 * 10**9, 1_500_000, 1)]
    assert written == ["0s", "90s", "1h", "1500us", "1ns"]
    assert [format_size(size) for size in (0, 2**31, 3 * 2**20, 1000)] == ["0 B", "2 GiB", "3 MiB", "1000 B"]
    assert [format_bandwidth(size) for size in (0, 10**9, 2**20)] == ["0B/s", "1GB/s", "1048576B/s"]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"), (134.4, 2, "130"), (878.0, 2, "880"), (-8.85, 2, "-8.8"), (1_234_567.0, 3, "1,230,000"),
        (0.000123, 2, "0.00012"), (9.999, 3, "10"), (1.50, 3, "1.5"), (999.6, 3, "1,000"), (20.0, 1, "20"),
    ],
)  # fmt: skip
def test_the_text_of_a_number(value: float, digits: int, text: str) -> None:
    assert digits_text(value, digits) == text


@given(st.floats(1e-12, 1e15), st.integers(1, 6))
def test_it_reads_back_within_its_digits_and_has_no_exponent(value: float, digits: int) -> None:
    text = digits_text(value, digits)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
