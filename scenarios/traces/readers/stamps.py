"""Which columns of a table or a log say when a request began: an instant at its begin, or its end less its duration.

Columns are told by their names (`squall.scenarios.traces.parts.names`) and by the values of the first rows: dates and
numbers that count from 1970 are instants, small numbers under a duration's name are durations. Servers whose logs are
known by their keys (nginx, Caddy, Traefik, pino) say which end a stamp without such a name is. What is left open is
refused with the columns in question, or read as begins with a note where nothing but the end is in question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault, no_column, shown
from squall.scenarios.traces.parts.names import (
    Side,
    duration_of,
    is_weak,
    plain_name,
    stamp_side,
    unit_of_name,
)
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.readers.instants import (
    Clock,
    epoch_unit,
    parse_number,
    parse_stamp_ns,
    stamp_kind,
)

Columns = Mapping[str, Sequence[str | None]]
"""Name and texts of the first rows of each column, of equal length; None or an empty text where a row has none."""

_ABSENT = ("", "-", "null")
_LEAST_ROWS = 20  # fewer rows show no order
_LEAST_RANK = (
    0.5  # rank correlation of value and row below which numbers are no instants: shuffled ones have 0 ± 0.23
)
_LONGEST_TEXT = 1000  # a number for each upstream that was tried; what follows takes the square of it
_LONGEST_S = 86_400  # a request of more than a day: its unit is another
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|min|s|h|m)", re.ASCII)
_PART_NS = {
    "h": 3600 * 10**9, "min": 60 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "µs": 1000, "μs": 1000,
    "ns": 1,
}  # fmt: skip
_NGINX = {
    "remote_addr", "remote_user", "body_bytes_sent", "bytes_sent", "http_referer", "http_referrer", "http_user_agent",
    "http_x_forwarded_for", "upstream_response_time", "upstream_addr", "upstream_status", "time_local", "time_iso8601",
    "msec", "request_length", "server_protocol", "urt",
}  # fmt: skip
_TRAEFIK = {"start_utc", "start_local", "origin_duration", "downstream_status", "router_name", "service_addr"}


@dataclass
class Durations:
    """Columns whose sum is taken off the stamps of ends, and the unit of their numbers.

    `n_absent`: rows read so far without any of them, whose end is taken for their begin.
    """

    names: tuple[str, ...]
    unit: TraceUnit
    n_absent: int = 0

    def before(
        self, stamp_ns: NDArray[np.int64], columns: Sequence[Any], faults: list[tuple[int, str]]
    ) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
        """The stamps less the durations, Arrow arrays or lists of texts or numbers, and all faults, one a row."""
        total = np.zeros(stamp_ns.size, dtype=np.int64)
        known = {index for index, _ in faults}
        absent = np.ones(stamp_ns.size, dtype=np.bool_)
        for name, column in zip(self.names, columns, strict=True):
            ns, is_absent, wrong = self._column_ns(column)
            total += ns
            absent &= is_absent
            faults = faults + [
                (index, f"column {name!r}: {what}") for index, what in wrong if index not in known
            ]
            known |= {index for index, _ in wrong}
        absent[list(known)] = False
        self.n_absent += int(absent.sum())
        return stamp_ns - total, faults

    def _column_ns(self, column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[tuple[int, str]]]:
        """ns of each value, which rows have none, and the faults. Each distinct text is parsed once."""
        import pyarrow as pa

        texts = _text_array(column)
        encoded = texts.dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        values, is_absent, wrong = [0], [True], {}
        for place, text in enumerate(encoded.dictionary.to_pylist(), 1):
            try:
                ns = duration_ns(text, self.unit)
            except ValueError as error:
                ns, wrong[place] = 0, str(error)
            values.append(ns or 0)
            is_absent.append(ns is None)
        places = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy() + 1
        faults = (
            [(index, wrong[place]) for index, place in enumerate(places.tolist()) if place in wrong]
            if wrong
            else []
        )
        return np.array(values, np.int64)[places], np.array(is_absent)[places], faults


@dataclass(frozen=True)
class Reading:
    """How the stamps of a file are read. `why`: what says so, for people; empty for a plain begin.

    `maybe`: what would be taken off if a stamp whose side is unknown were an end; None where nothing is.
    `resolution_ns`: the coarsest of 1 s, ms, us and ns that divides the stamps of the first rows, before any duration
    is taken off.
    """

    stamp: str
    side: Side = "unknown"
    durations: Durations | None = None
    maybe: tuple[str, ...] = ()
    unit: TraceUnit | None = None
    why: str = ""
    notes: tuple[str, ...] = field(default=())
    resolution_ns: int = 1

    @property
    def has_seconds(self) -> bool:
        """Whether the stamps are whole seconds."""
        return self.resolution_ns >= NS_PER_UNIT["s"]

    def of_stamps(self, values: Sequence[str | None], unit: TraceUnit | None = None) -> Reading:
        """This with the resolution of these stamps; `unit`: of numbers, None where they count from 1970 or in s."""
        return replace(self, resolution_ns=_resolution_ns(values, unit))

    def told(self, is_spread: bool = False) -> tuple[str, ...]:
        """What was read, and what that does to the figures, one sentence each; the absent durations so far counted.

        `is_spread`: arrivals are placed at random inside their tick.
        """
        said = list(self.notes)
        if self.durations is not None:
            less = " + ".join(self.durations.names)
            said.insert(
                0,
                f"Arrivals are {self.stamp}, the end of a request{self.why}, less {less} ({self.durations.unit}).",
            )
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
        elif self.side == "end":
            said.insert(
                0,
                f"{self.stamp} is the end of a request{self.why} and no duration is beside it: each arrival is"
                " late by its own duration, so that bursts shorter than the durations are smoothed and dispersion,"
                " peaks and waits come out too low. Log the duration too, or name its column (--duration-column).",
            )
        elif self.side == "unknown" and self.maybe:
            said.insert(
                0,
                f"{self.stamp} is read as the begin of a request. Beside it is {' and '.join(self.maybe)}, and nothing"
                " says which end of the request the stamp is: if it is the end, bursts are smoothed here. Say"
                " --stamp-at end or --stamp-at begin.",
            )
        return tuple(said)


def duration_ns(text: str | None, unit: TraceUnit) -> int | None:
    """ns of a duration: a number in `unit`, one with its unit (`0.045s`, `1m2.5s`), or several (`0.1, 0.2`) summed.

    None for none: empty, `-`, and below 0 (load balancers write -1). Raises ValueError for what is no duration.
    """
    text = (text or "").strip().strip('"')
    if text in _ABSENT:
        return None
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"{shown(text)} is no duration")
    if re.search(r"[,:]", text) and not _PART.search(text):  # nginx: one for each upstream that was tried
        parts = [duration_ns(part, unit) for part in re.split(r"[,:]", text)]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None
    found = _PART.findall(text)
    if found and _PART.sub("", text).strip() == "":
        return int(sum(Decimal(number) * _PART_NS[word] for number, word in found))
    try:
        number = parse_number(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no duration") from None
    if number < 0:
        return None
    is_beyond = number > 10**18  # perhaps beyond what can be multiplied
    if is_beyond or number * NS_PER_UNIT[unit] > 10**18:
        raise ValueError(f"{shown(text)} {unit} is too long for a duration")
    return int(number * NS_PER_UNIT[unit])


def read_stamps(
    columns: Columns, options: TraceOptions, server: Side = "unknown", row: int | None = 1
) -> Reading:
    """The columns that say when a request began. `server`: which end a stamp is by the format, where no name says it.

    Raises RowFault, with the columns in question and the flag that chooses, where there is none or several disagree.
    """
    reading = _read_stamps(columns, options, server, row)
    return reading.of_stamps(columns[reading.stamp], reading.unit)


def _read_stamps(columns: Columns, options: TraceOptions, server: Side, row: int | None) -> Reading:
    stamp, side, others = _stamp(columns, options, row)
    dialect, why, unit, duration_unit = _dialect(columns)
    if side == "unknown":
        side = server if server != "unknown" else dialect
    elif side == "begin":
        why, unit = "", None
    if options.stamp_at is not None:
        side, why = options.stamp_at, " (as stated)"
    taken = tuple(_named(columns, name, row) for name in options.duration_columns)
    if taken and options.stamp_at is None:
        side = "end"
    unit = options.unit or unit_of_name(stamp) or unit
    if taken and side == "begin":
        raise RowFault(
            row, f"a stamp at the begin ({stamp}) has no duration taken off it: leave out {taken[0]!r}"
        )
    totals = [name for name in columns if name not in (stamp, *others) and _is_duration(name, columns[name])]
    if side == "begin":
        return Reading(stamp, side, unit=unit)
    if side == "unknown":
        whole = tuple(name for name in totals if duration_of(name) == "total")
        return Reading(stamp, side, maybe=whole, unit=unit)
    notes: tuple[str, ...] = ()
    if not taken and totals:
        whole = tuple(name for name in totals if duration_of(name) == "total")
        taken = (_longest(whole or tuple(totals), columns, row),)
        if not whole:
            notes = (f"{taken[0]} is a part of a request's duration: arrivals are late by the rest of it.",)
    if not taken:
        return Reading(stamp, side, unit=unit, why=why)
    ticks = unit or _stamp_unit(columns[stamp])
    known = options.duration_unit or _unit_of_durations(taken, columns, duration_unit, ticks, row)
    return Reading(stamp, side, Durations(taken, known), unit=unit, why=why, notes=notes)


def _stamp(columns: Columns, options: TraceOptions, row: int | None) -> tuple[str, Side, tuple[str, ...]]:
    """The column of the instants, the side that its name says, and the others that are instants too."""
    kinds = {name: _kind(values) for name, values in columns.items()}
    if options.column is not None:
        name = _named(columns, options.column, row)
        known = stamp_side(name)
        return name, "unknown" if known is None else known[0], ()
    found: dict[str, tuple[Side, bool]] = {}
    unfit = []
    for name in columns:
        side = stamp_side(name)
        if side is None or kinds[name] == "text":
            continue
        is_sure = kinds[name] in ("clock", "epoch") or (side[1] and kinds[name] == "date")
        if is_sure or (side[1] and kinds[name] in ("number", "empty") and duration_of(name) is None):
            if kinds[name] == "number" and not _is_ordered(columns[name]):
                unfit.append(name)
                continue
            found[name] = side
    found = {name: side for name, side in found.items() if not is_weak(name)} or found
    moving = {name: side for name, side in found.items() if len(set(filter(None, columns[name]))) > 1}
    found = moving or found
    if not found and not unfit:  # a listed name whose rows cannot be read: the rows say what is wrong
        found = {
            name: side
            for name in columns
            if (side := stamp_side(name)) is not None and side[1] and not _is_duration(name, columns[name])
        }
    if not found:
        raise _no_stamp(columns, kinds, unfit, row)
    return _one_of(found, columns, row)


def _one_of(
    found: dict[str, tuple[Side, bool]], columns: Columns, row: int | None
) -> tuple[str, Side, tuple[str, ...]]:
    """Begins that are listed before all others; else all that are left must be the same instant."""
    everyone = tuple(found)
    begins = [name for name, (side, is_listed) in found.items() if side == "begin" and is_listed]
    names = begins or list(found)
    chosen = names[0]
    for other in names[1:]:
        if _is_same(columns[chosen], columns[other]):
            chosen = min(
                (chosen, other), key=lambda name: (_resolution_ns(columns[name]), everyone.index(name))
            )
        elif begins and (first := _earlier(columns, chosen, other)) is not None:
            chosen = first
        else:
            raise RowFault(
                row,
                f"both {chosen!r} and {other!r} are instants and differ; say which is the arrival: --column {chosen} or"
                f" --column {other}",
            )
    for other in everyone:  # one that is not listed may be the same instant with more digits
        is_same = found[other][0] == found[chosen][0] and _is_same(columns[chosen], columns[other])
        if is_same and _resolution_ns(columns[other]) < _resolution_ns(columns[chosen]):
            chosen = other
    sides = {found[name][0] for name in names if _is_same(columns[chosen], columns[name])}
    side: Side = "begin" if "begin" in sides else "end" if "end" in sides else "unknown"
    return chosen, side, tuple(name for name in everyone if name != chosen)


def _no_stamp(columns: Columns, kinds: dict[str, str], unfit: list[str], row: int | None) -> RowFault:
    dated = [name for name in columns if kinds[name] in ("clock", "epoch")]
    durations = [name for name in columns if _is_duration(name, columns[name])]
    if unfit:
        return RowFault(
            row, f"the numbers of {unfit[0]!r} are in no order of time: durations, not instants? name the instants'"
            f" column, --column {dated[0] if dated else unfit[0]}"
        )  # fmt: skip
    if dated:
        return RowFault(
            row,
            f"no column is named as an instant's, {dated[0]!r} holds instants: name the column, --column {dated[0]}",
        )
    if durations:
        return RowFault(
            row, f"{durations[0]!r} is a duration, and no column is an instant's; name the column"
        )
    return _no_column(list(columns), "timestamp", row)


def _dialect(columns: Columns) -> tuple[Side, str, TraceUnit | None, TraceUnit | None]:
    """Of a server known by its keys: which end its stamp is, in words, and the units of stamp and durations."""
    names = {plain_name(name) for name in columns}
    of_nginx = names & _NGINX
    times = [
        name
        for name in columns
        if plain_name(name) in ("request_time", "rt") and _is_duration(name, columns[name])
    ]
    has_fractions = any("." in (value or "") for name in times for value in columns[name])
    if len(of_nginx) >= 2 or (times and (of_nginx or has_fractions)):
        return "end", ", as nginx writes it", None, "s" if has_fractions or of_nginx else None
    if {"ts", "duration"} <= names and names & {
        "logger",
        "request",
        "msg",
        "resp_headers",
        "bytes_read",
        "request_method",
        "request_uri",
    }:
        return "end", ", as Caddy writes it", "s", "s"
    if names & _TRAEFIK and "duration" in names:
        return "end", ", as Traefik writes it", None, "ns"
    if {"time", "response_time"} <= names and names & {"req", "res", "pid", "req_method", "res_status_code"}:
        return "end", ", as pino writes it", "ms", "ms"
    return "unknown", "", None, None


def _unit_of_durations(
    taken: tuple[str, ...],
    columns: Columns,
    dialect: TraceUnit | None,
    stamps: TraceUnit | None,
    row: int | None,
) -> TraceUnit:
    """Stated by the name, by the server or by the values; else that of the stamps where these are numbers."""
    named = next((unit for name in taken if (unit := unit_of_name(name)) is not None), None)
    values = [value for name in taken for value in columns[name] if (value or "").strip() not in _ABSENT]
    if any(plain_name(name) == "event_duration" for name in taken):  # the Elastic Common Schema
        named = "ns"
    if values and all(_PART.search(value or "") for value in values):
        return named or "s"  # each value says its unit
    unit = named or dialect or stamps
    if unit is None:
        raise RowFault(
            row, f"nothing says the unit of the duration {taken[0]!r}: --duration-unit s, ms, us or ns"
        )
    longest = max((duration_ns(value, unit) or 0 for value in values if _is_number(value)), default=0)
    if longest > _LONGEST_S * NS_PER_UNIT["s"] and named is None:
        raise RowFault(
            row,
            f"the duration {taken[0]!r} would be {longest / 1e9 / 3600:,.0f} h in {unit}: --duration-unit s, ms, us or"
            " ns",
        )
    return unit


def _stamp_unit(values: Sequence[str | None]) -> TraceUnit | None:
    """The unit of numbers that count from 1970, `s` of smaller ones; None of dates."""
    text = next((value for value in values if value), "")
    if not _is_number(text):
        return None
    return epoch_unit(parse_number(text)) or "s"


def _longest(names: tuple[str, ...], columns: Columns, row: int | None) -> str:
    """The duration that holds the others: at least as long in every row. Raises RowFault where none is."""
    values = {name: [_duration_or_none(value) for value in columns[name]] for name in names}
    for name in names:
        rows = [
            (own, other)
            for one in names
            for own, other in zip(values[name], values[one], strict=True)
            if own is not None and other is not None
        ]
        if all(own >= other for own, other in rows):
            return name
    two = " or ".join(f"--duration-column {name}" for name in names[:2])
    raise RowFault(row, f"{names[0]!r} and {names[1]!r} are durations and neither holds the other: say {two}")


def _duration_or_none(value: str | None) -> int | None:
    try:
        return duration_ns(value, "ms")  # whatever it is in: ms leaves room for ns above and for s below
    except ValueError:
        return None


def _is_duration(name: str, values: Sequence[str | None]) -> bool:
    """Whether the name is a duration's and the values can be: numbers from 0 on that do not count from 1970."""
    if duration_of(name) is None:
        return False
    known = [value for value in values if (value or "").strip() not in _ABSENT]
    if any(_duration_or_none(value) is None and not (value or "").strip().startswith("-") for value in known):
        return False
    return not known or _kind(values) not in ("epoch", "clock", "date")


def _kind(values: Sequence[str | None]) -> str:
    """`clock` for dates with a time of day, `date` without, `epoch` for numbers since 1970, `number`, `text`, `empty`.

    By nine of ten rows: a malformed one does not make a column of instants another.
    """
    known = [value for value in values if (value or "").strip() not in _ABSENT]
    if not known:
        return "empty"
    kinds = [_kind_of(value or "") for value in known]
    return next(
        (kind for kind in ("clock", "epoch", "date", "number") if kinds.count(kind) >= 0.9 * len(kinds)),
        ("number" if kinds.count("number") + kinds.count("epoch") >= 0.9 * len(kinds) else "text"),
    )


def _kind_of(text: str) -> str:
    if stamp_kind(text) == "date":
        try:
            parse_stamp_ns(text, "ns")
        except ValueError:
            return "text"
        return "clock" if ":" in text else "date"
    try:
        number = parse_number(text.strip())
    except ValueError:
        return "text"
    return "number" if epoch_unit(number) is None else "epoch"


def _is_number(text: str | None) -> bool:
    try:
        parse_number((text or "").strip())
    except ValueError:
        return False
    return True


def _is_ordered(values: Sequence[str | None]) -> bool:
    """Whether numbers can be instants: their order has to do with that of the rows, or rows are too few to say."""
    known = [float(parse_number((value or "").strip())) for value in values if _is_number(value)]
    if len(known) < _LEAST_ROWS or all(after >= before for before, after in pairwise(known)):
        return True
    ranks = np.argsort(np.argsort(known, kind="stable"), kind="stable").astype(float)
    return abs(float(np.corrcoef(ranks, np.arange(ranks.size))[0, 1])) >= _LEAST_RANK


def _instants(values: Sequence[str | None], unit: TraceUnit | None = None) -> list[int | None]:
    """ns of each value: numbers in `unit`; None: in that in which they count from 1970, `s` where they do not."""
    unit = unit or _stamp_unit([value for value in values if value]) or "s"
    clock = Clock(unit)
    found: list[int | None] = []
    for value in values:
        try:
            found.append(clock.read_one(value))
        except ValueError:
            found.append(None)
    return found


def _resolution_ns(values: Sequence[str | None], unit: TraceUnit | None = None) -> int:
    known = [value for value in _instants(values, unit) if value is not None]
    return next((step for step in (10**9, 10**6, 10**3) if all(value % step == 0 for value in known)), 1)


def _is_same(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    """Whether two columns are the same instant but for a constant (a time zone) and the coarser one's steps.

    True where no row has both.
    """
    pairs = [
        (a, b)
        for a, b in zip(_instants(one), _instants(other), strict=True)
        if a is not None and b is not None
    ]
    step = max(_resolution_ns(one), _resolution_ns(other))
    offsets = [a - b for a, b in pairs]
    return not pairs or max(offsets) - min(offsets) <= step


def _earlier(columns: Columns, one: str, other: str) -> str | None:
    """Which of two is never after the other."""
    pairs = [
        (a, b)
        for a, b in zip(_instants(columns[one]), _instants(columns[other]), strict=True)
        if a is not None and b is not None
    ]
    if all(a <= b for a, b in pairs):
        return one
    return other if all(b <= a for a, b in pairs) else None


def _named(columns: Columns, wanted: str, row: int | None) -> str:
    found = wanted if wanted in columns else next((n for n in columns if n.lower() == wanted.lower()), None)
    if found is None:
        raise _no_column(list(columns), wanted, row)
    return found


def _no_column(names: list[str], wanted: str, row: int | None) -> RowFault:
    fault = no_column(names, wanted)
    return fault if row == 1 else RowFault(row, str(fault).removeprefix("row 1: "))


def _text_array(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, list):
        return pa.array([None if value is None else str(value) for value in column], pa.string())
    if pa.types.is_duration(column.type):
        factor = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[column.type.unit]
        texts = [
            None if value is None else f"{value * factor}ns" for value in column.cast(pa.int64()).to_pylist()
        ]
        return pa.array(texts, pa.string())
    if pa.types.is_binary(column.type):
        return pa.array(
            [None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()], pa.string()
        )
    return column.cast(pa.string())
