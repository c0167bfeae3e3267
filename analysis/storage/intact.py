"""Whether a run directory can be analysed at all: a manifest of the right shape, tables that are whole and its own.

What is looked at is small, whatever the size of the run: the manifest, and the footer of each part. Absent fields and
tables are no fault: what needs them says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
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


def refuse_probe(store: RunStore) -> None:
    """Raises AnalysisError for a probe's run: it has no requests to join and no report."""
    if store.manifest.probe is not None:
        raise AnalysisError(
            f"{store.where} is the run of a probe, without requests to join or report: its figures are in probe.json"
        )


def require_intact(store: RunStore, derived_too: bool = False) -> None:
    """Raises StoreError, in one line, where the manifest or a part is not what squall writes.

    Of a sealed run every raw part must be there with the bytes of its seal (`RunStore.verify` also reads the contents).
    Instants must lie within `LONGEST_NS` of the start of the run. Derived tables are looked at only if asked for:
    whoever makes them again does not read them.
    """
    store.refuse_earlier()
    for fault in _faults(store.manifest.phases):
        raise StoreError(f"{store.where} has a manifest that squall did not write: {fault}")
    if store.is_sealed:
        _require_as_sealed(store)
    start_ns = _start_ns(store.manifest)
    tables = [table for table in store.tables() if derived_too or not TABLES[table].is_derived]
    for table in tables:
        for part in store.parts(table):
            _require_part(table, part, store, start_ns)


def _faults(stated: Iterable[PhaseFacts]) -> Iterator[str]:
    """Why phases cannot be those of one timeline, the first of it first."""
    phases = sorted(stated, key=lambda phase: phase.start_ns)
    for number, phase in enumerate(phases):
        if phase.end_ns < phase.start_ns:
            yield f"phase {phase.name} ends before it starts"
        for before in phases[:number]:
            if phase.start_ns < before.end_ns:
                yield f"phases {before.name} and {phase.name} overlap"
            if phase.name == before.name:
                yield f"two phases are named {phase.name}"


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


def _require_part(table: str, part: Part, store: RunStore, start_ns: int | None) -> None:
    where, name = store.where, name_of(part, store.run_dir)
    try:
        with parquet_file(part) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot read {name}: {error_reason(error)}") from error
    for wanted in arrow_schema(table):
        position = schema.get_field_index(wanted.name)
        if position < 0:
            raise StoreError(f"{where}: {name} has no column {wanted.name}: it is not of table {table}")
        if not _is_alike(schema.field(position).type, wanted.type):
            found = schema.field(position).type
            raise StoreError(f"{where}: {name}: column {wanted.name} is {found}, not {wanted.type}")
    if start_ns is not None:
        for instant, t_ns in _extremes(metadata, TABLES[table].instants):
            if abs(t_ns - start_ns) > LONGEST_NS:
                days = (t_ns - start_ns) / (24 * 3600 * 10**9)
                raise StoreError(
                    f"{where}: {name} has a {instant} that is {days:+.0f} days from the start of the run"
                )


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a query reads them alike: text may stand plain."""
    plain = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in (found, wanted)]
    return bool(plain[0].equals(plain[1]))


def _extremes(metadata: pq.FileMetaData, columns: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Least and greatest value of each of `columns`, by the statistics of each row group."""
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for group in range(metadata.num_row_groups):
        for column in columns:
            statistics = metadata.row_group(group).column(places[column]).statistics
            if statistics is not None and statistics.has_min_max:
                yield column, statistics.min
                yield column, statistics.max


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
