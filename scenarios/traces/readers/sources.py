"""The source of rows of each format, with its columns found and its unit decided.

Columns are found by the header and the first 64 KiB: a size column is one whose cells there are whole numbers or
empty, and not all empty. The unit of a number is the stated one, else that of the column's name, else s for CSV and
lines and ms for JSON lines; a plain file whose first stamp then looks like an instant since 1970 in another unit is
refused. A number in Parquet or Arrow without a unit is refused, for nothing says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from squall.scenarios.traces.parts.faults import RowFault, no_column
from squall.scenarios.traces.parts.names import session_column, stamp_column, stamp_side, unit_of_name
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.readers.blocks import read_head
from squall.scenarios.traces.readers.chunk import Source
from squall.scenarios.traces.readers.columnar import (
    ColumnarSource,
    is_stamp_type,
    record_batches,
    schema_of,
    states_unit,
)
from squall.scenarios.traces.readers.counts import CountsSource
from squall.scenarios.traces.readers.delimited import (
    DelimitedSource,
    Layout,
    data_of,
    duplicate_names,
    sniff_delimiter,
    split_line,
    whole_columns,
)
from squall.scenarios.traces.readers.instants import Clock, stamp_kind
from squall.scenarios.traces.readers.jsonlines import JsonSource, flat_names, parse_entry, value_of
from squall.scenarios.traces.readers.plainlines import LinesSource
from squall.scenarios.traces.readers.recognise import COUNT_NAMES, first_line
from squall.scenarios.traces.readers.schedule import ScheduleSource
from squall.scenarios.traces.readers.stamps import Columns, Reading, read_stamps

_TOKEN_SIZES = ("input_length", "output_length")
_FIRST_ENTRIES = 100
_SAMPLE_ROWS = 1_000  # by which columns of instants and durations are told
_MOST_COLUMNS = 2_000  # the first rows of all columns are looked at
_BIN_NAMES: dict[str, TraceUnit] = {"second": "s", "seconds": "s", "sec": "s", "millisecond": "ms"}


@dataclass(frozen=True)
class _Columns:
    """Where a format says it: the stamps' column, the sizes, of which the first two must be there, and sessions."""

    stamp: str
    sizes: tuple[str, ...]
    has_sessions: bool


def csv_source(path: Path, options: TraceOptions) -> DelimitedSource:
    """Any table with a header. As all here: raises RowFault where the file is not of that format."""
    return _delimited(path, options, None)


def azure_source(path: Path, options: TraceOptions) -> DelimitedSource:
    sizes = ("ContextTokens", "GeneratedTokens", "NumImages")
    return _delimited(path, options, _Columns("timestamp", sizes, has_sessions=False))


def burstgpt_source(path: Path, options: TraceOptions) -> DelimitedSource:
    sizes = ("Request tokens", "Response tokens", "Total tokens")
    return _delimited(path, options, _Columns("timestamp", sizes, has_sessions=True))


def _delimited(path: Path, options: TraceOptions, known: _Columns | None) -> DelimitedSource:
    head = read_head(path)
    row, line = first_line(head)
    header, delimiter = _header(line, row)
    data = data_of(head, row)
    reading = (
        Reading(known.stamp)
        if known is not None
        else read_stamps(_cells(data, header, delimiter), options, row=row)
    )
    stamp = _found(header, (options.column or known.stamp) if known is not None else reading.stamp, row)
    taken_off = () if reading.durations is None else tuple(map(header.index, reading.durations.names))
    layout = Layout(header, delimiter, row, header.index(stamp), (), None, taken_off)
    session = _session(header, stamp, options, row)
    if known is None:
        taken = {stamp, session}
        sizes = tuple(i for i in whole_columns(data, layout) if header[i] not in taken and i not in taken_off)
    else:
        named = _named(header, known.sizes, required=2, row=row)
        sizes = tuple(index for index in named if header[index] != session)
        session = session if known.has_sessions or options.session is not None else None
    place = None if session is None else header.index(session)
    layout = replace(layout, sizes=sizes, session=place)
    twice = set(duplicate_names(header)) & {header[index] for index in layout.used}
    if twice:
        raise RowFault(row, f"the column {min(twice)!r} stands there twice; rename one")
    unit = reading.unit or options.unit or unit_of_name(stamp) or "s"
    assumed = reading.unit is None and options.unit is None and unit_of_name(stamp) is None and known is None
    is_date = _first_kind(data, layout) == "date"
    return DelimitedSource(path, layout, unit, None if is_date else unit, assumed, reading=reading)


def _cells(data: bytes, header: tuple[str, ...], delimiter: str) -> Columns:
    """The first rows of a table as texts by column, without those of another width."""
    columns: dict[str, list[str | None]] = {name: [] for name in header}
    for line in data.split(b"\n")[:_SAMPLE_ROWS]:
        try:
            cells = split_line(line, delimiter)
        except (ValueError, StopIteration):
            continue
        if len(cells) == len(header):
            for name, cell in zip(header, cells, strict=True):
                columns[name].append(cell)
    return columns


def lines_source(path: Path, options: TraceOptions) -> LinesSource:
    _, line = first_line(read_head(path))
    unit = options.unit or "s"
    is_date = stamp_kind(line.decode("utf-8", "replace")) == "date"
    return LinesSource(path, unit, None if is_date else unit, options.unit is None)


def intervals_source(path: Path, options: TraceOptions) -> LinesSource:
    first_line(read_head(path))
    unit = options.unit or "us"
    return LinesSource(path, unit, unit, unit_is_assumed=False, are_gaps=True)


def counts_source(path: Path, options: TraceOptions) -> CountsSource:
    head = read_head(path)
    row, line = first_line(head)
    header, delimiter = _header(line, row)
    n_header_rows = row
    if all(_is_number(cell) for cell in header):
        header, n_header_rows = (options.column or "second", "count", *header[2:]), row - 1
    count = next((name for name in header if name.strip().lower() in COUNT_NAMES), None)
    if count is None:
        raise no_column(header, "count")
    bin_name = options.column or next((name for name in header if name != count), "second")
    stamp = _found(header, bin_name, row)
    layout = Layout(header, delimiter, n_header_rows, header.index(stamp), (header.index(count),), None)
    unit = options.unit or _BIN_NAMES.get(stamp.strip().lower()) or unit_of_name(stamp) or "s"
    data = data_of(head, n_header_rows)
    is_date = _first_kind(data, layout) == "date"
    table = DelimitedSource(path, layout, unit, None if is_date else unit, unit_is_assumed=False)
    return CountsSource(table, _bin_width_ns(data, layout, unit))


def _bin_width_ns(data: bytes, layout: Layout, unit: TraceUnit) -> int:
    """The smallest step between the bins of the first rows, one unit where there is but one bin."""
    clock = Clock(unit)
    stamps = []
    for line in data.split(b"\n")[:_FIRST_ENTRIES]:
        try:
            stamps.append(clock.read_one(split_line(line, layout.delimiter)[layout.stamp]))
        except (ValueError, IndexError, StopIteration):
            continue
    steps = [after - before for before, after in pairwise(stamps) if after > before]
    return min(steps, default=NS_PER_UNIT[unit])


@dataclass(frozen=True)
class _Keys:
    """What a format of JSON lines says of its keys: the stamps' (None: found by its name), the sizes (None: those of
    whole numbers), the request's before in its conversation, and the unit where nothing else says it."""

    stamp: str | None = None
    sizes: tuple[str, ...] | None = None
    parent: str | None = None
    unit: TraceUnit = "ms"


def jsonl_source(path: Path, options: TraceOptions) -> JsonSource:
    return _json(path, options, _Keys())


def mooncake_source(path: Path, options: TraceOptions) -> JsonSource:
    return _json(path, options, _Keys("timestamp", _TOKEN_SIZES))


def bailian_source(path: Path, options: TraceOptions) -> JsonSource:
    return _json(path, options, _Keys("timestamp", _TOKEN_SIZES, "parent_chat_id", "s"))


def fixed_schedule_source(path: Path, options: TraceOptions) -> Source:
    """perf_analyzer's document, or the JSON lines of aiperf."""
    if b'"data"' in read_head(path)[:1000]:
        return ScheduleSource(path, options.unit or "ms")
    return _json(path, options, _Keys("timestamp"))


def _json(path: Path, options: TraceOptions, keys: _Keys) -> JsonSource:
    head = read_head(path)
    first_line(head)
    entries: list[dict[str, Any]] = []
    lines = data_of(head, 0).split(b"\n")
    for line in [text for text in lines if text.strip()][:_FIRST_ENTRIES]:
        try:
            entries.append(parse_entry(line))
        except ValueError:
            continue
    names = tuple(dict.fromkeys(name for entry in entries for name in flat_names(entry)))
    if not names:
        raise RowFault(1, "no JSON object with a timestamp; name the format")
    if keys.stamp is not None:
        reading = Reading(_found(names, options.column or keys.stamp, 1))
    else:
        reading = read_stamps(
            {name: [_text_of(value_of(entry, name)) for entry in entries] for name in names}, options
        )
    stamp = reading.stamp
    first = next(value_of(entry, stamp) for entry in entries if value_of(entry, stamp) is not None)
    taken_off = () if reading.durations is None else reading.durations.names
    types = tuple(
        "text" if any(isinstance(value_of(entry, name), str) for entry in entries) else "number"
        for name in taken_off
    )
    session = _session(names, stamp, options, 1)
    parent = keys.parent if keys.parent in names and options.session is None else None
    if keys.sizes is None:
        used = (stamp, session, *taken_off)
        sizes = tuple(
            name for name in names if name not in used and "." not in name and _is_whole(entries, name)
        )
    else:
        sizes = tuple(name for name in keys.sizes if name in names and name != session)
    unit = reading.unit or options.unit or unit_of_name(stamp) or keys.unit
    assumed = reading.unit is None and options.unit is None and unit_of_name(stamp) is None
    is_date = isinstance(first, str) and stamp_kind(first) == "date"
    return JsonSource(
        path, stamp, sizes, session, parent, unit, None if is_date else unit, assumed, None, reading, types
    )  # fmt: skip


def _text_of(value: Any) -> str | None:
    """A value of JSON as a cell's text; None for none and for what is no single value."""
    return None if value is None or isinstance(value, bool | list | dict) else str(value)


def columnar_source(path: Path, options: TraceOptions) -> ColumnarSource:
    import pyarrow as pa

    container, schema = schema_of(path)
    names = tuple(schema.names)
    _refuse_wide(names, None)
    for name in duplicate_names(names):
        if stamp_side(name) is not None:
            raise RowFault(None, f"the column {name!r} is there twice; rename one")
    single = [field.name for field in schema if _is_single(field.type)]
    wanted = options.column or (stamp_column(names) if stamp_column(single) is None else None)
    if wanted in names and wanted not in single:
        raise RowFault(
            None, f"the column {wanted!r} is {schema.field(wanted).type}, no time; name the column"
        )
    usable = [field.name for field in schema if _is_single(field.type) and names.count(field.name) == 1]
    sample = next(record_batches(path, container, usable), None) if usable else None
    columns = {} if sample is None else {name: _cell_texts(sample.column(name)) for name in usable}
    reading = read_stamps(columns, options, row=None)
    stamp = reading.stamp
    kind = schema.field(names.index(stamp)).type
    if not is_stamp_type(kind):
        raise RowFault(None, f"the column {stamp!r} is {kind}, no time; name the column")
    unit = reading.unit or options.unit or unit_of_name(stamp)
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
    if unit is None and not states_unit(kind) and not texts:
        raise RowFault(
            None, f"the column {stamp!r} is {kind} without a unit; state the unit: ns, us, ms or s"
        )
    taken_off = () if reading.durations is None else reading.durations.names
    ids = tuple(name for name in names if _is_id(schema.field(names.index(name)).type))
    session = _session(ids, stamp, options, None)
    sizes = tuple(
        field.name
        for field in schema
        if pa.types.is_integer(field.type) and field.name not in (stamp, session, *taken_off)
    )
    twice = set(duplicate_names(names)) & {stamp, session, *sizes}
    if twice:
        raise RowFault(None, f"the column {min(map(str, twice))!r} is there twice; rename one")
    dated = states_unit(kind)
    return ColumnarSource(
        path, container, stamp, sizes, session, unit or "s", None if dated else unit or "s", texts, None, reading
    )  # fmt: skip


def _is_single(kind: Any) -> bool:
    """Whether values of an Arrow type can be instants or durations: single ones, and not truth values."""
    import pyarrow as pa

    return is_stamp_type(kind) or bool(pa.types.is_duration(kind))


def _cell_texts(column: Any) -> list[str | None]:
    """The first values of an Arrow column as texts; a duration with its unit."""
    import pyarrow as pa

    column = column.slice(0, _SAMPLE_ROWS)
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_duration(column.type):
        unit = column.type.unit
        return [None if value is None else f"{value}{unit}" for value in column.cast(pa.int64()).to_pylist()]
    return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _session(names: tuple[str, ...], stamp: str, options: TraceOptions, row: int | None) -> str | None:
    """The column of sessions: the one that is asked for, else by its name. Raises RowFault where that is not there."""
    if options.session is None:
        return session_column([name for name in names if name != stamp])
    if options.session not in names or options.session == stamp:
        raise RowFault(row, f"no column {options.session!r} of ids; it has {', '.join(names)}")
    return options.session


def _is_id(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    return any(
        check(kind) for check in (types.is_integer, types.is_string, types.is_large_string, types.is_binary)
    )


def _header(line: bytes, row: int) -> tuple[tuple[str, ...], str]:
    delimiter = sniff_delimiter(line.decode("utf-8", "replace"))
    try:
        header = tuple(cell.strip() for cell in split_line(line, delimiter))
    except ValueError as error:
        raise RowFault(row, str(error)) from error
    _refuse_wide(header, row)
    return header, delimiter


def _refuse_wide(names: tuple[str, ...], row: int | None) -> None:
    if len(names) > _MOST_COLUMNS:
        raise RowFault(row, f"has {len(names)} columns; cut it to those of a trace, {_MOST_COLUMNS} at most")


def _found(names: tuple[str, ...], wanted: str | None, row: int | None) -> str:
    """The name of the timestamp column. Raises RowFault with the nearest names where there is none."""
    if wanted is None:
        found = stamp_column(names)
    else:
        found = wanted if wanted in names else next((n for n in names if n.lower() == wanted.lower()), None)
    if found is None:
        fault = no_column(names, wanted or "timestamp")
        raise fault if row == 1 else RowFault(row, str(fault).removeprefix("row 1: "))
    return found


def _named(header: tuple[str, ...], wanted: tuple[str, ...], required: int, row: int) -> tuple[int, ...]:
    """Indices of the columns `wanted` that are there; the first `required` must be."""
    lowered = [name.lower() for name in header]
    for name in wanted[:required]:
        if name.lower() not in lowered:
            raise RowFault(row, str(no_column(header, name)).removeprefix("row 1: "))
    return tuple(lowered.index(name.lower()) for name in wanted if name.lower() in lowered)


def _first_kind(data: bytes, layout: Layout) -> str:
    """Whether the first readable stamp is a number or a date."""
    for line in data.split(b"\n")[:_FIRST_ENTRIES]:
        try:
            text = split_line(line, layout.delimiter)[layout.stamp]
            Clock("ns").read_one(text)
        except (ValueError, IndexError, StopIteration):
            continue
        return stamp_kind(text)
    return "number"


def _is_whole(entries: list[dict[str, Any]], name: str) -> bool:
    values = [entry[name] for entry in entries if entry.get(name) is not None]
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _is_number(text: str) -> bool:
    try:
        Clock("ns").read_one(text)
    except ValueError:
        return False
    return True
