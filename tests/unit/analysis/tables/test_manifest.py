"""The one definition of manifest.json, held to a manifest that a run wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.schema import sections
from squall.analysis.tables.document import With, entries, read_section, to_json
from squall.analysis.tables.manifest import (
    OWN_FIELDS,
    Manifest,
    is_sealed_whole,
    read_manifest,
)
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
        (("nodes", "node-0", "n_cores"), "2", "nodes[node-0].n_cores is not a whole number"),
        (("nodes", "node-0", "n_cores"), True, "nodes[node-0].n_cores is not a whole number"),
        (("nodes", "node-0", "clock_drift_ppm"), "0", "nodes[node-0].clock_drift_ppm is not a number"),
        (("workers", 0, "has_lane"), 1, "workers[0].has_lane is not a truth value"),
        (("phases", 1), [], "phases[1] is not a mapping"),
        (("losses",), "none", "losses is not a list"),
        (("losses",), [1], "losses[0] is not a text"),
        (("verdict",), None, "verdict is not a mapping"),
        (("verdict", "checks", 0, "limit"), {}, "verdict.checks[0].limit is not a number"),
        (("nsys", "reports"), [], "nsys.reports is not a mapping"),
        (("servers", "a\n\x1b[2Jb"), 1, r"servers[a\n\x1b[2Jb] is not a mapping"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named_with_its_place(
    current: dict[str, Any], place: tuple[Any, ...], value: Any, said: str
) -> None:
    *way, last = place
    held: Any = current
    for key in way:
        held = held[key]
    held[last] = value
    with pytest.raises(StoreError) as refused:
        read_manifest(current)
    assert str(refused.value) == said


def test_what_must_be_there_is_named_with_its_place(current: dict[str, Any]) -> None:
    del current["phases"][0]["end_ns"]
    with pytest.raises(StoreError, match=r"^phases\[0\] has no end_ns$"):
        read_manifest(current)


def test_a_manifest_that_says_nothing_has_nothing_to_say() -> None:
    assert read_manifest({}) == Manifest()
    assert set(to_json(Manifest())) == {
        "run", "state", "schema_version", "losses", "phases", "nodes", "servers", "workers", "collectors", "notes",
    }  # fmt: skip


def test_the_stores_own_fields_are_fields() -> None:
    assert set(OWN_FIELDS) < {one.name for one in fields(Manifest)}


@pytest.mark.parametrize(
    ("said", "is_whole"),
    [({"state": "open"}, False), ({"state": "sealed", "unfinished": {}}, False), ({"state": "sealed"}, True)],
)
def test_a_run_is_whole_once_it_is_sealed_and_lacks_nothing(said: dict[str, Any], is_whole: bool) -> None:
    assert is_sealed_whole(said) == is_whole


def test_a_field_stands_with_a_field_that_there_is() -> None:
    for section in sections(Manifest):
        names = {one.name for one in entries(section)}
        with_others = {mark.other for one in entries(section) for mark in one.marks if isinstance(mark, With)}
        assert all(other in names or hasattr(section, other) for other in with_others)


def test_a_field_that_says_nothing_of_itself_is_a_fault() -> None:
    @dataclass(frozen=True)
    class Mute:
        n: int

    with pytest.raises(TypeError, match=r"Mute\.n does not say what it means"):
        read_section(Mute, {"n": 1})
