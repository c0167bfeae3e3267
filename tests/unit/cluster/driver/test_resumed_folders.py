"""What `squall resume` reads of the scratch folders of a run: plain files, and of a log that is too large its end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.analysis.storage.deployed import NodeFacts, ServerFacts
from squall.analysis.storage.manifest import Manifest, PhaseFacts
from squall.cluster.driver import resume
from squall.cluster.driver.resume import _Resuming
from squall.cluster.node.scratch import claim, this_place
from squall.scenarios.errors import ClusterError, StoreError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's, with a server's in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "runs").mkdir()
    found = tmp_path / "tmp" / "squall-tmp-1"
    for name in ("spill", "reports", "server-0/batches", "server-0/recorded"):
        (found / name).mkdir(parents=True)
    found.chmod(0o700)
    (found / "server-0" / "triton.log").write_text("ready")
    claim(found, "r", "node-0", str(tmp_path / "runs"), this_place())
    return found


def resuming(tmp_path: Path, **changes: Any) -> tuple[_Resuming, dict[str, str]]:
    texts: dict[str, str] = {}
    manifest = Manifest(
        run="r",
        servers={"server-0": ServerFacts(node="node-0")},
        phases=(PhaseFacts(name="m", kind="measure", start_ns=0, end_ns=10),),
        **changes,
    )
    store = SimpleNamespace(
        run="r", run_dir=tmp_path / "runs", manifest=manifest, write_text=texts.__setitem__
    )
    return _Resuming(cast(Any, store), cast(Any, SimpleNamespace(step=print))), texts


def a_link_to_a_spill(folder: Path) -> None:
    (folder / "spill" / "requests-0.arrows").symlink_to("/etc/hostname")


def a_link_to_spills(folder: Path) -> None:
    (folder / "spill").rmdir()
    (folder / "spill").symlink_to("/etc")


def a_link_to_a_log(folder: Path) -> None:
    (folder / "server-0" / "triton.log").unlink()
    (folder / "server-0" / "triton.log").symlink_to("/etc/hostname")


def a_pipe_of_batches(folder: Path) -> None:
    os.mkfifo(folder / "server-0" / "batches" / "m_0.jsonl")


def a_pipe_of_traces(folder: Path) -> None:
    os.mkfifo(folder / "server-0" / "trace.0")


def a_link_to_a_server(folder: Path) -> None:
    (folder / "server-0").rename(folder / "aside")
    (folder / "server-0").symlink_to(folder / "aside")


@pytest.mark.parametrize(
    "change",
    [
        a_link_to_a_spill, a_link_to_spills, a_link_to_a_log, a_pipe_of_batches, a_pipe_of_traces,
        a_link_to_a_server,
    ],
)  # fmt: skip
def test_what_leads_out_of_a_folder_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(folder)
    with pytest.raises(
        StoreError, match=r"^\S+/(requests-0|spill|triton|m_0|trace|server-0)\S* is .*remove it$"
    ):
        resuming(tmp_path)[0].look()


def test_what_a_server_left_in_its_temporary_folder_is_its_own(folder: Path, tmp_path: Path) -> None:
    (folder / "server-0" / "models").mkdir()
    (folder / "server-0" / "models" / "shared").symlink_to("/etc")
    os.mkfifo(folder / "server-0" / "listener")
    found, _ = resuming(tmp_path)
    found.look()
    assert found._folders == {"node-0": folder}


def test_of_a_log_that_is_too_large_the_end_is_kept_with_a_note(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spill" / "locust-0.log").write_text("spawned")
    found, texts = resuming(tmp_path)
    found.look()
    found._keep_log()
    assert (texts, found._notes) == ({"logs/server-0.log": "ready", "logs/locust-0.log": "spawned"}, [])
    monkeypatch.setattr(resume, "end_of_log", lambda _: (b"dy", 3))
    found._keep_log()
    assert texts["logs/server-0.log"] == "dy"
    assert found._notes[0] == "logs/server-0.log has the end of a log: 3 bytes before that are left out"


def test_rows_of_a_node_whose_clock_is_not_known_are_not_gathered(folder: Path, tmp_path: Path) -> None:
    for changes in (
        {}, {"start_ns": 0}, {"start_ns": 0, "nodes": {"node-0": NodeFacts()}, "node_starts_ns": {"node-0": 0}},
    ):  # fmt: skip
        found, _ = resuming(tmp_path, **changes)
        found.look()
        with pytest.raises(ClusterError, match=r"^the manifest does not say how the clock of node-0 goes"):
            found.gather()
    assert folder.is_dir()
