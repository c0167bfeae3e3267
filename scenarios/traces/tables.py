"""Files of columns: delimited text, JSON lines, Parquet and Arrow (IPC file, also called Feather, and IPC stream).

Arrow reads them, and of text whole blocks of lines, so that memory is bounded and every row has its number. A block
that it refuses or reads as another number of rows is read again line by line: that names the line at fault, and takes
what Arrow is too strict for. A quoted cell may hold the delimiter, but no line break. A row of Parquet or Arrow is
numbered by its place in the data, from 1.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from squall.scenarios.records import Frozen
from squall.scenarios.traces.documents import entries_in
from squall.scenarios.traces.faults import RowFault, shown
from squall.scenarios.traces.instants import DIGITS, EMPTY_CELLS, INT64_MAX, Clock, is_safe_to_cast
from squall.scenarios.traces.names import stamp_column
from squall.scenarios.traces.options import TraceOptions
from squall.scenarios.traces.part import PART_ROWS
from squall.scenarios.traces.rows import Fields, ReadRows, Rows
from squall.scenarios.traces.stamps import SAMPLE_ROWS, Sample, Stamps
from squall.scenarios.traces.text import (
    Block,
    first_bytes,
    open_text,
    read_head,
    refuse_rows,
    text_blocks,
    whole_lines,
)

_NEVER = "\x01"  # a delimiter that no text holds: the line stays whole
_FIRST_ENTRIES = 100
_MOST_COLUMNS = 2_000  # the first rows of all columns are looked at
_READ_AHEAD_BYTES = 2**20
_WHOLE = re.compile(r"\s*-?\d{1,19}\s*", re.ASCII)


class Table(Frozen):
    """A file whose columns are known. `names` are all of them, `sample` the first rows of those that may be instants.

    `sizes`: columns of whole numbers; `ids`: those that may be sessions. `row` of the header, for faults. `unitless`:
    types of columns of numbers of which neither type nor container says the unit. `stamps`: what the file shows of
    them, None where that is for the format to say.
    """

    names: tuple[str, ...]
    sample: Sample
    sizes: tuple[str, ...]
    read: ReadRows
    ids: tuple[str, ...]
    row: int | None = 1
    unitless: Mapping[str, Any] = field(default_factory=dict)
    stamps: Stamps | None = None


MakeTable = Callable[[Path, TraceOptions], Table]
"""Raises RowFault for a file that is not of its format."""


def delimited(
    path: Path, _: TraceOptions | None = None, bare_header: tuple[str, ...] = (), delimiter: str = ""
) -> Table:
    """A text of cells between commas, tabs or semicolons. `bare_header`: of the first columns, if no line has it."""
    head = whole_lines(read_head(path))
    row = int(head.rows[0])
    delimiter = delimiter or sniff_delimiter(head.lines[0])
    try:
        cells = split_line(head.lines[0], delimiter)
    except ValueError as error:
        raise RowFault(row, str(error)) from error
    header = (*bare_header, *(cell.strip() for cell in cells[len(bare_header) :]))
    _refuse_wide(header, row)
    sample: list[list[str]] = []
    for line in head.lines[0 if bare_header else 1 :]:
        with suppress(ValueError):
            sample.append(_cells(line, delimiter, len(header)))
    columns = {name: [texts[place] for texts in sample] for place, name in enumerate(header)}
    sizes = tuple(name for name in header if _are_whole(columns[name]))

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        kinds = {name: pa.int64() if name in fields.sizes else pa.string() for name in fields.names}
        parsing = arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char='"' if delimiter != _NEVER else False
        )
        converting = arrow_csv.ConvertOptions(
            column_types=kinds,
            include_columns=fields.names,
            null_values=list(EMPTY_CELLS),
            strings_can_be_null=False,
        )

        def arrow(block: Block) -> Any:
            reading = arrow_csv.ReadOptions(column_names=header, block_size=max(len(block.data), 2**16))
            return arrow_csv.read_csv(pa.BufferReader(block.data), reading, parsing, converting)

        def texts_of(line: bytes) -> list[str | None]:
            texts = dict(zip(header, _cells(line, delimiter, len(header)), strict=True))
            return [texts[name] for name in fields.names]

        return _blocks(text_blocks(path, row - bool(bare_header)), fields.names, arrow, texts_of)

    return Table(header, columns, sizes, read, header, row)


def _cells(line: bytes, delimiter: str, n_columns: int) -> list[str]:
    """The cells of a line. Raises ValueError if it is no line of so many."""
    texts = split_line(line, delimiter)
    if len(texts) != n_columns:
        raise ValueError(f"has {len(texts)} column{'s' * (len(texts) != 1)}, the header has {n_columns}")
    return texts


def lines_of(path: Path, _: TraceOptions) -> Table:
    """A text of one value a line, as a table of the one column `time`."""
    return delimited(path, bare_header=("time",), delimiter=_NEVER)


def _blocks(
    blocks: Iterable[Block],
    names: Sequence[str],
    arrow: Callable[[Block], Any],
    cells: Callable[[bytes], list[str | None]],
) -> Iterator[Rows]:
    """The rows of a text by `arrow`, which makes a table of a block, or None; else by the `cells` of each line."""
    import pyarrow as pa

    for block in blocks:
        try:
            table = arrow(block) if block.rows.size else None
        except pa.ArrowInvalid:
            table = None
        # A quote or a CR joins or splits lines for Arrow.
        if table is not None and len(table) == block.rows.size:
            columns = [column.combine_chunks() for column in table.columns]
            yield Rows(dict(zip(names, columns, strict=True)), block.rows)
            continue
        rows, faults = [], {}
        for index, line in enumerate(block.lines):
            texts: list[str | None] = [None] * len(names)
            try:
                texts = cells(line)
            except ValueError as error:
                faults[index] = str(error)
            rows.append([None if text is None else text.encode("utf-8", "surrogatepass") for text in texts])
        if rows:
            arrays = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
            yield Rows(dict(zip(names, arrays, strict=True)), block.rows, faults)


def json_lines(path: Path, _: TraceOptions) -> Table:
    """A text of one JSON object a line; a value in an object in it is named by all keys, with points between."""
    entries: list[dict[str, Any]] = []
    for line in whole_lines(read_head(path)).lines[:_FIRST_ENTRIES]:
        with suppress(ValueError):
            entries.append(parse_entry(line))
    names = tuple(dict.fromkeys(name for entry in entries for name in entry))
    if not names:
        raise RowFault(1, "no JSON object with a timestamp; name the format")
    values = {name: [entry.get(name) for entry in entries] for name in names}
    sizes = tuple(
        name for name in names if "." not in name and {*map(type, values[name])} - {type(None)} == {int}
    )
    sample = {
        name: [None if isinstance(value, bool | list | dict | None) else str(value) for value in column]
        for name, column in values.items()
    }

    def read(fields: Fields, clock: Clock) -> Iterator[Rows]:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        def kind(name: str) -> Any:
            """Another in a block leaves that to the lines."""
            types = {*map(type, values[name])} - {type(None)}
            if name == fields.stamp and clock.kind != "date":
                return pa.decimal128(38, DIGITS[clock.unit])
            if name in fields.sizes or types == {int}:
                return pa.int64()
            return pa.float64() if name in fields.durations and str not in types else pa.string()

        schema = pa.schema([(name, kind(name)) for name in fields.names])
        parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

        def arrow(block: Block) -> Any:
            if any("." in name for name in fields.names) or not (
                clock.kind == "date" or is_safe_to_cast(pa.array([block.data], pa.binary()))
            ):
                return None
            options = arrow_json.ReadOptions(block_size=max(len(block.data), 2**16))
            return arrow_json.read_json(pa.BufferReader(block.data), options, parsing)

        def cells(line: bytes) -> list[str | None]:
            entry = parse_entry(line)
            found = {name: entry.get(name) for name in fields.names}
            for name in fields.sizes:
                if isinstance(value := found[name], str):
                    raise ValueError(f"column {name!r}: {shown(value)} is a text, not a whole number")
            return [None if value is None else str(value) for value in found.values()]

        return _blocks(text_blocks(path), fields.names, arrow, cells)

    return Table(names, sample, sizes, read, names)


def schedule(path: Path, options: TraceOptions) -> Table:
    """A fixed schedule of perf_analyzer, one document `{"data": [{"payload": [], "timestamp": [1000]}]}`.

    A timestamp is ms after the start (docs/inference_load_modes.md of perf_analyzer, "Fixed Schedule Mode"). A row's
    number is the place of its entry. A file of another kind is read as the JSON lines of aiperf.
    """
    if b'"data"' not in read_head(path)[:1000]:
        return json_lines(path, options)

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        import pyarrow as pa

        row = 1
        with open_text(path) as file:
            stamps = map(_scheduled, entries_in(file, "data", Decimal))
            while texts := list(islice(stamps, PART_ROWS)):
                yield Rows({fields.stamp: pa.array(texts, pa.string())}, np.arange(row, row + len(texts)))
                row += len(texts)
                refuse_rows(row)

    stamps = Stamps("timestamp", unit="ms", is_only=True)
    return Table(("timestamp",), {"timestamp": ()}, (), read, (), stamps=stamps)


def _scheduled(entry: Any) -> str | None:
    stamp = entry.get("timestamp") if isinstance(entry, dict) else None
    stamp = stamp[0] if isinstance(stamp, list) and len(stamp) == 1 else stamp
    return str(stamp) if type(stamp) in (int, Decimal) else None


def columnar(path: Path, options: TraceOptions) -> Table:
    """A Parquet or Arrow file."""
    refuse_rows(stated_rows(path) or 0)
    schema = schema_of(path)
    kinds = {field.name: str(field.type) for field in schema}
    names = tuple(schema.names)
    _refuse_wide(names, None)

    def of_kind(pattern: str) -> tuple[str, ...]:
        known = re.compile(rf"(dictionary<values=)?({pattern})")
        return tuple(name for name, kind in kinds.items() if known.match(kind))

    numbers = of_kind("u?int|float|double|halffloat|decimal")
    single = [*numbers, *of_kind(r"timestamp|date|duration|(large_)?string\b")]
    stated = options.column or (None if stamp_column(single) else stamp_column(names))
    if stated in names and stated not in single:
        raise RowFault(None, f"the column {stated!r} is {kinds[stated]}, no time; name the column")

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        row = 1
        for batch in record_batches(path, fields.names):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield Rows(columns, np.arange(row, row + batch.num_rows))
            row += batch.num_rows

    first = next(record_batches(path, single), None)
    sample = {} if first is None else dict(zip(first.schema.names, map(_cell_texts, first), strict=True))
    sizes = tuple(name for name in numbers if "int" in kinds[name][:4])
    ids = of_kind(r"u?int|(large_)?string\b|binary\b")
    return Table(names, sample, sizes, read, ids, None, {name: kinds[name] for name in numbers})


def _cell_texts(column: Any) -> list[str | None]:
    """The first values of an Arrow column as texts; a duration with its unit."""
    import pyarrow as pa

    column = column.slice(0, SAMPLE_ROWS)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_duration(column.type):
        unit = column.type.unit
        return [None if value is None else f"{value}{unit}" for value in column.cast(pa.int64()).to_pylist()]
    return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def schema_of(path: Path) -> Any:
    """The Arrow schema of a Parquet or Arrow file. Arrow's errors pass."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        return file.schema_arrow if isinstance(file, pq.ParquetFile) else file.schema


def stated_rows(path: Path) -> int | None:
    """How many rows a Parquet file states; None for an Arrow file, which states none."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        if not isinstance(file, pq.ParquetFile):
            return None
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        return sum(int(group.num_rows) for group in groups)


def record_batches(path: Path, names: Sequence[str], n_rows: int = PART_ROWS) -> Iterator[Any]:
    """Record batches of at most `n_rows` rows with the columns `names`, in the order of the file's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opened(path, names) as file:
        if isinstance(file, pq.ParquetFile):
            yield from file.iter_batches(n_rows, columns=names)
            return
        is_indexed = isinstance(file, pa.ipc.RecordBatchFileReader)
        for batch in map(file.get_batch, range(file.num_record_batches)) if is_indexed else file:
            batch.validate(full=True)  # offsets and indices that lead out of their buffers
            for start in range(0, batch.num_rows, n_rows):
                yield batch.slice(start, n_rows)


@contextmanager
def _opened(path: Path, names: Sequence[str] | None = None) -> Iterator[Any]:
    """Arrow's reader of a Parquet file, of an Arrow file or of a stream, of these with the columns `names`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    magic = first_bytes(path)
    if magic.startswith(b"PAR1"):
        # Read-ahead of whole column chunks would hold a row group of any size.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_AHEAD_BYTES) as parquet:
            yield parquet
        return
    open_ipc = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
    known = schema_of(path).names if names else []
    places = [place for place, name in enumerate(known) if name in (names or ())]
    with pa.memory_map(str(path)) as source:  # a batch of any size is not held whole
        yield open_ipc(source, options=pa.ipc.IpcReadOptions(included_fields=places))


def _refuse_wide(names: Sequence[str], row: int | None) -> None:
    if len(names) > _MOST_COLUMNS:
        raise RowFault(row, f"has {len(names)} columns; cut it to those of a trace, {_MOST_COLUMNS} at most")


def _are_whole(texts: Sequence[str]) -> bool:
    """Whether all are whole numbers within 64 bits or empty, and not all are empty."""
    known = [text for text in texts if text not in EMPTY_CELLS]
    return bool(known) and all(_WHOLE.fullmatch(text) and abs(int(text)) <= INT64_MAX for text in known)


def sniff_delimiter(line: bytes) -> str:
    """The delimiter that stands most often in `line`: comma, tab or semicolon."""
    return max(",\t;", key=line.decode("utf-8", "replace").count)


def split_line(line: bytes, delimiter: str) -> list[str]:
    """Cells of one line. Raises ValueError for bytes that are no UTF-8 and for a quote left open."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the line is not UTF-8") from error
    if delimiter == _NEVER:
        return [text]
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration) as error:
        raise ValueError(f"the line is no CSV: {error} (a line break in quotes is not supported)") from error


def parse_entry(line: bytes) -> dict[str, Any]:
    """The values of a line's JSON object and, under all keys with points between, those of objects in it, three deep.

    Numbers with a point are Decimal. Raises ValueError with what is wrong.
    """
    try:
        entry = json.loads(line, parse_float=Decimal)
    except UnicodeDecodeError as error:
        raise ValueError("the line is not UTF-8") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {getattr(error, 'msg', 'nested too deep')}") from error
    except ValueError as error:
        raise ValueError("holds a whole number of thousands of digits") from error
    if not isinstance(entry, dict):
        raise ValueError("is no JSON object")
    for _ in range(2):
        entry = {
            inner: below
            for name, value in entry.items()
            for inner, below in (
                {f"{name}.{key}": deep for key, deep in value.items()}
                if isinstance(value, dict)
                else {name: value}
            ).items()
        }
    return entry
