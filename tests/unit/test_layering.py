"""The import rules of the house, read from the source: who may import whom, and which library only where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scenarios", "models", "actors", "cluster", "analysis")
ERRORS_AND_UNITS = ("scenarios.errors", "scenarios.units")

ALLOWED: dict[str, tuple[str, ...]] = {
    "scenarios": (),
    "models": ("scenarios",),
    "models.backend": (),
    "analysis": ("scenarios",),
    "analysis.schema": (*ERRORS_AND_UNITS, "analysis.tables"),
    "analysis.tables": (*ERRORS_AND_UNITS, "analysis.tables"),
    "analysis.store": (*ERRORS_AND_UNITS, "analysis.schema", "analysis.part"),
    "analysis.part": (*ERRORS_AND_UNITS, "analysis.schema"),
    "actors": ("scenarios", "models.spec", "models.payload", "analysis.schema"),
    "cluster": ("scenarios", "models", "actors", "analysis"),
}
"""The longest prefix of a module that stands here rules it; its own package is always allowed, but for leaves."""

LEAVES = ("analysis.schema", "analysis.tables", "analysis.store", "analysis.part", "models.backend")

ONLY_IN: dict[str, tuple[str, ...]] = {
    "ray": ("cluster",),
    "plotly": ("analysis.report",),
    "jinja2": ("analysis.report",),
    "matplotlib": ("analysis.png",),
    "scipy": ("analysis",),
    "torch": ("models.backend.forward_torch",),
    "tritonclient": ("actors", "cluster"),
    "triton_python_backend_utils": ("models.backend",),
    "pydantic": ("scenarios",),
    "yaml": ("scenarios",),
    "pynvml": ("actors.gpu",),
    "hpack": ("actors",),
    "httptools": ("actors",),
    "ssl": ("actors",),
    "duckdb": ("analysis",),
    "typer": ("cluster.cli", "cluster.trace_cli"),
    "rich": (
        "cluster",
        "analysis.screen",
        "analysis.trace_screen",
        "analysis.fit_screen",
        "analysis.overhead_screen",
    ),
    "socket": ("actors", "cluster"),
    "urllib": ("actors", "cluster"),
    "sqlite3": ("analysis",),
}
"""Libraries that only some modules may import."""

HEAVY = ("ray", "plotly", "matplotlib", "scipy", "duckdb", "tritonclient", "pynvml", "torch")
"""Imported only inside the function that needs them, so that `squall --help` is quick."""
HEAVY_ALLOWED = {
    "duckdb": (
        "analysis.query",
        "analysis.join",
        "analysis.join_meanwhile",
        "analysis.join_sources",
        "analysis.named_ids",
        "analysis.windows",
    ),
    "scipy": ("analysis.fitting",),
    "torch": ("models.backend.forward_torch",),  # what Triton runs is one file for one framework
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path, only_top: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if only_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def rule_of(module: str) -> str:
    return max((prefix for prefix in ALLOWED if is_within(module, (prefix,))), key=len)


def breaches(path: Path) -> list[str]:
    """What `path` imports against the rules."""
    module = module_name(path)
    rule = rule_of(module)
    own = () if rule in LEAVES else (module.split(".")[0],)
    found = []
    for name in imports(path):
        top = name.split(".")[0]
        if top in PACKAGES and not is_within(name, (*ALLOWED[rule], *own)) and name not in (top,):
            found.append(f"{module} imports {name}")
        if top in ONLY_IN and not is_within(module, ONLY_IN[top]):
            found.append(f"{module} imports {name}")
    return found


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    assert breaches(path) == []


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_heavy_libraries_are_imported_inside_functions(path: Path) -> None:
    found = {name.split(".")[0] for name in imports(path, only_top=True)}
    module = module_name(path)
    allowed = {name for name, places in HEAVY_ALLOWED.items() if is_within(module, places)}
    assert found & set(HEAVY) - allowed == set()


def test_the_rules_notice_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    bad = tmp_path / "scenarios" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("import ray\nfrom cluster.run import run_scenario\n")
    assert breaches(bad) == [
        "scenarios.bad imports ray",
        "scenarios.bad imports cluster.run",
        "scenarios.bad imports cluster.run.run_scenario",
    ]


def test_no_module_takes_part_in_an_import_cycle() -> None:
    known = {module_name(path): path for path in sources()}
    graph = {
        module: {name for name in imports(path) if name in known} - {module} for module, path in known.items()
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"cycle: {' -> '.join((*above, module))}"
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*above, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_the_packages_that_are_shipped_are_those_with_rules() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["setuptools"]["packages"]) == {
        *PACKAGES,
        "models.backend",
        "scenarios.exact",
        "scenarios.traces",
        "analysis.findings",
        "analysis.fitting",
        "analysis.metrics",
        "analysis.tables",
    }
