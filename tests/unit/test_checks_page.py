"""docs/checks.md is what the planted faults say, and no check of the code is missing there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.planted_faults.page import page, rows

ROOT = Path(__file__).parents[2]
MAKERS = ("Check", "Identity", "held_to", "at_most", "at_least")
"""What makes a check of the verdict, a count that must agree, or a self-check; its name comes first."""
LEAST = 5
"""Arguments of each of them; conditions of rules are made by functions of these names, of fewer."""


def _begins(node: ast.expr, assigned: Mapping[str, set[str]]) -> set[str]:
    """What the text of an expression begins with; empty where nothing is known of it."""
    match node:
        case ast.Constant(str(text)):
            return {text}
        case ast.JoinedStr([ast.Constant(str(text)), *_]):
            return {text}
        case ast.Name(name):
            return assigned.get(name, set())
    return set()


def _names(tree: ast.AST) -> Iterator[str]:
    """Names of the checks that a module makes; of one that is put together, what it begins with."""
    assigned: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = (
                zip(target.elts, value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                else [(target, value)]
            )
            for one, of_it in pairs:
                if isinstance(one, ast.Name):
                    assigned[one.id] |= _begins(of_it, {})
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in MAKERS
            and len(node.args) >= LEAST
        ):
            yield from _begins(node.args[0], assigned)


@cache
def _of_the_code() -> frozenset[str]:
    return frozenset(
        name for file in (ROOT / "analysis").rglob("*.py") for name in _names(ast.parse(file.read_text()))
    )


def test_the_page_is_made_of_the_planted_faults() -> None:
    assert (ROOT / "docs" / "checks.md").read_text() == page()


def test_every_check_of_the_code_has_a_fault_that_fails_it() -> None:
    names = _of_the_code()
    assert len(names) > 35
    told = {check for check, *_ in rows()}
    assert {name for name in names if not any(one == name or one.startswith(name) for one in told)} == set()


def test_no_fault_is_said_to_fail_a_check_that_there_is_not() -> None:
    names = _of_the_code()
    told = {check for check, *_ in rows()}
    assert {one for one in told if not any(one == name or one.startswith(name) for name in names)} == set()


def test_the_limits_name_every_check_of_the_verdict_and_none_that_there_is_not() -> None:
    named = set(re.findall(r"`([^`]+)`", "".join(_comments((ROOT / "analysis" / "limits.py").read_text()))))
    told = {check for check, *_ in rows()}
    of_the_verdict = {
        name
        for file in (ROOT / "analysis" / "verdict").rglob("*.py")
        for name in _names(ast.parse(file.read_text()))
    }
    assert len(of_the_verdict) > 12
    assert named - told == set()
    assert {name for name in of_the_verdict if not any(one.startswith(name) for one in named)} == set()


def test_before_a_limit_stands_the_file_that_decides() -> None:
    *_, before = _comments((ROOT / "analysis" / "limits.py").read_text())
    told = re.findall(r"(\S+)\.py: ((?:`[^`]+`[,;]? ?)+)", before)
    assert len(told) > 20
    for file, names in told:
        held = set(_names(ast.parse((ROOT / "analysis" / f"{file}.py").read_text())))
        for name in re.findall(r"`([^`]+)`", names):
            assert any(name.startswith(one) for one in held), (file, name)


def _comments(source: str) -> Iterator[str]:
    """The comments, a space between the lines of one, and the docstring's sentence about those without a limit."""
    yield (ast.get_docstring(ast.parse(source)) or "").partition("have the limit 0:")[2]
    yield re.sub(
        r"\n +# ", " ", "\n".join(line for line in source.split("\n") if line.lstrip().startswith("#"))
    )
