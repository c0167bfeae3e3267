"""Files of a node that squall did not write so: their names, their rows."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from squall.actors.spill import SpillFile
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.driver.ingest import Ledger, add_missing, ingest_file
from squall.cluster.driver.node_files import FilesHere, FilesThere
from squall.cluster.node.spills import NodeFile
from squall.scenarios.errors import ClusterError
from tests.unit.cluster.driver.test_dealing import LABELS, plan_of


@pytest.mark.parametrize(
    "file",
    [
        NodeFile("../../x.arrows", 1, "requests"), NodeFile("/etc/passwd", 1, ""), NodeFile("reports/../../x", 1, ""),
        NodeFile("spill/a\x1b.arrows", 1, "requests"), NodeFile("spill/evil-0.arrows", 1, "evil"),
        NodeFile("spill/joined-0.arrows", 1, "joined"),
    ],
)  # fmt: skip
def test_a_file_that_no_node_of_ours_has_is_refused_in_one_line(file: NodeFile, tmp_path: Path) -> None:
    agent = SimpleNamespace(call=lambda _: [file])
    with pytest.raises(
        ClusterError, match=r"^a node has a file that squall does not write there, .*: remove it$"
    ):
        FilesThere(cast(Any, agent), tmp_path).list()


def test_what_is_no_file_here_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    os.mkfifo(tmp_path / "spill" / "requests-0.arrows")
    (tmp_path / "spill" / "requests-1.arrows").symlink_to("/etc/hostname")
    here = FilesHere(tmp_path, "node-0")
    for file, why in zip(here.list(), ("it is no file", "Too many levels of symbolic links"), strict=True):
        with pytest.raises(ClusterError, match=f"^node-0: cannot read {file.path}: {why}$"):
            here.open(file)


def test_a_folder_of_files_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spill").symlink_to("/tmp")
    with pytest.raises(ClusterError, match="is a link"):
        FilesHere(tmp_path, "node-0").list()


def _requests(*rows: tuple[int, int]) -> pa.Table:
    """Of each id and instant."""
    fields = {
        field.name: ("" if "dictionary" in str(field.type) else None if field.nullable else 0)
        for field in arrow_schema("requests")
    }
    made = [{**fields, "request_id": one, "scheduled_ns": at} for one, at in rows]
    return pa.Table.from_pylist(made, schema=arrow_schema("requests"))


def test_rows_at_instants_that_no_clock_shows_are_left_out_and_told(tmp_path: Path) -> None:
    file = SpillFile(tmp_path / "s.arrows", "requests")
    assert file.write(_requests((0, 5), (1, 2**63 - 1), (2, -(2**63)), (3, 7)))
    file.close()
    stored: list[pa.Table] = []
    losses: list[str] = []
    files = SimpleNamespace(open=lambda _: io.BytesIO((tmp_path / "s.arrows").read_bytes()))
    store = SimpleNamespace(append=lambda _, rows: stored.append(rows))
    clock = ClockTrack.constant(100)
    one = NodeFile("spill/requests-0.arrows", 1, "requests")
    assert len(list(ingest_file(cast(Any, store), cast(Any, files), one, clock, (), losses))) == 1
    assert stored[0]["request_id"].to_pylist() == [0, 3]
    assert stored[0]["scheduled_ns"].to_pylist() == [105, 107]
    assert losses == ["spill/requests-0.arrows: 2 rows are left out, whose scheduled_ns no clock shows"]


def test_rows_of_no_arrival_of_the_plan_are_left_out_and_told() -> None:
    ledger = Ledger(plan_of(3, "sequence"), LABELS, ["node-0"] * 3, 0)
    rows = ledger.planned(_requests((-1, 0), (0, 0), (1, 10), (3, 0), (2**62, 0)))
    assert rows["request_id"].to_pylist() == [0, 1]
    ledger.note(_requests((-1, 0), (1, 10), (3, 0)), 0)
    ledger.note_stored(_requests((0, 0), (7, 0)))
    assert ledger.n_missing == 1
    stored: list[pa.Table] = []
    store = SimpleNamespace(append=lambda _, rows: stored.append(rows))
    losses = add_missing(cast(Any, store), ledger, [None] * 3)
    assert "3 rows are of no arrival of the plan, and are left out" in losses
