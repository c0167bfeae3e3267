"""What /proc says of a process's scheduling."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import squall.actors.process.ordinary
from squall.actors.process.state import process_state, states_of, uptime_ns, what_is_unusual

STAT = (
    "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 {priority} {nice} 1 0 99 0 0 18446744073709551615"
    " 0 0 0 0 0 0 0 0 0 0 0 0 17 1 {rt} {policy} 0 0 0\n"
)


def planted(folder: Path, nice: int, policy: int, rt: int = 0, oom: int = 0, group: int = 0) -> Path:
    own = folder / "42"
    own.mkdir(parents=True)
    (own / "stat").write_text(STAT.format(priority=20 + nice, nice=nice, policy=policy, rt=rt))
    (own / "autogroup").write_text(f"/autogroup-7 nice {group}\n")
    (own / "oom_score_adj").write_text(f"{oom}\n")
    (own / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        "Max open files            1024                 524288               files     \n"
    )
    return folder


@pytest.mark.parametrize(
    ("nice", "policy", "rt", "oom", "named", "unusual"),
    [
        (0, 0, 0, 0, "other", []),
        (15, 0, 0, 0, "other", ["a) b (c has niceness 15 (wanted: 0)"]),
        (0, 0, 0, 1000, "other", ["a) b (c has oom_score_adj 1000 (wanted: 0)"]),
        (0, 3, 0, 0, "batch", ["a) b (c has policy batch (wanted: other)"]),
        (0, 1, 7, 0, "fifo", ["a) b (c has policy fifo (wanted: other)"]),
        (0, 5, 0, 0, "idle", ["a) b (c has policy idle (wanted: other)"]),
    ],
)
def test_a_process_is_told_as_the_kernel_has_it(
    nice: int, policy: int, rt: int, oom: int, named: str, unusual: list[str], tmp_path: Path
) -> None:
    state = process_state(42, planted(tmp_path, nice, policy, rt, oom))
    assert state is not None
    found = (
        state["name"],
        state["niceness"],
        state["policy"],
        state["realtime_priority"],
        state["oom_score_adj"],
    )
    assert found == ("a) b (c", nice, named, rt, oom)
    assert state["limits"] == {"cpu_s": None, "open_files": 1024}
    assert what_is_unusual([{**state, "io_class": None}], 0) == unusual


def test_a_session_that_comes_after_others_is_told(tmp_path: Path) -> None:
    state = process_state(42, planted(tmp_path, 0, 0, group=7))
    assert state is not None
    assert what_is_unusual([{**state, "io_class": None}], 0) == [
        "a) b (c has autogroup_niceness 7 (wanted: 0)"
    ]


def test_of_a_process_that_is_gone_nothing_is_said(tmp_path: Path) -> None:
    assert process_state(42, tmp_path) is None
    assert states_of([]) == []


def test_processes_alike_are_told_once() -> None:
    (state,) = states_of([os.getpid(), os.getpid()])
    assert state["n_processes"] == 2


_ASK = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
names = ("CPU", "CORE", "STACK", "NOFILE", "NICE", "RTPRIO")
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
print(json.dumps({"nice": int(stat[16]), "policy": int(stat[38]), "oom": int(open("/proc/self/oom_score_adj").read()),
    "cores": sorted(os.sched_getaffinity(0)), "slack": int(open("/proc/self/timerslack_ns").read()),
    **{name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names}}))
"""


def test_a_command_is_ordinary_whatever_its_ancestors_are() -> None:
    """Unprivileged, only what may be undone is compared: oom_score_adj, policy and soft limits."""
    n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def spoil() -> None:
        if os.geteuid() == 0:
            os.nice(15)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        Path("/proc/self/oom_score_adj").write_text("1000")
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, n_files))
        resource.setrlimit(resource.RLIMIT_STACK, (2**20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    core = min(os.sched_getaffinity(0))
    command = [
        sys.executable,
        "-I",
        "-S",
        squall.actors.process.ordinary.__file__,
        "0",
        str(core),
        sys.executable,
        "-c",
        _ASK,
        ".",
    ]
    said = json.loads(subprocess.run(command, preexec_fn=spoil, capture_output=True, check=True).stdout)
    if os.geteuid() == 0:
        assert said["nice"] == 0
    assert (said["policy"], said["oom"], said["cores"]) == (os.SCHED_OTHER, 0, [core])
    assert said["NOFILE"][0] == n_files
    assert said["STACK"][0] == 8 * 2**20
    assert said["slack"] == 50_000


def test_a_command_that_is_not_there_ends_as_in_a_shell() -> None:
    command = [sys.executable, "-I", "-S", squall.actors.process.ordinary.__file__, "0", "-", "/not/there"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (127, b"/not/there: No such file or directory\n")


def test_the_uptime_is_that_of_the_oldest_process_that_can_be_looked_at(tmp_path: Path) -> None:
    planted(tmp_path, 0, 0)
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = uptime_ns([41, 42], tmp_path)
    assert found is not None
    assert found / 1e9 == pytest.approx(up_s - 99 / os.sysconf("SC_CLK_TCK"), abs=5.0)
    assert uptime_ns([41], tmp_path) is None
    own, older = uptime_ns([os.getpid()]), uptime_ns([os.getpid(), os.getppid()])
    assert own is not None
    assert older is not None
    assert 0 < own <= older
