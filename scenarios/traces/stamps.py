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
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

import numpy as np

from squall.scenarios.arrays import Bools, Int64s
from squall.scenarios.records import Frozen
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

Masked = np.ma.MaskedArray[tuple[int], np.dtype[np.int64]]
Sample = Mapping[str, Sequence[str | None]]
"""Name and texts of the first rows of each column, of equal length; None or an empty text where a row has none."""

SAMPLE_ROWS = 1_000
_ABSENT = ("", "-", "null")
_LEAST_ROWS = 20  # fewer rows show no order
_LEAST_RANK = 0.5  # rank correlation of value and row of instants; shuffled numbers have 0 ± 0.23
_LONGEST_TEXT = 1000  # a number for each upstream that was tried; what follows takes the square of it
_LONGEST = Decimal(10**18)  # of ns, 32 years; larger numbers may be beyond what can be multiplied
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


class Stamps(Frozen):
    """What a format, or the server that wrote a log, says of its stamps.

    `column` that has them, None where names and values show it; `is_only`: no other can be named. `side` and `unit`
    hold where the column's name says none. `durations`: whose sum is taken off ends, if no others are named;
    `duration_unit` of their numbers. `server`: what writes so.
    """

    column: str | None = None
    side: Side = "unknown"
    unit: TraceUnit | None = None
    server: str = ""
    durations: tuple[str, ...] = ()
    duration_unit: TraceUnit | None = None
    notes: tuple[str, ...] = ()
    is_only: bool = False


_SERVERS = (
    (
        "ts duration",
        "logger request msg resp_headers bytes_read request_method request_uri",
        Stamps(None, "end", "s", "Caddy", duration_unit="s"),
    ),
    (
        "duration",
        "start_utc start_local origin_duration downstream_status router_name service_addr",
        Stamps(None, "end", None, "Traefik", duration_unit="ns"),
    ),
    (
        "time response_time",
        "req res pid req_method res_status_code",
        Stamps(None, "end", "ms", "pino", duration_unit="ms"),
    ),
)
"""Servers that stamp ends: the keys that are all there, those of which any is, and what holds for their stamps."""


@dataclass
class Reading:
    """How the stamps of a file are read. `why`: what says so, for people; empty for a plain begin.

    `durations`: columns whose sum is taken off the stamps of ends, and the unit of their numbers. `maybe`: what would
    be taken off if a stamp whose side is unknown were an end. `has_seconds`: whether the stamps of the first rows are
    whole seconds, before any duration is taken off. `n_absent`: rows read so far without any of the durations, whose
    end is taken for their begin.
    """

    stamp: str
    side: Side = "unknown"
    unit: TraceUnit | None = None
    durations: tuple[str, ...] = ()
    duration_unit: TraceUnit | None = None
    maybe: tuple[str, ...] = ()
    why: str = ""
    notes: tuple[str, ...] = ()
    has_seconds: bool = False
    n_absent: int = 0

    def taken_ns(self, columns: Mapping[str, Any], faults: Faults) -> Int64s:
        """The sum of a row's durations, of Arrow arrays of texts, numbers or durations; 0 of a row without, counted."""
        import pyarrow as pa

        durations = []
        for name in self.durations:
            column, unit = columns[name], self.duration_unit or "s"
            if pa.types.is_duration(column.type):
                column, unit = column.cast(pa.int64()), column.type.unit
            durations.append(each_text(column, partial(duration_ns, unit=unit), faults, f"column {name!r}: "))
        ns = np.array(durations)
        is_absent: Bools = np.all(ns < 0, axis=0)
        is_absent[list(faults)] = False
        self.n_absent += int(is_absent.sum())
        total: Int64s = np.maximum(ns, 0).sum(axis=0)
        return total

    def told(self, is_spread: bool = False) -> tuple[str, ...]:
        """What was read, and what that does to the figures, one sentence each; the absent durations so far counted.

        `is_spread`: arrivals are placed at random inside their tick.
        """
        less = " + ".join(self.durations)
        if self.durations:
            first = f"Arrivals are {self.stamp}, the end of a request{self.why}, less {less} ({self.duration_unit})."
        elif self.side == "end":
            first = (
                f"{self.stamp} is the end of a request{self.why} and no duration is beside it: each arrival is"
                " late by its own duration, so that bursts shorter than the durations are smoothed and dispersion,"
                " peaks and waits come out too low. Log the duration too, or name its column (--duration-column)."
            )
        elif self.maybe:
            first = (
                f"{self.stamp} is read as the begin of a request. Beside it is {' and '.join(self.maybe)}, and nothing"
                " says which end of the request the stamp is: if it is the end, bursts are smoothed here. Say"
                " --stamp-at end or --stamp-at begin."
            )
        else:
            first = ""
        said = [first, *self.notes]
        if self.n_absent:
            said.append(
                f"{self.n_absent:,} rows have no {less}: their end stands for their begin, which smooths bursts."
            )
        if self.durations and self.has_seconds and not is_spread:
            said.append(
                f"{self.stamp} has whole seconds: arrivals are up to 1 s early, and bursts within less than that"
                " are not known."
            )
        return tuple(filter(None, said))


def duration_ns(text: str | None, unit: TraceUnit) -> int:
    """ns of a duration: a number in `unit`, one with its unit (`0.045s`, `1m2.5s`), or several (`0.1, 0.2`) summed.

    -1 for none: empty, `-`, and below 0 (load balancers write -1). Raises ValueError for what is no duration.
    """
    text = (text or "").strip().strip('"')
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"{shown(text)} is no duration")
    total_ns = -1
    for part in map(str.strip, re.split(r"[,:]", text)):  # nginx writes one for each upstream that was tried
        if part in _ABSENT:
            continue
        pieces = [(part, unit)] if _PART.sub("", part).strip() else _PART.findall(part)
        numbers = [(parse_number(number), _PART_NS[word]) for number, word in pieces]
        if all(number >= 0 for number, _ in numbers):
            total_ns = max(total_ns, 0) + int(sum(min(number, _LONGEST) * ns for number, ns in numbers))
    if total_ns > _LONGEST:
        raise ValueError(f"{shown(text)} {unit} is too long for a duration")
    return total_ns


class _Column:
    """The first rows of a column, and what its values and its name are."""

    def __init__(self, name: str, values: Sequence[str | None]) -> None:
        self.name = name
        self.values = values[:SAMPLE_ROWS]
        self.known = [
            value.strip() for value in self.values if (value or "").strip() not in _ABSENT and value
        ]

    @cached_property
    def kind(self) -> str:
        """`clock` for dates with a time of day, `date` without, `epoch` for numbers since 1970, else as said.

        By nine of ten rows: a malformed one does not make a column of instants another.
        """
        counts = Counter(map(_kind_of, self.known))
        counts["number"] += counts["epoch"]
        kinds = ("clock", "epoch", "date", "number") if self.known else ("empty",)
        return next((kind for kind in kinds if counts[kind] >= 0.9 * len(self.known)), "text")

    @cached_property
    def is_duration(self) -> bool:
        """Whether the name is a duration's and the values can be: numbers from 0 on that do not count from 1970."""
        if duration_of(self.name) is None or self.kind in ("epoch", "clock", "date"):
            return False
        with suppress(ValueError):
            return all(duration_ns(text, "ms") is not None for text in self.known)
        return False

    @cached_property
    def is_ordered(self) -> bool:
        """Whether numbers can be instants: their order has to do with that of the rows, or rows are too few to say."""
        known = [float(number) for text in self.known if (number := _number(text)) is not None]
        ranks = np.argsort(np.argsort(known, kind="stable"), kind="stable")
        rows = np.arange(len(known))
        return len(known) < _LEAST_ROWS or bool(abs(np.corrcoef(ranks, rows)[0, 1]) >= _LEAST_RANK)

    @cached_property
    def ns(self) -> Masked:
        return instants_of(self.values)

    @cached_property
    def step_ns(self) -> int:
        return resolution_ns(self.ns)

    def less(self, other: _Column) -> Int64s:
        """The instants less those of the other, of the rows that have both."""
        differences: Int64s = (self.ns - other.ns).compressed()
        return differences

    def is_same(self, other: _Column) -> bool:
        """Whether both are the same instant but for a constant (a time zone) and the coarser one's steps.

        True where no row has both.
        """
        offsets = self.less(other)
        return not offsets.size or int(np.ptp(offsets)) <= max(self.step_ns, other.step_ns)


_Columns = Mapping[str, _Column]


def read_stamps(
    sample: Sample, options: TraceOptions, known: Stamps | None = None, row: int | None = 1
) -> Reading:
    """The columns that say when a request began. `known`: what the format says; None: keys that are a server's may.

    Raises RowFault, with the columns in question and the flag that chooses, where there is none or several disagree.
    """
    columns = {name: _Column(name, values) for name, values in sample.items()}
    known = known or _of_server(columns)
    stated = known.column if known.is_only else options.column or known.column
    stamp, side = _stamp(columns, stated, row)
    unit = options.unit or unit_of_name(stamp) or (known.unit if side != "begin" else None)
    why = f", as {known.server} writes it" if known.server else ""
    side = known.side if side == "unknown" else side
    if options.stamp_at is not None:
        side, why = options.stamp_at, " (as stated)"
    taken = tuple(named(columns, name, row) for name in options.duration_columns)
    if taken and options.stamp_at is None:
        side = "end"
    if taken and side == "begin":
        raise RowFault(
            row, f"a stamp at the begin ({stamp}) has no duration taken off it: leave out {taken[0]!r}"
        )
    reading = Reading(stamp, side, unit, why=why, notes=known.notes)
    totals = [name for name in columns if name != stamp and columns[name].is_duration]
    whole = tuple(name for name in totals if duration_of(name) == "total")
    if side == "unknown":
        reading.maybe = whole
    if side != "end":
        return reading
    taken = taken or known.durations
    if not taken and totals:
        taken = (_longest([columns[name] for name in whole or totals], row),)
        if not whole:
            reading.notes += (
                f"{taken[0]} is a part of a request's duration: arrivals are late by the rest of it.",
            )
    if taken:
        ticks = unit or _stamp_unit(columns[stamp].values)
        reading.durations = taken
        reading.duration_unit = options.duration_unit or _unit_of_durations(
            [columns[name] for name in taken], known.duration_unit, ticks, row
        )
    return reading


def _stamp(columns: _Columns, stated: str | None, row: int | None) -> tuple[str, Side]:
    """The column of the instants and the side that its name says."""
    sides = {name: known for name in columns if (known := stamp_side(name)) is not None}
    if stated is not None:
        name = named(columns, stated, row)
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


def _one_of(instants: dict[str, tuple[Side, bool]], columns: _Columns, row: int | None) -> tuple[str, Side]:
    """Begins that are listed before all others; else all that are left must be the same instant."""
    begins = [name for name in instants if instants[name] == ("begin", True)]
    names = begins or list(instants)
    first = names[0]
    for other in names[1:]:
        if columns[first].is_same(columns[other]):
            continue
        later_ns = columns[first].less(columns[other])
        if begins and (later_ns >= 0).all():
            first = other
        elif not begins or (later_ns > 0).any():
            raise RowFault(
                row,
                f"both {first!r} and {other!r} are instants and differ; say which is the arrival: --column {first} or"
                f" --column {other}",
            )
    same = [name for name in instants if columns[first].is_same(columns[name])]
    sides = {instants[name][0] for name in same if name in names}
    side: Side = "begin" if "begin" in sides else "end" if "end" in sides else "unknown"
    of_side = [name for name in same if name in names or instants[name][0] == instants[first][0]]
    return min(of_side, key=lambda name: columns[name].step_ns), side  # the one with most digits


def _no_stamp(columns: _Columns, unfit: list[str], row: int | None) -> RowFault:
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


def _of_server(columns: _Columns) -> Stamps:
    """What holds for the stamps of a server that is known by its keys."""
    names = {plain_name(name) for name in columns}
    of_nginx = names.intersection(_NGINX.split())
    times = [
        column
        for name, column in columns.items()
        if plain_name(name) in ("request_time", "rt") and column.is_duration
    ]
    has_fractions = any("." in text for column in times for text in column.known)
    if len(of_nginx) >= 2 or (times and (of_nginx or has_fractions)):
        return Stamps(side="end", server="nginx", duration_unit="s" if has_fractions or of_nginx else None)
    for needed, any_of, known in _SERVERS:
        if names.issuperset(needed.split()) and names.intersection(any_of.split()):
            return known
    return Stamps()


def _unit_of_durations(
    taken: Sequence[_Column], known: TraceUnit | None, stamps: TraceUnit | None, row: int | None
) -> TraceUnit:
    """Stated by the name or by the server; else that of the stamps where these are numbers, or none where each value
    says its own."""
    unit_named = next((unit for column in taken if (unit := unit_of_name(column.name)) is not None), None)
    texts = [text for column in taken for text in column.known]
    unit = unit_named or known or stamps or ("s" if all(map(_PART.search, texts)) else None)
    if unit is None or (
        unit_named is None and durations_of(texts, unit).compressed().max(initial=0) > _LONGEST_NS
    ):
        what = f"nothing says the unit of the duration {taken[0].name!r}, or it is above a day in {unit}"
        raise RowFault(row, f"{what}: --duration-unit s, ms, us or ns")
    return unit


def _longest(columns: Sequence[_Column], row: int | None) -> str:
    """The duration that holds the others: at least as long in every row. Raises RowFault where none is."""
    values = {column.name: durations_of(column.values) for column in columns}
    for name, own in values.items():
        if all((own >= other).compressed().all() for other in values.values()):
            return name
    first, second, *_ = values
    what = f"{first!r} and {second!r} are durations and neither holds the other"
    raise RowFault(row, f"{what}: say --duration-column {first} or --duration-column {second}")


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


def instants_of(values: Sequence[str | None], unit: TraceUnit | None = None) -> Masked:
    """ns of each value: numbers in `unit`; None: in that in which they count from 1970, `s` where they do not."""
    faults: Faults = {}
    return _known(Clock(unit or _stamp_unit(values) or "s").read(_column(values), faults), faults)


def durations_of(values: Sequence[str | None], unit: TraceUnit = "ms") -> Masked:
    """ns of each value as `duration_ns`. Whatever they are in, ms leaves room for ns above and s below."""
    faults: Faults = {}
    ns = each_text(_column(values), partial(duration_ns, unit=unit), faults)
    return _known(ns, {**faults, **dict.fromkeys(np.flatnonzero(ns < 0).tolist(), "")})


def _column(values: Sequence[str | None]) -> Any:
    import pyarrow as pa

    texts = [None if value is None else value.encode(errors="surrogatepass") for value in values]
    return pa.array(texts, pa.binary())


def _known(ns: Int64s, faults: Faults) -> Masked:
    """Values without those of rows at fault."""
    return np.ma.array(ns, mask=np.isin(np.arange(ns.size), list(faults)))


def resolution_ns(instants: Masked) -> int:
    """The largest of 1 s, 1 ms, 1 us and 1 ns of which all are multiples."""
    known = instants.compressed()
    return next((step for step in (10**9, 10**6, 10**3) if not (known % step).any()), 1)


def named(names: Mapping[str, Any] | Sequence[str], wanted: str, row: int | None = 1) -> str:
    """The name that is `wanted`, in letters of any case, `-` for `_` too. Raises RowFault with the nearest ones."""
    alike = [name for name in names if name.lower().replace("-", "_") == wanted.lower().replace("-", "_")]
    if not alike:
        raise no_column(list(names), wanted, row)
    return wanted if wanted in alike else alike[0]
