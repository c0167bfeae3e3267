"""Which rows a finding is about: a filter that anybody can run over the Parquet files, and the worst few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.findings.finding import Rows, Scope
from squall.analysis.findings.rules.rule import RowLink
from squall.analysis.storage.parquet import literal

if TYPE_CHECKING:
    import duckdb

N_WORST = 5
"""Rows that a finding lists itself."""


def scope_filter(table: str, scope: Scope, model: str | None = None) -> str:
    """SQL condition for the rows of `scope` in `batch_costs` or `joined`.

    `model`: where the instance is known by its model's name alone, as from Triton's trace.
    """
    parts = [f"phase = {literal(scope.phase)}", f"server = {literal(scope.server)}"]
    if scope.instance and scope.instance == model:
        column = "model" if table == "batch_costs" else "request_kind"
        parts.append(f"instance = '' AND {column} = {literal(scope.instance)}")
    elif scope.instance:
        parts.append(f"instance = {literal(scope.instance)} AND instance_device = {scope.instance_device}")
    return " AND ".join(parts)


def link(connection: duckdb.DuckDBPyConnection, where: str, rows: RowLink) -> Rows:
    """The rows of view `rows.table` that `where` holds of; the worst come first, equal ones by their keys."""
    shown = ", ".join(rows.shown)
    found = connection.execute(
        f"SELECT {shown} FROM {rows.table} WHERE {where} ORDER BY {rows.order} DESC NULLS LAST, {shown} LIMIT {N_WORST}"
    ).fetchall()
    worst = tuple(dict(zip(rows.shown, row, strict=True)) for row in found)
    return Rows(rows.table, where, f"{rows.order} DESC", worst)
