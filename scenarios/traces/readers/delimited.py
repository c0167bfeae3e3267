"""CSV and its kin (tab and semicolon): Azure LLM, BurstGPT, counts and any file with a timestamp column.

A quoted cell may hold the delimiter, but no line break.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.readers.blocks import Block, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of, session_numbers
from squall.scenarios.traces.readers.instants import EMPTY_CELLS, Clock, parse_whole
from squall.scenarios.traces.readers.stamps import Reading

_QUOTE = '"'


@dataclass(frozen=True)
class Layout:
    """The columns of a delimited text, as indices into its header. `n_header_rows` lines come before the data."""

    header: tuple[str, ...]
    delimiter: str
    n_header_rows: int
    stamp: int
    sizes: tuple[int, ...]
    session: int | None
    durations: tuple[int, ...] = ()

    @property
    def texts(self) -> list[int]:
        return [self.stamp, *([] if self.session is None else [self.session]), *self.durations]

    @property
    def used(self) -> list[int]:
        return [*dict.fromkeys([*self.texts, *self.sizes])]


@dataclass(frozen=True)
class DelimitedSource:
    """Rows of a delimited text. A `Source`."""

    path: Path
    layout: Layout
    number_unit: TraceUnit
    unit: TraceUnit | None  # None where the first stamp is a date
    unit_is_assumed: bool
    tick_ns: int | None = None
    reading: Reading | None = None

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(self.layout.header[index] for index in self.layout.sizes)

    @property
    def has_sessions(self) -> bool:
        return self.layout.session is not None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.number_unit, "date" if self.unit is None else "number")
        for block in text_blocks(self.path):
            yield self._chunk(_without_header(block, self.layout.n_header_rows), clock, mending)

    def _chunk(self, block: Block, clock: Clock, mending: Mending) -> Chunk:
        import pyarrow as pa

        layout = self.layout
        try:
            columns = read_columns(block.data, layout)
        except pa.ArrowInvalid:
            return self._chunk_by_rows(block, clock, mending)
        if not block.has_rows(len(columns[layout.stamp])):  # a quote or a CR joins or splits lines for Arrow
            return self._chunk_by_rows(block, clock, mending)
        stamp_ns, faults = clock.read(columns[layout.stamp])
        if (
            faults and block.rows.size != stamp_ns.size
        ):  # Arrow takes a line of blanks for a row of one column
            return self._chunk_by_rows(block, clock, mending)
        if self.reading is not None and self.reading.durations is not None:
            taken = [columns[index] for index in layout.durations]
            stamp_ns, faults = self.reading.durations.before(stamp_ns, taken, faults)
        sizes = {layout.header[i]: columns[i].fill_null(-1).to_numpy() for i in layout.sizes}
        session = None if layout.session is None else session_numbers(columns[layout.session])
        return chunk_of(stamp_ns, sizes, session, block.row_of, faults, mending)

    def _chunk_by_rows(self, block: Block, clock: Clock, mending: Mending) -> Chunk:
        """The same, row by row: names the faulty ones, and reads what Arrow is too strict for."""
        import pyarrow as pa

        layout = self.layout
        texts: list[str] = []
        sizes: dict[int, list[int]] = {index: [] for index in layout.sizes}
        sessions: list[str] = []
        taken: list[list[str]] = [[] for _ in layout.durations]
        rows: list[int] = []
        faults: list[tuple[int, str]] = []
        for row, line in block.lines():
            rows.append(row)
            values, fault = _row_values(line, layout)
            if fault:
                faults.append((len(rows) - 1, fault))
            texts.append("" if fault else values[layout.stamp])
            sessions.append("" if fault or layout.session is None else values[layout.session])
            for place, index in enumerate(layout.durations):
                taken[place].append("" if fault else values[index])
            for index in layout.sizes:
                sizes[index].append(0 if fault else int(values[index]))
        stamp_ns, bad = clock.read_each(texts)
        known = {index for index, _ in faults}
        faults += [entry for entry in bad if entry[0] not in known]
        if self.reading is not None and self.reading.durations is not None:
            stamp_ns, faults = self.reading.durations.before(stamp_ns, taken, faults)
        return chunk_of(
            stamp_ns,
            {layout.header[index]: np.array(values, dtype=np.int64) for index, values in sizes.items()},
            None if layout.session is None else session_numbers(pa.array(sessions, pa.string())),
            lambda index: rows[index],
            faults,
            mending,
        )


def read_columns(data: bytes, layout: Layout) -> dict[int, Any]:
    """Arrow arrays of the used columns: texts of stamp and session, int64 of sizes (null where empty).

    Raises ArrowInvalid for a row of another width or a size that is no whole number.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names = [str(index) for index in range(len(layout.header))]
    types = {str(index): pa.int64() for index in layout.sizes}
    types |= {str(index): pa.string() for index in layout.texts}
    if not data.strip():
        return {index: pa.array([], types[str(index)]) for index in layout.used}
    table = arrow_csv.read_csv(
        pa.BufferReader(data),
        read_options=arrow_csv.ReadOptions(column_names=names, block_size=max(len(data), 2**16)),
        parse_options=arrow_csv.ParseOptions(delimiter=layout.delimiter),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=[str(index) for index in layout.used],
            null_values=list(EMPTY_CELLS),
            strings_can_be_null=False,
        ),
    )
    return {index: table[str(index)].combine_chunks() for index in layout.used}


def whole_columns(data: bytes, layout: Layout) -> tuple[int, ...]:
    """Indices of the columns whose every cell is a whole number or empty, not all empty, by the rows of `data`."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not data.strip():
        return ()
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(
                column_names=[str(index) for index in range(len(layout.header))],
                block_size=max(len(data), 2**16),
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=layout.delimiter, invalid_row_handler=lambda _: "skip"
            ),
            convert_options=arrow_csv.ConvertOptions(null_values=list(EMPTY_CELLS), check_utf8=False),
        )
    except pa.ArrowInvalid as error:
        raise RowFault(layout.n_header_rows + 1, f"cannot be read as columns: {error}") from error
    return tuple(i for i in range(len(layout.header)) if pa.types.is_int64(table.schema.field(i).type))


def split_line(line: bytes, delimiter: str) -> list[str]:
    """Cells of one line. Raises ValueError for bytes that are no UTF-8 and for a quote left open."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the line is not UTF-8") from error
    try:
        return next(csv.reader([text], delimiter=delimiter, quotechar=_QUOTE, strict=True))
    except csv.Error as error:
        raise ValueError(f"the line is no CSV: {error} (a line break in quotes is not supported)") from error


def _row_values(line: bytes, layout: Layout) -> tuple[dict[int, Any], str]:
    """Text of stamp and session and whole numbers of sizes by column, or what is wrong with the line."""
    try:
        cells = split_line(line, layout.delimiter)
        if len(cells) != len(layout.header):
            raise ValueError(f"has {_count(len(cells))}, the header has {len(layout.header)}")
        values: dict[int, Any] = {index: cells[index] for index in layout.used}
        for index in layout.sizes:
            try:
                values[index] = parse_whole(cells[index])
            except ValueError as error:
                raise ValueError(f"column {layout.header[index]!r}: {error}") from error
    except ValueError as error:
        return {}, str(error)
    return values, ""


def _count(n_columns: int) -> str:
    return f"{n_columns} column{'' if n_columns == 1 else 's'}"


def _without_header(block: Block, n_header_rows: int) -> Block:
    if block.first_row > n_header_rows:
        return block
    data = block.data.split(b"\n", n_header_rows)[-1]
    return Block(n_header_rows + 1, data)


def sniff_delimiter(line: str) -> str:
    """The delimiter that stands most often in `line`: comma, tab or semicolon."""
    return max(",\t;", key=line.count)


def data_of(head: bytes, n_header_rows: int) -> bytes:
    """The whole lines of a file's first bytes after its header."""
    body = head.split(b"\n", n_header_rows)[-1] if n_header_rows else head
    return body[: body.rfind(b"\n") + 1] or body


def duplicate_names(header: Sequence[str]) -> list[str]:
    return sorted(name for name, n in Counter(header).items() if n > 1)
