"""Text to int64 ns without a float: decimal numbers in a unit, and ISO dates and times.

Digits below 1 ns are cut (towards 0). Arrow's casts of text to decimal128 and to timestamps are exact and do
the work; a column that they refuse is read again text by text, which accepts a little more (exponents, more than
9 decimals in a date, dates of logs) and names what cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Context, Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.traces.faults import shown
from squall.scenarios.traces.options import NS_PER_UNIT, TraceUnit
from squall.scenarios.traces.part import EMPTY_SIZE

StampKind = Literal["number", "date"]
Faults = dict[int, str]
"""What is wrong, by index into a stretch of rows; the first fault of a row counts."""

INT64_MAX = 2**63 - 1
EMPTY_CELLS = ("", "-")
DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimals of a number in a unit down to 1 ns."""
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d)?(?:[.,](\d+))?\s?(Z|UTC|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_LOG_DATE = re.compile(r"\[?(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d\S*(?: [-+]\d{4})?)\]?", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# From 50 digits on Arrow's cast to decimal128 can give another number, below 10^-10^8 it reads outside its memory.
_BEYOND_CAST = r"[0-9.]{40}|[0-9.][eE][-+]?[0-9]{4}"
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

    def read(self, column: Any, faults: Faults) -> Int64s:
        """ns of an Arrow array of any type that can be a time, (n,) int64; 0 where `faults` gets what is wrong.

        A float is taken by its shortest decimal form, the digits that its writer meant.
        """
        import pyarrow as pa

        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if not pa.types.is_binary(column.type):
            for zone in (None, "UTC") if not column.null_count else ():
                with suppress(pa.ArrowInvalid):
                    return self._cast(column, zone)
            column = column.cast(pa.string())
        return each_text(column, self.read_one, faults)

    def _cast(self, column: Any, zone: str | None) -> Int64s:
        """ns by Arrow's casts. Raises ArrowInvalid if it refuses a row; `zone`: of dates that state one."""
        import pyarrow as pa

        types, digits = pa.types, DIGITS[self.unit]
        is_time = types.is_timestamp(column.type) or types.is_date(column.type)
        if not (is_time or types.is_integer(column.type) or types.is_decimal(column.type)):
            column = column.cast(pa.string())
            if self.kind is None and len(column):
                self.kind = stamp_kind(str(column[0]))
        if is_time or (self.kind == "date" and types.is_string(column.type)):
            kind = pa.timestamp("ns", getattr(column.type, "tz", zone))
            return column.cast(kind).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]
        if types.is_string(column.type) and not is_safe_to_cast(column):
            raise pa.ArrowInvalid("the cast might give another number")
        numbers = column.cast(pa.decimal128(38, digits))
        whole = pa.Array.from_buffers(
            pa.decimal128(38, 0), len(numbers), numbers.buffers(), offset=numbers.offset
        )
        return whole.cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]

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


def is_safe_to_cast(numbers: Any) -> bool:
    """Whether Arrow's cast of numbers to decimal128 is exact or refuses: of texts, or of all in one text."""
    import pyarrow.compute as pc

    return not pc.any(pc.match_substring_regex(numbers, _BEYOND_CAST)).as_py()


def each_text(column: Any, parse: Callable[[str | None], int], faults: Faults, what: str = "") -> Int64s:
    """`parse` of the texts of an Arrow array, (n,) int64, each distinct one parsed once; None for null.

    Where it raises ValueError the value is 0, and `faults` gets the message after `what`.
    """
    import pyarrow as pa

    is_encoded = pa.types.is_dictionary(column.type)  # it may have nulls among its values, or beside them
    plain = column.dictionary_decode() if is_encoded else column
    encoded = plain.dictionary_encode(null_encoding="encode")
    values, wrong = [0] * len(encoded.dictionary), {}
    for place, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            values[place] = parse(_text_of(value))
        except ValueError as error:
            wrong[place] = f"{what}{error}"
    places = encoded.indices.to_numpy()
    for index in np.flatnonzero(np.isin(places, list(wrong))).tolist() if wrong else ():
        faults.setdefault(index, wrong[int(places[index])])
    numbers: Int64s = np.array(values, dtype=np.int64)[places]
    return numbers


def _text_of(value: Any) -> str | None:
    if not isinstance(value, bytes):
        return None if value is None else str(value)
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return value.decode("utf-8", "backslashreplace")


def stamp_kind(text: str) -> StampKind:
    """Whether `text` is written as a date; anything else can only be a number."""
    text = text.strip()
    return "date" if _DATE.match(text) or _LOG_DATE.match(text) else "number"


def parse_stamp_ns(text: str, unit: TraceUnit) -> int:
    """ns of a number in `unit`, or since 1970 of a date and time, ISO's or a log's (UTC where it names no zone).

    Raises ValueError with what is wrong.
    """
    text = text.strip()
    of_log = _LOG_DATE.fullmatch(text)
    if of_log is not None:  # 10/Oct/2000:13:55:36 -0700, as logs have it
        day, month, year, clock = of_log.groups()
        if month not in _MONTHS:
            raise ValueError(f"{month!r} is no month")
        text = f"{year}-{_MONTHS.index(month) + 1:02d}-{day} {clock}"
    moment = _DATE.fullmatch(text)
    if moment is None:
        return _number_ns(text, unit)
    day, minute, second, decimals, zone = moment.groups()
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    try:
        whole = datetime.fromisoformat(f"{day} {minute or '00:00'}{second or ':00'}{zone}") - _EPOCH
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not a time: {' '.join(str(error).split())}") from error
    below_ns = int((decimals or "0")[:9].ljust(9, "0"))
    stamp_ns = (whole.days * 86_400 + whole.seconds) * NS_PER_UNIT["s"] + below_ns
    if abs(stamp_ns) > INT64_MAX:
        raise ValueError(f"{shown(text)} is beyond the years 1678 to 2261 that ns in 64 bits reach")
    return stamp_ns


def is_stamp(text: str) -> bool:
    """Whether `text` is a number or a date, whatever its unit."""
    try:
        Clock("ns").read_one(text)
    except ValueError:
        return False
    return True


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


def parse_whole(text: str | None) -> int:
    """A whole number within int64, also as `512.0`; -1 for an empty cell or `-`. Raises ValueError for what is none."""
    text = (text or "").strip()
    if text in EMPTY_CELLS:
        return EMPTY_SIZE
    try:
        number = parse_number(text)
    except ValueError:
        number = Decimal("0.5")
    if number.adjusted() > 18 or number != number.to_integral_value() or abs(number) > INT64_MAX:
        raise ValueError(f"{shown(text)} is not a whole number within 64 bits")
    return int(number)
