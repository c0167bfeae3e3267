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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.instants import Clock, Faults
from squall.scenarios.traces.names import duration_of
from squall.scenarios.traces.options import TraceOptions, TraceUnit
from squall.scenarios.traces.rows import Fields, Rows
from squall.scenarios.traces.stamps import Sample, Stamps, durations_of, instants_of
from squall.scenarios.traces.tables import MakeTable, Table
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


def _table(
    path: Path,
    sample: Sample,
    pattern: Callable[[Sequence[str]], str],
    what: str,
    stamps: Stamps,
    has_comments: bool = False,
) -> Table:
    """A log whose lines have a pattern, of named groups for the columns asked for; `what` is wrong with others.

    `has_comments`: lines that begin with `#` are no rows.
    """

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        import pyarrow as pa
        import pyarrow.compute as pc

        row = pattern(fields.names)
        for block in text_blocks(path):
            if has_comments:  # blank lines are no rows
                block = replace(block, data=re.sub(rb"(?m)^#.*", b"", block.data))
            matched = pc.extract_regex(pa.array(block.lines, pa.binary()), row)
            missing = np.flatnonzero(matched.is_null().to_numpy(zero_copy_only=False)).tolist()
            columns = {name: pc.struct_field(matched, name) for name in re.compile(row).groupindex}
            if "date" in columns:
                columns["date time"] = pc.binary_join_element_wise(columns["date"], columns["time"], b" ")
            faults: Faults = dict.fromkeys(missing, what)
            yield Rows(columns, block.rows, faults)

    sizes, ids = (
        tuple(name for name in names if name in sample) for names in (("bytes", "sc_bytes"), ("host", "c_ip"))
    )
    return Table(tuple(sample), sample, sizes, read, ids, stamps=stamps)


def web_log(path: Path, options: TraceOptions) -> Table:
    """Either log of a web server."""
    lines = _head_lines(path)
    is_combined = len(_matched(COMBINED, lines)["time"]) * 2 > len(lines)
    row = COMBINED if is_combined else COMMON
    columns = _matched(rf"{row}(?P<rest>.*)", lines)
    fields = [re.findall(_FIELD, rest[:_MOST_EXTRA]) for rest in columns.pop("rest")]
    extras: dict[str, list[str]] = {}
    for place in range(max(map(len, fields), default=0)):
        texts = [row_fields[place] if place < len(row_fields) else "" for row_fields in fields]
        name = next((text.partition("=")[0] for text in texts if re.match(r"[A-Za-z_]+=", text)), "")
        name = name if name and name not in {**columns, **extras} else f"extra{place + 1}"
        extras[name] = [re.sub(r"^[A-Za-z_]+=", "", text).strip('"') for text in texts]

    def pattern(used: Sequence[str]) -> str:
        last = max((place for place, name in enumerate(extras, 1) if name in used), default=0)
        cells = [
            rf'(?:[A-Za-z_]+=)?"?(?P<{name}>[^" ]*)"?' if name in used else f"(?:{_FIELD})" for name in extras
        ]
        return " ".join([row, *cells[:last]]) + r"(?: .*)?\r?$"

    what = 'is no line of an access log: host ident user [day/month/year:time zone] "request" status bytes'
    return _table(path, columns | extras, pattern, what, _web_stamps(extras, options))


def _web_stamps(extras: dict[str, list[str]], options: TraceOptions) -> Stamps:
    """nginx by what only nginx writes: numbers with three decimals, or fields that say that they are durations."""
    decimals = [name for name in extras if _are_all(extras[name], r"\d+\.\d{3}|-")]
    stamps = [name for name in decimals if _are_all(extras[name], r"\d{10}\.\d{3}")]
    named = [name for name in extras if not name.startswith("extra") and duration_of(name) is not None]
    times = sorted(set(decimals) - set(stamps), key=lambda name: -durations_of(extras[name], "s").sum())
    if named or decimals:
        durations = () if named else tuple(times[:1])  # without a name: the one that holds the others
        return Stamps(stamps[0] if stamps else "time", "end", "s", "nginx", durations, "s")
    if any(_are_all(texts, r"\d+ms") for texts in extras.values()):  # Traefik
        return Stamps("time", "begin")
    note = (
        "The log does not say which end of a request its stamps are: Apache's are the begin, nginx's the"
        " end. If they are ends, each arrival is late by its request's duration and bursts are smoothed: log the"
        " duration too"
        " ($request_time)."
    )
    return Stamps("time", notes=() if _is_stated(options) else (note,))


def _are_all(texts: list[str], pattern: str) -> bool:
    """Whether nine of ten texts are of a pattern, and not all of them a `-`."""
    n_fitting = sum(bool(text and re.fullmatch(pattern, text)) for text in texts)
    return n_fitting >= 0.9 * len(texts) and any(text not in ("", "-") for text in texts)


def _is_stated(options: TraceOptions) -> bool:
    """Whether the user says what the stamps are."""
    return bool(options.stamp_at or options.duration_columns or options.column)


def alb_log(path: Path, options: TraceOptions) -> Table:
    """An application load balancer's log: the begin that it states if that agrees with the end less the durations."""
    what = "is no line of an application load balancer's log: type time elb client:port target:port three times …"
    rows, began = (_matched(pattern, _head_lines(path)) for pattern in (ALB, ALB + _ALB_BEGAN))
    begin = instants_of(began["time"]) - sum(durations_of(began[name], "s") for name in _ALB_TIMES)
    apart = np.ma.abs(begin - instants_of(began["request_creation_time"])).compressed()
    is_begun = bool(apart.size) and np.median(apart) < 10**8 and len(began["time"]) >= 0.9 * len(rows["time"])
    if is_begun and not _is_stated(options):
        stamps = Stamps("request_creation_time", "begin")
        return _table(path, began, lambda _: ALB + _ALB_BEGAN, what, stamps)
    stamps = Stamps("time", "end", server="the load balancer", durations=_ALB_TIMES, duration_unit="s")
    return _table(path, rows, lambda _: ALB, what, stamps)


def plain_log(pattern: str, what: str, unit: TraceUnit) -> MakeTable:
    """The reader of a log with begins in the group `time`; `unit` of its durations, should these be taken off."""

    def table(path: Path, _: TraceOptions) -> Table:
        rows = _matched(pattern, _head_lines(path))
        has_zone = any(re.search(r"Z$| [-+]", stamp) for stamp in rows["time"])
        notes = () if has_zone else ("The stamps have no time zone and are read as UTC.",)
        stamps = Stamps("time", "begin", duration_unit=unit, notes=notes)
        return _table(path, rows, lambda _: pattern, f"is no line of {what}", stamps)

    return table


def w3c_log(path: Path, options: TraceOptions) -> Table:
    """W3C's extended log (IIS, CloudFront): the columns that `#Fields:` names."""
    lines = _head_lines(path)
    names = next((line.split(":", 1)[1].split() for line in lines if line.startswith("#Fields:")), None)
    if names is None:
        raise RowFault(1, "has no line #Fields: in its first lines; it says which column is which")
    time = next((name for name in ("time", "timestamp") if name in names), None)
    if time is None or (time == "time" and "date" not in names):
        raise RowFault(1, f"#Fields: names no date and time but {', '.join(names[:6])}; log date and time")
    stamp = "date time" if time == "time" else time
    if options.column is not None and options.column not in ("date", time):
        instants = stamp.replace(" ", " and ")
        raise RowFault(1, f"the instants of this log are {instants}: leave out --column {options.column}")
    lines = [line for line in lines if not line.startswith("#")]
    is_tabbed = any("\t" in line for line in lines[:1])
    used = ("date", time, "time-taken", "sc-bytes", "c-ip", *options.duration_columns)
    groups = {name: re.sub(r"\W", "_", name) for name in names if name in used}
    other = r"[^\t]*" if is_tabbed else r"[^ ]+"
    cells = [rf'"?(?P<{groups[name]}>[^"\t ]*)"?' if name in groups else other for name in names]
    row = "^" + (r"\t" if is_tabbed else " +").join(cells) + r"\s*$"
    sample = _matched(row, lines)
    if time == "time":
        sample[stamp] = list(map(" ".join, zip(sample.pop("date"), sample.pop("time"), strict=True)))
    is_cloudfront = any(name.startswith("x-edge") for name in names)
    server = "CloudFront" if is_cloudfront else "IIS"
    stamps = Stamps(stamp, "end", server=server, duration_unit="s" if is_cloudfront else "ms", is_only=True)
    what = f"does not have the {len(names)} columns of #Fields:"
    return _table(path, sample, lambda _: row, what, stamps, has_comments=True)


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
