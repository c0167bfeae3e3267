"""A run directory from rows that name only the columns that matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import NO_DEVICE, TABLES, arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore

Row = dict[str, Any]
START_NS = 1_795_250_252_000_000_000


def plain_run(parent: Path, tables: dict[str, list[Row]], **manifest: Any) -> RunStore:
    """A sealed run of `tables`; what a row leaves out is null, or empty, 0 or no device where the schema
    allows no null.

    `node` is node-0 and `server` server-0 unless a row says otherwise. A table without rows is absent.
    """
    store = RunStore.create(parent, "plain", START_NS, read_manifest(manifest))
    made = {table: plain_table(table, store.run, rows) for table, rows in tables.items() if rows}
    for table, data in made.items():
        add = store.replace_derived if TABLES[table].is_derived else store.append
        add(table, data)
    store.seal(Verdict(status="VALID"))
    return store


def plain_table(table: str, run: str, rows: list[Row]) -> pa.Table:
    schema, stated = arrow_schema(table), set().union(*rows)
    same = {"run": run, "node": "node-0", "server": "server-0"}
    assert stated <= set(schema.names), f"{table} has no {stated - set(schema.names)}"
    columns = []
    for field in schema:
        name, kind = field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type
        left_out = same.get(name, _default(field))
        values = [row.get(name, left_out) for row in rows] if name in stated else [left_out] * len(rows)
        columns.append(pa.array(values, kind))
    return pa.table(columns, names=schema.names)


def _default(field: pa.Field) -> Any:
    if field.nullable:
        return None
    if field.name == "instance_device":
        return NO_DEVICE
    if pa.types.is_dictionary(field.type):
        return ""
    return [] if pa.types.is_list(field.type) else field.type.to_pandas_dtype()(0).item()
