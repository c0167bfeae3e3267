"""Durations, rates and sizes as people write them, to ns, Hz and bytes, and back.

A number without a unit is refused everywhere: `30` could be seconds or milliseconds, `30s` cannot.
Every failure is a `ValueError` with one line that says what to write; the loader adds the key path.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from itertools import pairwise

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_NS_PER_UNIT = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
}
_HZ_PER_UNIT = {"hz": Decimal(1), "khz": Decimal(1_000), "mhz": Decimal(1_000_000)}
_PERIOD_S = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3_600}
# SI prefixes are powers of 1000 and IEC ones of 1024 (IEC 80000-13).
_BYTES_PER_UNIT = {
    "b": 1,
    **{f"{prefix}b": 1_000 ** (power + 1) for power, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": 1_024 ** (power + 1) for power, prefix in enumerate("kmgt")},
}
_FORMAT_UNITS = ("h", "m", "s", "ms", "us", "ns")
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*)?", re.ASCII)
_PART = r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min|m|h)"
_COMPOUND = re.compile(rf"{_PART}(?:\s*{_PART})+", re.ASCII)
_LARGEST_EXPONENT = 1_000
_LARGEST = Decimal(2**63 - 1)  # every instant and length is an int64


def parse_duration(value: object) -> int:
    """Length in ns of `"30s"`, `"250ms"`, `"100us"`, `"10ns"`, `"2m"`, `"1.5h"` or `"1h30m"`, exact.

    Raises ValueError for a number without a unit, a negative length, a fraction of a ns, and parts of a length that do
    not go from a larger unit to a smaller one.
    """
    if isinstance(value, str) and _COMPOUND.fullmatch(value.strip()):
        return _compound(value)
    number, unit = _quantity(value, "a duration", "30s, 250ms or 2m")
    if unit not in _NS_PER_UNIT:
        raise ValueError(f"{value!r} has an unknown unit of time {unit!r}, use ns, us, ms, s, m or h")
    return _whole(number * _NS_PER_UNIT[unit], value, "ns")


def _compound(text: str) -> int:
    """ns of several parts such as `13m50s`; only the last may have a fraction."""
    parts = re.findall(_PART, text, re.ASCII)
    sizes = [_NS_PER_UNIT[unit] for _, unit in parts]
    if any(after >= before for before, after in pairwise(sizes)):
        raise ValueError(f"{text!r} must go from larger units to smaller ones, such as 1h30m or 13m50s")
    if any("." in number for number, _ in parts[:-1]):
        raise ValueError(f"{text!r} has a fraction before its last part, write for example 1h30m")
    total = sum(Decimal(number) * size for (number, _), size in zip(parts, sizes, strict=True))
    return _whole(Decimal(total), text, "ns")


def parse_rate(value: object) -> float:
    """Rate in Hz of `"200/s"`, `"12000/min"`, `"3/h"`, `"200 Hz"` or `"0.5 kHz"`.

    Raises ValueError for a number without a unit and for a negative rate.
    """
    number, unit = _quantity(value, "a rate", "200/s, 12000/min or 0.5 kHz")
    if unit.startswith("/") and unit[1:].strip() in _PERIOD_S:
        rate_hz = number / _PERIOD_S[unit[1:].strip()]
    elif unit.lower() in _HZ_PER_UNIT:
        rate_hz = number * _HZ_PER_UNIT[unit.lower()]
    else:
        raise ValueError(f"{value!r} has an unknown unit of rate {unit!r}, use /s, /min, /h, Hz or kHz")
    if not math.isfinite(float(rate_hz)):
        raise ValueError(f"{value!r} is too large for a rate")
    return float(rate_hz)


def parse_share(text: str) -> float:
    """`"3%"`, `"12.5 %"` or `"0.03"` as a ratio, exact. Raises ValueError for what is no number, infinite or not."""
    number = text.strip()
    try:
        found = Decimal(number.removesuffix("%").strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no share, use 3% or 0.03") from error
    if not found.is_finite():
        raise ValueError(f"{text!r} is no share, use 3% or 0.03")
    return float(found / 100 if number.endswith("%") else found)


def parse_size(value: object) -> int:
    """Size in bytes of `"512 B"`, `"64 MiB"` (2^20 each) or `"1KB"` (1000 each), exact."""
    number, unit = _quantity(value, "a size", "64 MiB or 1 KB")
    if unit.lower() not in _BYTES_PER_UNIT:
        raise ValueError(
            f"{value!r} has an unknown unit of size {unit!r}, use B, KB, MB, GB, KiB, MiB or GiB"
        )
    return _whole(number * _BYTES_PER_UNIT[unit.lower()], value, "byte")


def format_size(size_bytes: int) -> str:
    """Shortest text that `parse_size` reads back as exactly `size_bytes`."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % one == 0:
            return f"{size_bytes // one} {unit}"
    return f"{size_bytes} B"


def parse_bandwidth(value: object) -> int:
    """Bytes per second of `"50 MB/s"` or `"10MiB/s"`, exact. Raises ValueError as `parse_size`."""
    if isinstance(value, int) and not isinstance(value, bool) and value == 0:
        return 0  # nothing needs no unit
    text, slash, per = value.strip().rpartition("/") if isinstance(value, str) else ("", "", "")
    if not slash or per.strip() != "s":
        raise ValueError(f"{value!r} is not a bandwidth, write for example 50MB/s")
    return parse_size(text.strip())


def format_bandwidth(bytes_per_s: int) -> str:
    """Shortest text that `parse_bandwidth` reads back as exactly `bytes_per_s` (0 or more)."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if bytes_per_s and bytes_per_s % size == 0:
            return f"{bytes_per_s // size}{unit}/s"
    return f"{bytes_per_s}B/s"


def format_duration(duration_ns: int) -> str:
    """Shortest whole-number text that `parse_duration` reads back as exactly `duration_ns` (0 or more)."""
    if duration_ns < 0:
        raise ValueError(f"a duration is 0 or more, not {duration_ns} ns")
    if duration_ns == 0:
        return "0s"
    unit = next(u for u in _FORMAT_UNITS if duration_ns % _NS_PER_UNIT[u] == 0)
    return f"{duration_ns // _NS_PER_UNIT[unit]}{unit}"


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


def _quantity(value: object, what: str, examples: str) -> tuple[Decimal, str]:
    """Number and unit text of `value`. Refuses what is no text, has no number, no unit or is negative."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)  # of any length
    if is_whole or (isinstance(value, float) and math.isfinite(value)):
        raise ValueError(f"{value!r} has no unit, write {what} such as {examples}")
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not {what}, write for example {examples}")
    if match[2] is None:
        raise ValueError(f"{value!r} has no unit, write {what} such as {examples}")
    try:
        number = Decimal(match[1])
    except InvalidOperation as error:
        raise ValueError(f"{value!r} is out of range for {what}") from error
    if number.adjusted() > _LARGEST_EXPONENT:  # the product with a unit would leave the range of Decimal
        raise ValueError(f"{value!r} is out of range for {what}")
    if number < 0:
        raise ValueError(f"{value!r} is negative, {what} is 0 or more")
    return number, match[2].strip()


def _whole(number: Decimal, value: object, unit: str) -> int:
    """`number` as int, refused where it is no whole number of `unit` or leaves int64."""
    if number > _LARGEST:
        raise ValueError(f"{value!r} is too large")
    if number != number.to_integral_value():
        raise ValueError(f"{value!r} is not a whole number of {unit}")
    return int(number)
