"""The one definition of manifest.json, held to a manifest that a run wrote."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.record import to_json
from squall.analysis.storage.manifest import Manifest, is_sealed_whole, read_manifest
from squall.analysis.storage.schema import meanings, sections
from squall.scenarios.errors import StoreError

RECORDED = Path(__file__).parents[3] / "fixtures" / "runs" / "manifest-5.json"
CASES = yaml.safe_load((Path(__file__).parent / "wrong_manifests.yaml").read_text())


@pytest.fixture
def current() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def test_a_manifest_from_before_its_sections_had_types_is_written_as_it_was(current: dict[str, Any]) -> None:
    assert json.dumps(to_json(read_manifest(current))) == json.dumps(current), "keys, values and their order"


@pytest.mark.parametrize("case", CASES["wrong"], ids=str)
def test_what_is_of_the_wrong_kind_is_refused_with_its_place(
    current: dict[str, Any], case: list[Any]
) -> None:
    place, value, said, *missing = case
    *way, last = [int(key) if key.isdigit() else key for key in place.split()]
    refused: dict[str, Any] = {**current, "losses": [""]}
    held: Any = refused
    for key in way:
        held = held[key]
    held[last] = value
    with pytest.raises(StoreError) as told:
        read_manifest(refused)
    where = ".".join([*place.replace("\x1b", r"\x1b").split(), *missing])
    assert re.fullmatch(rf"{re.escape(where)}: .*{said}", str(told.value))


@pytest.mark.parametrize("fields", CASES["names"], ids=str)
def test_a_name_that_leads_away_is_refused(current: dict[str, Any], fields: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        read_manifest({**current, **fields})


def test_a_seed_may_be_longer_than_other_numbers(current: dict[str, Any]) -> None:
    assert read_manifest({**current, "seed": 2**128}).seed == 2**128


@pytest.mark.parametrize(
    "wrong", [{"losses": [1] * 10**5}, {"nodes": dict.fromkeys(map(str, range(10**5)), 1)}]
)
def test_a_manifest_of_many_faults_is_refused_within_bounds(wrong: dict[str, Any]) -> None:
    tracemalloc.start()
    with pytest.raises(StoreError, match=r"^(losses\.0|Manifest): "):
        read_manifest(wrong)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_a_manifest_that_says_nothing_has_nothing_to_say() -> None:
    assert read_manifest({}) == Manifest()
    assert set(to_json(Manifest())) == {
        "run", "state", "schema_version", "losses", "phases", "nodes", "servers", "workers", "collectors", "notes",
    }  # fmt: skip


def test_a_run_is_whole_once_it_is_sealed_and_lacks_nothing() -> None:
    said: list[dict[str, Any]] = [
        {"state": "open"},
        {"state": "sealed", "unfinished": {}},
        {"state": "sealed"},
    ]
    assert [is_sealed_whole(one) for one in said] == [False, False, True]


def test_each_field_says_what_it_means_and_stands_with_a_field_that_there_is() -> None:
    for section in sections(Manifest):
        names = {one.name for one in fields(section)}
        assert set(meanings(section)) == names, section
        assert {section.LEAD, section.REST} - {""} <= names
