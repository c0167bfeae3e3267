"""One value a line: stamps (`lines`), or gaps between requests (`intervals`, perf_analyzer's `--request-intervals`).

perf_analyzer sends at the running sum of the gaps, so that the first request waits for the first gap
(docs/inference_load_modes.md of perf_analyzer, "Custom Interval Mode").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.readers.blocks import Block, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of
from squall.scenarios.traces.readers.instants import INT64_MAX, Clock

_NEVER = "\x01"  # a delimiter that no text holds: the line stays whole


@dataclass(frozen=True)
class LinesSource:
    """Stamps, or with `are_gaps` gaps, one a line. A `Source`."""

    path: Path
    number_unit: TraceUnit
    unit: TraceUnit | None
    unit_is_assumed: bool
    are_gaps: bool = False
    size_names: tuple[str, ...] = ()
    has_sessions: bool = False
    tick_ns: int | None = None
    reading: None = None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.number_unit, "date" if self.unit is None else "number")
        end_ns = 0
        for block in text_blocks(self.path):
            chunk = self._chunk(block, clock, mending)
            if self.are_gaps and len(chunk.part):
                chunk = _summed(chunk, end_ns, mending)
                end_ns = int(chunk.part.stamp_ns[-1])
            yield chunk

    def _chunk(self, block: Block, clock: Clock, mending: Mending) -> Chunk:
        texts = line_texts(block)
        if texts is not None and not block.has_rows(len(texts)):  # a CR in a line splits it for Arrow
            texts = None
        stamp_ns, faults = (np.empty(0, dtype=np.int64), []) if texts is None else clock.read(texts)
        if texts is None or (faults and block.rows.size != stamp_ns.size):  # not UTF-8, or a line of blanks
            lines = [line.decode("utf-8", "replace") for _, line in block.lines()]
            stamp_ns, faults = clock.read_each(lines)
        return chunk_of(stamp_ns, {}, None, block.row_of, faults, mending)


def line_texts(block: Block) -> Any:
    """Arrow array of the lines that are not empty; None where they are not UTF-8."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not block.data.strip():
        return pa.array([], pa.string())
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            read_options=arrow_csv.ReadOptions(column_names=["0"], block_size=max(len(block.data), 2**16)),
            parse_options=arrow_csv.ParseOptions(delimiter=_NEVER, quote_char=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={"0": pa.string()}, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table["0"].combine_chunks()


def _summed(chunk: Chunk, start_ns: int, mending: Mending) -> Chunk:
    """The running sum of gaps, from `start_ns`. Raises RowFault for a negative gap and a sum beyond int64."""
    gaps_ns: NDArray[np.int64] = chunk.part.stamp_ns
    negative = np.flatnonzero(gaps_ns < 0)
    if negative.size and not mending.asks("clip-negative"):
        row = chunk.row_of(int(negative[0]))
        raise RowFault(row, "the interval is negative; mend it or ask for the repair clip-negative")
    if negative.size:
        mending.count("clip-negative", int(negative.size))
        gaps_ns = np.maximum(gaps_ns, 0)
    if start_ns + float(gaps_ns.astype(np.float64).sum()) > 0.99 * INT64_MAX:
        raise RowFault(
            chunk.row_of(0), "the sum of the intervals leaves 2^63 ns (292 years); is the unit right?"
        )
    stamp_ns = start_ns + np.cumsum(gaps_ns)
    return chunk_of(stamp_ns, {}, None, chunk.row_of, [], mending)
