"""Access logs of web servers in the common and the combined log format.

    host ident user [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326 "referer" "agent"

(https://httpd.apache.org/docs/2.4/logs.html#accesslog). A fraction of a second after the seconds is read where a
server was told to write it. Lines are written when a request ends, so they often are slightly out of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.readers.blocks import Block, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of, session_numbers
from squall.scenarios.traces.readers.instants import parse_stamp_ns

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ROW = (
    r"^(?P<host>\S+) \S+ .*?\[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?:\.\d+)? [-+]\d{4})\] "
    r'".*" \d{3} (?P<bytes>\d{1,18}|-)(?: .*)?\r?$'
)
_WHAT = 'is no line of an access log: host ident user [day/month/year:time zone] "request" status bytes'


@dataclass(frozen=True)
class LogSource:
    """Rows of an access log: when, how many bytes, from which host. A `Source`."""

    path: Path
    unit: TraceUnit | None = None
    unit_is_assumed: bool = False
    size_names: tuple[str, ...] = ("bytes",)
    has_sessions: bool = True
    tick_ns: int | None = None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        for block in text_blocks(self.path):
            yield _chunk(block, mending)


def _chunk(block: Block, mending: Mending) -> Chunk:
    import pyarrow as pa
    import pyarrow.compute as pc

    lines = pa.array([line for _, line in block.lines()], pa.binary())
    found = pc.extract_regex(lines, _ROW)
    missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False)).tolist()
    faults = [(index, _WHAT) for index in missing]
    stamp_ns, bad = _times_ns(pc.struct_field(found, "time"))
    size = pc.struct_field(found, "bytes")
    n_bytes = pc.if_else(pc.equal(size, b"-"), b"-1", size).cast(pa.string()).cast(pa.int64()).fill_null(-1)
    known = set(missing)
    faults += [entry for entry in bad if entry[0] not in known]
    session = session_numbers(pc.struct_field(found, "host"))
    return chunk_of(stamp_ns, {"bytes": n_bytes.to_numpy()}, session, block.row_of, faults, mending)


def _times_ns(texts: Any) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    """ns since 1970 of an Arrow array of log times, each distinct text parsed once, and the faults."""
    encoded = texts.dictionary_encode()
    values: list[int] = []
    wrong: dict[int, str] = {}
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(parse_log_time_ns(text.decode()))
        except ValueError as error:
            values.append(0)
            wrong[place] = str(error)
    places = encoded.indices.fill_null(len(values)).to_numpy()
    stamp_ns = np.array([*values, 0], dtype=np.int64)[places]
    if not wrong:
        return stamp_ns, []
    return stamp_ns, [(index, wrong[place]) for index, place in enumerate(places.tolist()) if place in wrong]


def parse_log_time_ns(text: str) -> int:
    """ns since 1970 of `10/Oct/2000:13:55:36 -0700`, also with a fraction of the second. Raises ValueError."""
    date, _, clock = text.partition(":")
    day, month, year = date.split("/")
    if month not in MONTHS:
        raise ValueError(f"{month!r} is no month")
    time, _, zone = clock.partition(" ")
    return parse_stamp_ns(f"{year}-{MONTHS.index(month) + 1:02d}-{day} {time}{zone}", "s")
