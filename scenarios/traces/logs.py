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
from dataclasses import replace
from pathlib import Path

import numpy as np

from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.instants import Clock, Faults, parse_stamp_ns
from squall.scenarios.traces.names import Side, duration_of
from squall.scenarios.traces.options import TraceOptions, TraceUnit
from squall.scenarios.traces.rows import Fields, Rows, Source
from squall.scenarios.traces.stamps import Durations, Reading, Sample, duration_or_none, read_stamps
from squall.scenarios.traces.text import read_head, text_blocks, whole_lines

_HEAD_LINES = 200
_MOST_EXTRA = 4096
"""Characters behind the known fields of a line in which others are looked for."""
_FIELD = r'(?:[A-Za-z_]+=)?"[^"]*"|\[[^\]]*\]|[^ \r\n]+'
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?"
_CLOCK = r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?:\.\d+)?"
_SECONDS = r"-?\d+(?:\.\d+)?"
COMMON = rf'^(?P<host>\S+) \S+ .*?\[(?P<time>{_CLOCK} [-+]\d{{4}})\] ".*?" \d{{3}} (?P<bytes>\d{{1,18}}|-)'
COMBINED = rf'{COMMON} "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*"'
ALB = (
    rf"^(?:https?|h2|grpcs?|wss?) (?P<time>{_ISO}) \S+ (?P<host>\S+):\d+ \S+ (?P<request_processing_time>{_SECONDS})"
    rf" (?P<target_processing_time>{_SECONDS}) (?P<response_processing_time>{_SECONDS}) \S+ \S+ \d+ (?P<bytes>\d+)"
)
_ALB_BEGAN = rf'.* (?P<request_creation_time>{_ISO}) "'
ELB = rf"^(?P<time>{_ISO}) \S+ (?P<host>\S+):\d+ \S+ {_SECONDS} {_SECONDS} {_SECONDS} \S+ \S+ \d+ (?P<bytes>\d+)"
ENVOY = rf'\[(?P<time>{_ISO})\] "[^"]*" \d+ \S+ (?:\S+ \S+ "[^"]*" )?\d+ (?P<bytes>\d+) (?P<duration>\d+) '
HAPROXY = (
    rf"(?P<host>[^\s\]]+):\d+ \[(?P<time>{_CLOCK}(?: [-+]\d{{4}})?)\] \S+ \S+/\S+ [-+0-9]+(?:/[-+0-9]+){{2,4}}"
    r" (?:(?:\d{3}|-1) )?\+?(?P<bytes>\d{1,18}) "
)
_ALB_TIMES = ("request_processing_time", "target_processing_time", "response_processing_time")


def _source(path: Path, pattern: str, what: str, reading: Reading, comment: bytes = b"\n") -> Source:
    """Rows of a log whose lines have `pattern`, of named groups; `what` is wrong with one that has not.

    Lines that begin with `comment`, which a line end never does, are no rows.
    """
    groups = re.compile(pattern).groupindex

    def read(_: Fields, __: Clock) -> Iterator[Rows]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for block in text_blocks(path):
            lines = pa.array(block.lines, pa.binary())
            is_row = pc.invert(pc.starts_with(lines, comment)).to_numpy(zero_copy_only=False)
            groups_of_line = pc.extract_regex(lines.filter(pa.array(is_row)), pattern)
            missing = np.flatnonzero(groups_of_line.is_null().to_numpy(zero_copy_only=False)).tolist()
            columns = {name: pc.struct_field(groups_of_line, name) for name in groups}
            if "date" in groups:
                columns["date time"] = pc.binary_join_element_wise(columns["date"], columns["time"], b" ")
            faults: Faults = dict.fromkeys(missing, what)
            yield Rows(columns, block.rows[is_row], faults)

    sizes = tuple(name for name in ("bytes", "sc_bytes") if name in groups)
    session = next((name for name in ("host", "c_ip") if name in groups), None)
    taken = () if reading.durations is None else reading.durations.names
    fields = Fields(reading.stamp, sizes, session, taken)
    return Source(read, fields, reading.unit or "s", "date", reading=reading)


def web_log(path: Path, options: TraceOptions) -> Source:
    """Either log of a web server."""
    lines = _head_lines(path)
    is_combined = len(_matched(COMBINED, lines)["time"]) * 2 > len(lines)
    row = COMBINED if is_combined else COMMON
    matched = _matched(rf"{row}(?P<rest>.*)", lines)
    fields = [re.findall(_FIELD, rest[:_MOST_EXTRA]) for rest in matched["rest"]]
    columns = {"time": matched["time"]}
    for place in range(max(map(len, fields), default=0)):
        texts = [row_fields[place] if place < len(row_fields) else "" for row_fields in fields]
        name = next((text.partition("=")[0] for text in texts if re.match(r"[A-Za-z_]+=", text)), "")
        name = name if name and name not in columns else f"extra{place + 1}"
        columns[name] = [re.sub(r"^[A-Za-z_]+=", "", text).strip('"') for text in texts]
    reading = _web_reading(columns, options)
    used = {reading.stamp, *(reading.durations.names if reading.durations is not None else ())}
    extras = [*columns][1:]
    while extras and extras[-1] not in used:
        extras.pop()
    for name in extras:
        row += rf' (?:[A-Za-z_]+=)?"?(?P<{name}>[^" ]*)"?' if name in used else rf" (?:{_FIELD})"
    what = 'is no line of an access log: host ident user [day/month/year:time zone] "request" status bytes'
    source = _source(path, rf"{row}(?: .*)?\r?$", what, reading)
    return source if reading.stamp == "time" else replace(source, kind="number")


def _web_reading(columns: dict[str, list[str]], options: TraceOptions) -> Reading:
    """nginx by what only nginx writes: numbers with three decimals, or fields that say that they are durations."""
    extras = [*columns][1:]
    decimals = [name for name in extras if _are_all(columns[name], r"\d+\.\d{3}|-")]
    stamps = [name for name in decimals if _are_all(columns[name], r"\d{10}\.\d{3}")]
    named = [name for name in extras if not name.startswith("extra") and duration_of(name) is not None]
    times = named or [name for name in decimals if name not in stamps]
    if options.column is not None or options.stamp_at is not None or options.duration_columns:
        taken = options.duration_columns
        if options.stamp_at == "end" and not taken:
            taken = _longest(times, columns)
        unit = options.duration_unit or ("s" if taken and set(taken) <= set(times) else None)
        column = options.column or "time"
        return read_stamps(
            columns, replace(options, column=column, duration_columns=taken, duration_unit=unit)
        )
    if times or stamps:
        stamp = stamps[0] if stamps else "time"
        taken = () if named else _longest(times, columns)
        options = replace(options, column=stamp, duration_columns=taken, stamp_at="end", duration_unit="s")
        reading = read_stamps({name: columns[name] for name in (stamp, *times)}, options)
        return replace(reading, why=", as nginx writes it", unit="s" if stamps else None)
    if any(_are_all(columns[name], r"\d+ms") for name in extras):  # Traefik
        return Reading("time", "begin").of_stamps(columns["time"])
    note = (
        "The log does not say which end of a request its stamps are: Apache's are the begin, nginx's the"
        " end. If they are ends, each arrival is late by its request's duration and bursts are smoothed: log the"
        " duration too"
        " ($request_time)."
    )
    return Reading("time", "unknown", notes=(note,)).of_stamps(columns["time"])


def _longest(names: list[str], columns: dict[str, list[str]]) -> tuple[str, ...]:
    """Of durations without a name the one that holds the others; the first where none does."""
    totals = {name: sum(duration_or_none(text, "s") or 0 for text in columns[name]) for name in names}
    return (max(totals, key=lambda name: totals[name]),) if len(names) > 1 else tuple(names)


def _are_all(texts: list[str], pattern: str) -> bool:
    """Whether nine of ten texts are of a pattern, and not all of them a `-`."""
    n_fitting = sum(bool(text and re.fullmatch(pattern, text)) for text in texts)
    return n_fitting >= 0.9 * len(texts) and any(text not in ("", "-") for text in texts)


def alb_log(path: Path, options: TraceOptions) -> Source:
    """An application load balancer's log: the begin that it states if that agrees with the end less the durations."""
    what = "is no line of an application load balancer's log: type time elb client:port target:port three times …"
    rows, began = _matched(ALB, _head_lines(path)), _matched(ALB + _ALB_BEGAN, _head_lines(path))
    if _is_stated(options):
        return _source(path, ALB, what, _reading(rows, options, "end", "s"))
    differences = []
    for end, begin, *times in zip(
        *(began[name] for name in ("time", "request_creation_time", *_ALB_TIMES)), strict=True
    ):
        parts = [part for text in times if (part := duration_or_none(text, "s")) is not None]
        if len(parts) == len(_ALB_TIMES):
            differences.append(abs(parse_stamp_ns(end, "s") - sum(parts) - parse_stamp_ns(begin, "s")))
    is_begun = bool(differences) and sorted(differences)[len(differences) // 2] < 10**8
    if is_begun and len(began["time"]) >= 0.9 * len(rows["time"]):
        return _source(path, ALB + _ALB_BEGAN, what, Reading("request_creation_time", "begin"))
    durations = Durations(_ALB_TIMES, "s")
    reading = Reading("time", "end", durations, why=", when the response was made")
    return _source(path, ALB, what, reading)


def plain_log(pattern: str, what: str, unit: TraceUnit) -> Callable[[Path, TraceOptions], Source]:
    """The reader of a log with begins in the group `time`; `unit` of its durations, should these be taken off."""

    def source(path: Path, options: TraceOptions) -> Source:
        rows = _matched(pattern, _head_lines(path))
        reading = _reading(rows, options, "begin", unit)
        if pattern == HAPROXY and not any(re.search(" [-+]", stamp) for stamp in rows["time"]):
            reading = replace(reading, notes=("The stamps have no time zone and are read as UTC.",))
        return _source(path, pattern, f"is no line of {what}", reading)

    return source


def w3c_log(path: Path, options: TraceOptions) -> Source:
    """W3C's extended log (IIS, CloudFront): the columns that `#Fields:` names."""
    lines = read_head(path).decode("utf-8", "replace").split("\n")
    names = next((line.split(":", 1)[1].split() for line in lines if line.startswith("#Fields:")), None)
    if names is None:
        raise RowFault(1, "has no line #Fields: in its first 64 KiB; it says which column is which")
    time = next((name for name in ("time", "timestamp") if name in names), None)
    if time is None or (time == "time" and "date" not in names):
        raise RowFault(1, f"#Fields: names no date and time but {', '.join(names[:6])}; log date and time")
    stamp = "date time" if time == "time" else time
    if options.column is not None and options.column not in ("date", time):
        instants = stamp.replace(" ", " and ")
        raise RowFault(1, f"the instants of this log are {instants}: leave out --column {options.column}")
    is_tabbed = "\t" in next((line for line in lines if line and not line.startswith("#")), "")
    used = ("date", time, "time-taken", "sc-bytes", "c-ip", *options.duration_columns)
    groups = {name: re.sub(r"\W", "_", name) for name in names if name in used}
    other = r"[^\t]*" if is_tabbed else r"[^ ]+"
    cells = [rf'"?(?P<{groups[name]}>[^"\t ]*)"?' if name in groups else other for name in names]
    row = "^" + (r"\t" if is_tabbed else " +").join(cells) + r"\s*$"
    matched = _matched(row, [line for line in _head_lines(path) if not line.startswith("#")])
    if time == "time":
        matched[stamp] = list(map(" ".join, zip(matched["date"], matched["time"], strict=True)))
    columns = {name: matched[name] for name in matched if name not in ("date", "time")}
    taken = tuple(groups.get(name, name) for name in options.duration_columns)
    if not taken and "time-taken" in groups and options.stamp_at != "begin":
        taken = ("time_taken",)
    is_cloudfront = any(name.startswith("x-edge") for name in names)
    unit = options.duration_unit or ("s" if is_cloudfront else "ms")
    options = replace(options, column=stamp, duration_columns=taken, duration_unit=unit, unit=None)
    reading = read_stamps(columns, options, "end")
    reading = replace(reading, why=f", as {'CloudFront' if is_cloudfront else 'IIS'} writes it")
    return _source(path, row, f"does not have the {len(names)} columns of #Fields:", reading, b"#")


def _is_stated(options: TraceOptions) -> bool:
    return bool(options.stamp_at or options.duration_columns or options.column is not None)


def _reading(rows: Sample, options: TraceOptions, side: Side, unit: TraceUnit) -> Reading:
    """The reading of a log whose stamp is the group `time`, by the format or as it is stated."""
    if not _is_stated(options):
        return Reading("time", side).of_stamps(rows["time"])
    column, duration_unit = options.column or "time", options.duration_unit or unit
    return read_stamps(rows, replace(options, column=column, duration_unit=duration_unit), side)


def _head_lines(path: Path) -> list[str]:
    return [line.decode("utf-8", "replace") for line in whole_lines(read_head(path)).lines[:_HEAD_LINES]]


def _matched(pattern: str, lines: list[str]) -> dict[str, list[str]]:
    """The texts of each group of the lines that have the pattern; empty where one took no part."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matched = pc.extract_regex(pa.array(lines, pa.string()), pattern).drop_null()
    return {name: pc.struct_field(matched, name).to_pylist() for name in re.compile(pattern).groupindex}


def has_line(pattern: str, line: bytes) -> bool:
    """Whether a line is one of a log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return bool(pc.match_substring_regex(pa.scalar(line, pa.binary()), pattern).as_py())
