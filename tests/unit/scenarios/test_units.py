"""Units: exact, inverse to each other, and never guessed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.units import (
    format_bandwidth,
    format_duration,
    format_rate,
    parse_bandwidth,
    parse_duration,
    parse_rate,
    parse_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("30s", 30_000_000_000),
        ("250ms", 250_000_000),
        ("100us", 100_000),
        ("100 µs", 100_000),
        ("10ns", 10),
        ("2m", 120_000_000_000),
        ("2 min", 120_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("0.1s", 100_000_000),
        ("1e3 ms", 1_000_000_000),
        ("0s", 0),
        ("13m50s", 830_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("2 min 30.5 s", 150_500_000_000),
        ("1h1m1s1ms1us1ns", 3_661_001_001_001),
        ("9007199.254740993s", 9_007_199_254_740_993),  # 2^53 + 1: a float would lose the last digit
    ],
)
def test_a_duration_is_read_exactly(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "rate_hz"),
    [
        ("200/s", 200.0),
        ("12000/min", 200.0),
        ("3/h", 3 / 3600),
        ("200 Hz", 200.0),
        ("0.5 kHz", 500.0),
        ("0.1/s", 0.1),
        ("5 / s", 5.0),
        ("0/s", 0.0),
    ],
)
def test_a_rate_is_read_exactly(text: str, rate_hz: float) -> None:
    assert parse_rate(text) == rate_hz


@pytest.mark.parametrize(("text", "ratio"), [("3%", 0.03), (" 12.5 % ", 0.125), ("0.03", 0.03), ("0", 0.0)])
def test_a_share_is_read_exactly(text: str, ratio: float) -> None:
    assert parse_share(text) == ratio


@pytest.mark.parametrize("text", ["", "%", "much", "nan", "inf%", "3 %%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no share"):
        parse_share(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64 MiB", 64 * 2**20), ("1KB", 1000), ("1.5 KiB", 1536), ("12 B", 12), ("2GB", 2 * 10**9)],
)
def test_a_size_is_read_exactly(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@given(st.integers(0, 2**63 - 1))
def test_a_duration_survives_format_and_parse(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("50s13m", "must go from larger units to smaller ones"),
        ("1m1min", "must go from larger units to smaller ones"),
        ("1.5h30m", "has a fraction before its last part"),
        ("1h30", "unknown unit of time 'h30'"),
        ("-1h30m", "is negative"),
        ("1s0.5ns", "is not a whole number of ns"),
        ("99999999999h1s", "is too large"),
    ],
)
def test_parts_of_a_duration_that_do_not_make_one_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_duration(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 10**9 - 1))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int, ns: int) -> None:
    expected = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + ns
    assert parse_duration(f"{hours}h{minutes}m{seconds}s{ns}ns") == expected


@given(st.floats(0, allow_nan=False, allow_infinity=False))
def test_a_rate_survives_format_and_parse(rate_hz: float) -> None:
    assert parse_rate(format_rate(rate_hz)) == rate_hz


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(0, "0s"), (90_000_000_000, "90s"), (3_600_000_000_000, "1h"), (1_500_000, "1500us"), (1, "1ns")],
)
def test_a_duration_is_written_in_the_largest_unit_that_keeps_it_whole(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (30, "30 has no unit, write a duration such as 30s, 250ms or 2m"),
        (1.5, "1.5 has no unit, write a duration such as 30s, 250ms or 2m"),
        ("30", "'30' has no unit, write a duration such as 30s, 250ms or 2m"),
        ("-1s", "'-1s' is negative, a duration is 0 or more"),
        ("1 fortnight", "'1 fortnight' has an unknown unit of time 'fortnight', use ns, us, ms, s, m or h"),
        ("1.5ns", "'1.5ns' is not a whole number of ns"),
        ("1e30 h", "'1e30 h' is too large"),
        ("1e999999999999999999999 h", "'1e999999999999999999999 h' is out of range for a duration"),
        ("1e999999 h", "'1e999999 h' is out of range for a duration"),
        ("soon", "'soon' is not a duration, write for example 30s, 250ms or 2m"),
        (True, "True is not a duration, write for example 30s, 250ms or 2m"),
        (None, "None is not a duration, write for example 30s, 250ms or 2m"),
        (math.nan, "nan is not a duration, write for example 30s, 250ms or 2m"),
    ],
)
def test_a_refused_duration_says_what_to_write(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_duration(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (200, "200 has no unit, write a rate such as 200/s, 12000/min or 0.5 kHz"),
        ("nan/s", "'nan/s' is not a rate, write for example 200/s, 12000/min or 0.5 kHz"),
        ("inf Hz", "'inf Hz' is not a rate, write for example 200/s, 12000/min or 0.5 kHz"),
        (math.inf, "inf is not a rate, write for example 200/s, 12000/min or 0.5 kHz"),
        ("-3/s", "'-3/s' is negative, a rate is 0 or more"),
        ("3/day", "'3/day' has an unknown unit of rate '/day', use /s, /min, /h, Hz or kHz"),
        ("1e400/s", "'1e400/s' is too large for a rate"),
    ],
)
def test_a_refused_rate_says_what_to_write(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_rate(value)
    assert str(caught.value) == message


def test_a_size_without_a_unit_or_of_a_broken_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="64 has no unit, write a size such as 64 MiB or 1 KB"):
        parse_size(64)
    with pytest.raises(ValueError, match=r"'0\.5 B' is not a whole number of byte"):
        parse_size("0.5 B")
    with pytest.raises(ValueError, match="'1 XB' has an unknown unit of size 'XB'"):
        parse_size("1 XB")


def test_what_is_no_duration_or_rate_is_not_written() -> None:
    with pytest.raises(ValueError, match="a duration is 0 or more, not -1 ns"):
        format_duration(-1)
    with pytest.raises(ValueError, match="a rate is finite and 0 or more, not nan Hz"):
        format_rate(math.nan)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("50MB/s", 50_000_000), ("1 MiB / s", 2**20), ("7B/s", 7), ("0B/s", 0), (0, 0)]
)
def test_a_bandwidth_is_read_exactly(text: object, bytes_per_s: int) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    "text", ["50MB", "50/s", 50, True, None, "-1MB/s", "50MB/min", "MB/s", "1.0000001KB/s"]
)
def test_what_is_no_bandwidth_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"bandwidth|size|byte"):
        parse_bandwidth(text)


@given(st.integers(0, 10**15))
def test_a_bandwidth_that_is_written_is_read_back(bytes_per_s: int) -> None:
    assert parse_bandwidth(format_bandwidth(bytes_per_s)) == bytes_per_s
