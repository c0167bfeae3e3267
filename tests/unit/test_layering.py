"""Imports go down, no folders form a circle, Ray is in one folder, and heavy libraries are imported in functions."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "scenarios": (),
    "models": ("scenarios",),
    "analysis": ("scenarios", "actors.sampling.sampled"),
    "actors": (
        "scenarios", "models.spec", "models.made", "models.payload", "analysis.storage.schema", "analysis.columns",
        "analysis.storage.locust",
    ),
    "cluster": ("scenarios", "models", "actors", "analysis"),
}  # fmt: skip
"""What each package imports besides its own."""
HEAVY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ray", "plotly", "matplotlib", "tritonclient", "pynvml", "onnx", "onnxruntime"), ()),
    "duckdb": ("analysis.storage", "analysis.join", "analysis.metrics"),
    "scipy": ("analysis.traces",),
    "torch": ("models.backend", "actors.probes"),
    "locust": ("actors.locust", "actors.triton_user", "scenarios.published"),
    "gevent": ("actors.locust", "actors.triton_user"),
    "grpc": ("actors.triton_user",),
}
"""Libraries that are imported inside functions, and the folders whose modules are imported only where needed."""

Modules = Mapping[str, ast.Module]


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the packages by its name below `squall`; a package by that of its folder."""
    paths = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths
    ]
    return {name: ast.parse(path.read_text("utf-8")) for name, path in zip(names, paths, strict=True)}


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of `body` and those within them; no expression holds any."""
    for one in body:
        yield one
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(one, field, ()))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What the statements among `nodes` import, and each name that they import from it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def breaches(found: Modules) -> Iterator[str]:
    for module, tree in found.items():
        package = module.partition(".")[0]
        for name in imports(statements(tree.body)):
            top, _, below = name.partition(".")
            is_above = is_within(below, tuple(ALLOWED)) and not is_within(below, (package, *ALLOWED[package]))
            is_ray = top == "ray" and not is_within(module, ("cluster.remote",))
            if (top == "squall" and is_above) or is_ray or top in ALLOWED:
                yield f"{module} imports {name}"
        for name in imports(tree.body):
            top = name.partition(".")[0]
            if top in HEAVY and not is_within(module, HEAVY[top]):
                yield f"{module} imports {name} outside of functions"


def folder_of(module: str, parents: Set[str]) -> str:
    """The folder of a module; one beside folders, which are in `parents`, stands for itself."""
    folder = module.rpartition(".")[0]
    return module if folder in parents else folder


def cycles(found: Modules) -> Iterator[str]:
    """Folders that import one another in a circle."""
    graph: dict[str, set[str]] = {}
    folders = {name.rpartition(".")[0] for name in found}
    parents = {
        ".".join(parts[:n]) for parts in (name.split(".") for name in folders) for n in range(1, len(parts))
    }
    for module, tree in found.items():
        names = {name.removeprefix("squall.") for name in imports(statements(tree.body))}
        reached = {one for name in names for one in (name, name.rpartition(".")[0]) if one in found}
        folder = folder_of(module, parents)
        graph.setdefault(folder, set()).update({folder_of(name, parents) for name in reached} - {folder})
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> Iterator[str]:
        if name in above:
            yield " -> ".join((*above[above.index(name) :], name))
        elif name not in done:
            for other in sorted(graph[name]):
                yield from visit(other, (*above, name))
            done.add(name)

    for name in sorted(graph):
        yield from visit(name, ())


def test_imports_go_down_and_heavy_ones_stand_inside_functions() -> None:
    assert list(breaches(modules())) == []


def test_no_folders_import_one_another_in_a_circle() -> None:
    assert list(cycles(modules())) == []


def test_a_breach_of_each_rule_is_seen() -> None:
    sources = {
        "scenarios.a.one": "from squall.scenarios.b.two import x\nfrom squall.cluster.driver.run import y",
        "scenarios.b.two": "def f():\n    import ray\n    import duckdb",
        "scenarios.b.three": "import squall.scenarios.a.four\nimport scipy.stats",
        "scenarios.a.four": "import scenarios.units",
        "cluster.remote.session": "from ray import init",
    }
    found = {name: ast.parse(text) for name, text in sources.items()}
    assert list(breaches(found)) == [
        "scenarios.a.one imports squall.cluster.driver.run.y",
        "scenarios.b.two imports ray",
        "scenarios.b.three imports scipy.stats outside of functions",
        "scenarios.a.four imports scenarios.units",
        "cluster.remote.session imports ray.init outside of functions",
    ]
    assert list(cycles(found)) == ["scenarios.a -> scenarios.b -> scenarios.a"]


def test_every_folder_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = {path.parent for package in ALLOWED for path in (ROOT / package).rglob("*.py")}
    assert project["tool"]["setuptools"]["packages"] == [
        "squall",
        *sorted(".".join(("squall", *folder.relative_to(ROOT).parts)) for folder in folders),
    ]
    assert all((folder / "__init__.py").exists() for folder in folders)
