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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from squall.scenarios.traces.instants import DIGITS, EMPTY_CELLS, INT64_MAX, Clock, is_safe_to_cast
from squall.scenarios.traces.parts.faults import RowFault, shown
from squall.scenarios.traces.parts.names import stamp_column
from squall.scenarios.traces.parts.part import MOST_ROWS, PART_ROWS
from squall.scenarios.traces.rows import Fields, ReadRows, Rows
from squall.scenarios.traces.stamps import Sample
from squall.scenarios.traces.text import Block, first_line, open_text, read_head, text_blocks, whole_lines

Container = Literal["parquet", "file", "stream"]

LONGEST_DOCUMENT_BYTES = 2**28
_NEVER = "\x01"  # a delimiter that no text holds: the line stays whole
_FIRST_ENTRIES = 100
_MOST_COLUMNS = 2_000  # the first rows of all columns are looked at
_SAMPLE_ROWS = 1_000
_READ_AHEAD_BYTES = 2**20
_WHOLE = re.compile(r"\s*-?\d{1,19}\s*", re.ASCII)


@dataclass(frozen=True)
class Table:
    """A file whose columns are known. `names` are all of them, `sample` the first rows of those that may be instants.

    `sizes`: columns of whole numbers; `ids`: those that may be sessions. `row` of the header, for faults. `unitless`:
    types of columns of numbers of which neither type nor container says the unit.
    """

    names: tuple[str, ...]
    sample: Sample
    sizes: tuple[str, ...]
    read: ReadRows
    ids: tuple[str, ...]
    row: int | None = 1
    unitless: Mapping[str, Any] = field(default_factory=dict)


def delimited(path: Path, bare_header: tuple[str, ...] = (), delimiter: str = "") -> Table:
    """A text of cells between commas, tabs or semicolons. `bare_header`: of the first columns, if no line has it."""
    head = read_head(path)
    row, line = first_line(head)
    delimiter = delimiter or sniff_delimiter(line)
    header = bare_header
    try:
        cells = tuple(cell.strip() for cell in split_line(line, delimiter))
        header += cells[len(bare_header) :]
    except ValueError as error:
        if not bare_header:
            raise RowFault(row, str(error)) from error
    _refuse_wide(header, row)
    n_header_rows = row - 1 if bare_header else row
    sample: list[list[str]] = []
    for line in whole_lines(head, n_header_rows):
        try:
            sample.append(split_line(line, delimiter))
        except ValueError:
            continue
    sample = [cells for cells in sample if len(cells) == len(header)]
    columns = {name: [cells[place] for cells in sample] for place, name in enumerate(header)}
    sizes = tuple(name for name in header if _are_whole(columns[name]))

    read = partial(_read_delimited, path, n_header_rows, header, delimiter)
    return Table(header, columns, sizes, read, header, row)


def _read_delimited(
    path: Path, n_header_rows: int, header: tuple[str, ...], delimiter: str, fields: Fields, _: Clock
) -> Iterator[Rows]:
    import pyarrow as pa

    places = {name: header.index(name) for name in fields.names}

    def cells(line: bytes) -> list[str | None]:
        texts = split_line(line, delimiter)
        if len(texts) != len(header):
            plural = "" if len(texts) == 1 else "s"
            raise ValueError(f"has {len(texts)} column{plural}, the header has {len(header)}")
        return [texts[place] for place in places.values()]

    def arrow(block: Block) -> Any:
        from pyarrow import csv as arrow_csv

        types = {str(places[name]): pa.string() for name in fields.texts}
        return arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(
                column_names=[str(place) for place in range(len(header))],
                block_size=max(len(block.data), 2**16),
            ),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter != _NEVER else False),
            arrow_csv.ConvertOptions(
                column_types={str(place): pa.int64() for place in places.values()} | types,
                include_columns=[str(place) for place in places.values()],
                null_values=list(EMPTY_CELLS),
                strings_can_be_null=False,
            ),
        ).rename_columns(fields.names)

    yield from _blocks(path, n_header_rows, fields.names, arrow, cells)


def lines_of(path: Path) -> Table:
    """A text of one value a line, as a table of the one column `time`."""
    return delimited(path, ("time",), _NEVER)


def _blocks(
    path: Path,
    n_header_rows: int,
    names: Sequence[str],
    arrow: Callable[[Block], Any],
    cells: Callable[[bytes], list[str | None]],
) -> Iterator[Rows]:
    """The rows of a text by `arrow`, which makes a table of a block, or None; else by the `cells` of each line."""
    import pyarrow as pa

    def by_line(block: Block) -> Rows:
        columns: dict[str, list[bytes | None]] = {name: [] for name in names}
        faults = {}
        for index, (_, line) in enumerate(block.lines()):
            texts: list[str | None] = [None] * len(names)
            try:
                texts = cells(line)
            except ValueError as error:
                faults[index] = str(error)
            for column, text in zip(columns.values(), texts, strict=True):
                column.append(None if text is None else text.encode("utf-8", "surrogatepass"))
        arrays = {name: pa.array(texts, pa.binary()) for name, texts in columns.items()}
        return Rows(arrays, block.row_of, faults)

    for block in text_blocks(path, n_header_rows):
        if not block.data.strip():
            continue
        try:
            table = arrow(block)
        except pa.ArrowInvalid:
            table = None
        if table is None or not block.has_rows(len(table)):  # a quote or a CR joins or splits lines for Arrow
            yield by_line(block)
        else:
            columns = {name: table[name].combine_chunks() for name in names}
            yield Rows(columns, block.row_of, again=lambda block=block: by_line(block))  # type: ignore[misc]


def json_lines(path: Path) -> Table:
    """A text of one JSON object a line; a value in an object in it is named by all keys, with points between."""
    head = read_head(path)
    first_line(head)
    entries: list[dict[str, Any]] = []
    for line in whole_lines(head)[:_FIRST_ENTRIES]:
        try:
            entries.append(parse_entry(line))
        except ValueError:
            continue
    names = tuple(dict.fromkeys(name for entry in entries for name in _flat_names(entry)))
    if not names:
        raise RowFault(1, "no JSON object with a timestamp; name the format")
    values = {name: [_value_of(entry, name) for entry in entries] for name in names}
    sizes = tuple(
        name
        for name in names
        if "." not in name and {type(value) for value in values[name] if value is not None} == {int}
    )
    sample = {
        name: [None if isinstance(value, bool | list | dict | None) else str(value) for value in column]
        for name, column in values.items()
    }

    texts = [name for name in names if str in map(type, values[name])]
    read = partial(_read_json, path, texts)
    return Table(names, sample, sizes, read, names)


def _read_json(path: Path, texts: Sequence[str], fields: Fields, clock: Clock) -> Iterator[Rows]:
    """`texts`: the names of which values are texts."""
    import pyarrow as pa

    kinds = {fields.stamp: pa.string() if clock.kind == "date" else pa.decimal128(38, DIGITS[clock.unit])}
    for name in fields.durations:
        kinds[name] = pa.string() if name in texts else pa.float64()
    kinds |= dict.fromkeys(fields.sizes, pa.int64())
    ids = [name for name in fields.names if name not in kinds]

    def arrow(block: Block) -> Any:
        from pyarrow import json as arrow_json

        is_nested = any("." in name for name in fields.names)
        is_safe = clock.kind == "date" or is_safe_to_cast(pa.array([block.data], pa.binary()))
        for id_type in (pa.int64(), pa.string()) if is_safe and not is_nested else ():
            schema = pa.schema({**kinds, **dict.fromkeys(ids, id_type)})
            try:
                return arrow_json.read_json(
                    pa.BufferReader(block.data),
                    arrow_json.ReadOptions(block_size=max(len(block.data), 2**16)),
                    arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
                )
            except pa.ArrowInvalid:
                continue
        return None

    def cells(line: bytes) -> list[str | None]:
        entry = parse_entry(line)
        values = {name: _value_of(entry, name) for name in fields.names}
        if values[fields.stamp] is None:
            raise ValueError(f"has no timestamp {fields.stamp!r}")
        if isinstance(values[fields.stamp], bool | list | dict):
            raise ValueError(f"the timestamp {fields.stamp!r} is neither a number nor a text")
        for name in fields.sizes:
            if isinstance(values[name], bool | list | dict | str):
                raise ValueError(
                    f"column {name!r}: {shown(str(values[name]))} is not a whole number within 64 bits"
                )
        return [None if value is None else str(value) for value in values.values()]

    yield from _blocks(path, 0, fields.names, arrow, cells)


def schedule(path: Path) -> ReadRows:
    """The rows of a fixed schedule of perf_analyzer, one document `{"data": [{"payload": [], "timestamp": [1000]}]}`.

    A timestamp is ms after the start (docs/inference_load_modes.md of perf_analyzer, "Fixed Schedule Mode"). A row's
    number is the place of its entry. The document is held whole, so its length is limited.
    """

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        import pyarrow as pa

        with open_text(path) as file:
            document = file.read(LONGEST_DOCUMENT_BYTES + 1)
        if len(document) > LONGEST_DOCUMENT_BYTES:
            what = f"a JSON document of over {LONGEST_DOCUMENT_BYTES} bytes; write it as JSON lines"
            raise RowFault(None, what)
        try:
            data = json.loads(document, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", "not UTF-8, nested too deep, or a number of thousands of digits")
            raise RowFault(getattr(error, "lineno", None), f"not JSON: {what}") from error
        entries = data.get("data") if isinstance(data, dict) else None
        if not isinstance(entries, list):
            what = 'no list "data" of entries with a timestamp; write {"data": [{"timestamp": [0]}]}'
            raise RowFault(1, what)
        stamps = [entry.get("timestamp") if isinstance(entry, dict) else None for entry in entries]
        stamps = [stamp[0] if isinstance(stamp, list) and len(stamp) == 1 else stamp for stamp in stamps]
        texts = [str(stamp) if type(stamp) in (int, Decimal) else None for stamp in stamps]
        yield Rows({fields.stamp: pa.array(texts, pa.string())}, lambda index: index + 1)

    return read


def columnar(path: Path, column: str | None = None) -> Table:
    """A Parquet or Arrow file. `column`: that of the stamps, where it is named."""
    container, schema = schema_of(path)
    names = tuple(schema.names)
    _refuse_wide(names, None)
    kinds = {field.name: str(field.type) for field in schema}

    def of_kind(pattern: str) -> tuple[str, ...]:
        known = re.compile(rf"(dictionary<values=)?({pattern})")
        return tuple(name for name, kind in kinds.items() if known.match(kind))

    numbers = of_kind("u?int|float|double|halffloat|decimal")
    single = [*numbers, *of_kind(r"timestamp|date|duration|(large_)?string\b")]
    stated = column or (None if stamp_column(single) else stamp_column(names))
    if stated in names and stated not in single:
        raise RowFault(None, f"the column {stated!r} is {kinds[stated]}, no time; name the column")

    def read(fields: Fields, _: Clock) -> Iterator[Rows]:
        row = 1
        for batch in record_batches(path, container, fields.names):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield Rows(columns, lambda index, row=row: row + index)  # type: ignore[misc]
            row += batch.num_rows

    first = next(record_batches(path, container, single), None)
    sample = (
        {} if first is None else dict(zip(first.schema.names, map(_cell_texts, first.columns), strict=True))
    )
    sizes = tuple(name for name in numbers if "int" in kinds[name][:4])
    ids = of_kind(r"u?int|(large_)?string\b|binary\b")
    return Table(names, sample, sizes, read, ids, None, {name: kinds[name] for name in numbers})


def _cell_texts(column: Any) -> list[str | None]:
    """The first values of an Arrow column as texts; a duration with its unit."""
    import pyarrow as pa

    column = column.slice(0, _SAMPLE_ROWS)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_duration(column.type):
        unit = column.type.unit
        return [None if value is None else f"{value}{unit}" for value in column.cast(pa.int64()).to_pylist()]
    return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def schema_of(path: Path) -> tuple[Container, Any]:
    """Container and Arrow schema of a file that begins as one. Arrow's errors pass."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1":
        with pq.ParquetFile(path) as parquet:
            return "parquet", parquet.schema_arrow
    with pa.OSFile(str(path)) as source:
        if magic == b"ARROW1":
            return "file", pa.ipc.open_file(source).schema
        return "stream", pa.ipc.open_stream(source).schema


def record_batches(path: Path, container: Container, names: list[str]) -> Iterator[Any]:
    """Record batches of at most `PART_ROWS` rows with the columns `names`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if container == "parquet":
        # Read-ahead of whole column chunks would hold a row group of any size.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_AHEAD_BYTES) as parquet:
            metadata = parquet.metadata
            n_rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
            if n_rows > MOST_ROWS:
                raise RowFault(None, f"states {n_rows} rows, a trace has {MOST_ROWS} at most; cut it")
            yield from parquet.iter_batches(PART_ROWS, columns=names)
        return
    schema = schema_of(path)[1]
    places = [place for place, name in enumerate(schema.names) if name in names]
    options = pa.ipc.IpcReadOptions(included_fields=places)
    with pa.OSFile(str(path)) as source:
        batches: Any
        if container == "file":
            reader = pa.ipc.open_file(source, options=options)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = pa.ipc.open_stream(source, options=options)
        for batch in batches:
            batch.validate(full=True)  # offsets and indices that lead out of their buffers
            for start in range(0, batch.num_rows, PART_ROWS):
                yield batch.slice(start, PART_ROWS)


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
    """The JSON object of a line, numbers with a point as Decimal. Raises ValueError with what is wrong."""
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
    return entry


def _value_of(entry: dict[str, Any], name: str) -> Any:
    """The value under `name`, or under the keys of it between its points: `httpRequest.latency`. None for none."""
    if name in entry or "." not in name:
        return entry.get(name)
    value: Any = entry
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _flat_names(entry: dict[str, Any], depth: int = 3) -> list[str]:
    """Names of the values of an object and, between points, of those in it, `depth` deep."""
    names: list[str] = []
    for name, value in entry.items():
        is_flat = depth == 1 or not isinstance(value, dict)
        names += [name] if is_flat else [f"{name}.{inner}" for inner in _flat_names(value, depth - 1)]
    return names
