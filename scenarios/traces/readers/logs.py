"""Access logs as text: of web servers (common and combined), load balancers, proxies, and W3C's extended format.

| log | a stamp is | source |
|---|---|---|
| Apache, common and combined | the begin (`%t`: when the request was received) | httpd, mod_log_config |
| nginx, the same lines | the end, when the line is written; `$request_time` in s | nginx, ngx_http_log_module |
| Traefik, common | the begin | doc.traefik.io, access logs |
| AWS application load balancer | the end; three durations in s, -1 where absent | ELB, access logs |
| AWS classic load balancer | the begin | Classic Load Balancers, access logs |
| Envoy, its default text | the begin (`%START_TIME%`) | Envoy, access logging |
| HAProxy, HTTP and TCP | the begin, without a time zone | HAProxy configuration, 8.2 |
| CloudFront | the end; `time-taken` in s | CloudFront, standard logs |
| IIS | the end, to 1 s; `time-taken` in ms | Microsoft, HTTP.sys logging |

A line of the common or combined log does not say which server wrote it. Fields after the known ones tell nginx: a
number with three decimals is `$request_time`, or `$msec` where it counts from 1970; `rt=0.123` says its name. Others
are called `extra1`, `extra2`, … Lines are written when a request ends, so that begins are out of order.

Patterns are matched by Arrow (RE2), whose time is linear in a line: Python's own takes hours for some lines of 64 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.names import duration_of
from squall.scenarios.traces.parts.options import TraceOptions, TraceUnit
from squall.scenarios.traces.readers.blocks import Block, read_head, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of, session_numbers
from squall.scenarios.traces.readers.delimited import data_of
from squall.scenarios.traces.readers.instants import Clock, parse_stamp_ns
from squall.scenarios.traces.readers.stamps import Durations, Reading, duration_ns, read_stamps

_HEAD_LINES = 200
_MOST_EXTRA = 4096
"""Characters behind the known fields of a line in which others are looked for."""
_FIELD = r'(?:[A-Za-z_]+=)?"[^"]*"|\[[^\]]*\]|[^ \r\n]+'
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?"
_CLOCK = r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?:\.\d+)?"
_SECONDS = r"-?\d+(?:\.\d+)?"
_COMMON = rf'^(?P<host>\S+) \S+ .*?\[(?P<time>{_CLOCK} [-+]\d{{4}})\] ".*?" \d{{3}} (?P<bytes>\d{{1,18}}|-)'
_COMBINED = rf'{_COMMON} "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*"'
_ALB = (
    rf"^(?:https?|h2|grpcs?|wss?) (?P<time>{_ISO}) \S+ (?P<host>\S+):\d+ \S+ (?P<request_processing_time>{_SECONDS})"
    rf" (?P<target_processing_time>{_SECONDS}) (?P<response_processing_time>{_SECONDS}) \S+ \S+ \d+ (?P<bytes>\d+)"
)
_ALB_BEGAN = rf'.* (?P<request_creation_time>{_ISO}) "'
_ELB = rf"^(?P<time>{_ISO}) \S+ (?P<host>\S+):\d+ \S+ {_SECONDS} {_SECONDS} {_SECONDS} \S+ \S+ \d+ (?P<bytes>\d+)"
_ENVOY = rf'\[(?P<time>{_ISO})\] "[^"]*" \d+ \S+ (?:\S+ \S+ "[^"]*" )?\d+ (?P<bytes>\d+) (?P<duration>\d+) '
_HAPROXY = (
    rf"(?P<host>[^\s\]]+):\d+ \[(?P<time>{_CLOCK}(?: [-+]\d{{4}})?)\] \S+ \S+/\S+ [-+0-9]+(?:/[-+0-9]+){{2,4}}"
    r" (?:(?:\d{3}|-1) )?\+?(?P<bytes>\d{1,18}) "
)
_ALB_TIMES = ("request_processing_time", "target_processing_time", "response_processing_time")


@dataclass(frozen=True)
class LogSource:
    """Rows of an access log: when, how many bytes, from which host. A `Source`. `row` is a pattern of named groups."""

    path: Path
    row: str
    what: str
    reading: Reading
    number_unit: TraceUnit = "s"
    size_names: tuple[str, ...] = ("bytes",)
    has_sessions: bool = True
    unit: TraceUnit | None = None
    unit_is_assumed: bool = False
    tick_ns: int | None = None
    skips_comments: bool = False

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.number_unit)
        for block in text_blocks(self.path):
            yield self._chunk(block, clock, mending)

    def _chunk(self, block: Block, clock: Clock, mending: Mending) -> Chunk:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, lines = [], []
        for row, line in block.lines():
            if self.skips_comments and line.startswith(b"#"):
                continue
            rows.append(row)
            lines.append(line)
        found = pc.extract_regex(pa.array(lines, pa.binary()), self.row)
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist()
        faults = [(index, self.what) for index in missing]
        stamp_ns, bad = _times_ns(self._stamps(found), clock)
        known = set(missing)
        faults += [entry for entry in bad if entry[0] not in known]
        durations = self.reading.durations
        if durations is not None:
            columns = [pc.struct_field(found, name) for name in durations.names]
            stamp_ns, faults = durations.before(stamp_ns, columns, faults)
        sizes = {}
        for name in self.size_names:
            size = pc.struct_field(found, name)
            sizes[name] = (
                pc.if_else(pc.equal(size, b"-"), b"-1", size)
                .cast(pa.string())
                .cast(pa.int64())
                .fill_null(-1)
                .to_numpy()
            )
        session = session_numbers(pc.struct_field(found, "host")) if self.has_sessions else None
        return chunk_of(stamp_ns, sizes, session, lambda index: rows[index], faults, mending)

    def _stamps(self, found: Any) -> Any:
        import pyarrow.compute as pc

        stamp = pc.struct_field(found, self.reading.stamp if self.reading.stamp != "date time" else "time")
        if self.reading.stamp == "date time":
            return pc.binary_join_element_wise(pc.struct_field(found, "date"), stamp, b" ")
        return stamp


def _times_ns(texts: Any, clock: Clock) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    """ns since 1970 of an Arrow array of times, each distinct text parsed once, and the faults."""
    encoded = texts.dictionary_encode()
    values: list[int] = []
    wrong: dict[int, str] = {}
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(clock.read_one(text.decode("utf-8", "replace").strip('"')))
        except ValueError as error:
            values.append(0)
            wrong[place] = str(error)
    places = encoded.indices.fill_null(len(values)).to_numpy()
    stamp_ns = np.array([*values, 0], dtype=np.int64)[places]
    if not wrong:
        return stamp_ns, []
    return stamp_ns, [(index, wrong[place]) for index, place in enumerate(places.tolist()) if place in wrong]


def log_source(path: Path, options: TraceOptions) -> LogSource:
    """Either log of a web server."""
    lines = _head_lines(path)
    is_combined = len(_matched(_COMBINED, lines)) * 2 > len(lines)
    pattern = _COMBINED if is_combined else _COMMON
    found = _matched(rf"{pattern}(?P<rest>.*)", lines)
    fields = [re.findall(_FIELD, match["rest"][:_MOST_EXTRA]) for match in found]
    columns: dict[str, list[str | None]] = {"time": [match["time"] for match in found]}
    places: dict[str, int] = {}
    for place in range(max(map(len, fields), default=0)):
        texts = [one[place] if place < len(one) else "" for one in fields]
        name = next((text.partition("=")[0] for text in texts if re.match(r"[A-Za-z_]+=", text)), "")
        name = name if name and name not in columns else f"extra{place + 1}"
        places[name] = place
        columns[name] = [re.sub(r"^[A-Za-z_]+=", "", text).strip('"') for text in texts]
    reading = _log_reading(columns, places, options)
    row = pattern
    used = {reading.stamp, *(reading.durations.names if reading.durations is not None else ())} & set(places)
    last = max((places[name] for name in used), default=-1)
    by_place = {place: name for name, place in places.items()}
    for place in range(last + 1):
        name = by_place[place]
        row += rf' (?:[A-Za-z_]+=)?"?(?P<{name}>[^" ]*)"?' if name in used else rf" (?:{_FIELD})"
    what = 'is no line of an access log: host ident user [day/month/year:time zone] "request" status bytes'
    unit = reading.unit or "s"
    return LogSource(
        path, rf"{row}(?: .*)?\r?$", what, reading, unit, unit=None if reading.stamp == "time" else unit
    )


def _log_reading(
    columns: dict[str, list[str | None]], places: dict[str, int], options: TraceOptions
) -> Reading:
    """nginx by what only nginx writes: numbers with three decimals, or fields that say that they are durations."""
    decimals = [name for name in places if _all(columns[name], r"\d+\.\d{3}|-")]
    stamps = [name for name in decimals if _all(columns[name], r"\d{10}\.\d{3}")]
    named = [name for name in places if not name.startswith("extra") and duration_of(name) is not None]
    times = [name for name in decimals if name not in stamps and not named]
    is_traefik = any(_all(columns[name], r"\d+ms") for name in places)
    if options.column is not None or options.stamp_at is not None or options.duration_columns:
        stated = options.column or "time"
        taken = options.duration_columns
        if options.stamp_at == "end" and not taken:
            options = replace(options, duration_columns=_held(times or named, columns))
            taken = options.duration_columns
        options = replace(
            options,
            column=stated,
            duration_unit=options.duration_unit
            or ("s" if taken and set(taken) <= {*times, *named} else None),
        )
        return read_stamps(columns, options)
    if not (times or stamps or named):
        if is_traefik:
            return Reading("time", "begin").of_stamps(columns["time"])
        note = (
            "The log does not say which end of a request its stamps are: Apache's are the begin, nginx's the"
            " end. If they are ends, each arrival is late by its request's duration and bursts are smoothed: log the"
            " duration too"
            " ($request_time)."
        )
        return Reading("time", "unknown", notes=(note,)).of_stamps(columns["time"])
    stamp = stamps[0] if stamps else "time"
    shown = {stamp: columns[stamp]} | {name: columns[name] for name in (named or times)}
    taken = _held(times, columns) if times else ()
    options = replace(options, column=stamp, duration_columns=taken, stamp_at="end", duration_unit="s")
    reading = read_stamps(shown, options)
    return replace(reading, why=", as nginx writes it", unit="s" if stamps else None)


def _held(names: list[str], columns: dict[str, list[str | None]]) -> tuple[str, ...]:
    """Of durations without a name the one that holds the others; the first where none does."""
    if len(names) < 2:
        return tuple(names)
    totals = {name: sum(duration_ns(text, "s") or 0 for text in columns[name]) for name in names}
    return (max(totals, key=lambda name: totals[name]),)


def _all(texts: list[str | None], pattern: str) -> bool:
    """Whether nine of ten texts are of a pattern, and not all of them a `-`."""
    known = [text for text in texts if text]
    fitting = sum(re.fullmatch(pattern, text) is not None for text in known)
    return bool(known) and fitting >= 0.9 * len(texts) and any(text != "-" for text in known)


def alb_source(path: Path, options: TraceOptions) -> LogSource:
    """An application load balancer's log: the begin that it states if that agrees with the end less the durations."""
    what = "is no line of an application load balancer's log: type time elb client:port target:port three times …"
    rows = _matched(_ALB, _head_lines(path))
    began = _matched(_ALB + _ALB_BEGAN, _head_lines(path))
    differences = []
    for match in began:
        parts = [duration_ns(match[name], "s") for name in _ALB_TIMES]
        if all(part is not None for part in parts):
            end_ns = parse_stamp_ns(match["time"], "s") - sum(part or 0 for part in parts)
            differences.append(abs(end_ns - parse_stamp_ns(match["request_creation_time"], "s")))
    if options.stamp_at is None and not options.duration_columns and options.column is None:
        if (
            rows
            and len(began) >= 0.9 * len(rows)
            and differences
            and sorted(differences)[len(differences) // 2] < 10**8
        ):
            return LogSource(path, _ALB + _ALB_BEGAN, what, Reading("request_creation_time", "begin"))
        durations = Durations(_ALB_TIMES, "s")
        return LogSource(
            path, _ALB, what, Reading("time", "end", durations, why=", when the response was made")
        )
    return LogSource(path, _ALB, what, _stated(path, _ALB, options, "end", "s"))


def elb_source(path: Path, options: TraceOptions) -> LogSource:
    """A classic load balancer's log, which stamps the begin."""
    what = "is no line of a classic load balancer's log: time elb client:port backend:port three times …"
    return LogSource(path, _ELB, what, _stated(path, _ELB, options, "begin", "s"))


def envoy_source(path: Path, options: TraceOptions) -> LogSource:
    """Envoy's default text, also Istio's."""
    what = 'is no line of Envoy\'s default access log: [time] "request" code flags received sent duration'
    reading = _stated(path, _ENVOY, options, "begin", "ms")
    return LogSource(path, _ENVOY, what, reading, has_sessions=False)


def haproxy_source(path: Path, options: TraceOptions) -> LogSource:
    """HAProxy's HTTP or TCP log, whose stamps are the begin, in local time."""
    what = "is no line of HAProxy's log: client:port [accept date] frontend backend/server timers …"
    reading = _stated(path, _HAPROXY, options, "begin", "ms")
    zoned = any(re.search(rf"\[{_CLOCK} [-+]", line) for line in _head_lines(path))
    notes = () if zoned else ("The stamps have no time zone and are read as UTC.",)
    return LogSource(path, _HAPROXY, what, replace(reading, notes=notes))


def w3c_source(path: Path, options: TraceOptions) -> LogSource:
    """W3C's extended log (IIS, CloudFront): the columns that `#Fields:` names."""
    head = read_head(path)
    head_line = next((line for line in head.split(b"\n") if line.startswith(b"#Fields:")), None)
    if head_line is None:
        raise RowFault(1, "has no line #Fields: in its first 64 KiB; it says which column is which")
    names = head_line.decode("utf-8", "replace").split(":", 1)[1].split()
    time = next((name for name in ("time", "timestamp") if name in names), None)
    if time is None or (time == "time" and "date" not in names):
        raise RowFault(1, f"#Fields: names no date and time but {', '.join(names[:6])}; log date and time")
    is_cloudfront = any(name.startswith("x-edge") for name in names)
    unit: TraceUnit = "s" if is_cloudfront else "ms"
    used = {"date", time, "time-taken", "sc-bytes", "c-ip", *options.duration_columns}
    gap = (
        r"\t"
        if b"\t" in next((one for one in head.split(b"\n") if one and not one.startswith(b"#")), b"")
        else " +"
    )
    groups = {name: re.sub(r"\W", "_", name) for name in names if name in used}
    cells = [
        f"(?P<{groups[name]}>[^\\t ]*)" if name in groups else (r"[^\t]*" if gap == r"\t" else r"[^ ]+")
        for name in names
    ]
    row = "^" + gap.join(cells) + r"\s*$"
    if options.column is not None and options.column not in ("date", time):
        raise RowFault(
            1,
            f"the instants of this log are {'date and time' if time == 'time' else time}: leave out"
            f" --column {options.column}",
        )
    if options.stamp_at == "begin" and options.duration_columns:
        raise RowFault(
            1,
            f"a stamp at the begin has no duration taken off it: leave out {options.duration_columns[0]!r}",
        )
    durations = options.duration_columns or (("time-taken",) if "time-taken" in names else ())
    side = options.stamp_at or "end"
    taken = None
    if side == "end" and durations:
        missing = [name for name in durations if name not in names]
        if missing:
            raise RowFault(1, f"no column {missing[0]!r}: #Fields: names {', '.join(names)}")
        taken = Durations(tuple(groups[name] for name in durations), options.duration_unit or unit)
    why = ", as CloudFront writes it" if is_cloudfront else ", as IIS writes it"
    rows = _matched(row, [line for line in _head_lines(path) if line[0] != "#"])
    stamps = [f"{match['date']} {match['time']}" if time == "time" else match[time] for match in rows]
    reading = Reading("date time" if time == "time" else time, side, taken, why=why).of_stamps(stamps)
    what = f"does not have the {len(names)} columns of #Fields:"
    sizes = ("sc_bytes",) if "sc-bytes" in names else ()
    source = LogSource(path, row, what, reading, "s", sizes, "c-ip" in names, skips_comments=True)
    return replace(source, row=row.replace("?P<c_ip>", "?P<host>"))


def _stated(path: Path, pattern: str, options: TraceOptions, side: Any, unit: TraceUnit) -> Reading:
    """The reading of a log whose stamp is the group `time`, by the format or as it is stated."""
    rows = _matched(pattern, _head_lines(path))
    columns: dict[str, list[str | None]] = {
        name: [match[name] for match in rows] for name in re.compile(pattern).groupindex
    }
    if options.stamp_at is None and not options.duration_columns and options.column is None:
        return Reading("time", side).of_stamps(columns["time"])
    options = replace(options, column=options.column or "time", duration_unit=options.duration_unit or unit)
    return read_stamps(columns, options, side)


def _head_lines(path: Path) -> list[str]:
    lines = data_of(read_head(path), 0).decode("utf-8", "replace").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()][:_HEAD_LINES]


def _matched(pattern: str, lines: list[str]) -> list[dict[str, str]]:
    """The groups of each line that has the pattern; empty where one took no part."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(pa.array(lines, pa.string()), pattern)
    return [match for match in found.to_pylist() if match is not None]


def _matches(pattern: str) -> Callable[[bytes], bool]:
    def matches(line: bytes) -> bool:
        import pyarrow as pa
        import pyarrow.compute as pc

        return bool(pc.match_substring_regex(pa.scalar(line, pa.binary()), pattern).as_py())

    return matches


is_combined, is_common, is_alb, is_elb, is_envoy, is_haproxy = map(
    _matches, (_COMBINED, _COMMON, _ALB, _ELB, _ENVOY, _HAPROXY)
)
"""Whether a line is one of that log."""
