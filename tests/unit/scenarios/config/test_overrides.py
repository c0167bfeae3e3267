"""Overrides (`overrides.yaml`): one value changed by key path, and a path that no scenario has refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.loader import load_scenario
from squall.scenarios.config.overrides import kept_override
from squall.scenarios.errors import ScenarioError
from tests.unit.scenarios.config.given import DEMO, at

TABLE = yaml.safe_load((Path(__file__).parent / "overrides.yaml").read_text())


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(TABLE["nested"]))
    return path


def value_at(file: Path, overrides: list[str], path: list[str | int]) -> Any:
    return at(load_scenario(file, overrides).to_mapping(), ".".join(map(str, path)))


def fault_of(file: Path, override: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file, [override])
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("override", "path", "value"), TABLE["changes"])
def test_an_override_changes_the_value_at_its_path(override: str, path: list[str | int], value: Any) -> None:
    assert value_at(DEMO, [override], path) == value


@pytest.mark.parametrize(("override", "path", "value"), TABLE["nested_changes"])
def test_an_override_reaches_a_part_however_deep(
    nested: Path, override: str, path: list[str | int], value: Any
) -> None:
    whole = ["phases", 0, "arrivals", *path]
    assert value_at(nested, [f"phases.burst.arrivals.{override}"], whole) == value


def test_the_rest_stays_as_it_was_and_later_overrides_see_earlier_ones() -> None:
    before, after = load_scenario(DEMO).to_mapping(), load_scenario(DEMO, ["seed=7"]).to_mapping()
    assert (before.pop("seed"), after.pop("seed")) == (1, 7)
    assert after == before
    changes = ["phases.burst.name=storm", "phases.storm.duration=9s", "seed=2", "seed=3"]
    assert value_at(DEMO, changes, ["phases", 1, "duration"]) == "9s"
    assert value_at(DEMO, changes, ["seed"]) == 3


OF_NESTED = "phases.burst.arrivals."


@pytest.mark.parametrize(
    ("file", "override", "problem"),
    [
        *((DEMO, override, problem) for override, problem in TABLE["unreachable"]),
        *((None, f"{OF_NESTED}{override}", problem) for override, problem in TABLE["nested_unreachable"]),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_the_nearest(
    nested: Path, file: Path | None, override: str, problem: str
) -> None:
    assert fault_of(file or nested, override) == f"--set {override}: {problem}"


@pytest.mark.parametrize(
    ("file", "override", "problem"),
    [
        *((DEMO, override, problem) for override, problem in TABLE["unfit"]),
        *((None, f"{OF_NESTED}{override}", problem) for override, problem in TABLE["nested_unfit"]),
    ],
)
def test_a_key_or_value_that_does_not_fit_is_refused_as_if_it_stood_in_the_file(
    nested: Path, file: Path | None, override: str, problem: str
) -> None:
    assert fault_of(file or nested, override).startswith(f"{file or nested}: {problem}")


@pytest.mark.parametrize(("override", "kept"), TABLE["kept"])
def test_an_override_is_kept_without_values_of_headers(override: str, kept: str) -> None:
    assert kept_override(override) == kept


def test_files_in_parts_shapes_and_rows_are_taken_from_the_folder_of_the_file(nested: Path) -> None:
    files: list[tuple[list[str | int], str]] = [
        ([2, "file"], "trace.csv"),
        ([3, "parts", 0, "arrivals", "shape", "file"], "shape.csv"),
    ]
    for path, file in files:
        assert value_at(nested, [], ["phases", 0, "arrivals", "parts", *path]) == str(nested.parent / file)
    assert value_at(nested, [], ["clients", "rows", "file"]) == str(nested.parent / "rows.csv")
