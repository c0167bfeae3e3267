"""The protocols of the product and the classes that have all that each asks for, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
ROOMS = ("actors", "analysis", "cluster", "models", "scenarios")


@cache
def protocols() -> dict[str, ast.ClassDef]:
    """Each `Protocol` class of the product, by module and name."""
    return {name: node for name, node in _classes().items() if "Protocol" in _bases(node)}


@cache
def implementations(protocol: str) -> tuple[str, ...]:
    """Names of the product's classes that have every member of a protocol, their bases' included, sorted."""
    wanted = _own_members(protocols()[protocol])
    others = [node for name, node in _classes().items() if name not in protocols()]
    return tuple(sorted({node.name for node in others if wanted <= _members(node)}))


@cache
def _classes() -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            text = path.read_text(encoding="utf-8")
            body = ast.parse(text).body if "class " in text else []
            found |= {f"{module}.{node.name}": node for node in body if isinstance(node, ast.ClassDef)}
    return found


def _bases(node: ast.ClassDef) -> set[str]:
    """Names of its bases, without type parameters and modules."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {ast.unparse(base).rpartition(".")[2] for base in plain}


@cache
def _members(node: ast.ClassDef) -> frozenset[str]:
    names = _bases(node) - {"Protocol", node.name}
    bases = [one for one in _classes().values() if one.name in names]
    return _own_members(node).union(*map(_members, bases))


def _own_members(node: ast.ClassDef) -> frozenset[str]:
    """Attributes and properties by name; methods also by how many arguments they take: `send(3)`."""
    return frozenset(name for statement in node.body for name in _bound(statement))


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        if any(ast.unparse(one).endswith("property") for one in node.decorator_list):
            yield node.name
        elif node.name == "__init__":
            yield from (one.attr for one in ast.walk(node) if _is_set_on_self(one))
        else:
            yield f"{node.name}({len(node.args.posonlyargs) + len(node.args.args) - 1})"
    elif isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target)
    elif isinstance(node, ast.Assign):
        yield from map(ast.unparse, node.targets)


def _is_set_on_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
