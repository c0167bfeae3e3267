"""Fixed schedules of perf_analyzer: one JSON document, `{"data": [{"payload": [...], "timestamp": [1000]}, ...]}`.

A timestamp is ms after the start (docs/inference_load_modes.md of perf_analyzer, "Fixed Schedule Mode"). The
document is held whole, so its length is limited; schedules of aiperf are JSON lines and have no such limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.readers.blocks import open_text
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of
from squall.scenarios.traces.readers.instants import Clock

LONGEST_DOCUMENT_BYTES = 2**28


@dataclass(frozen=True)
class ScheduleSource:
    """Entries of a fixed schedule; a row's number is the place of its entry, from 1. A `Source`."""

    path: Path
    unit: TraceUnit | None
    unit_is_assumed: bool = False
    size_names: tuple[str, ...] = ()
    has_sessions: bool = False
    tick_ns: int | None = None
    reading: None = None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.unit or "ms", "number")
        texts: list[str | None] = []
        for entry in _entries(self.path):
            stamp = entry.get("timestamp") if isinstance(entry, dict) else None
            stamp = stamp[0] if isinstance(stamp, list) and len(stamp) == 1 else stamp
            texts.append(
                str(stamp) if isinstance(stamp, int | Decimal) and not isinstance(stamp, bool) else None
            )
        stamp_ns, faults = clock.read_each(texts)
        yield chunk_of(stamp_ns, {}, None, lambda index: index + 1, faults, mending)


def _entries(path: Path) -> list[Any]:
    with open_text(path) as file:
        document = file.read(LONGEST_DOCUMENT_BYTES + 1)
    if len(document) > LONGEST_DOCUMENT_BYTES:
        raise RowFault(
            None, f"a JSON document of over {LONGEST_DOCUMENT_BYTES} bytes; write it as JSON lines"
        )
    try:
        data = json.loads(document, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        row = getattr(error, "lineno", None)
        raise RowFault(
            row,
            f"not JSON: {getattr(error, 'msg', 'not UTF-8, nested too deep, or a number of thousands of digits')}",
        ) from error
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise RowFault(1, 'no list "data" of entries with a timestamp; write {"data": [{"timestamp": [0]}]}')
    return entries
