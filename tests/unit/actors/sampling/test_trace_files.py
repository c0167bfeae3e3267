"""What is found of the trace files that Triton wrote into a folder."""

from __future__ import annotations

from pathlib import Path

from squall.actors.sampling.triton_trace import traces_in


def test_trace_files_of_every_launch_are_found_and_nothing_else(tmp_path: Path) -> None:
    for name in ("trace.0", "trace.1", "trace-1.0", "trace-2", "trace-2.tmp", "tracer.0", "triton.log"):
        (tmp_path / name).write_text("[]")
    assert traces_in(tmp_path) == [tmp_path / name for name in ("trace", "trace-1", "trace-2")]


def test_a_server_that_was_not_traced_left_none(tmp_path: Path) -> None:
    (tmp_path / "triton.log").write_text("")
    assert traces_in(tmp_path) == []
