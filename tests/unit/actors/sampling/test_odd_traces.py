"""Files of Triton's trace API that another program wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from squall.actors.sampling.triton_trace import read_traces

LABELS = {"run": "r", "node": "node-0", "server": "server-0"}
SOUND = (
    b'{"id":1,"model_name":"m","model_version":1,"request_id":"000000000007"},'
    b'{"id":1,"timestamps":[{"name":"REQUEST_START","ns":3}]}'
)


def read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    losses: list[str] = []
    return [row for table in read_traces([path], LABELS, losses) for row in table.to_pylist()], losses


def test_records_that_are_none_are_counted_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    odd = (
        b'{"id":5,"model_name":"m","parent_id":"1"}', b'{"id":6,"model_name":' + b"[" * 100_000 + b"}",
        b'{"id":99999999999999999999}',
    )  # fmt: skip
    path.write_bytes(b"[" + b",".join([SOUND, *odd, SOUND.replace(b'"id":1', b'"id":2')]) + b"]")
    rows, losses = read(path)
    assert [row["trace_id"] for row in rows] == [1, 2]
    assert losses == ["triton_traces: 3 records of trace cannot be read"]


def test_names_that_no_table_takes_are_made_ones_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"[" + SOUND.replace(b'"m"', b'"a\\ud800' + b"b" * 2_000 + b'"') + b"]")
    ((row,), losses) = read(tmp_path / "trace")
    assert (row["model"], losses) == ("a?" + "b" * 1_022, [])


def test_a_file_without_records_is_read_in_pieces(tmp_path: Path) -> None:
    with (tmp_path / "trace").open("wb") as file:
        file.write(b"[")
        file.truncate(50_000_000)
    assert read(tmp_path / "trace") == (
        [],
        ["triton_traces: trace has no end, the server died over it: its last row may be cut off",
         "triton_traces: 3 records of trace cannot be read"],
    )  # fmt: skip


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace")
    assert read(tmp_path / "trace") == ([], ["triton_traces: trace cannot be read: it is no file"])
