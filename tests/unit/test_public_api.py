"""The names of `import squall`: few, imported when first used, and known to a type checker."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import squall

ROOT = Path(__file__).parents[2]
TREE = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))


def typed_names() -> dict[str, str]:
    """Name -> module, as a type checker reads them."""
    block = next(node for node in TREE.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


OF_LOCUST = {"TritonUser", "TritonGrpcUser"}
"""Which patch the interpreter that imports them: in processes of their own alone."""


@pytest.mark.parametrize("name", sorted(typed_names().keys() - OF_LOCUST))
def test_a_public_name_is_the_one_that_a_type_checker_sees(name: str) -> None:
    assert getattr(squall, name) is getattr(import_module(typed_names()[name]), name)


def test_what_a_type_checker_sees_is_what_is_public_and_what_is_imported() -> None:
    assert sorted([*typed_names(), "__version__"]) == squall.__all__
    assert typed_names() == squall._MODULES


def test_the_root_imports_nothing_but_when_asked() -> None:
    at_once = [node for node in TREE.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in at_once] == [
        "from __future__ import annotations",
        "from typing import TYPE_CHECKING",
    ]


def loaded_by(code: str) -> set[str]:
    """Packages that a fresh Python has loaded after `code`, but for typing."""
    listed = "print(*{one.split('.')[0] for one in set(sys.modules) - before})"
    told = f"import sys, typing; before = set(sys.modules); {code}; {listed}"
    return set(subprocess.check_output([sys.executable, "-c", told], text=True).split())


def test_importing_squall_loads_nothing_but_squall() -> None:
    assert loaded_by("import squall") == {"squall"}


def test_the_errors_and_the_version_need_no_heavy_library() -> None:
    loaded = loaded_by("import squall; squall.SquallError; squall.__version__")
    assert not loaded & {"numpy", "pyarrow", "duckdb", "pydantic", "ray"}


def test_opening_a_run_needs_nothing_of_what_runs_one() -> None:
    loaded = loaded_by("import squall; squall.open_run")
    assert "pyarrow" in loaded
    assert not loaded & {"ray", "tritonclient", "typer", "pandas", "polars", "plotly", "scipy"}


@pytest.mark.parametrize("name", sorted(OF_LOCUST))
def test_a_class_of_users_is_abstract_and_the_one_that_a_type_checker_sees(name: str) -> None:
    told = (
        f"import locust, squall; from {typed_names()[name]} import {name} as own;"
        f" print(squall.{name} is own, own.abstract, issubclass(own, locust.User))"
    )
    said = subprocess.check_output([sys.executable, "-c", told], text=True)
    assert said.split() == ["True", "True", "True"]


def test_a_name_that_there_is_not_is_an_attribute_error_and_the_others_are_listed() -> None:
    with pytest.raises(AttributeError, match="module 'squall' has no attribute 'open_runs'"):
        _ = squall.open_runs  # type: ignore[attr-defined]
    assert set(squall.__all__) <= set(dir(squall))
