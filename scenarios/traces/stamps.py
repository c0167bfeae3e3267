"""Which columns of a table or a log say when a request began: an instant at its begin, or its end less its duration.

Columns are told by their names (`squall.scenarios.traces.names`) and by the values of the first rows: dates and
numbers that count from 1970 are instants, small numbers under a duration's name are durations. Servers whose logs are
known by their keys (nginx, Caddy, Traefik, pino) say which end a stamp without such a name is. What is left open is
refused with the columns in question, or read as begins with a note where nothing but the end is in question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.faults import RowFault, no_column, shown
from squall.scenarios.traces.instants import (
    Clock,
    Faults,
    each_text,
    epoch_unit,
    is_stamp,
    parse_number,
    stamp_kind,
)
from squall.scenarios.traces.names import (
    Side,
    duration_of,
    is_weak,
    plain_name,
    stamp_side,
    unit_of_name,
)
from squall.scenarios.traces.options import NS_PER_UNIT, TraceOptions, TraceUnit

Sample = Mapping[str, Sequence[str | None]]
"""Name and texts of the first rows of each column, of equal length; None or an empty text where a row has none."""

_SAMPLE_ROWS = 1_000
_ABSENT = ("", "-", "null")
_LEAST_ROWS = 20  # fewer rows show no order
_LEAST_RANK = 0.5  # rank correlation of value and row of instants; shuffled numbers have 0 ± 0.23
_LONGEST_TEXT = 1000  # a number for each upstream that was tried; what follows takes the square of it
_LONGEST_NS = 86_400 * 10**9  # a request of more than a day: its unit is another
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|min|s|h|m)", re.ASCII)
_PART_NS: dict[str, int] = {
    **{str(unit): ns for unit, ns in NS_PER_UNIT.items()},
    "h": 3600 * 10**9,
    "min": 60 * 10**9,
    "m": 60 * 10**9,
    "µs": 1000,
    "μs": 1000,
}
_NGINX = (
    "remote_addr remote_user body_bytes_sent bytes_sent http_referer http_referrer http_user_agent http_x_forwarded_for"
    " upstream_response_time upstream_addr upstream_status time_local time_iso8601 msec request_length server_protocol"
    " urt"
)
_SERVERS: tuple[tuple[str, str, str, TraceUnit | None, TraceUnit], ...] = (
    ("Caddy", "ts duration", "logger request msg resp_headers bytes_read request_method request_uri", "s", "s"),
    ("Traefik", "duration", "start_utc start_local origin_duration downstream_status router_name service_addr",
     None, "ns"),
    ("pino", "time response_time", "req res pid req_method res_status_code", "ms", "ms"),
)  # fmt: skip
"""Servers that stamp ends: the keys that are all there, those of which any is, units of stamp and durations."""


@dataclass
class Durations:
    """Columns whose sum is taken off the stamps of ends, and the unit of their numbers.

    `n_absent`: rows read so far without any of them, whose end is taken for their begin.
    """

    names: tuple[str, ...]
    unit: TraceUnit
    n_absent: int = 0

    def total_ns(self, columns: Mapping[str, Any], faults: Faults) -> NDArray[np.int64]:
        """The sum of a row's durations, of Arrow arrays of texts, numbers or durations; 0 of a row without, counted."""
        import pyarrow as pa

        durations = []
        for name in self.names:
            column, unit = columns[name], self.unit
            if pa.types.is_duration(column.type):
                column, unit = column.cast(pa.int64()), column.type.unit

            def parse(text: str | None, unit: TraceUnit = unit) -> int:
                duration = duration_ns(text, unit)
                return -1 if duration is None else duration

            durations.append(each_text(column, parse, faults, f"column {name!r}: "))
        ns = np.array(durations)
        is_absent: NDArray[np.bool_] = np.all(ns < 0, axis=0)
        is_absent[list(faults)] = False
        self.n_absent += int(is_absent.sum())
        total: NDArray[np.int64] = np.maximum(ns, 0).sum(axis=0)
        return total


@dataclass(frozen=True)
class Reading:
    """How the stamps of a file are read. `why`: what says so, for people; empty for a plain begin.

    `maybe`: what would be taken off if a stamp whose side is unknown were an end; None where nothing is.
    `has_seconds`: whether the stamps of the first rows are whole seconds, before any duration is taken off.
    """

    stamp: str
    side: Side = "unknown"
    durations: Durations | None = None
    maybe: tuple[str, ...] = ()
    unit: TraceUnit | None = None
    why: str = ""
    notes: tuple[str, ...] = ()
    has_seconds: bool = False

    def of_stamps(self, values: Sequence[str | None], unit: TraceUnit | None = None) -> Reading:
        """This with what the stamps show; `unit`: of numbers, None where they count from 1970 or in s."""
        return replace(self, has_seconds=_resolution_ns(instants_of(values, unit)) == NS_PER_UNIT["s"])

    def told(self, is_spread: bool = False) -> tuple[str, ...]:
        """What was read, and what that does to the figures, one sentence each; the absent durations so far counted.

        `is_spread`: arrivals are placed at random inside their tick.
        """
        if self.durations is not None:
            less, unit = " + ".join(self.durations.names), self.durations.unit
            said = [f"Arrivals are {self.stamp}, the end of a request{self.why}, less {less} ({unit})."]
            said += self.notes
            if self.durations.n_absent:
                said.append(
                    f"{self.durations.n_absent:,} rows have no {less}: their end stands for their begin, which"
                    " smooths bursts."
                )
            if self.has_seconds and not is_spread:
                said.append(
                    f"{self.stamp} has whole seconds: arrivals are up to 1 s early, and bursts within less than that"
                    " are not known."
                )
            return tuple(said)
        if self.side == "end":
            return (
                f"{self.stamp} is the end of a request{self.why} and no duration is beside it: each arrival is"
                " late by its own duration, so that bursts shorter than the durations are smoothed and dispersion,"
                " peaks and waits come out too low. Log the duration too, or name its column (--duration-column).",
                *self.notes,
            )
        if self.side == "unknown" and self.maybe:
            return (
                f"{self.stamp} is read as the begin of a request. Beside it is {' and '.join(self.maybe)}, and nothing"
                " says which end of the request the stamp is: if it is the end, bursts are smoothed here. Say"
                " --stamp-at end or --stamp-at begin.",
                *self.notes,
            )
        return self.notes


def duration_ns(text: str | None, unit: TraceUnit) -> int | None:
    """ns of a duration: a number in `unit`, one with its unit (`0.045s`, `1m2.5s`), or several (`0.1, 0.2`) summed.

    None for none: empty, `-`, and below 0 (load balancers write -1). Raises ValueError for what is no duration.
    """
    text = (text or "").strip().strip('"')
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"{shown(text)} is no duration")
    # nginx writes one for each upstream that was tried
    each = [_single_duration_ns(part.strip(), unit) for part in re.split(r"[,:]", text)]
    known = [ns for ns in each if ns is not None]
    return sum(known) if known else None


def _single_duration_ns(text: str, unit: TraceUnit) -> int | None:
    if text in _ABSENT:
        return None
    parts = _PART.findall(text)
    if parts and not _PART.sub("", text).strip():
        return int(sum(Decimal(number) * _PART_NS[word] for number, word in parts))
    number = _number(text)
    if number is None:
        raise ValueError(f"{shown(text)} is no duration")
    if number < 0:
        return None
    # the first is perhaps beyond what can be multiplied
    if number > 10**18 or number * NS_PER_UNIT[unit] > 10**18:
        raise ValueError(f"{shown(text)} {unit} is too long for a duration")
    return int(number * NS_PER_UNIT[unit])


class _Column:
    """The first rows of a column, and what its values and its name are."""

    def __init__(self, name: str, values: Sequence[str | None]) -> None:
        self.name = name
        self.values = values[:_SAMPLE_ROWS]
        self.known = [
            value.strip() for value in self.values if (value or "").strip() not in _ABSENT and value
        ]

    @cached_property
    def kind(self) -> str:
        """`clock` for dates with a time of day, `date` without, `epoch` for numbers since 1970, else as said.

        By nine of ten rows: a malformed one does not make a column of instants another.
        """
        if not self.known:
            return "empty"
        counts = Counter(map(_kind_of, self.known))
        counts["number"] += counts["epoch"]
        of_most = (
            kind for kind in ("clock", "epoch", "date", "number") if counts[kind] >= 0.9 * len(self.known)
        )
        return next(of_most, "text")

    @cached_property
    def is_duration(self) -> bool:
        """Whether the name is a duration's and the values can be: numbers from 0 on that do not count from 1970."""
        if duration_of(self.name) is None:
            return False
        if any(duration_or_none(text) is None and not text.startswith("-") for text in self.known):
            return False
        return self.kind not in ("epoch", "clock", "date")

    @cached_property
    def is_ordered(self) -> bool:
        """Whether numbers can be instants: their order has to do with that of the rows, or rows are too few to say."""
        known = [float(number) for text in self.known if (number := _number(text)) is not None]
        if len(known) < _LEAST_ROWS or all(after >= before for before, after in pairwise(known)):
            return True
        ranks = np.argsort(np.argsort(known, kind="stable"), kind="stable").astype(float)
        return abs(float(np.corrcoef(ranks, np.arange(ranks.size))[0, 1])) >= _LEAST_RANK

    @cached_property
    def ns(self) -> list[int | None]:
        return instants_of(self.values)

    @cached_property
    def step_ns(self) -> int:
        return _resolution_ns(self.ns)

    def pairs(self, other: _Column) -> list[tuple[int, int]]:
        """The instants of the rows that have both."""
        both = zip(self.ns, other.ns, strict=True)
        return [(a, b) for a, b in both if a is not None and b is not None]

    def is_same(self, other: _Column) -> bool:
        """Whether both are the same instant but for a constant (a time zone) and the coarser one's steps.

        True where no row has both.
        """
        offsets = [a - b for a, b in self.pairs(other)]
        return not offsets or max(offsets) - min(offsets) <= max(self.step_ns, other.step_ns)


def read_stamps(
    columns: Sample, options: TraceOptions, server: Side = "unknown", row: int | None = 1
) -> Reading:
    """The columns that say when a request began. `server`: which end a stamp is by the format, where no name says it.

    Raises RowFault, with the columns in question and the flag that chooses, where there is none or several disagree.
    """
    known = {name: _Column(name, values) for name, values in columns.items()}
    reading = _read_stamps(known, options, server, row)
    return reading.of_stamps(known[reading.stamp].values, reading.unit)


def _read_stamps(
    columns: Mapping[str, _Column], options: TraceOptions, server: Side, row: int | None
) -> Reading:
    stamp, side = _stamp(columns, options, row)
    dialect, why, unit, duration_unit = _dialect(columns)
    if side == "unknown":
        side = server if server != "unknown" else dialect
    elif side == "begin":
        why, unit = "", None
    if options.stamp_at is not None:
        side, why = options.stamp_at, " (as stated)"
    taken = tuple(named(columns, name, row) for name in options.duration_columns)
    if taken and options.stamp_at is None:
        side = "end"
    unit = options.unit or unit_of_name(stamp) or unit
    if taken and side == "begin":
        raise RowFault(
            row, f"a stamp at the begin ({stamp}) has no duration taken off it: leave out {taken[0]!r}"
        )
    totals = [name for name in columns if name != stamp and columns[name].is_duration]
    whole = tuple(name for name in totals if duration_of(name) == "total")
    if side != "end":
        return Reading(stamp, side, maybe=whole if side == "unknown" else (), unit=unit)
    notes: tuple[str, ...] = ()
    if not taken and totals:
        taken = (_longest([columns[name] for name in whole or totals], row),)
        if not whole:
            notes = (f"{taken[0]} is a part of a request's duration: arrivals are late by the rest of it.",)
    if not taken:
        return Reading(stamp, side, unit=unit, why=why)
    ticks = unit or _stamp_unit(columns[stamp].values)
    known = options.duration_unit or _unit_of_durations(
        [columns[n] for n in taken], duration_unit, ticks, row
    )
    return Reading(stamp, side, Durations(taken, known), unit=unit, why=why, notes=notes)


def _stamp(columns: Mapping[str, _Column], options: TraceOptions, row: int | None) -> tuple[str, Side]:
    """The column of the instants and the side that its name says."""
    sides = {name: known for name in columns if (known := stamp_side(name)) is not None}
    if options.column is not None:
        name = named(columns, options.column, row)
        return name, sides[name][0] if name in sides else "unknown"
    instants: dict[str, tuple[Side, bool]] = {}
    unfit = []
    for name, (side, is_listed) in sides.items():
        kind = columns[name].kind
        is_number = kind in ("number", "empty") and duration_of(name) is None
        if kind in ("clock", "epoch") or (is_listed and (kind == "date" or is_number)):
            if kind == "number" and not columns[name].is_ordered:
                unfit.append(name)
            else:
                instants[name] = side, is_listed
    instants = {name: instants[name] for name in instants if not is_weak(name)} or instants
    moving = [name for name in instants if len({*filter(None, columns[name].values)}) > 1]
    instants = {name: instants[name] for name in moving} or instants
    if not instants and not unfit:  # a listed name whose rows cannot be read: the rows say what is wrong
        instants = {name: sides[name] for name in sides if sides[name][1] and not columns[name].is_duration}
    if not instants:
        raise _no_stamp(columns, unfit, row)
    return _one_of(instants, columns, row)


def _one_of(
    instants: dict[str, tuple[Side, bool]], columns: Mapping[str, _Column], row: int | None
) -> tuple[str, Side]:
    """Begins that are listed before all others; else all that are left must be the same instant."""
    everyone = tuple(instants)
    begins = [name for name in everyone if instants[name] == ("begin", True)]
    names = begins or everyone
    chosen = names[0]
    for other in names[1:]:
        pairs = columns[chosen].pairs(columns[other])
        if columns[chosen].is_same(columns[other]):
            chosen = min((chosen, other), key=lambda name: (columns[name].step_ns, everyone.index(name)))
        elif begins and all(a >= b for a, b in pairs):
            chosen = other
        elif not begins or any(a > b for a, b in pairs):
            raise RowFault(
                row,
                f"both {chosen!r} and {other!r} are instants and differ; say which is the arrival: --column {chosen} or"
                f" --column {other}",
            )
    for other in everyone:  # one that is not listed may be the same instant with more digits
        is_same = instants[other][0] == instants[chosen][0] and columns[chosen].is_same(columns[other])
        if is_same and columns[other].step_ns < columns[chosen].step_ns:
            chosen = other
    sides = {instants[name][0] for name in names if columns[chosen].is_same(columns[name])}
    side: Side = "begin" if "begin" in sides else "end" if "end" in sides else "unknown"
    return chosen, side


def _no_stamp(columns: Mapping[str, _Column], unfit: list[str], row: int | None) -> RowFault:
    dated = [name for name, column in columns.items() if column.kind in ("clock", "epoch")]
    durations = [name for name, column in columns.items() if column.is_duration]
    flag = f"name the instants' column, --column {(dated or unfit or ['NAME'])[0]}"
    if unfit:
        return RowFault(row, f"the numbers of {unfit[0]!r} are in no order of time, as durations are; {flag}")
    if dated:
        return RowFault(row, f"no column is named as an instant's, {dated[0]!r} holds instants; {flag}")
    if durations:
        return RowFault(row, f"{durations[0]!r} is a duration, and no column is an instant's; {flag}")
    return no_column(list(columns), "timestamp", row)


def _dialect(columns: Mapping[str, _Column]) -> tuple[Side, str, TraceUnit | None, TraceUnit | None]:
    """Of a server known by its keys: which end its stamp is, in words, and the units of stamp and durations."""
    names = {plain_name(name) for name in columns}
    of_nginx = names.intersection(_NGINX.split())
    times = [
        column
        for name, column in columns.items()
        if plain_name(name) in ("request_time", "rt") and column.is_duration
    ]
    has_fractions = any("." in text for column in times for text in column.known)
    if len(of_nginx) >= 2 or (times and (of_nginx or has_fractions)):
        return "end", ", as nginx writes it", None, "s" if has_fractions or of_nginx else None
    for server, needed, any_of, unit, duration_unit in _SERVERS:
        if names.issuperset(needed.split()) and names.intersection(any_of.split()):
            return "end", f", as {server} writes it", unit, duration_unit
    return "unknown", "", None, None


def _unit_of_durations(
    taken: Sequence[_Column], dialect: TraceUnit | None, stamps: TraceUnit | None, row: int | None
) -> TraceUnit:
    """Stated by the name, by the server or by the values; else that of the stamps where these are numbers."""
    unit_named = next((unit for column in taken if (unit := unit_of_name(column.name)) is not None), None)
    if any(plain_name(column.name) == "event_duration" for column in taken):  # the Elastic Common Schema
        unit_named = "ns"
    texts = [text for column in taken for text in column.known]
    if texts and all(map(_PART.search, texts)):
        return unit_named or "s"  # each value says its unit
    unit = unit_named or dialect or stamps
    if unit is None:
        what = f"nothing says the unit of the duration {taken[0].name!r}"
        raise RowFault(row, f"{what}: --duration-unit s, ms, us or ns")
    longest = max((duration_or_none(text, unit) or 0 for text in texts), default=0)
    if longest > _LONGEST_NS and unit_named is None:
        what = f"the duration {taken[0].name!r} would be {longest / 1e9 / 3600:,.0f} h in {unit}"
        raise RowFault(row, f"{what}: --duration-unit s, ms, us or ns")
    return unit


def _longest(columns: Sequence[_Column], row: int | None) -> str:
    """The duration that holds the others: at least as long in every row. Raises RowFault where none is."""
    values = {column.name: [duration_or_none(text) for text in column.values] for column in columns}
    for name, mine in values.items():
        pairs = [pair for other in values.values() for pair in zip(mine, other, strict=True)]
        if all(own >= other for own, other in pairs if own is not None and other is not None):
            return name
    first, second, *_ = values
    what = f"{first!r} and {second!r} are durations and neither holds the other"
    raise RowFault(row, f"{what}: say --duration-column {first} or --duration-column {second}")


def duration_or_none(text: str | None, unit: TraceUnit = "ms") -> int | None:
    """As `duration_ns`, None for what is no duration. Whatever it is in, ms leaves room for ns above and s below."""
    try:
        return duration_ns(text, unit)
    except ValueError:
        return None


def _kind_of(text: str) -> str:
    if stamp_kind(text) == "date":
        return "text" if not is_stamp(text) else "clock" if ":" in text else "date"
    number = _number(text)
    return "text" if number is None else "number" if epoch_unit(number) is None else "epoch"


def _number(text: str) -> Decimal | None:
    try:
        return parse_number(text.strip())
    except ValueError:
        return None


def _stamp_unit(values: Sequence[str | None]) -> TraceUnit | None:
    """The unit of numbers that count from 1970, `s` of smaller ones; None of dates."""
    number = _number(next((value for value in values if value), ""))
    return None if number is None else epoch_unit(number) or "s"


def instants_of(values: Sequence[str | None], unit: TraceUnit | None = None) -> list[int | None]:
    """ns of each value: numbers in `unit`; None: in that in which they count from 1970, `s` where they do not."""
    clock = Clock(unit or _stamp_unit(values) or "s")
    instants: list[int | None] = []
    for value in values:
        try:
            instants.append(clock.read_one(value))
        except ValueError:
            instants.append(None)
    return instants


def _resolution_ns(instants: Sequence[int | None]) -> int:
    known = [ns for ns in instants if ns is not None]
    return next((step for step in (10**9, 10**6, 10**3) if all(ns % step == 0 for ns in known)), 1)


def named(names: Mapping[str, Any] | Sequence[str], wanted: str, row: int | None = 1) -> str:
    """The name that is `wanted`, in letters of any case. Raises RowFault with the nearest ones."""
    alike = [name for name in names if name.lower() == wanted.lower()]
    if not alike:
        raise no_column(list(names), wanted, row)
    return wanted if wanted in alike else alike[0]
