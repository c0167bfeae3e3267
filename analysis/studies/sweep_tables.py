"""The rows of an experiment as files: one tidy table of runs and one of cells, Parquet and CSV."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from squall.analysis.shown import FORMULA
from squall.analysis.studies.sweep_result import Sweep
from squall.analysis.studies.sweep_rows import COLUMNS

_INT, _FLOAT, _TEXT, _BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
_RUN_TYPES = {
    "position": _INT, "block": _INT, "role": _TEXT, "cell": _INT, "seed": _INT, "attempt": _INT, "outcome": _TEXT,
    "verdict": _TEXT, "is_counted": _BOOL, "reason": _TEXT, "n": _INT, "n_failed": _INT, "failed_ratio": _FLOAT,
    "p50_ns": _FLOAT, "p95_ns": _FLOAT, "p99_ns": _FLOAT, "throughput_hz": _FLOAT, "offered_hz": _FLOAT,
    "wall_s": _FLOAT, "gpu_c": _FLOAT, "run": _TEXT, "site": _TEXT, "host": _TEXT,
}  # fmt: skip
_OF_BEST = {"of_best_ratio": "ratio", "of_best_low": "low", "of_best_high": "high", "p": "p"}
"""Columns of a cell beside the best one, and their fields in `Rival`."""
Factors = Sequence[str]


def runs_table(sweep: Sweep, factors: Factors) -> pa.Table:
    """One row a run, every attempt; factors by key path after `cell`, a column `promise: …` with the verdict on each. A
    quantile that fell on failures is infinite."""
    rows = [
        {
            **vars(row),
            **vars(row.figures),
            "verdict": row.status,
            "is_counted": row.is_counted,
            "failed_ratio": row.figures.failed_ratio,
            **dict.fromkeys(row.figures.infinite, math.inf),
            **_named("promise", row.figures.promises),
        }
        for row in sweep.runs
    ]
    promises = {name: _TEXT for row in sweep.runs for name in row.figures.promises}
    table = pa.Table.from_pylist(rows, pa.schema({**_RUN_TYPES, **_named("promise", promises)}))
    return _with_factors(table, [sweep.cells[row.cell].factors for row in sweep.runs], factors)


def cells_table(sweep: Sweep, factors: Factors) -> pa.Table:
    """One row a cell: means over seeds with the ends of their 95 % intervals, and how it stands against the best.
    `kept: …`: in how many of the valid runs each promise was kept."""
    rivals = {one.cell: one for one in sweep.ranking.others}
    rows = []
    for one in sweep.cells:
        row = {**vars(one), "failed_ratio": one.failed_ratio.mean, "is_best": one.cell == sweep.ranking.best}
        for objective, column in COLUMNS.items():
            figure = one.objectives[objective]
            row[column] = math.inf if figure.n_infinite else figure.mean
            row |= {f"{column}_low": figure.low, f"{column}_high": figure.high}
        rival = rivals.get(one.cell)
        row |= {column: getattr(rival, name, None) for column, name in _OF_BEST.items()}
        rows.append({**row, "is_apart": rival and rival.is_apart, **_named("kept", one.promises_kept)})
    types = {
        **dict.fromkeys(("cell", "n_planned", "n_valid", "n_invalid", "n_failed"), _INT),
        **{f"{column}{end}": _FLOAT for column in COLUMNS.values() for end in ("", "_low", "_high")},
        **_named("kept", {name: _INT for one in sweep.cells for name in one.promises_kept}),
        **{"failed_ratio": _FLOAT, "wall_s": _FLOAT, "front": _TEXT, "is_best": _BOOL},
        **dict.fromkeys(_OF_BEST, _FLOAT),
        "is_apart": _BOOL,
    }
    table = pa.Table.from_pylist(rows, pa.schema(types))
    return _with_factors(table, [one.factors for one in sweep.cells], factors)


def _named(what: str, by_promise: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of promises."""
    return {f"{what}: {name}": value for name, value in by_promise.items()}


def _with_factors(table: pa.Table, of_rows: Sequence[Mapping[str, Any]], factors: Factors) -> pa.Table:
    """The table with the factors after `cell`: columns of numbers where all values are, else of texts; null where the
    cell leaves the key to the scenario."""
    for place, key in enumerate(factors, table.schema.get_field_index("cell") + 1):
        values = [one.get(key) for one in of_rows]
        try:
            column = pa.array(values)
        except (pa.ArrowException, OverflowError):
            column = pa.nulls(0)
        if column.type not in (_BOOL, _INT, _FLOAT):
            texts = [one if one is None or isinstance(one, str) else json.dumps(one) for one in values]
            column = pa.array(texts, _TEXT)
        table = table.add_column(place, key, column)
    return table


def as_parquet(table: pa.Table) -> bytes:
    """The file's bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def as_csv(table: pa.Table) -> bytes:
    """The file's bytes, with a line of heads; in front of a text that a spreadsheet would compute stands a `'`."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(at, field, pc.replace_substring_regex(table[at], FORMULA, r"'\0"))
    sink = io.BytesIO()
    pcsv.write_csv(table, sink)
    return sink.getvalue()
