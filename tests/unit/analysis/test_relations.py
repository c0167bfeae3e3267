"""Temporary relations are what `squall.analysis.tables.relations` says, and each is made in one file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest

from squall.analysis.findings.tail_batches import batches_measures
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.figures.batch_figures import pick_all
from squall.analysis.metrics.instances import measures_of_batches
from squall.analysis.metrics.windows import write_windows
from squall.analysis.storage import query
from squall.analysis.storage.databases import database
from squall.analysis.summary.step_figures import step_figures
from squall.analysis.summary.summary import summarise
from squall.analysis.tables import relations
from squall.analysis.tables.nsys import DEVICE_TABLES
from squall.analysis.tables.relations import RELATIONS, Relation, by_name
from tests.plain_runs import plain_run
from tests.planted_runs import STYLES, Shape, plant

ROOT = Path(__file__).parents[3]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "analysis").rglob("*.py"))
}
NAMES = {id(one): name for name, one in vars(relations).items() if isinstance(one, Relation)}
OF_REPORTS = {"api_calls", "launches", "gpus"}
FILES = {"executed", "members", "stepped", "traces", "while_there", "second_means", "phase_means"}
CREATES = (
    "analysis/tables/relations.py",
    "analysis/nsys/report.py",
    "analysis/storage/query.py",
    "analysis/requests/cold.py",
)
"""The second makes the views of nsys's own tables, by its allow list; the third those of the run's; the fourth compares
executions in a connection of its own, from whatever source tells of them, and keeps nothing."""


def makings(source: str) -> Iterator[str]:
    """Names of the relations that a file makes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="relations"), attr=name),
                    attr="table" | "view" | "new",
                )
            ):
                yield name


@cache
def made() -> dict[str, frozenset[str]]:
    """The relations that each file makes."""
    return {path: frozenset(makings(source)) for path, source in SOURCES.items()}


def test_statements_that_make_relations_are_written_in_one_place() -> None:
    found = {
        path
        for path, source in SOURCES.items()
        if re.search(r"CREATE (OR REPLACE )?(TEMP )?(TABLE|VIEW)", source)
    }
    assert found == set(CREATES)


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS.keys())
def test_a_relation_is_made_in_the_one_file_that_it_names(relation: Relation) -> None:
    name = NAMES[id(relation)]
    made_in = {path for path, names in made().items() if name in names}
    if relation.name in FILES or relation.name == "api_calls":  # written as files of a query each
        assert made_in == set()
        assert relation.made_in in SOURCES
        assert any(f"relations.{name}" in source for source in SOURCES.values())
    else:
        assert made_in == {relation.made_in}


def test_two_relations_of_one_name_are_refused() -> None:
    one = Relation("one", "row", "a.py", {"x": "BIGINT"})
    with pytest.raises(ValueError, match="two relations are named one"):
        by_name([one, Relation("one", "another row", "b.py", {})])
    with pytest.raises(ValueError, match="two relations are named joined"):
        by_name([Relation("joined", "row of a table of the run", "a.py", {})])


class Watched:
    """A connection that notes the columns of each relation as it is made."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, seen: dict[str, list[dict[str, str]]]) -> None:
        self._connection = connection
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *more: Any) -> Any:
        answer = self._connection.execute(statement, *more)
        if made := re.match(r"\s*CREATE TEMP (?:TABLE|VIEW) (\w+)", statement):
            new = self._connection.sql(f"FROM {made[1]}")
            columns = dict(zip(new.columns, map(str, new.types), strict=True))
            self._seen.setdefault(made[1], []).append(columns)
        return answer


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """The relations of an analysis of all that there may be, and of one of next to nothing."""
    found: dict[str, list[dict[str, str]]] = {}

    @contextmanager
    def watched(spill: str) -> Iterator[Watched]:
        with database(spill) as connection:
            yield Watched(connection, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "database", watched)
        for number, servers in enumerate((STYLES, ("blind",))):
            shape = Shape(seed=number + 3, servers=servers, n_requests=6 * len(servers))
            store = plant(shape).write(tmp_path_factory.mktemp("runs"))
            write_batch_costs(store)
            write_joined(store)
            write_windows(store)
            summarise(store)
            measures_of_batches(store, store.manifest.phases[0].name, [])
            tables = ["batch_costs", *(name for name in DEVICE_TABLES if store.has(name))]
            with query.connect(store, tables) as connection:
                pick_all(connection)
                batches_measures(connection, tables)
        several = plain_run(tmp_path_factory.mktemp("runs"), of_two_models())
        write_joined(several)
        step_figures(several, ["burst"], is_open=True)
    return found


def of_two_models() -> dict[str, list[dict[str, Any]]]:
    """A request that passed both."""
    spans = {"a": (10, 20), "b": (30, 40)}
    batches = [
        {"model": name, "instance": name, "start_ns": start, "end_ns": end, "request_ids": [1]}
        for name, (start, end) in spans.items()
    ]
    return {"requests": [{"request_id": 1, "rows": 1}], "batches": batches}


@pytest.mark.parametrize("name", sorted(set(RELATIONS) - FILES - OF_REPORTS))
def test_a_relation_has_the_columns_and_types_that_it_says(
    name: str, seen: dict[str, list[dict[str, str]]]
) -> None:
    stated = dict(RELATIONS[name].columns)
    assert seen[name]
    for columns in seen[name]:
        assert columns == ({one: stated[one] for one in columns} if name == "kept" else stated)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as found:
        yield found


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS.keys())
def test_an_empty_relation_has_its_columns_and_no_rows(
    relation: Relation, connection: duckdb.DuckDBPyConnection
) -> None:
    found = connection.sql(relation.empty())
    assert dict(zip(found.columns, map(str, found.types), strict=True)) == dict(relation.columns)
    assert not found.fetchall()
