"""The one definition of manifest.json, held to a manifest that a run wrote."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.record import to_json
from squall.analysis.schema import meanings, sections
from squall.analysis.tables.manifest import Manifest, is_sealed_whole, read_manifest
from squall.scenarios.errors import StoreError

RUNS = Path(__file__).parents[3] / "fixtures" / "runs"


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def current() -> dict[str, Any]:
    return document(RUNS / "manifest-5.json")


def test_a_manifest_from_before_its_sections_had_types_is_written_as_it_was(current: dict[str, Any]) -> None:
    assert json.dumps(to_json(read_manifest(current))) == json.dumps(current), "keys, values and their order"


def test_readers_get_sections(current: dict[str, Any]) -> None:
    manifest = read_manifest(current)
    assert manifest.nodes["node-0"].n_cores == 2
    assert manifest.servers["server-0"].model == current["servers"]["server-0"]["model"]
    assert manifest.nsys.reports["burst"].attribution["kernels"].n_tied == 0
    assert manifest.observers["node-0"].samplers["cpu_samples"].told["n_processes"]["clients"] == 2
    assert manifest.status == current["verdict"]["status"]
    assert manifest.verdict is not None
    assert [one.name for one in manifest.verdict.checks] == [
        one["name"] for one in current["verdict"]["checks"]
    ]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("nodes node-0 n_cores", "2", "valid integer"),
        ("nodes node-0 n_cores", True, "valid integer"),
        ("nodes node-0 n_cores", 2.0, "valid integer"),
        ("nodes node-0 n_cores", 2**64, "is not within 64 bits"),
        ("nodes node-0 clock_drift_ppm", "0", "valid number"),
        ("nodes node-0 clock_drift_ppm", True, "valid number"),
        ("nodes node-0 clock_drift_ppm", math.nan, "finite number"),
        ("nodes node-0 clock_drift_ppm", -(2**64), "is not within 64 bits"),
        ("workers 0 has_lane", 1, "valid boolean"),
        ("phases 1", [], "an object"),
        ("losses", "none", "valid array"),
        ("losses 0", 1, "valid string"),
        ("verdict", None, "is null"),
        ("verdict checks 0 limit", {}, "valid number"),
        ("nsys reports", [], "an object"),
        ("observers node-0 samplers cpu_samples n_rows", "1", "valid integer"),
        ("collectors a\x1b[2Jb", 1, "an object"),
        ("phases 0", {"name": "", "kind": "", "start_ns": 0}, "is not there"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused_with_its_place(
    current: dict[str, Any], place: str, value: Any, said: str
) -> None:
    *way, last = [int(key) if key.isdigit() else key for key in place.split()]
    held: Any = {**current, "losses": [""]}
    refused = held
    for key in way:
        held = held[key]
    held[last] = value
    with pytest.raises(StoreError) as told:
        read_manifest(refused)
    where = place.replace(" ", ".").replace("\x1b", r"\x1b") + (".end_ns" if said == "is not there" else "")
    assert re.fullmatch(rf"{re.escape(where)}: .*{said}", str(told.value))


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


@pytest.mark.parametrize(
    ("said", "is_whole"),
    [({"state": "open"}, False), ({"state": "sealed", "unfinished": {}}, False), ({"state": "sealed"}, True)],
)
def test_a_run_is_whole_once_it_is_sealed_and_lacks_nothing(said: dict[str, Any], is_whole: bool) -> None:
    assert is_sealed_whole(said) == is_whole


def test_each_field_says_what_it_means_and_stands_with_a_field_that_there_is() -> None:
    for section in sections(Manifest):
        names = {one.name for one in fields(section)}
        assert set(meanings(section)) == names, section
        assert {section.LEAD, section.REST} - {""} <= names
