"""Durations, rates and sizes as people write them, to ns, Hz and bytes, and back.

A number without a unit is refused everywhere: `30` could be seconds or milliseconds, `30s` cannot.
Every failure is a `ValueError` with one line that says what to write; the loader adds the key path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TypeVar

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_NS_PER_UNIT = {
    "h": 3_600 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "min": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": NS_PER_MS,
    "us": 1_000,
    "µs": 1_000,
    "ns": 1,
}
_PERIOD_S: dict[str, int | Decimal] = {
    "/s": 1,
    "/sec": 1,
    "/min": 60,
    "/m": 60,
    "/h": 3_600,
    "hz": 1,
    "khz": Decimal("0.001"),
    "mhz": Decimal("0.000001"),
}
# SI prefixes are powers of 1000 and IEC ones of 1024 (IEC 80000-13).
_BYTES_PER_UNIT = {
    "b": 1,
    **{f"{prefix}b": 1_000 ** (power + 1) for power, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": 1_024 ** (power + 1) for power, prefix in enumerate("kmgt")},
}
_SIZES = {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10, " B": 1}
_BANDWIDTHS = {"GB/s": 10**9, "MB/s": 10**6, "KB/s": 10**3, "B/s": 1}
# Exponents have four digits at most: with more, arithmetic would leave the range of Decimal.
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*(\S.*)?", re.ASCII)
_PART = r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min|m|h)"
_COMPOUND = re.compile(rf"{_PART}(?:\s*{_PART})+", re.ASCII)
_LARGEST = Decimal(2**63 - 1)  # every instant and length is an int64
_Scale = TypeVar("_Scale")


def parse_duration(value: object) -> int:
    """Length in ns of `"30s"`, `"250ms"`, `"100us"`, `"10ns"`, `"2m"`, `"1.5h"` or `"1h30m"`, exact.

    Raises ValueError for a number without a unit, a negative length, a fraction of a ns, and parts of a length that do
    not go from a larger unit to a smaller one, or have a fraction before the last of them.
    """
    if isinstance(value, str) and _COMPOUND.fullmatch(value.strip()):
        parts = [(Decimal(number), _NS_PER_UNIT[unit]) for number, unit in re.findall(_PART, value, re.ASCII)]
        if any(after >= before or number % 1 for (number, before), (_, after) in pairwise(parts)):
            raise ValueError(
                f"{value!r} must go from larger units to smaller ones, with a fraction in the last alone, such as 1h30m"
            )
        return _whole(sum((number * unit_ns for number, unit_ns in parts), Decimal(0)), value, "ns")
    number, unit_ns = _quantity(value, "a duration", "30s, 250ms or 2m", _NS_PER_UNIT, str)
    return _whole(number * unit_ns, value, "ns")


def parse_rate(value: object) -> float:
    """Rate in Hz of `"200/s"`, `"12000/min"`, `"3/h"`, `"200 Hz"` or `"0.5 kHz"`.

    Raises ValueError for a number without a unit and for a negative rate.
    """
    number, period_s = _quantity(value, "a rate", "200/s, 12000/min or 0.5 kHz", _PERIOD_S)
    rate_hz = float(number / period_s)
    if not math.isfinite(rate_hz):
        raise ValueError(f"{value!r} is too large for a rate")
    return rate_hz


def parse_share(text: str) -> float:
    """`"3%"`, `"12.5 %"` or `"0.03"` as a ratio, exact. Raises ValueError for what is no number, infinite or not."""
    with suppress(InvalidOperation):
        share = Decimal(text.strip().removesuffix("%").strip()) / (100 if "%" in text else 1)
        if share.is_finite():
            return float(share)
    raise ValueError(f"{text!r} is no share, use 3% or 0.03")


def parse_size(value: object) -> int:
    """Size in bytes of `"512 B"`, `"64 MiB"` (2^20 each) or `"1KB"` (1000 each), exact."""
    number, unit_bytes = _quantity(value, "a size", "64 MiB or 1 KB", _BYTES_PER_UNIT)
    return _whole(number * unit_bytes, value, "byte")


def format_size(size_bytes: int) -> str:
    """Shortest text that `parse_size` reads back as exactly `size_bytes`."""
    return _in_largest(size_bytes, _SIZES)


def parse_bandwidth(value: object) -> int:
    """Bytes per second of `"50 MB/s"` or `"10MiB/s"`, exact. Raises ValueError as `parse_size`."""
    if value == 0 and not isinstance(value, bool):
        return 0  # nothing needs no unit
    units = {f"{unit}/s": unit_bytes for unit, unit_bytes in _BYTES_PER_UNIT.items()}
    number, unit_bytes = _quantity(value, "a bandwidth", "50MB/s", units)
    return _whole(number * unit_bytes, value, "byte")


def format_bandwidth(bytes_per_s: int) -> str:
    """Shortest text that `parse_bandwidth` reads back as exactly `bytes_per_s` (0 or more)."""
    return _in_largest(bytes_per_s, _BANDWIDTHS)


def format_duration(duration_ns: int) -> str:
    """Shortest whole-number text that `parse_duration` reads back as exactly `duration_ns` (0 or more)."""
    if duration_ns < 0:
        raise ValueError(f"a duration is 0 or more, not {duration_ns} ns")
    return _in_largest(duration_ns, _NS_PER_UNIT) if duration_ns else "0s"


def digits_text(value: float, digits: int = 3) -> str:
    """`value` for people with that many significant digits, never as a power of ten: `134`, `0.00012`, `1,234,000`.

    Digits before the point are all given but rounded; zeros at the end of a fraction are not.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = digits - 1 - magnitude
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_rate(rate_hz: float) -> str:
    """Text such as `"200/s"` that `parse_rate` reads back as exactly the same float (0 or more)."""
    if not math.isfinite(rate_hz) or rate_hz < 0:
        raise ValueError(f"a rate is finite and 0 or more, not {rate_hz} Hz")
    return f"{int(rate_hz)}/s" if rate_hz == int(rate_hz) and rate_hz < 2**53 else f"{rate_hz!r}/s"


def _quantity(
    value: object,
    what: str,
    examples: str,
    units: Mapping[str, _Scale],
    fold: Callable[[str], str] = str.lower,
) -> tuple[Decimal, _Scale]:
    """Number and unit of `value`. Refuses what is no text, has no number, no unit that is known or is negative."""
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not {what}, write for example {examples}")
    if match[2] is None:
        raise ValueError(f"{value!r} has no unit, write {what} such as {examples}")
    number, unit = Decimal(match[1]), fold("".join(match[2].split()))
    if number < 0:
        raise ValueError(f"{value!r} is negative, {what} is 0 or more")
    if unit not in units:
        raise ValueError(f"{value!r} has an unknown unit {unit!r}, write {what} such as {examples}")
    return number, units[unit]


def _whole(number: Decimal, value: object, unit: str) -> int:
    """`number` as int, refused where it is no whole number of `unit` or leaves int64."""
    if number > _LARGEST:
        raise ValueError(f"{value!r} is too large")
    if number != number.to_integral_value():
        raise ValueError(f"{value!r} is not a whole number of {unit}")
    return int(number)


def _in_largest(number: int, units: Mapping[str, int]) -> str:
    """A whole number of the first of `units` that allows it; the last is 1, and takes 0."""
    unit = next(unit for unit, size in units.items() if size == 1 or (number and number % size == 0))
    return f"{number // units[unit]}{unit}"
