"""What README and docs state is what the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from squall.analysis.schema import markdown
from squall.scenarios.arrivals.presets import CLIENT_PRESETS, PRESETS
from squall.scenarios.config import arrivals as arrivals_config
from squall.scenarios.config import residuals as residuals_config
from squall.scenarios.config import scenario, servers
from squall.scenarios.config import shapes as shapes_config
from squall.scenarios.config import trace as trace_config
from squall.scenarios.config.clients import client
from squall.scenarios.config.clients import routing as routing_config
from squall.scenarios.config.clients import rows as rows_config
from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.clients.request import RequestConfig
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.locust.load import LocustConfig
from squall.scenarios.config.models.mix import ModelEntry
from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.traces.formats import TraceFormat
from squall.scenarios.traces.parts.options import Repair

ROOT = Path(__file__).parents[2]
SCENARIO_DOC = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
ARRIVALS_DOC = (ROOT / "docs" / "arrivals.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

SECTIONS: dict[str, type[BaseModel]] = {
    "## `model`": ModelConfig,
    "## `server`": servers.ServerConfig,
    "## `server.control`": servers.ControlConfig,
    "## `clients`": client.ClientConfig,
    "## What a request says": RequestConfig,
    "## Value checks": ValueCheckConfig,
    "## Shared memory": client.SharedMemoryConfig,
    "## TLS": servers.TlsConfig,
    "## `phases[]`": scenario.PhaseConfig,
    "## `load.locust`": LocustConfig,
    "## `profile`": ProfileConfig,
    "## `expect`": scenario.ExpectConfig,
    "## `records`": RecordsConfig,
}
MINIMAL: dict[type[BaseModel], dict[str, Any]] = {
    LocustConfig: {"file": "x.py"},
    ModelConfig: {"name": "x"},
    scenario.PhaseConfig: {"name": "x", "kind": "drain", "duration": "1s"},
}


def members(union: object) -> list[type[BaseModel]]:
    """The sections of a union of kinds, with or without its discriminator."""
    arguments = get_args(union)
    return members(arguments[0]) if not isinstance(arguments[0], type) else list(arguments)


def kind_of(model: type[BaseModel]) -> str:
    (kind,) = get_args(model.model_fields["kind"].annotation)
    return str(kind)


ARRIVALS = {kind_of(model): model for model in members(arrivals_config.OpenArrivals)}
UNIONS: dict[str, list[type[BaseModel]]] = {
    "## Shapes": members(shapes_config.ShapeConfig),
    "## Residuals": members(residuals_config.ResidualConfig),
    "## Rows per request": members(rows_config.RowsConfig),
    "### Scaling a trace": members(trace_config.RateScaleConfig),
}
"""Sections of arrivals.md with a table of kinds: kind, keys, …"""


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = len(heading.split()[0])
    text = page.partition(f"\n{heading}\n")[2]
    assert text, heading
    return re.split(rf"^#{{1,{level}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def documented(text: str) -> dict[str, str]:
    """Each key in the first column of a table of keys, with its default."""
    rows = re.findall(r"^\| ((?:`[^`]+` ?)+)\| ([^|]*) \|", text, re.MULTILINE)
    return {key: default.strip() for keys, default in rows for key in re.findall(r"`([^`]+)`", keys)}


def fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        nested = field.annotation
        if key == "queue" and isinstance(nested, type) and issubclass(nested, BaseModel):
            found |= fields(nested, "queue.")
        elif key != "kind" or model is scenario.PhaseConfig:
            found[key] = field
    return found


def nested_sections(annotation: object) -> Iterator[type[BaseModel]]:
    """Sections inside a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from nested_sections(part)


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_scenario_page_lists_just_the_keys_of_a_section(heading: str) -> None:
    assert set(documented(section(SCENARIO_DOC, heading))) == set(fields(SECTIONS[heading]))


def test_the_scenario_page_lists_just_the_keys_that_several_models_add() -> None:
    text = section(SCENARIO_DOC, "## `models`")
    own = set(fields(ModelEntry)) - set(fields(ModelConfig))
    assert set(documented(text)) == own
    assert documented(text)["share"] == str(ModelEntry(name="x").share)
    loaded = load_snippet(text.partition("```yaml\n")[2].partition("```")[0])
    assert loaded.served_at(2) == ((0, 1), (1,))
    assert [loaded.shares_of(phase) for phase in loaded.phases if phase.arrivals] == [(3.0, 1.0), (1.0, 4.0)]


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_arrivals_page_lists_just_the_keys_of_a_kind(kind: str) -> None:
    assert set(documented(section(ARRIVALS_DOC, f"### `{kind}`"))) == set(fields(ARRIVALS[kind]))


def test_the_scenario_page_lists_just_the_keys_that_several_servers_add() -> None:
    text = section(SCENARIO_DOC, "## `servers`")
    own = set(fields(servers.ServerEntry)) - set(fields(servers.ServerConfig))
    assert set(documented(text)) == own | set(fields(servers.ServersCount))
    assert documented(text)["weight"] == str(servers.ServerEntry().weight)
    loaded = load_snippet(text.partition("```yaml\n")[2].partition("```")[0])
    assert [entry.gpus for entry in loaded.server_entries() or ()] == [(0,), (1,)]


def load_snippet(text: str) -> scenario.Scenario:
    """Some keys of a scenario with the shortest rest."""
    arrivals = {"kind": "poisson", "rate": "1/s"}
    phases = [
        {"name": "main", "kind": "measure", "duration": "1s", "arrivals": arrivals},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    rest = {"name": "x", "seed": 0, "model": {"name": "x"}, "phases": phases}
    given = yaml.safe_load(text)
    if "models" in given:
        rest.pop("model")
    return scenario_from_mapping({**rest, **given}, "snippet")


def as_text(key: str, field: FieldInfo, dumped: dict[str, Any]) -> str | None:
    if field.is_required():
        return "required"
    value = dumped.get(key.split(".")[-1])
    if isinstance(value, bool):
        return str(value).lower()  # as YAML has it
    return None if value is None or isinstance(value, dict | list) else str(value)


def wrong_defaults(text: str, model: type[BaseModel]) -> list[str]:
    """Keys whose default in the table is not that of the code; an optional key without one must not be required."""
    texts = documented(text)
    if model in MINIMAL or not any(field.is_required() for field in model.model_fields.values()):
        dumped = model.model_validate(MINIMAL.get(model, {})).model_dump(mode="json", by_alias=True)
    else:
        dumped = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    dumped |= dumped.get("queue", {}) if "queue" in dumped else {}
    wrong = []
    for key, field in fields(model).items():
        value = as_text(key, field, dumped)
        given = texts[key].strip("`")
        is_right = given != "required" if value is None else given == value
        if not is_right and not (key == "arrivals" and given == "required"):  # but for a drain
            wrong.append(f"{key}: {given}, in the code {value}")
    return wrong


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_scenario_page_states_the_defaults_of_the_code(heading: str) -> None:
    assert wrong_defaults(section(SCENARIO_DOC, heading), SECTIONS[heading]) == []


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_arrivals_page_states_the_defaults_of_the_code(kind: str) -> None:
    assert wrong_defaults(section(ARRIVALS_DOC, f"### `{kind}`"), ARRIVALS[kind]) == []


def test_a_wrong_default_and_a_wrong_requirement_are_noticed() -> None:
    text = section(ARRIVALS_DOC, "### `fgn`")
    assert wrong_defaults(text.replace("`1s`", "`2s`"), arrivals_config.FgnArrivals) == [
        "bin: 2s, in the code 1s"
    ]
    text = text.replace("| `hurst` | none |", "| `hurst` | required |")
    assert wrong_defaults(text, arrivals_config.FgnArrivals) == ["hurst: required, in the code None"]


@pytest.mark.parametrize("kind", ARRIVALS)
def test_a_kind_names_the_keys_of_what_it_is_made_of(kind: str) -> None:
    text = section(ARRIVALS_DOC, f"### `{kind}`")
    for field in ARRIVALS[kind].model_fields.values():
        unions = {id(model) for union in UNIONS.values() for model in union} | {
            id(m) for m in ARRIVALS.values()
        }
        for nested in nested_sections(field.annotation):
            if id(nested) not in unions:  # those have a table or a section of their own
                missing = {key for key in fields(nested) if not re.search(rf"`{key}`|\b{key}: ", text)}
                assert missing == set(), nested


@pytest.mark.parametrize("heading", UNIONS)
def test_a_table_of_kinds_has_the_kinds_keys_and_defaults_of_the_code(heading: str) -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|", section(ARRIVALS_DOC, heading), re.MULTILINE)
    table = {kind: (cell, dict(re.findall(r"`([a-z_]+)`(?: = `([^`]+)`)?", cell))) for kind, cell in rows}
    known = {kind_of(model): model for model in UNIONS[heading]}
    if heading == "### Scaling a trace":
        assert table.pop("time_scale")  # a key of the trace itself
    assert set(table) == set(known)
    for kind, model in known.items():
        cell, keys = table[kind]
        expected = fields(model)
        if model is shapes_config.TraceShape:
            assert "those of [`trace`](#trace)" in cell
            keys.pop("trace")
            expected = {
                key: field for key, field in expected.items() if key not in fields(trace_config.TraceArrivals)
            }
        nested = [fields(part) for field in expected.values() for part in nested_sections(field.annotation)]
        for inner in nested:
            assert set(inner) <= set(keys), kind
        assert set(keys) - {key for inner in nested for key in inner} == set(expected), kind
        dumped = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        for key, field in expected.items():
            value = as_text(key, field, dumped)
            assert keys[key] == ("" if value in (None, "required") else value), (kind, key)


def test_the_scenario_page_links_every_arrival_process() -> None:
    text = section(SCENARIO_DOC, "## `arrivals`, by `kind`")
    for kind in ARRIVALS:
        assert f"| [`{kind}`](arrivals.md#{kind}) |" in text
    kinds = {kind_of(model) for model in members(arrivals_config.ArrivalsConfig)}
    assert set(re.findall(r"^\| \[?`([\w-]+)`", text, re.MULTILINE)) == kinds


def test_the_scenario_page_names_the_kinds_of_rows_and_of_think_times() -> None:
    (row,) = re.findall(r"^\| `rows` \| constant 1 \|.*$", SCENARIO_DOC, re.MULTILINE)
    for model in members(rows_config.RowsConfig):
        assert f"`{kind_of(model)}`" in row
    closed = section(SCENARIO_DOC, "## Closed loop")
    assert set(documented(closed)) == set(fields(arrivals_config.ClosedArrivals))
    assert wrong_defaults(closed, arrivals_config.ClosedArrivals) == []
    for think in members(arrivals_config.ThinkConfig):
        for key in (kind_of(think), *fields(think)):
            assert f"`{key}`" in closed, key


def test_both_pages_name_every_kind_of_routing() -> None:
    kinds = set(get_args(routing_config.RoutingKind))
    table = section(ARRIVALS_DOC, "## Which server it goes to")
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == kinds
    (row,) = re.findall(r"^\| `routing` \|.*$", SCENARIO_DOC, re.MULTILINE)
    assert {kind for kind in kinds if f"`{kind}`" in row} == kinds
    assert f"{{kind: {routing_config.RoutingConfig().kind}}}" in row


def test_the_arrivals_page_names_every_preset_format_repair_and_deal() -> None:
    presets = section(ARRIVALS_DOC, "## Presets")
    assert set(re.findall(r"^\| `([\w-]+)`", presets, re.MULTILINE)) == {*PRESETS, *CLIENT_PRESETS}
    assert set(documented(section(ARRIVALS_DOC, "### Formats"))) == set(get_args(TraceFormat))
    repairs = re.findall(r"^\| `([\w-]+)`", section(ARRIVALS_DOC, "### Repairs"), re.MULTILINE)
    assert set(repairs) == set(get_args(Repair))
    deals = re.findall(r"^\| `([\w-]+)`", section(ARRIVALS_DOC, "## Who sends what"), re.MULTILINE)
    assert set(deals) == set(get_args(client.ClientConfig.model_fields["deal"].annotation))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_stands_there_with_its_licence(preset: str) -> None:
    (row, _) = re.findall(rf"^\| `{preset}` \|.*$", ARRIVALS_DOC, re.MULTILINE)
    licences = ("CC-BY 4.0", "Apache-2.0", "may be freely redistributed")
    (licence,) = [text for text in licences if PRESETS[preset].source.endswith(text)]  # type: ignore[index]
    assert licence in row


def test_the_ranges_of_preset_parameters_on_the_arrivals_page_hold() -> None:
    assert "the presets have 0.52 to 0.6 |" in ARRIVALS_DOC
    assert "the presets have H above 0.85." in ARRIVALS_DOC
    for preset in PRESETS.values():
        assert 0.515 <= preset.b_model_bias < 0.605
        assert preset.fgn.hurst > 0.85


def test_the_rows_snippet_of_the_arrivals_page_is_one() -> None:
    text = section(ARRIVALS_DOC, "## Rows per request").partition("```yaml\n")[2].partition("```")[0]
    assert rows_config.TraceRows.model_validate(yaml.safe_load(text)["rows"]).max == 32


def test_the_readme_scenario_loads() -> None:
    text = README.partition("```yaml\n")[2].partition("```")[0]
    loaded = scenario_from_mapping(yaml.safe_load(text), "README.md")
    assert loaded.name == "my-burst"


def test_every_scenario_file_in_the_repository_loads() -> None:
    published = ROOT / "scenarios" / "published"  # of another form, which tests of their own load
    files = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if path.parent != published)
    assert [load_scenario(path).name for path in files] == ["demo"]


def test_the_readme_lists_just_the_commands_there_are() -> None:
    import typer

    from squall.cluster.cli import app

    group = typer.main.get_command(app)
    commands = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        nested = getattr(command, "commands", None)
        commands |= {f"{name} {sub}" for sub in nested} if nested else {name}
    table = re.findall(r"^\| ((?:`squall [^|]+))\|", README, re.MULTILINE)
    listed = {
        " ".join(word for word in text.split() if word.islower())
        for row in table
        for text in re.findall(r"`squall ([^`]+)`", row)
    }
    assert listed == commands


def test_the_arrivals_page_lists_just_the_commands_and_flags_of_squall_trace() -> None:
    import typer

    from squall.cluster.commands.trace import trace_app

    text = section(ARRIVALS_DOC, "## `squall trace`")
    commands = typer.main.get_command(trace_app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"^\| `squall trace ([\w-]+) ", text, re.MULTILINE)) == set(commands)
    flags = {flag for command in commands.values() for option in command.params for flag in option.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= flags | {
        "--trace"
    }  # that of docs.make.gallery


def test_the_schema_page_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == markdown()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CHANGELOG.md",
        "docs/api.md",
        "docs/run.md",
        "docs/scenario.md",
        "docs/sweep.md",
        "docs/arrivals.md",
        "docs/profiling.md",
        "docs/client.md",
        "docs/selftest.md",
        "docs/clocks.md",
        "docs/diagnosis.md",
        "docs/doctor.md",
        "docs/metrics.md",
        "docs/statistics.md",
        "docs/models.md",
        "docs/overhead.md",
        "docs/sampling.md",
        "docs/triton.md",
        "docs/reliability.md",
    ],
)
def test_links_and_files_that_a_page_names_are_there(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target
    for target in re.findall(r"`((?:scenarios|models|actors|cluster|analysis|docs)/[\w./]+)`", text):
        assert (ROOT / target).exists(), target


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_to_a_heading_have_one(page: str) -> None:
    path = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        assert anchor in anchors(path.parent / target if target else path), f"{target}#{anchor}"
