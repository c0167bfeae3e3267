"""Each check of the fault table fails a run that is wrong in just that, and none fails one that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.fault_cells import PARTS, STAGES, Cell, all_cells
from tests.bench.fault_checks import CHECKS, Seen, Server, failures
from tests.bench.fault_run import Result
from tests.bench.fault_tree import role_of
from tests.bench.faults import Book, Tried, facts_of, machine, markdown

RIGHT = Seen(
    code=3,
    codes=frozenset({0, 1, 3}),
    stderr=("squall starting Ray", "squall worker 1 on node-0 is lost; the others go on", ""),
    stdout="\nINVALID   12 of 16 checks met\n  one worker was lost\n",
    seconds=20.0,
    limit_s=60.0,
    n_planned=4,
    has_begun=True,
    state="sealed",
    status="INVALID",
    rows=((3, "lost"), (0, "ok"), (1, "timeout"), (2, "unsent")),
    received={0: "ok", 1: "timeout"},
    server=Server(frozenset({0, 1, 3}), 3),
)
ABORTED = replace(
    RIGHT, code=1, stdout="", status="ABORTED", has_begun=False, rows=None, received={}, n_planned=4,
    stderr=("squall starting Ray", "squall aborted run: /tmp/out/x", "squall: cannot start a local Ray: it ended"),
)  # fmt: skip


@pytest.mark.parametrize("seen", [RIGHT, ABORTED])
def test_a_run_that_is_right_meets_every_check(seen: Seen) -> None:
    assert failures(seen) == {}


def test_a_driver_that_was_killed_owes_no_message() -> None:
    killed = replace(
        RIGHT, code=-9, codes=frozenset({-9}), stdout="", status="ABORTED", is_driver_killed=True
    )
    assert failures(killed) == {}


PLANTED: list[tuple[str, dict[str, Any], str]] = [
    ("rows", {"rows": RIGHT.rows[:-1]}, "missing 1 (2)"),  # type: ignore[index]
    ("rows", {"rows": (*RIGHT.rows, (0, "ok"))}, "twice 1 (0)"),  # type: ignore[misc]
    ("rows", {"rows": (*RIGHT.rows, (7, "unsent"))}, "not planned 1 (7)"),  # type: ignore[misc]
    ("rows", {"rows": None, "received": {}}, "no table requests"),
    ("outcomes", {"server": Server(frozenset({0, 1, 2, 3}), 3)}, "unsent, but executed: 1 (2)"),
    ("outcomes", {"server": Server(frozenset({1, 3}), 3)}, "ok, but never executed: 1 (0)"),
    ("outcomes", {"server": Server(frozenset({0, 1, 3}), 4)}, "the server answered 4, 3 rows"),
    ("outcomes", {"status": "VALID", "code": 0, "stdout": "VALID"}, "VALID with lost or unsent rows"),
    ("received", {"received": {0: "ok", 1: "timeout", 3: "ok"}}, "3 was ok, is lost"),
    ("message", {"stderr": ("Traceback (most recent call last):",)}, "noise, 1 lines: Traceback"),
    ("message", {"stderr": ("[2026-11-22] (raylet) it died",)}, "noise"),
    ("message", {"stderr": ("squall: it failed",)}, "exit 3 with an error"),
    ("message", {"stdout": ""}, "the verdict INVALID is not on the screen"),
    ("message", {"stdout": "VALID 16 of 16"}, "the verdict INVALID is not on the screen"),
    ("exit code", {"code": None}, "did not end"),
    ("exit code", {"code": -11}, "exit -11"),
    ("exit code", {"code": 0}, "exit 0, but INVALID"),
    ("sealed", {"state": "open"}, "state open"),
    ("sealed", {"state": ""}, "no run directory"),
    ("running", {"running": ("observer",)}, "1 (observer)"),
    ("lying about", {"lying": ("t/squall-tmp-x",)}, "1 (t/squall-tmp-x)"),
    ("time", {"seconds": 61.0}, "61 s, limit 60 s"),
    ("next run", {"next_run": "exit 1, 0 of 0 ok"}, "exit 1"),
]


@pytest.mark.parametrize(("check", "change", "why"), PLANTED)
def test_a_run_that_is_wrong_in_one_thing_fails_the_check_of_that(
    check: str, change: dict[str, Any], why: str
) -> None:
    assert why in CHECKS[check](replace(RIGHT, **change))


def test_every_check_has_a_planted_run_that_it_fails() -> None:
    assert {check for check, _, _ in PLANTED} == set(CHECKS)


def test_a_library_that_dies_for_want_of_memory_may_say_so() -> None:
    told = replace(RIGHT, code=-11, stderr=("*** SIGSEGV received ***",), codes=frozenset({-11}))
    assert CHECKS["message"](told) == ""
    assert CHECKS["exit code"](told) == ""
    assert CHECKS["exit code"](replace(told, codes=frozenset({0}))) == "exit -11"


def test_an_internal_error_is_no_message() -> None:
    told = replace(ABORTED, stderr=("squall: internal error: OSError: x; traceback: y",))
    assert CHECKS["message"](told).startswith("squall: internal error")


@pytest.mark.parametrize("lines", [(), ("squall: one", "squall: two")])
def test_a_failed_run_says_why_exactly_once(lines: tuple[str, ...]) -> None:
    assert CHECKS["message"](replace(ABORTED, stderr=lines)) == f"{len(lines)} error lines"


def test_records_that_the_server_could_not_write_deny_no_reply() -> None:
    server = Server(frozenset({1, 3}), 3, has_all_records=False)
    assert CHECKS["outcomes"](replace(RIGHT, server=server)) == ""


def test_every_part_meets_every_stage_killed_and_stopped() -> None:
    names = {cell.name for cell in all_cells()}
    assert len(names) == len(all_cells())
    for part in PARTS:
        for stage in STAGES:
            assert {f"{part}/kill/{stage}", f"{part}/stop/{stage}"} <= names


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/t/x", "raylet"),
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/t", "gcs_server"),
        ("ray::LoadWorker.do", "worker"),
        ("ray::NodeAgent", "agent"),
        ("/v/bin/python -m squall.cluster.remote.served NodeAgent", "agent"),
        ("python -P -m squall.cluster.remote.served Observer", "observer"),
        ("/v/bin/python -P -m squall.cluster.remote.forker ___", "forker"),
        (
            "/v/bin/python -I -S /w/actors/process/supervisor.py 10.0 tritonserver /c/bin/tritonserver --x",
            "supervisor",
        ),
        ("/c/bin/tritonserver --backend-directory /c", "tritonserver"),
        ("/c/python/triton_python_backend_stub /tmp/t/model.py", "stub"),
        ("/v/bin/python -m pytest tests", None),
    ],
)
def test_a_process_is_known_by_its_command_line(command: str, role: str | None) -> None:
    assert role_of(command) == role


def test_the_table_counts_the_runs_that_met_every_check_and_tells_why_the_others_did_not() -> None:
    cell, absent = Cell("worker", "kill", "load"), Cell("stub", "kill", "joining")
    wrong = replace(RIGHT, running=("observer",))
    runs = tuple(facts_of(Result(cell.name, seen), 30.0) for seen in (RIGHT, wrong, RIGHT))
    nobody = facts_of(Result(absent.name, None, "stub was not there at this stage"), 20.0)
    table = markdown([Tried(cell, runs), Tried(absent, (nobody,))], "COMMAND")
    assert table.startswith("2 of 3 runs in 1 cells met every check.")
    assert f"`COMMAND`: {machine()}, {runs[0]['date']} (3 runs)." in table
    assert "| worker: kill |  |  | 2/3 INVALID |  |  |  |" in table
    assert "| stub: kill |  |  |  |  | not there |  |" in table
    assert "| worker/kill/load | 1 of 3 | running | 1 (observer) |" in table


def test_a_fault_that_could_not_be_made_fails_the_table_where_it_should_have_been() -> None:
    facts = facts_of(Result("raylet/kill/load", None, "the stage was not reached", is_our_fault=True), 120.0)
    assert facts["failures"] == {"harness": "the stage was not reached"}


def test_a_table_is_made_in_several_sessions(tmp_path: Path) -> None:
    cell, other = Cell("worker", "kill", "load"), Cell("stub", "kill", "load")
    run = facts_of(Result(cell.name, RIGHT), 30.0)
    for name in ("a", "b"):
        book = Book([], tmp_path / f"{name}.json")
        book.add(cell, {**run, "took_s": name})
    both = Book([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "both.json")
    both.add(other, run)
    for book in (both, Book([tmp_path / "both.json"], None)):
        assert [one["took_s"] for one in book.runs(cell)] == ["a", "b"]
        assert len(book.runs(other)) == 1
