"""Every check of the code has a planted fault that fails it, and no planted fault fails a check that there is not."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from squall.analysis.findings.self_checks import CHECKS as SELF_CHECKS
from squall.analysis.verdict.checks import CHECKS
from tests.planted_faults.page import rows

ROOT = Path(__file__).parents[4]
MAKER = "Identity"
"""What makes a count that must agree; its name comes first."""
LEAST = 5
"""Arguments of it."""


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
            and node.func.id == MAKER
            and len(node.args) >= LEAST
        ):
            yield from _begins(node.args[0], assigned)


@cache
def _of_the_code() -> frozenset[str]:
    made = {
        name for file in (ROOT / "analysis").rglob("*.py") for name in _names(ast.parse(file.read_text()))
    }
    return frozenset(made | {check.name for check in CHECKS} | {check.name for check in SELF_CHECKS})


def test_every_check_of_the_code_has_a_fault_that_fails_it() -> None:
    names = _of_the_code()
    assert len(names) > 35
    told = {check for check, *_ in rows()}
    assert {name for name in names if not any(one == name or one.startswith(name) for one in told)} == set()


def test_no_fault_is_said_to_fail_a_check_that_there_is_not() -> None:
    names = _of_the_code()
    told = {check for check, *_ in rows()}
    assert {one for one in told if not any(one == name or one.startswith(name) for name in names)} == set()
