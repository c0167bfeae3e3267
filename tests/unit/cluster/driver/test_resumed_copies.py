"""What `squall resume` makes of copies that a driver had fetched from nodes whose folders are not on its machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.analysis.storage.deployed import NodeFacts, ServerFacts
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.sealed import Unfinished
from squall.cluster.driver.copies import copied_sites, folder_of, is_whole
from squall.cluster.driver.resume import _Resuming
from squall.scenarios.errors import ClusterError

CONTENT = b"rows"
GONE = "/nowhere/squall-tmp-1"


def _copied(run_dir: Path, site: str, is_whole: bool) -> Path:
    folder = folder_of(run_dir, site)
    (folder / "spill").mkdir(parents=True)
    (folder / "spill" / "requests-1.arrows").write_bytes(CONTENT)
    if is_whole:
        listed = {"spill/requests-1.arrows": [len(CONTENT), hashlib.sha256(CONTENT).hexdigest()]}
        (folder / "whole.json").write_text(json.dumps(listed))
    return folder


def _resuming(run_dir: Path, manifest: Manifest) -> tuple[_Resuming, list[str]]:
    told: list[str] = []
    store = SimpleNamespace(run="r", run_dir=run_dir, manifest=manifest)
    return _Resuming(cast(Any, store), cast(Any, SimpleNamespace(step=told.append))), told


@pytest.fixture
def manifest() -> Manifest:
    servers = {f"server-{n}": ServerFacts(node="node-1") for n in range(2)}
    return Manifest(run="r", nodes={"node-1": NodeFacts(folder=GONE)}, servers=servers)


def test_a_whole_copy_stands_for_the_folder_of_its_node(tmp_path: Path, manifest: Manifest) -> None:
    whole = _copied(tmp_path, "node-1", is_whole=True)
    resuming, told = _resuming(tmp_path, manifest)
    resuming.look()
    assert resuming._copies == {"node-1": whole}
    assert (resuming._elsewhere, resuming._losses) == ({}, [])
    assert told == ["found what was fetched from node-1"]


def test_of_a_copy_that_is_not_whole_the_folder_is_still_wanted(tmp_path: Path, manifest: Manifest) -> None:
    part = _copied(tmp_path, "node-1", is_whole=False)
    resuming, told = _resuming(tmp_path, manifest)
    resuming.look()
    assert resuming._copies == {"node-1": part}
    assert resuming._elsewhere == {"node-1": GONE}
    assert resuming._losses == [f"what node-1 kept in {GONE} is not on this machine"]
    assert told == ["found what was fetched from node-1, not all of it"]


def test_what_came_of_a_copy_is_not_taken_twice_from_a_run_that_was_sealed(
    tmp_path: Path, manifest: Manifest
) -> None:
    part = _copied(tmp_path, "node-1", is_whole=False)
    sealed = replace(manifest, unfinished=Unfinished(folders={"node-1": GONE}, why={"node-1": "its link"}))
    resuming, _ = _resuming(tmp_path, sealed)
    with pytest.raises(ClusterError, match=f"nothing to gather: what node-1 kept in {GONE}"):
        resuming.look()
    assert part.exists()


def test_a_damaged_copy_does_not_pass_for_a_whole_one(tmp_path: Path, manifest: Manifest) -> None:
    folder = _copied(tmp_path, "node-1", is_whole=True)
    (folder / "spill" / "requests-1.arrows").write_bytes(b"rowz")
    resuming, _ = _resuming(tmp_path, manifest)
    resuming.look()
    assert resuming._elsewhere == {"node-1": GONE}


def test_servers_of_a_copy_are_those_whose_agents_files_it_has(tmp_path: Path, manifest: Manifest) -> None:
    _copied(tmp_path, "node-1", is_whole=True)
    resuming, _ = _resuming(tmp_path, manifest)
    resuming.look()
    assert resuming._servers_at("node-1") == ["server-0", "server-1"]
    _copied(tmp_path, "node-1/server-1", is_whole=True)
    resuming.look()
    assert resuming._servers_at("node-1") == ["server-0"]
    assert resuming._servers_at("node-1/server-1") == ["server-1"]


@pytest.mark.parametrize(
    "listed",
    [
        "[]",
        "7",
        '{"spill": 7}',
        "[" * 100_000,
        '{"spill/requests-1.arrows": [4, null]}',
        '{"../x": [4, "SHA"]}',
    ],
)
def test_a_list_of_files_that_no_driver_wrote_lists_nothing(tmp_path: Path, listed: str) -> None:
    folder = _copied(tmp_path, "node-1", is_whole=True)
    (folder.parent / "x").write_bytes(CONTENT)
    (folder / "whole.json").write_text(listed.replace("SHA", hashlib.sha256(CONTENT).hexdigest()))
    assert not is_whole(folder)


def test_a_folder_of_copies_is_of_no_site_that_leads_away(tmp_path: Path) -> None:
    _copied(tmp_path, "node-1", is_whole=True).rename(tmp_path / ".fetched" / "..+..+etc")
    assert copied_sites(tmp_path) == {}
