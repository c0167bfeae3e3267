"""Text to int64 ns without a float: decimal numbers in a unit, and ISO dates and times.

Digits below 1 ns are cut (towards 0). Arrow's casts of text to decimal128 and to timestamps are exact and do
the work; a column that they refuse is read again row by row, which accepts a little more (exponents, more than
9 decimals in a date) and names what cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Context, Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import shown
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceUnit
from squall.scenarios.traces.parts.part import EMPTY_SIZE

StampKind = Literal["number", "date"]

INT64_MAX = 2**63 - 1
EMPTY_CELLS = ("", "-")
_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d)?(?:[.,](\d+))?\s?(Z|UTC|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_LOG_DATE = re.compile(r"\[?(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d\S*(?: [-+]\d{4})?)\]?", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST_CAST = 40  # characters; from 50 on Arrow's cast of a number to decimal128 can give another number
_RUN = 24  # every run of 47 characters holds 24 that begin at a multiple of 24
_LONG_EXPONENT = r"[eE][-+]?[0-9]{4}"  # and below -10^8 or so it reads outside its memory
_CUT = Context(prec=100, rounding=ROUND_DOWN)  # a number of any length, times its unit, towards 0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_S = range(600_000_000, 4_200_000_000)  # 1989 to 2103


@dataclass
class Clock:
    """How the stamps of one file are read: the unit of its numbers, and whether they are numbers or dates.

    `kind` is set by the first stamp, and a later one of the other kind is a fault.
    """

    unit: TraceUnit
    kind: StampKind | None = None

    @property
    def digits(self) -> int:
        """Decimals of a number in `unit` down to 1 ns."""
        return _DIGITS[self.unit]

    def read(self, texts: Any) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
        """ns of an Arrow string array, (n,) int64, and the faults: index and what is wrong (its ns is 0)."""
        if self.kind is None:
            self.kind = next((stamp_kind(text) for text in texts.to_pylist() if text is not None), None)
        ns = self._cast(texts)
        return (ns, []) if ns is not None else self.read_each(texts.to_pylist())

    def read_each(self, texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
        """As `read`, row by row."""
        ns = np.zeros(len(texts), dtype=np.int64)
        faults: list[tuple[int, str]] = []
        for index, text in enumerate(texts):
            try:
                ns[index] = self.read_one(text)
            except ValueError as error:
                faults.append((index, str(error)))
        return ns, faults

    def read_one(self, text: str | None) -> int:
        """ns of one stamp. Raises ValueError with what is wrong."""
        if text is None or not text.strip():
            raise ValueError("the timestamp is empty")
        stamp_ns = parse_stamp_ns(text, self.unit)
        kind = stamp_kind(text)
        self.kind = self.kind or kind
        if kind != self.kind:
            names = {"number": "a number", "date": "a date and time"}
            raise ValueError(
                f"{shown(text)} is {names[kind]} where the rows before have {names[self.kind]}; use one of the two"
            )
        return stamp_ns

    def _cast(self, texts: Any) -> NDArray[np.int64] | None:
        """ns by Arrow's casts, None where they refuse a row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if texts.null_count:
            return None
        if self.kind == "date":
            for zone in (None, "UTC"):
                try:
                    return texts.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]
                except pa.ArrowInvalid:
                    continue
            return None
        if not is_safe_to_cast(texts):
            return None
        try:
            return decimal_ns(texts.cast(pa.decimal128(38, self.digits)))
        except pa.ArrowInvalid:
            pass
        below_1_ns = rf"(\.[0-9]{{{self.digits}}})[0-9]+\s*$" if self.digits else r"()\.[0-9]*\s*$"
        try:
            cut = pc.replace_substring_regex(texts, below_1_ns, r"\1")
            return decimal_ns(cut.cast(pa.decimal128(38, self.digits)))
        except pa.ArrowInvalid:
            return None


def is_safe_to_cast(texts: Any) -> bool:
    """Whether Arrow's cast of these texts to decimal128 is exact or refuses, which holds for short ones only."""
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > _MOST_CAST:
        return False
    codes = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    return (
        not ((codes | 32) == ord("e")).any()
        or not pc.any(pc.match_substring_regex(texts, _LONG_EXPONENT)).as_py()
    )


def is_safe_as_json(data: bytes) -> bool:
    """The same for the numbers of a JSON text: no run of 47 digits, no exponent of 4."""
    codes = np.frombuffer(data, dtype=np.uint8)
    is_digit = (codes - ord("0") < 10) | (codes == ord("."))
    aligned = is_digit[: is_digit.size // _RUN * _RUN].reshape(-1, _RUN)
    places = np.flatnonzero((codes[1:] | 32) == ord("e")) + 1
    has_exponent = bool(is_digit[places - 1].any())
    return not aligned.all(axis=1).any() and not (
        has_exponent and re.search(rb"[0-9.][eE][-+]?[0-9]{4}", data)
    )


def decimal_ns(numbers: Any) -> NDArray[np.int64] | None:
    """The unscaled int64 values of an Arrow decimal128 array; None where one leaves int64 or is null.

    A decimal128 is 16 bytes, little-endian two's complement: it fits 64 bits where the upper word is the sign
    of the lower one.
    """
    if numbers.null_count:
        return None
    words = np.frombuffer(numbers.buffers()[1], dtype=np.int64)
    words = words[2 * numbers.offset : 2 * (numbers.offset + len(numbers))].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    return None if (high != low >> 63).any() else low.copy()


def stamp_kind(text: str) -> StampKind:
    """Whether `text` is written as a date; anything else can only be a number."""
    text = text.strip()
    return "date" if _DATE.match(text) or _LOG_DATE.match(text) else "number"


def parse_stamp_ns(text: str, unit: TraceUnit) -> int:
    """ns of a number in `unit`, or since 1970 of a date and time, ISO's or a log's (UTC where it names no zone).

    Raises ValueError with what is wrong.
    """
    text = _iso(text.strip())
    moment = _DATE.fullmatch(text)
    if moment is None:
        return _number_ns(text, unit)
    day, minute, second, decimals, zone = moment.groups()
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    try:
        whole = datetime.fromisoformat(f"{day} {minute or '00:00'}{second or ':00'}{zone}") - _EPOCH
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not a time: {' '.join(str(error).split())}") from error
    stamp_ns = (whole.days * 86_400 + whole.seconds) * NS_PER_UNIT["s"] + int(
        (decimals or "0")[:9].ljust(9, "0")
    )
    if abs(stamp_ns) > INT64_MAX:
        raise ValueError(f"{shown(text)} is beyond the years 1678 to 2261 that ns in 64 bits reach")
    return stamp_ns


def _iso(text: str) -> str:
    """`10/Oct/2000:13:55:36 -0700`, as logs have it, as an ISO date; any other text as it is. Raises ValueError."""
    found = _LOG_DATE.fullmatch(text)
    if found is None:
        return text
    day, month, year, clock = found.groups()
    if month not in _MONTHS:
        raise ValueError(f"{month!r} is no month")
    return f"{year}-{_MONTHS.index(month) + 1:02d}-{day} {clock}"


def parse_number(text: str) -> Decimal:
    """A finite number as people and programs write it. Raises ValueError for what is none."""
    try:
        number = Decimal(text) if "_" not in text else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise ValueError(f"{shown(text)} is not a time")
    return number


def _number_ns(text: str, unit: TraceUnit) -> int:
    """Whole ns of a number, towards 0. Raises ValueError for what is no number, and where it leaves int64."""
    number = parse_number(text)
    too_large = number.adjusted() > 30
    stamp_ns = 0 if too_large else int(_CUT.multiply(number, Decimal(NS_PER_UNIT[unit])))
    if too_large or abs(stamp_ns) > INT64_MAX:
        guess = epoch_unit(number)
        looks = f"it looks like {guess} since 1970: state the unit" if guess else "is its unit right?"
        raise ValueError(f"{shown(text)} {unit} is too large for a time in ns ({looks})")
    return stamp_ns


def epoch_unit(number: Decimal | int) -> TraceUnit | None:
    """The unit in which `number` is an instant between 1989 and 2103, None where it is in none."""
    for unit, ns_per_unit in NS_PER_UNIT.items():
        per_s = NS_PER_UNIT["s"] // ns_per_unit
        if _EPOCH_S.start * per_s <= number < _EPOCH_S.stop * per_s:
            return unit
    return None


def parse_whole(text: str) -> int:
    """A whole number within int64, also as `512.0`; -1 for an empty cell or `-`. Raises ValueError for what is none."""
    text = text.strip()
    if text in EMPTY_CELLS:
        return EMPTY_SIZE
    try:
        number = parse_number(text)
    except ValueError:
        number = Decimal("0.5")
    if number.adjusted() > 18 or number != number.to_integral_value() or abs(number) > INT64_MAX:
        raise ValueError(f"{shown(text)} is not a whole number within 64 bits")
    return int(number)
