"""The checks of a node against this host, sound and really broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from squall.actors.doctor.checkup import ThisHost, check_up
from squall.actors.doctor.host import CHECKS
from squall.actors.doctor.tools import NsysAnswers, nsys
from squall.actors.nsys.tools import find_nsys
from squall.cluster.commands.diagnosis import clock_finding
from squall.cluster.node.checkup import NodeCheckup
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle

_CHECK = """
import json, resource, sys
from dataclasses import asdict
from squall.actors.doctor.checkup import ThisHost, check_up
from squall.actors.doctor.host import CHECKS
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
print(json.dumps([asdict(one) for one in check_up(CHECKS, ThisHost())]))
"""
_AHEAD_S = 100


def findings_of(
    *arguments: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Findings by topic of a process of its own, started by `before`."""
    done = subprocess.run(
        [*before, sys.executable, "-c", _CHECK, *arguments], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    return {one["topic"]: one for one in json.loads(done.stdout)}


def needs_root() -> None:
    if os.geteuid():
        pytest.skip("not root: no mounts and no namespaces")


def test_the_probes_of_this_host_answer_and_never_raise(tmp_path: Path) -> None:
    host = ThisHost()
    assert host.read("/proc/self/comm")
    assert host.read("/nonexistent") is None
    assert host.ask("/nonexistent/program") is None
    assert host.ask("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\nerr")
    assert host.package("numpy")
    assert host.package("there-is-no-such-package") is None
    assert host.space("/nonexistent") is None
    assert host.write(str(tmp_path), 1_000) == ""
    assert host.write(str(tmp_path / "none"), 1_000) == "No such file or directory"
    assert 1 <= host.n_cores()[1] <= host.n_cores()[0]
    found = check_up(CHECKS, host)
    assert {one.topic for one in found} == {topic for topic, _ in CHECKS}
    assert not [one for one in found if one.what.startswith("the check failed")]


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.actors.doctor.checkup._ASK_TIMEOUT_S", 0.2)
    assert ThisHost().ask("sleep", "60") == (None, "")


@pytest.mark.parametrize(("limit", "status"), [(1_000, "limited"), (200, "missing")])
def test_a_low_limit_of_open_files_is_found(limit: int, status: str) -> None:
    assert findings_of(str(limit))["open files"]["status"] == status


@pytest.fixture
def full_tmpfs() -> Iterator[Path]:
    """A temporary folder without room."""
    needs_root()
    with tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, check=False
        )  # fmt: skip
        if mounted.returncode:
            pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def test_a_full_temporary_folder_stops_runs(full_tmpfs: Path) -> None:
    found = findings_of(env={"TMPDIR": str(full_tmpfs)})["disk"]
    assert (found["status"], found["what"]) == (
        "missing",
        "the temporary folder takes no file: No space left on device",
    )


def test_a_host_without_nsys_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SQUALL_NSYS", raising=False)
    (found,) = nsys(ThisHost(), NsysAnswers(lambda: find_nsys(None, tmp_path), lambda _: (1, 1)))
    assert (found.status, found.what) == ("limited", "there is none: runs are not profiled")
    assert found.mend.startswith(
        "apt-get install nsight-systems (Debian: `Components: main contrib non-free`"
    )


def in_time_namespace() -> tuple[str, ...]:
    needs_root()
    command = ("unshare", "--time", f"--monotonic={_AHEAD_S}", "--fork")
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no time namespaces: {tried.stderr.strip()}")
    return command


def test_a_shifted_monotonic_clock_is_found() -> None:
    found = findings_of(before=in_time_namespace())["time namespace"]
    assert found["status"] == "limited"
    assert f"shifted by {_AHEAD_S} s" in found["what"]


class Elsewhere:
    """Stands for the handle of a node whose clock is not the driver's: its responder is real, in a time namespace."""

    def __init__(self, address: tuple[str, int], token: bytes) -> None:
        self._answers: dict[str, Any] = {"clock_domain": "another", "open_clock": (address, token)}

    def call(self, method: Callable[..., Any], *_: Any) -> Any:
        return self._answers[method.__name__]


def test_a_clock_of_another_domain_has_its_bound_measured() -> None:
    before = in_time_namespace()
    with subprocess.Popen(
        [*before, sys.executable, "-m", "squall.actors.sampling.clock_responder", "127.0.0.1"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        host, port, token = process.stdout.readline().split()
        handle = cast(Handle[NodeCheckup], Elsewhere((host, int(port)), bytes.fromhex(token)))
        found = clock_finding(Node("node-1", "x", host, 0, False), handle)
        process.stdin.close()
        process.wait(10)
    assert found.what.startswith("known within ")
    assert found.status == "ok" or "us of the driver" in found.what


@pytest.mark.slow
def test_a_clock_that_does_not_answer_says_what_to_open() -> None:
    handle = cast(Handle[NodeCheckup], Elsewhere(("127.0.0.1", 9), bytes(16)))  # discard: nothing listens
    found = clock_finding(Node("node-1", "x", "127.0.0.1", 0, False), handle)
    assert found.status == "missing"
    assert "no answer to clock probes from node-1 at 127.0.0.1 port 9" in found.what
