"""Whether a run directory can be analysed at all: a manifest of the right shape, tables that are whole and its own.

What is looked at is small, whatever the size of the run: the manifest, and the footer of each part. Absent fields and
tables are no fault: what needs them says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.schema import TABLES, arrow_schema
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.places.place import Part, name_of, parquet_file
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest, PhaseFacts
from squall.analysis.tables.sealed import SealedTable
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


def require_intact(store: RunStore, derived_too: bool = False) -> None:
    """Raises StoreError, in one line, where the manifest or a part is not what squall writes.

    Of a sealed run every raw part must be there with the bytes of its seal (`RunStore.verify` also reads the contents).
    Instants must lie within `LONGEST_NS` of the start of the run by the statistics of each row group, which must be
    there; a table may not state more rows than its bytes can hold, nor have a text of more than `LONGEST_TEXT_BYTES`.
    Derived tables are looked at only if asked for: whoever makes them again does not read them.
    """
    for fault in (*_too_many(store.manifest), *_faults(store.manifest.phases)):
        raise StoreError(f"{store.where} has a manifest that squall did not write: {fault}")
    if store.is_sealed:
        _require_as_sealed(store)
    start_ns = _start_ns(store.manifest)
    tables = [table for table in store.tables() if derived_too or not TABLES[table].is_derived]
    for table in tables:
        sizes = store.sizes(table)
        n_rows = sum(_require_part(table, part, store, sizes, start_ns) for part in store.parts(table))
        n_bytes = sum(sizes.values())
        if n_rows > max(FEW_ROWS, MOST_ROWS_A_BYTE * n_bytes):
            raise StoreError(
                f"{store.where}: {table} states {n_rows:,} rows in {n_bytes:,} bytes, which cannot be"
            )


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


def _too_many(manifest: Manifest) -> Iterator[str]:
    for name, value in {**vars(manifest), "verdict.reasons": manifest.reasons}.items():
        if isinstance(value, tuple | Mapping) and len(value) > MOST_ENTRIES:
            yield f"{name} has {len(value):,} entries, and {MOST_ENTRIES:,} at most are read"


def _faults(stated: Iterable[PhaseFacts]) -> Iterator[str]:
    """Why phases cannot be those of one timeline, the first of it first."""
    names = set[str]()
    last: PhaseFacts | None = None  # of those before, the one that ends last
    for phase in sorted(stated, key=lambda phase: phase.start_ns):
        if phase.end_ns < phase.start_ns:
            yield f"phase {phase.name} ends before it starts"
        if last is not None and phase.start_ns < last.end_ns:
            yield f"phases {last.name} and {phase.name} overlap"
        if phase.name in names:
            yield f"two phases are named {phase.name}"
        names.add(phase.name)
        if last is None or phase.end_ns > last.end_ns:
            last = phase


def _require_as_sealed(store: RunStore) -> None:
    stated = store.manifest.tables
    if stated is None:
        raise StoreError(f"{store.where} has a manifest that squall did not write: it has no tables")
    raw = [table for table in TABLES if not TABLES[table].is_derived]
    for table in raw:
        sealed = {file.path: file for file in stated.get(table, SealedTable()).files}
        found = store.sizes(table)
        for name in sorted({*sealed, *found}):
            if name not in found:
                raise StoreError(f"{store.where}: {name} is missing, which the run was sealed with")
            if name not in sealed:
                raise StoreError(f"{store.where}: {name} is not of this run: it was not there at the seal")
            if found[name] != sealed[name].bytes:
                raise StoreError(f"{store.where}: {name} has changed since the seal")


def _start_ns(manifest: Manifest) -> int | None:
    """When the run started, as far as the manifest says."""
    if manifest.start_ns is not None:
        return manifest.start_ns
    return min((phase.start_ns for phase in manifest.phases), default=None)


def _require_part(
    table: str, part: Part, store: RunStore, sizes: Mapping[str, int], start_ns: int | None
) -> int:
    """Its rows."""
    where, name = store.where, name_of(part, store.run_dir)
    try:
        with parquet_file(part) as file:
            metadata = file.metadata
            for fault in _part_faults(table, file, sizes.get(name, 0), start_ns):
                raise StoreError(f"{where}: {name}{fault}")
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot read {name}: {error_reason(error)}") from error
    return int(metadata.num_rows)


def _part_faults(table: str, file: pq.ParquetFile, n_bytes: int, start_ns: int | None) -> Iterator[str]:
    """Why a part of `n_bytes` is none of `table`, as what follows its name, the first of it first."""
    schema, metadata = file.schema_arrow, file.metadata
    if not _has_own_rows(metadata):
        yield " states rows that it has not: it is damaged"
    for wanted in arrow_schema(table):
        position = schema.get_field_index(wanted.name)
        if position < 0:
            yield f" has no column {wanted.name}: it is not of table {table}"
        found, own = _plain(schema.field(position).type), _plain(wanted.type)
        if not found.equals(own):
            yield f": column {wanted.name} is {found}, not {own}"
    for instant, t_ns in _extremes(metadata, TABLES[table].instants):
        if t_ns is None:
            yield f" has no statistics of {instant}, which squall writes: it is damaged"
        elif start_ns is not None and abs(t_ns - start_ns) > LONGEST_NS:
            days = (t_ns - start_ns) / (24 * 3600 * 10**9)
            yield f" has a {instant} that is {days:+.0f} days from the start of the run"
    yield from _text_faults(table, file, n_bytes)


def _text_faults(table: str, file: pq.ParquetFile, n_bytes: int) -> Iterator[str]:
    """What of its texts is too long. Dictionaries are read where a row group has more text than a value may have: each
    comes with the first row."""
    names = [field.name for field in arrow_schema(table) if pa.types.is_dictionary(field.type)]
    places = _places(file.metadata)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    chunks = [{name: group.column(places[name]) for name in names} for group in groups]
    for name in names:
        if any(not _TEXT_ENCODINGS.issuperset(own[name].encodings) for own in chunks):
            yield f": the text of {name} is encoded as squall encodes none"
    n_text_bytes = sum(chunk.total_uncompressed_size for own in chunks for chunk in own.values())
    if n_text_bytes > max(FEW_TEXT_BYTES, MOST_TEXT_A_BYTE * n_bytes):
        yield f" has {n_text_bytes:,} bytes of text in {n_bytes:,} bytes, which squall does not write"
    for number, own in enumerate(chunks):
        large = [name for name, chunk in own.items() if chunk.total_uncompressed_size > LONGEST_TEXT_BYTES]
        for rows in islice(file.iter_batches(1, row_groups=[number], columns=large), 1 if large else 0):
            for name in large:
                longest = pc.max(pc.binary_length(rows.column(name).dictionary)).as_py() or 0
                if longest > LONGEST_TEXT_BYTES:
                    yield f" has a {name} of {longest:,} bytes: no text of a run is that long"


def _places(metadata: pq.FileMetaData) -> dict[str, int]:
    """Where each column is in a row group."""
    return {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}


def _has_own_rows(metadata: pq.FileMetaData) -> bool:
    """Whether a footer counts its rows right, and each row group has bytes of its own: the same bytes told again and
    again would be any number of rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    counts = [group.num_rows for group in groups]
    starts = [group.column(0).data_page_offset for group in groups if group.num_rows and group.num_columns]
    return (
        min(counts, default=0) >= 0 and sum(counts) == metadata.num_rows and len(set(starts)) == len(starts)
    )


def _plain(type_: pa.DataType) -> pa.DataType:
    """What a query reads: text may stand plain or by dictionary."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _extremes(metadata: pq.FileMetaData, columns: tuple[str, ...]) -> Iterator[tuple[str, int | None]]:
    """Least and greatest value of each of `columns`, by the statistics of each row group; None where these are not
    there, although it has values."""
    places = _places(metadata)
    for group in range(metadata.num_row_groups):
        for column in columns:
            chunk = metadata.row_group(group).column(places[column])
            statistics = chunk.statistics
            if statistics is not None and statistics.has_min_max:
                yield column, statistics.min
                yield column, statistics.max
            elif chunk.num_values and (statistics is None or statistics.null_count != chunk.num_values):
                yield column, None


def finite(figures: Any, where: str = "") -> tuple[Any, list[str]]:
    """`figures`, of mappings and lists, with None for every float that is not finite, and where those stood.

    JSON has no such number, and no reader could use it: a sample that is none spoils the means it is part of.
    """
    if isinstance(figures, float) and not math.isfinite(figures):
        return None, [where.lstrip(".")]
    if isinstance(figures, dict):
        pairs = {key: finite(value, f"{where}.{key}") for key, value in figures.items()}
        return {key: value for key, (value, _) in pairs.items()}, [
            one for _, found in pairs.values() for one in found
        ]
    if isinstance(figures, list | tuple):
        items = [finite(value, f"{where}[{i}]") for i, value in enumerate(figures)]
        return [value for value, _ in items], [one for _, found in items for one in found]
    return figures, []
