"""The one definition of manifest.json, held to manifests that runs of this and of an earlier version wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.document import LEFT_OUT, Since, With, entries, read_section, to_json
from squall.analysis.tables.manifest import (
    OWN_FIELDS,
    READ_VERSIONS,
    Manifest,
    is_sealed_whole,
    read_manifest,
)
from squall.analysis.tables.manifest_page import sections
from squall.scenarios.errors import Sealed, StoreError

RUNS = Path(__file__).parents[3] / "fixtures" / "runs"
OLD = RUNS / "old-20261123T000922Z-0e5f"


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def current() -> dict[str, Any]:
    return document(RUNS / "manifest-5.json")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / OLD.name))


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


def test_a_sealed_run_of_version_4_is_read_by_that_version(old: Path) -> None:
    store = RunStore.open(old)
    manifest, said = store.manifest, document(old / "manifest.json")
    assert (manifest.schema_version, store.is_sealed, store.run) == (4, True, OLD.name)
    assert (manifest.status, manifest.reasons) == ("VALID", ())
    assert manifest.plan.sha256 == said["plan"]["sha256"]
    assert manifest.plan.n_arrivals == len(store.read("requests")) == said["tables"]["requests"]["rows"]
    assert [(one.name, one.kind) for one in manifest.phases] == [
        ("warmup", "warmup"), ("burst", "measure"), ("drain", "drain")
    ]  # fmt: skip
    assert [one.has_lane for one in manifest.workers] == [True, True]
    assert [(one.no_lane, one.scheduling) for one in manifest.workers] == [(None, None)] * 2, "not stated"
    assert manifest.servers["server-0"].steps == ()
    assert manifest.verdict is not None
    assert {one.not_assessed for one in manifest.verdict.checks} == {""}


def test_a_run_of_version_4_is_neither_changed_nor_made_again(old: Path) -> None:
    before = (old / "manifest.json").read_bytes()
    store = RunStore.open(old)
    with pytest.raises(Sealed):
        store.amend(replace(store.manifest, seed=8))
    with pytest.raises(Sealed):
        store.reopen([], lambda _, rows: rows)
    said = "schema version 4; this squall reads version 5: analyze it with the older squall"
    with pytest.raises(StoreError, match=said):
        store.replace_derived("windows", store.read("requests"))
    with pytest.raises(StoreError, match=said):
        require_intact(store)
    with pytest.raises(StoreError, match=said):
        store.write_text("report.html", "")
    assert (old / "manifest.json").read_bytes() == before


def test_an_open_run_of_version_4_is_refused(old: Path) -> None:
    said = document(old / "manifest.json")
    (old / "manifest.json").write_text(json.dumps({**said, "state": "open"}))
    with pytest.raises(StoreError, match="schema version 4; this squall reads version 5"):
        RunStore.open(old)


def test_no_manifest_has_a_key_of_a_later_version_and_this_one_has_them(current: dict[str, Any]) -> None:
    assert list(later(Manifest, document(OLD / "manifest.json"), 4)) == []
    assert {"node_starts_ns", "folder", "ray", "scheduling", "failures"} <= set(later(Manifest, current, 4))


def later(type_: Any, value: Any, version: int) -> Iterator[str]:
    """Keys within `value`, of that type, which a version after `version` brought."""
    inner = [one for one in get_args(type_) if one is not type(None)]
    if len(inner) < len(get_args(type_)):
        yield from later(inner[0], value, version)
    elif isinstance(value, list) and inner:
        for one in value:
            yield from later(inner[0], one, version)
    elif isinstance(value, dict) and inner:
        for one in value.values():
            yield from later(inner[1], one, version)
    elif isinstance(value, dict) and isinstance(type_, type) and is_dataclass(type_):
        for entry in entries(type_):
            if entry.name in value:
                if entry.since is not None and entry.since > version:
                    yield entry.name
                yield from later(entry.type, value[entry.name], version)


def test_a_key_of_a_later_version_says_nothing_in_an_earlier_one() -> None:
    said = {**document(OLD / "manifest.json"), "node_starts_ns": "noon"}
    assert read_manifest(said).node_starts_ns == {}


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


@pytest.mark.parametrize("version", [3, 6, "5", None])
def test_other_versions_are_refused(version: Any) -> None:
    assert version not in READ_VERSIONS
    with pytest.raises(StoreError, match="are not read"):
        read_manifest({"schema_version": version})


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


def test_a_key_that_comes_with_another_names_one_that_there_is() -> None:
    found = sections(Manifest)
    assert len(found) > 30
    for section in found:
        for one in entries(section):
            assert all(
                hasattr(section, mark.other) or mark.other in {other.name for other in entries(section)}
                for mark in one.marks
                if isinstance(mark, With)
            )


def test_a_field_that_says_nothing_of_itself_is_a_fault() -> None:
    @dataclass(frozen=True)
    class Mute:
        n: int

    with pytest.raises(TypeError, match=r"Mute\.n does not say what it means"):
        read_section(Mute, {"n": 1})
    assert {LEFT_OUT, Since(5), With("checks")} <= {
        mark for section in sections(Manifest) for one in entries(section) for mark in one.marks
    }
