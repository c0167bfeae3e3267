"""How many events of a kind an export of nsys holds, whichever form it has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.nsys.allowed import NVTX, OS_RUNTIME_CALL, OSRT, PUSH_POP, START_END
from squall.analysis.nsys.source import Export, open_export


class EventCounts(NamedTuple):
    """OS-runtime calls, and NVTX ranges."""

    n_osrt: int
    n_nvtx: int


def count_events(export: Path) -> EventCounts:
    """Of a folder of Parquet files or an SQLite file; 0 without the table, which nsys leaves out when it is empty.

    Raises AnalysisError for what is no export, or a broken one.
    """
    with open_export(export) as source:
        n_osrt = _count(source, OSRT, "eventClass", (OS_RUNTIME_CALL,))
        return EventCounts(n_osrt, _count(source, NVTX, "eventType", (PUSH_POP, START_END)))


def _count(source: Export, table: str, kind: str, kinds: tuple[int, ...]) -> int:
    """Rows of one of `kinds`; all rows where the version does not tell kinds apart."""
    names = source.columns(table)
    if not names:
        return 0
    column = kind if kind in names else "start"
    wanted = pa.array(kinds, pa.int64())
    return sum(
        piece.num_rows if column != kind else pc.sum(pc.is_in(piece[kind], wanted)).as_py() or 0
        for piece in source.read(table, (column,), ())
    )
