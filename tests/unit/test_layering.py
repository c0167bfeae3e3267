"""The import rules of the house, read from the source: who may import whom, and which library only where."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("scenarios", "models", "actors", "cluster", "analysis")
PACKAGES = tuple(f"squall.{folder}" for folder in FOLDERS)
EVERYWHERE = (
    "squall.scenarios.errors",
    "squall.scenarios.units",
    "squall.scenarios.foreign_file",
    "squall.scenarios.foreign_text",
    "squall.analysis.storage.beneath",
)

ALLOWED: dict[str, tuple[str, ...]] = {
    "squall.scenarios": (),
    "squall.models": ("squall.scenarios",),
    "squall.models.backend": (),
    "squall.analysis": ("squall.scenarios",),
    "squall.analysis.schema": (*EVERYWHERE, "squall.analysis.tables"),
    "squall.analysis.tables": (*EVERYWHERE, "squall.analysis.tables"),
    "squall.analysis.storage.store": (
        *EVERYWHERE,
        "squall.analysis.schema",
        "squall.analysis.tables",
        "squall.analysis.storage.aside",
        "squall.analysis.storage.far_run",
        "squall.analysis.storage.manifest_file",
        "squall.analysis.storage.part",
        "squall.analysis.storage.places",
    ),
    "squall.analysis.storage.aside": (),
    "squall.analysis.storage.far_run": (
        *EVERYWHERE,
        "squall.analysis.schema",
        "squall.analysis.tables",
        "squall.analysis.storage.part",
        "squall.analysis.storage.places",
    ),
    "squall.analysis.storage.manifest_file": (
        *EVERYWHERE,
        "squall.analysis.schema",
        "squall.analysis.tables",
        "squall.analysis.storage.part",
        "squall.analysis.storage.places",
    ),
    "squall.analysis.storage.part": (
        *EVERYWHERE,
        "squall.analysis.schema",
        "squall.analysis.tables",
        "squall.analysis.storage.places",
    ),
    "squall.analysis.storage.places": EVERYWHERE,
    "squall.actors": (
        "squall.scenarios",
        "squall.models.spec",
        "squall.models.made",
        "squall.models.payload",
        "squall.analysis.schema",
        "squall.analysis.tables.locust",
    ),
    "squall.cluster": ("squall.scenarios", "squall.models", "squall.actors", "squall.analysis"),
}
"""The longest prefix of a module that stands here rules it; its own package is always allowed, but for leaves."""

LEAVES = (
    "squall.analysis.schema",
    "squall.analysis.tables",
    "squall.analysis.storage.store",
    "squall.analysis.storage.aside",
    "squall.analysis.storage.far_run",
    "squall.analysis.storage.manifest_file",
    "squall.analysis.storage.part",
    "squall.models.backend",
)

ONLY_IN: dict[str, tuple[str, ...]] = {
    "ray": ("squall.cluster.remote",),
    "plotly": ("squall.analysis.render.report",),
    "jinja2": ("squall.analysis.render.report",),
    "matplotlib": ("squall.analysis.render.png",),
    "scipy": ("squall.analysis",),
    "torch": (
        "squall.models.backend.forward_torch",
        "squall.models.backend.networks_torch",
        "squall.models.checkpoint",  # reads torch's own files; copied beside model.py too
        "squall.models.export",
        "squall.actors.probes",
    ),
    "onnx": ("squall.models.export",),
    "onnxruntime": ("squall.models.export",),
    "tritonclient": ("squall.actors", "squall.cluster"),
    "triton_python_backend_utils": ("squall.models.backend",),
    "pydantic": ("squall.scenarios", "squall.analysis.record"),
    "yaml": ("squall.scenarios",),
    "pynvml": ("squall.actors.sampling.gpu.source",),
    "hpack": ("squall.actors",),
    "httptools": ("squall.actors",),
    "ssl": ("squall.actors",),
    "duckdb": ("squall.analysis",),
    "fsspec": ("squall.analysis.storage.places",),
    "typer": ("squall.cluster.cli", "squall.cluster.commands"),
    "rich": (
        "squall.cluster",
        "squall.analysis.render.screen",
        "squall.analysis.render.trace_screen",
        "squall.analysis.render.fit_screen",
        "squall.analysis.render.overhead_screen",
    ),
    "socket": ("squall.actors", "squall.cluster"),
    "urllib": ("squall.actors", "squall.cluster"),
    "sqlite3": ("squall.analysis",),
    "pandas": ("squall.analysis.run",),
    "polars": ("squall.analysis.run",),
    "PIL": ("squall.models.pictures",),
    "locust": ("squall.actors.locust", "squall.actors.triton_user", "squall.scenarios.published.e1_users"),
    "gevent": ("squall.actors.locust", "squall.actors.triton_user"),
    "geventhttpclient": ("squall.actors.triton_user",),
    "grpc": ("squall.actors.triton_user",),
}
"""Libraries that only some modules may import."""


HEAVY = (
    "ray", "plotly", "matplotlib", "scipy", "duckdb", "tritonclient", "pynvml", "torch", "onnx", "onnxruntime",
    "locust", "gevent", "grpc",
)  # fmt: skip
"""Imported only inside the function that needs them, so that `squall --help` is quick."""
_UNDER_GEVENT = (
    "squall.actors.locust.locustfile",
    "squall.actors.locust.master_role",
    "squall.actors.locust.outputs",
    "squall.actors.locust.process",
    "squall.actors.locust.worker_role",
    "squall.actors.triton_user.grpc_user",
    "squall.actors.triton_user.http_user",
    "squall.scenarios.published.e1_users",  # a locustfile that squall brings along: data, as models/backend is
)
"""Modules of a process of Locust's, and bases of locustfiles' classes: nothing outside of it imports them."""
_OF_A_PROBE = (
    "squall.actors.probes.marks",
    "squall.actors.probes.operator_probe",
    "squall.actors.probes.pipeline_probe",
    "squall.actors.probes.stages",
    "squall.actors.probes.variants",
)
"""Modules of the process that measures, which is there for torch alone: nothing outside of it imports them."""
HEAVY_ALLOWED = {
    "locust": _UNDER_GEVENT,
    "gevent": _UNDER_GEVENT,
    "grpc": _UNDER_GEVENT,
    "duckdb": (
        "squall.analysis.storage.databases",
        "squall.analysis.storage.query",
        "squall.analysis.join.join",
        "squall.analysis.join.meanwhile",
        "squall.analysis.join.sources",
        "squall.analysis.join.named_ids",
        "squall.analysis.metrics.windows",
    ),
    "scipy": ("squall.analysis.fitting",),
    "torch": (
        "squall.models.backend.forward_torch",  # what Triton runs in torch, and the modules that it runs
        "squall.models.backend.networks_torch",
        *_OF_A_PROBE,
    ),
}


def module_name(path: Path) -> str:
    return ".".join(("squall", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def import_statements(path: Path) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Those at the top of the module, and all of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return top, [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, only_top: bool = False) -> Iterator[str]:
    top, every = import_statements(path)
    for node in top if only_top else every:
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


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def breaches(path: Path) -> list[str]:
    """What `path` imports against the rules."""
    module = module_name(path)
    rule = rule_of(module)
    own = () if rule in LEAVES else (package_of(module),)
    found = []
    for name in imports(path):
        top = name.split(".")[0]
        if is_within(name, PACKAGES) and not is_within(name, (*ALLOWED[rule], *own)) and name not in PACKAGES:
            found.append(f"{module} imports {name}")
        if top in FOLDERS:
            found.append(f"{module} imports {name}, which is anybody's: ours is squall.{name}")
        if top in ONLY_IN and not is_within(module, ONLY_IN[top]):
            found.append(f"{module} imports {name}")
    return found


def test_a_module_imports_only_what_its_layer_may() -> None:
    assert [line for path in sources() for line in breaches(path)] == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    found = []
    for path in sources():
        module = module_name(path)
        allowed = {name for name, places in HEAVY_ALLOWED.items() if is_within(module, places)}
        tops = {name.split(".")[0] for name in imports(path, only_top=True)}
        found += [(module, name) for name in tops & set(HEAVY) - allowed]
    assert found == []


def test_the_rules_notice_a_breach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    bad = tmp_path / "scenarios" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("import ray\nfrom squall.cluster.driver.run import run_scenario\nimport models.spec\n")
    assert breaches(bad) == [
        "squall.scenarios.bad imports ray",
        "squall.scenarios.bad imports squall.cluster.driver.run",
        "squall.scenarios.bad imports squall.cluster.driver.run.run_scenario",
        "squall.scenarios.bad imports models.spec, which is anybody's: ours is squall.models.spec",
    ]


def loaded_with(module: str) -> set[str]:
    """Everything that importing `module` imports, by name: ours and the libraries that ours name."""
    known = {module_name(path): path for path in sources()}
    found: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += imports(known[name], only_top=True) if name in known else ()
    return found


def test_the_command_line_loads_nothing_of_a_commands_work() -> None:
    libraries = {name.split(".")[0] for name in loaded_with("squall.cluster.cli")}
    assert libraries & {*HEAVY, "numpy", "pyarrow", "pydantic", "rich"} == set()
    assert {"typer", "psutil"} <= libraries, "it looks"


def test_a_load_worker_starts_without_the_configuration() -> None:
    found = loaded_with("squall.actors.load.worker_process")
    assert {name for name in found if name.startswith(("pydantic", "squall.scenarios.config"))} == set()
    assert "squall.scenarios.plan.plan" in found, "it looks"


def test_nothing_outside_of_a_probes_process_loads_torch_with_it() -> None:
    graph = import_graph()
    importers = {name for name, found in graph.items() if found & set(_OF_A_PROBE)}
    assert importers <= set(_OF_A_PROBE)
    assert importers, "it looks"
    for module in ("process", "runner", "trace", "host_share"):
        assert not any(one.split(".")[0] == "torch" for one in loaded_with(f"squall.actors.probes.{module}"))


def import_graph() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    known = {module_name(path): path for path in sources()}
    return {
        module: {name for name in imports(path) if name in known} - {module} for module, path in known.items()
    }


def room_of(module: str, modules: Collection[str]) -> str:
    """The folder of `module`; beside rooms, such as `squall.analysis.schema`, a module is a room of its own."""
    folder = module.rpartition(".")[0]
    folders = {name.rpartition(".")[0] for name in modules}
    return module if any(other.startswith(folder + ".") for other in folders) else folder


def room_graph(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {}
    for module, names in graph.items():
        room = room_of(module, graph)
        rooms.setdefault(room, set()).update({room_of(name, graph) for name in names} - {room})
    return rooms


def cycles(graph: Mapping[str, set[str]]) -> Iterator[str]:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> Iterator[str]:
        if name in above:
            yield " -> ".join((*above[above.index(name) :], name))
        elif name not in done:
            for other in sorted(graph.get(name, ())):
                yield from visit(other, (*above, name))
            done.add(name)

    for name in sorted(graph):
        yield from visit(name, ())


def test_no_module_takes_part_in_an_import_cycle() -> None:
    assert list(cycles(import_graph())) == []


def test_no_room_takes_part_in_an_import_cycle() -> None:
    assert list(cycles(room_graph(import_graph()))) == []


def test_a_cycle_of_rooms_is_seen_where_modules_make_none() -> None:
    graph = {
        "p.a.one": {"p.b.one"},
        "p.b.one": set(),
        "p.b.two": {"p.a.two"},
        "p.a.two": set(),
        "p.top": {"p.a.one"},
    }
    assert list(cycles(graph)) == []
    assert list(cycles(room_graph(graph))) == ["p.a -> p.b -> p.a"]


def test_every_folder_is_shipped() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert project["tool"]["setuptools"]["packages"] == [
        "squall",
        *sorted(".".join(("squall", *folder.relative_to(ROOT).parts)) for folder in folders),
    ]
    assert all((folder / "__init__.py").exists() for folder in folders)
