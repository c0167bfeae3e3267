"""Whether a run directory can be analysed at all: a manifest of the right shape, tables that are whole and its own.

What is looked at is small, whatever the size of the run: the manifest, and the footer of each part. Absent fields and
tables are no fault: what needs them says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.part import error_reason
from analysis.schema import TABLES, arrow_schema
from analysis.store import RunStore
from scenarios.errors import StoreError

LONGEST_NS = 30 * 24 * 3600 * 10**9
"""No instant of a run is further from its start: of such a run, 100 ms at a time, each window would still be made."""

_MAPPING, _LIST, _WHOLE, _TEXT = "a mapping", "a list", "a whole number", "a text"
_KINDS: dict[str, type | tuple[type, ...]] = {_MAPPING: dict, _LIST: list, _WHOLE: int, _TEXT: str}
_FIELDS = {
    "scenario": _MAPPING, "plan": _MAPPING, "nodes": _MAPPING, "servers": _MAPPING, "collectors": _MAPPING,
    "profiled_phases": _MAPPING, "verdict": _MAPPING, "versions": _MAPPING, "phases": _LIST, "workers": _LIST,
    "losses": _LIST, "start_ns": _WHOLE, "started_ns": _WHOLE,
}  # fmt: skip
_ENTRIES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "phases": ({"name": _TEXT, "kind": _TEXT, "start_ns": _WHOLE, "end_ns": _WHOLE}, {}),
    "nodes": ({}, {"clock_error_ns": _WHOLE, "clock_offset_ns": _WHOLE, "n_cores": _WHOLE, "gpus": _LIST}),
    "servers": ({"node": _TEXT}, {"model": _TEXT, "version": _TEXT}),
    "collectors": ({}, {}),
    "profiled_phases": ({}, {}),
    "workers": ({"worker": _WHOLE, "node": _TEXT}, {}),
}
"""What each entry of a field must have, and what it may have, of which kind."""


def require_intact(store: RunStore, derived_too: bool = False) -> None:
    """Raises StoreError, in one line, where the manifest or a part is not what squall writes.

    Of a sealed run every raw part must be there with the bytes of its seal (`RunStore.verify` also reads the contents).
    Instants must lie within `LONGEST_NS` of the start of the run. Derived tables are looked at only if asked for:
    whoever makes them again does not read them.
    """
    _require_manifest(store.manifest, store.run_dir)
    if store.is_sealed:
        _require_as_sealed(store)
    start_ns = _start_ns(store.manifest)
    tables = [table for table in store.tables() if derived_too or not TABLES[table].is_derived]
    for table in tables:
        for part in store.path(table):
            _require_part(table, part, store.run_dir, start_ns)


def _require_manifest(manifest: Mapping[str, Any], run_dir: Path) -> None:
    for fault in _faults(manifest):
        raise StoreError(f"{run_dir} has a manifest that squall did not write: {fault}")


def _faults(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What in the manifest is of the wrong shape, the first of it first."""
    for field, kind in _FIELDS.items():
        if field in manifest:
            yield from _fault(field, manifest[field], kind)
    for field, (needed, possible) in _ENTRIES.items():
        entries = manifest.get(field, [])
        named = entries.items() if isinstance(entries, dict) else enumerate(entries)
        for name, entry in named:
            yield from _fault(f"{field}[{name}]", entry, _MAPPING)
            for key, kind in needed.items():
                if key not in entry:
                    yield f"{field}[{name}] has no {key}"
                yield from _fault(f"{field}[{name}].{key}", entry[key], kind)
            for key, kind in possible.items():
                if entry.get(key) is not None:
                    yield from _fault(f"{field}[{name}].{key}", entry[key], kind)
    phases = sorted(manifest.get("phases", []), key=lambda phase: int(phase["start_ns"]))
    for number, phase in enumerate(phases):
        if phase["end_ns"] < phase["start_ns"]:
            yield f"phase {phase['name']} ends before it starts"
        for before in phases[:number]:
            if phase["start_ns"] < before["end_ns"]:
                yield f"phases {before['name']} and {phase['name']} overlap"
            if phase["name"] == before["name"]:
                yield f"two phases are named {phase['name']}"


def _fault(where: str, value: Any, kind: str) -> Iterator[str]:
    if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
        yield f"{where} is not {kind}"


def _require_as_sealed(store: RunStore) -> None:
    stated = store.manifest.get("tables")
    if not isinstance(stated, dict):
        raise StoreError(
            f"{store.run_dir} has a manifest that squall did not write: tables is not {_MAPPING}"
        )
    raw = [table for table in TABLES if not TABLES[table].is_derived]
    for table in raw:
        sealed = {file["path"]: file for file in stated.get(table, {"files": []})["files"]}
        found = {part.relative_to(store.run_dir).as_posix(): part for part in store.path(table)}
        for name in sorted({*sealed, *found}):
            if name not in found:
                raise StoreError(f"{store.run_dir}: {name} is missing, which the run was sealed with")
            if name not in sealed:
                raise StoreError(f"{store.run_dir}: {name} is not of this run: it was not there at the seal")
            if found[name].stat().st_size != sealed[name]["bytes"]:
                raise StoreError(f"{store.run_dir}: {name} has changed since the seal")


def _start_ns(manifest: Mapping[str, Any]) -> int | None:
    """When the run started, as far as the manifest says."""
    starts = [phase["start_ns"] for phase in manifest.get("phases", [])]
    stated: int | None = manifest.get("start_ns", min(starts, default=None))
    return stated


def _require_part(table: str, part: Path, run_dir: Path, start_ns: int | None) -> None:
    name = part.relative_to(run_dir).as_posix()
    try:
        with pq.ParquetFile(part) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{run_dir}: cannot read {name}: {error_reason(error)}") from error
    for wanted in arrow_schema(table):
        position = schema.get_field_index(wanted.name)
        if position < 0:
            raise StoreError(f"{run_dir}: {name} has no column {wanted.name}: it is not of table {table}")
        if not _is_alike(schema.field(position).type, wanted.type):
            found = schema.field(position).type
            raise StoreError(f"{run_dir}: {name}: column {wanted.name} is {found}, not {wanted.type}")
    if start_ns is not None:
        for instant, t_ns in _extremes(metadata, TABLES[table].instants):
            if abs(t_ns - start_ns) > LONGEST_NS:
                days = (t_ns - start_ns) / (24 * 3600 * 10**9)
                raise StoreError(
                    f"{run_dir}: {name} has a {instant} that is {days:+.0f} days from the start of the run"
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
