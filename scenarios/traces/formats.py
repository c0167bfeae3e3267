"""Every trace format, one record each: how it is recognised, read and written, and what it cannot hold.

`FORMATS` is all of them: a name of `TraceFormat` without a record, or one with two, fails when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from squall.scenarios.traces.parts.options import TraceFormat, TraceOptions
from squall.scenarios.traces.readers import logs, recognise, sources
from squall.scenarios.traces.readers.chunk import Source
from squall.scenarios.traces.readers.recognise import Opening
from squall.scenarios.traces.readers.servegen import servegen_source
from squall.scenarios.traces.writers import encoders
from squall.scenarios.traces.writers.client_windows import ClientWindows
from squall.scenarios.traces.writers.files import Write, as_columns, as_text


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of trace files.

    `recognise`: None where nothing in a file shows it, so that it must be named. `read` raises RowFault where the file
    is not of this format. `write`: None for the log of a server, which is read and not written. `endings`: of names
    that are written in this format. `begins`: `1970` where a stamp below 0 is a fault, `first arrival` where stamps
    count from there.
    """

    name: TraceFormat
    recognise: Callable[[Opening], bool] | None
    read: Callable[[Path, TraceOptions], Source]
    write: Write | None
    endings: tuple[str, ...] = ()
    begins: Literal["anywhere", "1970", "first arrival"] = "1970"
    compresses_itself: bool = False


_PARQUET = Format(
    name="parquet",
    recognise=recognise.is_parquet,
    read=sources.columnar_source,
    write=as_columns("parquet"),
    endings=(".parquet", ".pq"),
    compresses_itself=True,
)
_ARROW = Format(
    name="arrow",
    recognise=recognise.is_arrow,
    read=sources.columnar_source,
    write=as_columns("arrow"),
    endings=(".arrow", ".feather", ".ipc"),
    compresses_itself=True,
)
_BAILIAN = Format(
    name="bailian",
    recognise=recognise.is_bailian,
    read=sources.bailian_source,
    write=as_text(encoders.bailian),
)
_MOONCAKE = Format(
    name="mooncake",
    recognise=recognise.is_mooncake,
    read=sources.mooncake_source,
    write=as_text(encoders.mooncake),
)
_FIXED_SCHEDULE = Format(
    name="fixed-schedule",
    recognise=recognise.is_fixed_schedule,
    read=sources.fixed_schedule_source,
    write=as_text(encoders.fixed_schedule),
    begins="first arrival",
)
_JSONL = Format(
    name="jsonl",
    recognise=recognise.is_jsonl,
    read=sources.jsonl_source,
    write=as_text(encoders.jsonl),
    endings=(".jsonl", ".ndjson"),
)
_COMBINED_LOG = Format(
    name="combined-log",
    recognise=recognise.is_combined_log,
    read=logs.log_source,
    write=as_text(encoders.combined_log),
    begins="anywhere",
)
_COMMON_LOG = Format(
    name="common-log",
    recognise=recognise.is_common_log,
    read=logs.log_source,
    write=as_text(encoders.common_log),
    begins="anywhere",
)
_ALB_LOG = Format(
    name="alb-log",
    recognise=recognise.is_alb_log,
    read=logs.alb_source,
    write=None,
)
_ELB_LOG = replace(_ALB_LOG, name="elb-log", recognise=recognise.is_elb_log, read=logs.elb_source)
_ENVOY_LOG = replace(_ALB_LOG, name="envoy-log", recognise=recognise.is_envoy_log, read=logs.envoy_source)
_HAPROXY_LOG = replace(
    _ALB_LOG, name="haproxy-log", recognise=recognise.is_haproxy_log, read=logs.haproxy_source
)
_W3C_LOG = replace(_ALB_LOG, name="w3c-log", recognise=recognise.is_w3c_log, read=logs.w3c_source)
_AZURE = Format(
    name="azure-llm",
    recognise=recognise.is_azure,
    read=sources.azure_source,
    write=as_text(encoders.azure_table),
    begins="anywhere",
)
_BURSTGPT = Format(
    name="burstgpt",
    recognise=recognise.is_burstgpt,
    read=sources.burstgpt_source,
    write=as_text(encoders.burstgpt_table),
)
_SERVEGEN = Format(
    name="servegen",
    recognise=recognise.is_servegen,
    read=servegen_source,
    write=as_text(lambda _: ClientWindows()),
)
_COUNTS = Format(
    name="counts",
    recognise=recognise.is_counts,
    read=sources.counts_source,
    write=as_text(encoders.counts),
)
_LINES = Format(
    name="lines",
    recognise=recognise.is_lines,
    read=sources.lines_source,
    write=as_text(encoders.lines),
    endings=(".txt",),
)
_CSV = Format(
    name="csv",
    recognise=recognise.is_csv,
    read=sources.csv_source,
    write=as_text(encoders.csv_table),
    endings=(".csv",),
)
_INTERVALS = Format(
    name="intervals",
    recognise=None,  # the lines look like stamps
    read=sources.intervals_source,
    write=as_text(encoders.intervals),
    begins="first arrival",
)

FORMATS = (
    _PARQUET,
    _ARROW,
    _BAILIAN,
    _MOONCAKE,
    _FIXED_SCHEDULE,
    _JSONL,
    _COMBINED_LOG,
    _COMMON_LOG,
    _ALB_LOG,
    _ELB_LOG,
    _ENVOY_LOG,
    _HAPROXY_LOG,
    _W3C_LOG,
    _AZURE,
    _BURSTGPT,
    _SERVEGEN,
    _COUNTS,
    _LINES,
    _CSV,
    _INTERVALS,
)
"""Every format, in the order in which a file is tried: what is told from fewer bytes or says more comes first."""


def closed(formats: Sequence[Format]) -> Mapping[TraceFormat, Format]:
    """Format by name. Raises TypeError unless each of `TraceFormat` is there once, and no two have one ending."""
    wanted, names = get_args(TraceFormat), [one.name for one in formats]
    endings = [ending for one in formats for ending in one.endings]
    faults = [f"{name!r} of TraceFormat has no record" for name in wanted if name not in names]
    faults += [f"{name!r} is no TraceFormat" for name in names if name not in wanted]
    faults += [
        f"{one!r} stands twice"
        for one in dict.fromkeys([*names, *endings])
        if (names + endings).count(one) > 1
    ]
    if faults:
        raise TypeError(f"FORMATS of {__name__}: {'; '.join(faults)}")
    return {one.name: one for one in formats}


_BY_NAME = closed(FORMATS)


def record_of(name: TraceFormat) -> Format:
    """The record of a format."""
    return _BY_NAME[name]


def recognised(path: Path, column: str | None = None) -> Format:
    """The first format that the first bytes of `path` show; `column`: that of the stamps, where it is named.

    Raises RowFault, with what was tried, for a file that is empty or of none.
    """
    opening = Opening(path, column)
    found = next((one for one in FORMATS if one.recognise is not None and one.recognise(opening)), None)
    if found is None:
        raise recognise.unrecognised(opening, [one.name for one in FORMATS if one.recognise is not None])
    return found


def format_of_suffix(ending: str) -> TraceFormat | None:
    """The format in which a name that ends so is written; None for an ending that says none."""
    return next((one.name for one in FORMATS if ending in one.endings), None)
