"""Where a number comes from: the files that `squall.analysis.schema` names for a column exist and write of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from squall.analysis.schema import TABLES, markdown
from squall.analysis.tables.columns import PhaseAt, PhaseFrom, Table, at, made_in, ns

ROOT = Path(__file__).parents[3]
LEAST_LITERAL = 8


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of the tree but docstrings."""
    for node in ast.iter_child_nodes(tree):
        if not _is_docstring(node):
            yield node
            yield from _nodes(node)


def _tokens(text: ast.JoinedStr) -> Iterator[tuple[str, ...]]:
    """Words of an f-string that are partly filled in: the fixed parts of each, in turn."""
    parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in text.values]
    for token in re.findall(r"[\w\0]*\0[\w\0]*", "".join(parts)):
        yield tuple(token.split("\0"))


@cache
def written(path: str) -> tuple[frozenset[str], frozenset[tuple[str, ...]]]:
    """Words in the texts of a file, SQL included, and names of fields; and the words that it fills in."""
    words: set[str] = set()
    filled: set[tuple[str, ...]] = set()
    for node in _nodes(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str(text)):
                words |= set(re.findall(r"\w+", text))
            case ast.AnnAssign(target=ast.Name(id=name)):
                words.add(name)
            case ast.JoinedStr():
                filled |= set(_tokens(node))
    return frozenset(words), frozenset(filled)


def names(path: str, column: str) -> bool:
    """Whether the file writes the word, or fills it in: by words of its own, or around some `LEAST_LITERAL` letters."""
    words, filled = written(path)
    letters = frozenset("".join(words))
    for fixed in filled:
        found = re.fullmatch(r"(\w+?)".join(map(re.escape, fixed)), column)
        if found is not None and (
            len("".join(fixed)) >= LEAST_LITERAL
            or all(part in words or (len(part) == 1 and part in letters) for part in found.groups())
        ):
            return True
    return column in words


def claims() -> Iterator[tuple[str, str, str]]:
    """Table, column and each file that is said to make it, but for phases, which no file names by a text of its own."""
    for table in TABLES.values():
        for column in table.columns:
            yield from ((table.name, column.name, maker) for maker in table.makers(column))


@pytest.mark.parametrize("path", sorted({path for _, _, path in claims()}))
def test_a_maker_is_a_file_that_writes_of_each_column_it_is_said_to_make(path: str) -> None:
    assert (ROOT / path).is_file()
    own = sorted({column for _, column, maker in claims() if maker == path} - {"phase"})
    assert [column for column in own if not names(path, column)] == []


@pytest.mark.parametrize("table", list(TABLES))
def test_a_phase_is_assigned_or_brought_by_the_file_that_is_said_to(table: str) -> None:
    rule = TABLES[table].phase
    if isinstance(rule, PhaseFrom):
        assert all("phase" in (ROOT / maker).read_text(encoding="utf-8") for maker in rule.made_in)
    else:
        assert "assign_phase(" in (ROOT / rule.made_in).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "column", "maker"),
    [
        ("joined", "wait_ns", "analysis/join/slices.py"),
        ("joined", "queue_ns", "analysis/join/server_parts.py"),
        ("kernels", "batch_id", "analysis/nsys/batches.py"),
        ("batch_costs", "sync_wait_ns", "analysis/join/batch_times.py"),
        ("requests", "outcome", "cluster/driver/records/ingest.py"),
    ],
)
def test_the_schema_document_says_in_one_row_who_makes_a_column(table: str, column: str, maker: str) -> None:
    section = markdown().split(f"## `{table}`\n")[1].split("\n## ")[0]
    (row,) = [line for line in section.splitlines() if line.startswith(f"| `{column}` |")]
    assert f"`{maker}`" in row.split(" | ")[-1]


def test_a_file_that_does_not_write_of_a_column_is_found_out() -> None:
    assert names("analysis/join/slices.py", "wait_ns")
    assert names("actors/sampling/host.py", "cpu_iowait")  # by an f-string
    assert not names("analysis/join/slices.py", "sync_wait_ns")
    assert not names("analysis/join/join.py", "response_ms")


def _table(**changes: object) -> Table:
    whole = Table("t", "thing", PhaseAt("t_ns", "a/b.py"), ("a/c.py",), (at("t_ns", "when"), ns("x_ns", "x")))
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_a_table_says_who_makes_each_column() -> None:
    table = _table(columns=(at("t_ns", "when"), *made_in("a/d.py", ns("x_ns", "x")), ns("phase", "any")))
    assert [table.makers(column) for column in table.columns] == [("a/c.py",), ("a/d.py",), ("a/b.py",)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"made_in": ()}, "t.t_ns does not say which file makes it"),
        ({"made_in": ("a/c",)}, "t.t_ns does not say which file makes it"),
        ({"phase": PhaseAt("x_ns", "a/b.py")}, "t has no instant x_ns to tell its phases by"),
        ({"phase": PhaseFrom("", ("a/b.py",))}, "t does not say whose phase a row brings"),
        ({"phase": PhaseFrom("its run", ()), "columns": (ns("phase", "any"),)}, "t.phase does not say"),
    ],
)
def test_a_table_that_does_not_say_whence_it_comes_is_none(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _table(**changes)
