"""The supervisor with real processes: whoever ends and however, nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import squall.actors.process.supervisor
from squall.actors.process.state import wait_until_gone as wait_for_their_end

SUPERVISOR = [sys.executable, "-I", "-S", squall.actors.process.supervisor.__file__]
DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        open({path!r}, 'w').write(str(os.getpid()))\n"
    "        time.sleep(300)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "while not os.path.exists({path!r}) or not open({path!r}).read(): time.sleep(0.01)\n"
    "print(os.getpid(), open({path!r}).read(), flush=True)\n"
    "time.sleep({then_s})\n"
)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


def started(
    script: str, name: str = "python3", stop_timeout_s: str = "1", folder: str = "-"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SUPERVISOR, stop_timeout_s, name, folder, sys.executable, "-S", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A supervised command and its daemonised grandchild, in a session of its own."""
    process = started(DAEMON.format(path=str(tmp_path / "pid"), then_s=300))
    assert process.stdin
    assert process.stdout
    pids = [int(text) for text in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    assert os.getsid(pids[1]) != os.getsid(pids[0])
    yield process, pids
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.stdout.close()
    process.stdin.close()
    process.wait(20)


def test_when_the_pipe_closes_the_command_and_its_daemon_are_gone(
    family: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = family
    assert process.stdin
    process.stdin.close()
    process.wait(20)
    assert not any(is_alive(pid) for pid in pids)


def test_a_signal_that_the_user_sends_to_all_does_not_end_the_clean_up(
    family: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = family
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert process.poll() is None
    assert all(is_alive(pid) for pid in pids)


def test_when_the_owner_is_killed_nothing_is_left(tmp_path: Path) -> None:
    script = DAEMON.format(path=str(tmp_path / "pid"), then_s=300)
    owner_script = (
        "import subprocess, sys\n"
        f"process = subprocess.Popen({[*SUPERVISOR, '1', 'python3', '-', sys.executable, '-S', '-c', script]!r},"
        " stdin=subprocess.PIPE)\n"
        "print(process.pid, flush=True)\n"
        "process.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", owner_script], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        pids = [int(text) for _ in range(2) for text in owner.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        owner.kill()
        wait_until_gone(pids)


def test_when_the_supervisor_is_killed_the_command_is_too(
    family: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = family
    (supervisor,) = psutil.Process(process.pid).children()
    supervisor.kill()
    wait_until_gone(pids[:1])


def test_when_the_process_that_the_owner_started_is_killed_the_clean_up_still_follows_the_pipe(
    family: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = family
    process.kill()  # as who kills a process and its children
    process.wait(20)
    assert all(is_alive(pid) for pid in pids)
    assert process.stdin
    process.stdin.close()
    wait_until_gone(pids)


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    process = started(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(300)\n",
        stop_timeout_s="0.2",
    )
    assert process.stdin
    assert process.stdout
    pid = int(process.stdout.readline())
    process.stdin.close()
    process.wait(20)
    process.stdout.close()
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise SystemExit(0)", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_that_of_the_command(script: str, code: int) -> None:
    process = started(script, name="nothing")
    assert process.stdin
    assert process.stdout
    assert process.wait(20) == code
    process.stdin.close()
    process.stdout.close()


def test_a_daemon_that_its_launcher_left_is_ended_with_the_command(tmp_path: Path) -> None:
    process = started(DAEMON.format(path=str(tmp_path / "pid"), then_s=0), name="nothing")
    assert process.stdin
    assert process.stdout
    pids = [int(text) for text in process.stdout.readline().split()]
    assert process.wait(20) == 0
    assert not any(is_alive(pid) for pid in pids)
    process.stdin.close()
    process.stdout.close()


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the kernel does not group processes by session"
)
def test_the_session_of_the_command_has_the_niceness_of_the_command() -> None:
    script = "print(open('/proc/self/autogroup').read(), flush=True)"
    command = ["nice", "-n", "7", *SUPERVISOR, "1", "nothing", "-", sys.executable, "-S", "-c", script]
    done = subprocess.run(
        command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=20, check=True
    )
    niceness = 7 + os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split()[1:] == ["nice", str(niceness)]


def test_what_a_killed_server_left_in_shared_memory_goes_after_it(tmp_path: Path) -> None:
    left = Path("/dev/shm", f"{squall.actors.process.supervisor.region_prefix(str(tmp_path))}stub_0")
    script = f"import time; open({str(left)!r}, 'w').close(); print(1, flush=True); time.sleep(300)"
    process = started(script, "none", folder=str(tmp_path))
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "1\n"
    assert left.exists()
    process.stdin.close()
    process.wait(20)
    process.stdout.close()
    assert not left.exists()


def test_servers_of_this_machine_are_found_with_their_start(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    before = squall.actors.process.supervisor._server_starts(tmp_path)
    now_s = time.time()
    with subprocess.Popen([program, "300"]) as process:
        try:
            new = list(squall.actors.process.supervisor._server_starts(tmp_path))
        finally:
            process.kill()
    for one in before:
        new.remove(one)
    assert [abs(one - now_s) < squall.actors.process.supervisor._WITHIN_S for one in new] == [True]


def test_a_wait_for_the_end_of_processes_reaps_children_and_has_a_deadline() -> None:
    with subprocess.Popen(["sleep", "300"]) as ends, subprocess.Popen(["sleep", "300"]) as stays:
        try:
            ends.kill()
            wait_for_their_end([psutil.Process(ends.pid)], 20)
            assert not psutil.pid_exists(ends.pid)
            wait_for_their_end([psutil.Process(stays.pid)], 0.1)
            assert psutil.pid_exists(stays.pid)
        finally:
            stays.kill()


def test_semaphores_of_nsys_go_with_the_processes_that_it_observed(tmp_path: Path) -> None:
    """Not that of a process that lives, nor one that is older than the server; nor, yet, a young one of a process that
    may live where it is not seen: nsys makes it before the process opens it, and a server that finds none ends."""
    with subprocess.Popen(["true"]) as ended, subprocess.Popen(["true"]) as unknown:
        ended.wait()
        unknown.wait()
    now_s = time.time()
    own, living, old, young, opened = (
        tmp_path / f"sem.nsys_sem_{number}"
        for number in (ended.pid, os.getpid(), 2**22 + 1, unknown.pid, 2**22 + 2)
    )
    for path, age_s in ((own, 0), (living, 0), (old, 90), (young, 0), (opened, 40)):
        path.touch()
        os.utime(path, (now_s - age_s, now_s - age_s))
    squall.actors.process.supervisor.remove_leftovers(
        str(tmp_path), now_s - 60, tmp_path, tmp_path, {ended.pid}
    )
    assert [path.exists() for path in (own, living, old, young, opened)] == [False, True, True, True, False]


def test_what_a_process_started_is_ended_while_only_its_first_thread_has_ended() -> None:
    process = started(
        "import ctypes, os, subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n",
        name="none",
    )
    assert process.stdin
    assert process.stdout
    own, child = map(int, process.stdout.readline().split())
    deadline = time.monotonic() + 20
    while is_alive(own):  # a zombie by its first thread
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert Path(f"/proc/{own}/task").exists()
    process.stdin.close()
    process.stdout.close()
    process.wait(20)
    assert not is_alive(child)
    wait_for_their_end([psutil.Process(own)] if psutil.pid_exists(own) else [], 5.0)
    assert not psutil.pid_exists(own)
