"""`squall sql`: a query over the tables of a run, or of all runs in a folder."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squall.analysis.shown import FORMULA, escaped_lines
from squall.cluster.commands.ending import interruptible
from squall.cluster.commands.options import run_dirs
from squall.cluster.commands.printed import print_screen, say
from squall.scenarios.errors import ScenarioError, SquallError
from squall.scenarios.foreign_text import escaped
from squall.scenarios.units import digits_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from squall.analysis.sql import Answer
    from squall.analysis.storage.store import RunStore

MOST_ROWS = 200
"""Rows on the screen."""
_WIDEST_CELL = 60
"""Characters of a value on the screen."""
_DIGITS = 4


def sql(
    run: Annotated[
        str,
        typer.Argument(
            help="A run directory, its address s3://bucket/prefix/RUN, or a folder of runs.", metavar="RUN"
        ),
    ],
    query: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT, in DuckDB's SQL, over the tables of the run; of a folder each has the rows of all runs.",
            metavar="QUERY",
        ),
    ] = None,
    has_tables: Annotated[
        bool, typer.Option("--tables", help="List the tables that there are: columns, units, meaning.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list with an object for each row.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
) -> None:
    """Ask the tables of a run in SQL; what they are, --tables says."""
    if has_tables == (query is not None) or (as_csv and (as_json or has_tables)):
        raise ScenarioError(
            'sql: give a query, such as "SELECT outcome, count(*) FROM requests GROUP BY outcome", or --tables;'
            " a query is printed with --json or --csv, or neither, --tables with --json or without"
        )
    with interruptible() as interrupts, interrupts.allowed():
        stores = _opened(run, query)
        if query is None:
            _print_tables(stores, as_json)
            return
        from squall.analysis.sql import answered

        with answered(stores, query) as answer:
            if as_json:
                _print_json(answer)
            elif as_csv:
                _print_csv(answer)
            else:
                _print_screen(answer)


def _opened(run: str, query: str | None) -> list[RunStore]:
    """The run, or those below a folder, whole as far as the query can be over them. Of a folder, a run that cannot be
    read is named on stderr and left out. Raises StoreError, ScenarioError."""
    from squall.analysis.sql import named_tables
    from squall.analysis.storage.intact import content_errors_of, require_intact
    from squall.analysis.storage.object_folder import is_address
    from squall.analysis.storage.store import RunStore

    paths: Sequence[Path | str] = [run] if is_address(run) else run_dirs(Path(run))
    stores = []
    for path in paths:
        try:
            store = RunStore.open(path)
            with content_errors_of(store.where):
                require_intact(store, derived_too=True, tables=() if query is None else named_tables(query))
            stores.append(store)
        except SquallError as error:
            if len(paths) == 1:
                raise
            say(f"left out: {error}", on_stderr=True)
    if not stores:
        raise ScenarioError(f"{run} has no run that can be read")
    return stores


def _print_json(answer: Answer) -> None:
    """A row a line."""
    before = "[\n"
    for row in answer.rows():
        sys.stdout.write(before + json.dumps(dict(zip(answer.names, map(_plain, row), strict=True))))
        before = ",\n"
    sys.stdout.write("\n]\n" if before.startswith(",") else "[]\n")


def _plain(value: Any) -> Any:
    """A value as JSON has it: null for a float that is not finite, a text for what JSON has no type of."""
    if isinstance(value, dict):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _print_csv(answer: Answer) -> None:
    """Null is empty; a text that a spreadsheet would compute has a `'` in front."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_csv_cell, answer.names))
    for values in answer.rows():
        writer.writerow(map(_csv_cell, values))


def _csv_cell(value: Any) -> Any:
    plain = value if isinstance(value, float) else _plain(value)
    if not isinstance(plain, str):
        return json.dumps(plain) if isinstance(plain, dict | list | bool) else plain
    return ("'" if re.match(FORMULA, plain) else "") + escaped_lines(plain)


def _print_screen(answer: Answer) -> None:
    """The first rows, in as many columns as have room, and how much more there is."""
    from squall.analysis.sql import rows_of

    rows: list[tuple[Any, ...]] = []
    n_rows = 0
    for batch in answer.batches:
        rows += rows_of(batch.slice(0, MOST_ROWS - len(rows)))
        n_rows += batch.num_rows
    names = [_cell(name) for name in answer.names]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    numbers = [
        all(isinstance(value, int | float | Decimal | None) for value in column)
        for column in zip(*rows, strict=True)
    ] or [False] * len(names)

    def table(width: int) -> RenderableType:
        from rich.console import Group

        n_columns = sum(sum(widths[: n + 1]) + 2 * n <= width for n in range(len(widths))) or 1
        shown = _grid(names[:n_columns])
        for column, is_number in zip(shown.columns, numbers, strict=False):
            column.justify = "right" if is_number else "left"
        for row in cells:
            shown.add_row(*row[:n_columns])
        notes = []
        if n_rows > len(rows):
            notes.append(f"{n_rows - len(rows):,} more rows: --csv or --json prints all")
        if left := names[n_columns:]:
            notes.append(f"{len(left)} more columns, without room here: {', '.join(left)}")
        return Group(shown, *notes)

    print_screen(table)


def _cell(value: Any) -> str:
    """A value on one line. A number has all digits before the point, which identify instants and requests, and
    otherwise four."""
    value = value if isinstance(value, float | str) else _plain(value)
    if isinstance(value, float):
        text = (
            f"{value:.0f}"
            if abs(value) >= 10**_DIGITS and math.isfinite(value)
            else digits_text(value, _DIGITS)
        )
        return text.replace(",", "")
    text = "null" if value is None else escaped(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}…"


def _grid(heads: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        *heads,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )


def _print_tables(stores: Sequence[RunStore], as_json: bool) -> None:
    """Of each table that a run has what a row is, and of each column name, unit and meaning."""
    from squall.analysis.storage.schema import TABLES

    tables = [table for name, table in TABLES.items() if any(store.has(name) for store in stores)]
    if as_json:
        columns = ("name", "unit", "nullable", "meaning")
        listed = [
            {
                "name": table.name,
                "row": table.row,
                "made_in": table.made_in,
                "columns": [{key: getattr(column, key) for key in columns} for column in table.columns],
            }
            for table in tables
        ]
        typer.echo(json.dumps(listed, indent=2))
        return

    def listing(_: int) -> RenderableType:
        from rich.console import Group

        shown: list[RenderableType] = []
        for table in tables:
            grid = _grid(("column", "unit", "meaning"))
            for column in table.columns:
                grid.add_row(
                    column.name, f"{column.unit}{' or null' if column.nullable else ''}", column.meaning
                )
            made_in = f"; made by {table.made_in}" if table.is_derived else ""
            shown += [f"{table.name}: one row per {table.row}{made_in}", grid, ""]
        return Group(*shown)

    print_screen(listing)
