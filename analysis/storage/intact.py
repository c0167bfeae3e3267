"""Whether a run directory can be analysed at all: a manifest of the right shape, tables that are whole and its own.

What is looked at is small, whatever the size of the run: the manifest, and the footer of each part. Absent fields and
tables are no fault: what needs them says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.storage.manifest import SEALED, Manifest
from squall.analysis.storage.parquet import column_chunks, parquet_file
from squall.analysis.storage.part import disk_errors, plain
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, StoreError

LONGEST_NS = 30 * 24 * 3600 * 10**9
"""No instant of a run is further from its start: of such a run, 100 ms at a time, each window would still be made."""
FEW_ROWS, MOST_ROWS_A_BYTE = 1_000_000, 32
"""A larger table has no more rows to a byte: with all texts alike and instants in equal steps, `requests` has 8, and
`clock_probes`, of 7 columns, 20."""
LONGEST_TEXT_BYTES = 64 * 1024
"""No text of a run is longer; names of kernels are the longest. One of megabytes in each row would fill any memory."""
FEW_TEXT_BYTES, MOST_TEXT_A_BYTE = 256 * 1024**2, 256
"""The text of a larger part, as its pages hold it, has no more bytes to a byte of the file."""
MOST_ENTRIES = 100_000
"""Of a list or mapping of the manifest: notes, losses, phases, workers."""
_TEXT_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"}
"""Not those in which a text is what it has of the one before: any number of long ones takes no bytes."""


def refuse_probe(store: RunStore) -> None:
    """Raises AnalysisError for a probe's run: it has no requests to join and no report."""
    if store.manifest.probe is not None:
        raise AnalysisError(
            f"{store.where} is the run of a probe, without requests to join or report: its figures are in probe.json"
        )


def require_intact(store: RunStore, derived_too: bool = False, tables: Iterable[str] = tuple(TABLES)) -> None:
    """Raises StoreError, in one line, where the manifest or a part is not what squall writes.

    Of a sealed run every raw part must be there with the bytes of its seal (`RunStore.verify` also reads the contents).
    Instants must lie within `LONGEST_NS` of the start of the run by the statistics of each row group, which must be
    there; a table may not state more rows than its bytes can hold, nor have a text of more than `LONGEST_TEXT_BYTES`.
    Derived tables are looked at only if asked for: whoever makes them again does not read them. Only `tables` are.
    """
    for fault in _manifest_faults(store.manifest):
        raise StoreError(f"{store.where} has a manifest that squall did not write: {fault}")
    for table in tables:
        if derived_too or not TABLES[table].is_derived:
            for fault in _table_faults(table, store):
                raise StoreError(f"{store.where}: {fault}")


@contextmanager
def content_errors_of(where: str) -> Iterator[None]:
    """Makes StoreError, in one line, of what the content of the run, or of the folder of runs, at `where` raises: a
    command's work on it, which looks at far more than `require_intact` does."""
    import duckdb

    try:
        yield
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
        ValueError, pa.ArrowException, duckdb.Error,
    ) as error:  # fmt: skip
        said = str(error).strip().partition("\n")[0][:_SHOWN]
        reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise StoreError(f"{where} has something in it that squall did not write: {reason}") from error


_SHOWN = 200
"""Characters of what a library says."""


def _manifest_faults(manifest: Manifest) -> Iterator[str]:
    """What in the manifest cannot be, the first of it first."""
    for name, value in {**vars(manifest), "verdict.reasons": manifest.reasons}.items():
        if isinstance(value, tuple | Mapping) and len(value) > MOST_ENTRIES:
            yield f"{name} has {len(value):,} entries, and {MOST_ENTRIES:,} at most are read"
    if manifest.state == SEALED and manifest.tables is None:
        yield "it has no tables"
    phases = sorted(manifest.phases, key=lambda phase: phase.start_ns)
    for phase in phases:
        if phase.end_ns < phase.start_ns:
            yield f"phase {phase.name} ends before it starts"
    for phase, later in pairwise(phases):
        if later.start_ns < phase.end_ns:
            yield f"phases {phase.name} and {later.name} overlap"
    for name, n in Counter(phase.name for phase in phases).items():
        if n > 1:
            yield f"two phases are named {name}"


def _table_faults(table: str, store: RunStore) -> Iterator[str]:
    """Why the parts of a table are not those that squall wrote, the first of it first."""
    if store.is_sealed and not TABLES[table].is_derived:
        yield from store.verify([table], is_read=False)
    start_ns = store.manifest.start_ns
    if start_ns is None:
        start_ns = min((phase.start_ns for phase in store.manifest.phases), default=None)
    n_rows = n_bytes = 0
    for name, part in store.files(table).items():
        n_part_bytes = store.size(name) or 0
        with disk_errors(f"{store.where}: cannot read {name}"), parquet_file(part) as file:
            for fault in _part_faults(table, file, n_part_bytes, start_ns):
                yield f"{name}{fault}"
            n_rows += file.metadata.num_rows
        n_bytes += n_part_bytes
    if n_rows > max(FEW_ROWS, MOST_ROWS_A_BYTE * n_bytes):
        yield f"{table} states {n_rows:,} rows in {n_bytes:,} bytes, which cannot be"


def _part_faults(table: str, file: pq.ParquetFile, n_bytes: int, start_ns: int | None) -> Iterator[str]:
    """Why a part of `n_bytes` is none of `table`, as what follows its name, the first of it first."""
    schema, metadata = file.schema_arrow, file.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    counts = [group.num_rows for group in groups]
    # the same bytes told again and again would be any number of rows
    starts = [group.column(0).data_page_offset for group in groups if group.num_rows and group.num_columns]
    is_own = (
        min(counts, default=0) >= 0 and sum(counts) == metadata.num_rows and len({*starts}) == len(starts)
    )
    if not is_own:
        yield " states rows that it has not: it is damaged"
    for field in arrow_schema(table):
        position = schema.get_field_index(field.name)
        if position < 0:
            yield f" has no column {field.name}: it is not of table {table}"
        type_, own = plain(schema.field(position).type), plain(field.type)
        if not type_.equals(own):
            yield f": column {field.name} is {type_}, not {own}"
    for name in TABLES[table].instants:
        for chunk in column_chunks(metadata, name):
            statistics = chunk.statistics
            has_bounds = statistics is not None and statistics.has_min_max
            n_nulls = 0 if statistics is None else statistics.null_count
            if not has_bounds and chunk.num_values not in (0, n_nulls):
                yield f" has no statistics of {name}, which squall writes: it is damaged"
            for t_ns in (statistics.min, statistics.max) if has_bounds else ():
                if start_ns is not None and abs(t_ns - start_ns) > LONGEST_NS:
                    days = (t_ns - start_ns) / (24 * 3600 * 10**9)
                    yield f" has a {name} that is {days:+.0f} days from the start of the run"
    yield from _text_faults(table, file, n_bytes)


def _text_faults(table: str, file: pq.ParquetFile, n_bytes: int) -> Iterator[str]:
    """What is too long of the texts. Dictionaries are read where a row group has more text than a value may have: each
    comes with the first row."""
    names = [field.name for field in arrow_schema(table) if pa.types.is_dictionary(field.type)]
    chunks = {name: column_chunks(file.metadata, name) for name in names}
    n_text_bytes = 0
    for name in names:
        for chunk in chunks[name]:
            n_text_bytes += chunk.total_uncompressed_size
            if not _TEXT_ENCODINGS.issuperset(chunk.encodings):
                yield f": the text of {name} is encoded as squall encodes none"
    if n_text_bytes > max(FEW_TEXT_BYTES, MOST_TEXT_A_BYTE * n_bytes):
        yield f" has {n_text_bytes:,} bytes of text in {n_bytes:,} bytes, which squall does not write"
    for name in names:
        for number, chunk in enumerate(chunks[name]):
            is_long = chunk.total_uncompressed_size > LONGEST_TEXT_BYTES
            rows = file.iter_batches(1, row_groups=[number], columns=[name]) if is_long else iter(())
            for first in islice(rows, 1):
                longest = pc.max(pc.binary_length(first.column(name).dictionary)).as_py() or 0
                if longest > LONGEST_TEXT_BYTES:
                    yield f" has a {name} of {longest:,} bytes: no text of a run is that long"


def finite(figures: Any) -> tuple[Any, list[str]]:
    """`figures`, of mappings and lists, with None for every float that is not finite, and where those stood.

    JSON has no such number, and no reader could use it: a sample that is none spoils the means it is part of.
    """
    places: list[str] = []

    def made_finite(value: Any, place: str) -> Any:
        if isinstance(value, dict):
            return {key: made_finite(inner, f"{place}.{key}") for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [made_finite(inner, f"{place}[{i}]") for i, inner in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            places.append(place.lstrip("."))
            return None
        return value

    return made_finite(figures, ""), places
