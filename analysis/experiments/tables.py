"""The rows of an experiment as files: one tidy table of runs and one of cells, Parquet and CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from squall.analysis.experiments.result import Sweep
from squall.analysis.experiments.rows import COLUMNS, RunRow

_RUN_TYPES: dict[str, pa.DataType] = {
    "position": pa.int64(), "block": pa.int64(), "role": pa.string(), "cell": pa.int64(), "seed": pa.int64(),
    "attempt": pa.int64(), "outcome": pa.string(), "verdict": pa.string(), "is_counted": pa.bool_(),
    "reason": pa.string(), "n": pa.int64(), "n_failed": pa.int64(), "failed_ratio": pa.float64(),
    "p50_ns": pa.float64(), "p95_ns": pa.float64(), "p99_ns": pa.float64(), "throughput_hz": pa.float64(),
    "offered_hz": pa.float64(), "wall_s": pa.float64(), "gpu_c": pa.float64(), "run": pa.string(),
    "site": pa.string(), "host": pa.string(),
}  # fmt: skip
Factors = Sequence[str]
_FORMULA = r"\A[=+\-@\t\r]"
"""How a text begins that a spreadsheet takes for a formula."""


def runs_table(sweep: Sweep, factors: Factors) -> pa.Table:
    """One row a run, every attempt; factors by key path after `cell`, a column `promise: …` with the verdict on each. A
    quantile that fell on failures is infinite."""
    promises = list(dict.fromkeys(name for row in sweep.runs for name in row.figures.promises))
    columns: dict[str, Any] = {}
    for name, kind in _RUN_TYPES.items():
        columns[name] = pa.array([_run_value(row, name) for row in sweep.runs], kind)
        if name == "cell":
            columns |= {
                key: _factor([sweep.cells[row.cell].factors for row in sweep.runs], key) for key in factors
            }
    for promise in promises:
        verdicts = [row.figures.promises.get(promise) for row in sweep.runs]
        columns[f"promise: {promise}"] = pa.array(verdicts, pa.string())
    return pa.table(columns)


def cells_table(sweep: Sweep, factors: Factors) -> pa.Table:
    """One row a cell: means over seeds with the ends of their 95 % intervals, and how it stands against the best.
    `kept: …`: in how many of the valid runs each promise was kept."""
    cells, rivals = sweep.cells, {one.cell: one for one in sweep.ranking.others}
    best = sweep.ranking.best
    columns: dict[str, Any] = {"cell": pa.array([one.cell for one in cells], pa.int64())}
    columns |= {key: _factor([one.factors for one in cells], key) for key in factors}
    for name in ("n_planned", "n_valid", "n_invalid", "n_failed"):
        columns[name] = pa.array([getattr(one, name) for one in cells], pa.int64())
    for objective, column in COLUMNS.items():
        figures = [one.objectives[objective] for one in cells]
        means = [float("inf") if one.n_infinite else one.mean for one in figures]
        columns[column] = pa.array(means, pa.float64())
        columns[f"{column}_low"] = pa.array([one.low for one in figures], pa.float64())
        columns[f"{column}_high"] = pa.array([one.high for one in figures], pa.float64())
    for promise in dict.fromkeys(name for one in cells for name in one.promises_kept):
        kept = [one.promises_kept.get(promise) for one in cells]
        columns[f"kept: {promise}"] = pa.array(kept, pa.int64())
    columns["failed_ratio"] = pa.array([one.failed_ratio.mean for one in cells], pa.float64())
    columns["wall_s"] = pa.array([one.wall_s for one in cells], pa.float64())
    columns["front"] = pa.array([one.front for one in cells], pa.string())
    columns["is_best"] = pa.array([one.cell == best for one in cells], pa.bool_())
    for name in ("ratio", "low", "high", "p"):
        column = name if name == "p" else f"of_best_{name}"
        columns[column] = pa.array([getattr(rivals.get(one.cell), name, None) for one in cells], pa.float64())
    columns["is_apart"] = pa.array(
        [getattr(rivals.get(one.cell), "is_apart", None) for one in cells], pa.bool_()
    )
    return pa.table(columns)


def as_parquet(table: pa.Table) -> bytes:
    """The file's bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def as_csv(table: pa.Table) -> bytes:
    """The file's bytes, with a line of heads; in front of a text that a spreadsheet would compute stands a `'`."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(at, field, pc.replace_substring_regex(table[at], _FORMULA, r"'\0"))
    sink = io.BytesIO()
    pcsv.write_csv(table, sink)
    return sink.getvalue()


def _run_value(row: RunRow, name: str) -> Any:
    own = {"verdict": row.status, "is_counted": row.is_counted, "failed_ratio": row.figures.failed_ratio}
    if name in own:
        return own[name]
    if name in row.figures.infinite:
        return float("inf")
    return getattr(row.figures if hasattr(row.figures, name) else row, name)


def _factor(factors: Sequence[Any], key: str) -> pa.Array:
    """A column of numbers where all values are, else of texts; null where the cell leaves the key to the scenario."""
    values = [one.get(key) for one in factors]
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return pa.array(values, pa.bool_())
    if known and all(isinstance(value, int) and not isinstance(value, bool) for value in known):
        return pa.array(values, pa.int64())
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
