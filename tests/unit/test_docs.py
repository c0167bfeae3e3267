"""What README and docs state is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from analysis.schema import markdown
from scenarios import load, scenario
from scenarios.loader import load_scenario, scenario_from_mapping
from scenarios.presets import PRESETS

ROOT = Path(__file__).parents[2]
SCENARIO_DOC = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

SECTIONS: dict[str, type[BaseModel]] = {
    "## `model`": scenario.ModelConfig,
    "## `server`": scenario.ServerConfig,
    "## `clients`": scenario.ClientConfig,
    "## Value checks": scenario.CheckConfig,
    "## Shared memory": scenario.SharedMemoryConfig,
    "## TLS": scenario.TlsConfig,
    "## `phases[]`": scenario.PhaseConfig,
    "## `profile`": scenario.ProfileConfig,
}


def section(heading: str) -> str:
    return SCENARIO_DOC.partition(heading + "\n")[2].partition("\n## ")[0]


def documented(heading: str) -> dict[str, str]:
    """Each key in the first column of a section's table, with its default."""
    rows = re.findall(r"^\| ((?:`[^`]+` ?)+)\| ([^|]*) \|", section(heading), re.MULTILINE)
    return {key: default.strip() for keys, default in rows for key in re.findall(r"`([^`]+)`", keys)}


def fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    found = {}
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        nested = field.annotation
        if key == "queue" and isinstance(nested, type) and issubclass(nested, BaseModel):
            found |= fields(nested, "queue.")
        else:
            found[key] = field
    return found


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_scenario_page_lists_just_the_keys_of_a_section(heading: str) -> None:
    assert set(documented(heading)) == set(fields(SECTIONS[heading]))


def as_text(key: str, field: FieldInfo, dumped: dict[str, Any]) -> str | None:
    if field.is_required():
        return "required"
    value = dumped.get(key.split(".")[-1])
    if isinstance(value, bool):
        return str(value).lower()  # as YAML has it
    return None if value is None or isinstance(value, dict | list) else str(value)


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_scenario_page_states_the_defaults_of_the_code(heading: str) -> None:
    texts = documented(heading)
    minimal = {
        scenario.ModelConfig: {"name": "x"},
        scenario.PhaseConfig: {"name": "x", "kind": "drain", "duration": "1s"},
    }
    model = SECTIONS[heading]
    dumped = model.model_validate(minimal.get(model, {})).model_dump(mode="json", by_alias=True)
    dumped |= dumped.get("queue", {}) if "queue" in dumped else {}
    for key, field in fields(model).items():
        value = as_text(key, field, dumped)
        if value is not None:
            assert texts[key].strip("`") == value or (key == "arrivals" and texts[key] == "required"), key


def test_the_scenario_page_names_every_arrival_process_and_preset() -> None:
    text = section("## `arrivals`, by `kind`")
    for kind in get_args(get_args(load.ArrivalsConfig)[0]):
        assert f"| `{kind.model_fields['kind'].annotation.__args__[0]}` |" in text
        for name, field in kind.model_fields.items():
            assert f"`{field.alias or name}`" in text or name == "kind"
    for preset in PRESETS:
        assert f"`{preset}`" in text


def test_the_readme_scenario_loads() -> None:
    text = README.partition("```yaml\n")[2].partition("```")[0]
    loaded = scenario_from_mapping(yaml.safe_load(text), "README.md")
    assert loaded.name == "my-burst"


def test_every_scenario_file_in_the_repository_loads() -> None:
    files = sorted((ROOT / "scenarios").glob("*.yaml"))
    assert [load_scenario(path).name for path in files] == ["demo"]


def test_the_readme_lists_just_the_commands_there_are() -> None:
    import typer

    from cluster.cli import app

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


def test_the_schema_page_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == markdown()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CHANGELOG.md",
        "docs/run.md",
        "docs/scenario.md",
        "docs/profiling.md",
        "docs/client.md",
        "docs/selftest.md",
    ],
)
def test_links_and_files_that_a_page_names_are_there(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target
    for target in re.findall(r"`((?:scenarios|models|actors|cluster|analysis|docs)/[\w./]+)`", text):
        assert (ROOT / target).exists(), target
