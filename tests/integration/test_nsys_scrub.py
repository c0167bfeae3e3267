"""A real report of the real nsys with secrets in it: none leaves, and its clock is known within its bound."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from squall.actors.nsys.tools import NsysTools, find_nsys
from squall.analysis.nsys.clock import parse_lines, read_clock
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.nsys.tables import EventLabels, event_tables
from tests.nsys_exports import all_bytes

pytestmark = pytest.mark.single

SECRETS = {
    name: f"hunter2-{name}" for name in ("environment", "argument", "stdout", "stderr", "thread", "folder")
}

_PROFILED = """
import ctypes, os, random, sys, threading, time
class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
libc = ctypes.CDLL(None)
span = ctypes.byref(Timespec(0, 300_000))
def mark(path, name):
    libc.prctl(15, name, 0, 0, 0)
    with open(path, "w") as file:
        for _ in range(60):
            a = time.monotonic_ns(); libc.nanosleep(span, None); b = time.monotonic_ns()
            file.write(f"{a} {b} {os.getpid()} {threading.get_native_id()}\\n")
            time.sleep(random.uniform(0.02, 0.04))
threads = [threading.Thread(target=mark, args=pair) for pair in (
    (sys.argv[1], b"squall-clock"), (sys.argv[2], b"hunter2-thread"))]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print("hunter2-stdout", flush=True); print("hunter2-stderr", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def nsys() -> NsysTools:
    tools = find_nsys()
    if tools is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems)")
    return tools


@pytest.fixture(scope="module")
def export(nsys: NsysTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small program with two threads of stamped sleeps, recorded and exported; `marks` files beside it."""
    folder = tmp_path_factory.mktemp("nsys") / SECRETS["folder"]
    folder.mkdir()
    (folder / "app.py").write_text(_PROFILED)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **nsys.env}
    env["TOKEN"] = SECRETS["environment"]

    def call(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    app = (sys.executable, "-I", "-S", "app.py", "marks", "held_out", SECRETS["argument"])
    call(
        str(nsys.nsys), "profile", "--trace=osrt", "--osrt-threshold=1000", "--osrt-backtrace-threshold=2147483647",
        "--sample=none", "--cpuctxsw=none", "--backtrace=none", "-o", "rep", *app,
    )  # fmt: skip
    if not (folder / "rep.nsys-rep").exists():
        assert nsys.importer is not None
        call(str(nsys.importer), "-i", "rep.qdstrm", "-o", "rep.nsys-rep")
    call(str(nsys.nsys), "export", "--type=sqlite", "-o", "rep.sqlite", "rep.nsys-rep")
    return folder / "rep.sqlite"


@pytest.fixture(scope="module")
def report(export: Path) -> NsysReport:
    scrub(export, export.parent / "scrubbed")
    return NsysReport(export.parent / "scrubbed")


def test_no_secret_of_a_real_report_is_in_the_scrubbed_one_or_in_our_tables(
    export: Path, report: NsysReport
) -> None:
    raw = export.read_bytes()
    planted = {name for name, secret in SECRETS.items() if secret.encode() in raw}
    assert planted >= {"environment", "stdout", "stderr", "thread", "folder"}  # nsys did write them down
    clock = read_clock(report, parse_lines((export.parent / "marks").read_text()), None)
    tables = [data for _, data in event_tables(report, EventLabels("r", "n", "s"), clock.track, clock.marks)]
    content = b"".join(all_bytes(data) for data in tables)
    for path in (export.parent / "scrubbed").iterdir():
        content += path.read_bytes() + all_bytes(pq.read_table(path))
    words = ["hunter2", str(export.parent), "app.py", "/usr/", sys.executable]
    words += [
        word for word in (socket.gethostname(), getpass.getuser()) if len(word) > 3
    ]  # short ones are in `vmId`
    assert [word for word in words if word.encode() in content] == []
    assert b"clock_nanosleep" in content


def test_the_clock_of_a_real_report_holds_for_sleeps_that_it_was_not_made_of(
    export: Path, report: NsysReport
) -> None:
    lines, held_out = (parse_lines((export.parent / name).read_text()) for name in ("marks", "held_out"))
    clock = read_clock(report, lines, None)
    assert int(clock.marks.is_sleep.sum()) >= 20
    others = read_clock(report, held_out, None).marks
    assert len(others) >= 20
    assert set(others.thread.tolist()).isdisjoint(clock.marks.thread.tolist())
    error_ns = clock.track.error_at(others.start_ns)
    starts, ends = clock.track.convert(others.start_ns), clock.track.convert(others.end_ns)
    assert (starts + error_ns >= others.read_before_ns).all()
    assert (ends - error_ns <= others.read_after_ns).all()
    print(f"bound {clock.track.largest_error_ns} ns over {len(clock.marks)} marks: {clock.facts}")


def test_believing_the_utc_start_is_not_far_off_here(export: Path, report: NsysReport) -> None:
    import time

    lines = parse_lines((export.parent / "marks").read_text())
    pairs = [(time.time_ns(), time.monotonic_ns()) for _ in range(20)]
    utc_minus_monotonic_ns = int(np.median([real - monotonic for real, monotonic in pairs]))
    clock = read_clock(report, lines, utc_minus_monotonic_ns)
    assert clock.facts.assumption_error_ns is not None
    print(f"assumption off by {clock.facts.assumption_error_ns} ns, bound {clock.track.largest_error_ns} ns")
    # the true offset lies in the bound, so an assumption that is right within 10 ms cannot seem further off
    assert clock.facts.assumption_error_ns < 10_000_000 + clock.track.largest_error_ns
