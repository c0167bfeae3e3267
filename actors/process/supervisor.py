"""Runs one command and leaves nothing of it behind, however the process that asked for it ends.

    python supervisor.py STOP_TIMEOUT_S NAME FOLDER COMMAND ...

Started with a pipe as stdin: when the pipe closes (the owner says stop, or died), the descendants called NAME get
SIGTERM, then, when they are gone or STOP_TIMEOUT_S is over, all that is left gets SIGTERM and SIGKILL. Daemonised
descendants come back to the supervisor (PR_SET_CHILD_SUBREAPER, prctl(2)); if it is killed itself, the kernel kills
the command (PR_SET_PDEATHSIG). FOLDER is the server's (`-`: none): what a killed one leaves elsewhere on the machine is
removed last. The exit code is the command's. Stdlib only: it runs by its path. Without COMMAND it is in the environment
(SQUALL_COMMAND, a JSON list): so who looks for the command's process by its words does not find these. Descriptors that
this process inherits the command has too.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_KILL_GRACE_S = 1.0
_REPORT_S = 60.0
_MEMORY = Path("/dev/shm")
_ENVIRONMENTS = Path("/tmp")
"""Where Triton's Python backend makes a folder `python_env_*`, whatever TMPDIR says."""
_NSYS_SEMAPHORE = "sem.nsys_sem_"
"""And the process's number."""
_SERVER = "tritonserver"
_STARTED = "started"
"""Of a server's folder: its time is that of the latest launch."""
_WITHIN_S = 2.0
"""What the start of a process is known to (/proc/stat has the boot to a second), and more."""
_OPENED_S = 30.0
"""After nsys made a semaphore its process has opened it: the name is no longer needed."""


def _set_up_child() -> None:
    """In the command's own session, whose niceness among sessions is that of the command (autogroups, sched(7))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness:
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write(str(niceness))


def descendants() -> dict[int, str]:
    """pid and command name of every living process below this one."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    text = stat.read()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            parents[int(entry)] = int(
                fields[1]
            )  # of a zombie too: its children are its own while a thread of it lives
            if fields[0] != "Z" or int(fields[17]) > 1:  # its first thread has ended, not all
                names[int(entry)] = name
    found: dict[int, str] = {}
    for pid in names:
        above = pid
        while above in parents:
            above = parents[above]
            if above == os.getpid():
                found[pid] = names[pid]
                break
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_until_gone(wanted: str | None, timeout_s: float) -> bool:
    """Waits for the descendants called `wanted` (None: all) to end; reaps what it can."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        is_gone = not any(wanted is None or name == wanted for name in descendants().values())
        with contextlib.suppress(
            ChildProcessError
        ):  # after the look: what has ended since is no more a zombie
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if is_gone:
            return True
        time.sleep(_POLL_S)
    return False


def _clean_up(name: str, stop_timeout_s: float) -> set[int]:
    """Ends every descendant; those that there were."""
    found = descendants()
    _signal([pid for pid, called in found.items() if called == name], signal.SIGTERM)
    _wait_until_gone(name, stop_timeout_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(list(descendants()), number)
        if _wait_until_gone(None, _KILL_GRACE_S):
            break
    return set(found)


def region_prefix(folder: str) -> str:
    """How the names of the Python backend's shared memory begin, of a server with that folder: its own on the node."""
    return f"squall-triton-{hashlib.sha256(folder.encode()).hexdigest()[:12]}-"


def remove_leftovers(
    folder: str,
    since_s: float | None = None,
    memory: Path = _MEMORY,
    environments: Path = _ENVIRONMENTS,
    ended: Collection[int] = (),
) -> None:
    """What a killed server with that folder left: its shared memory, 1 MiB an instance or more, nsys's semaphores of
    it, and the empty folders that were made since it was launched and that no server which lives can have made.

    `since_s`: of its launch, Unix seconds; None: as the folder says. `ended`: processes of it that are known to have
    ended.
    """
    for path in memory.glob(f"{region_prefix(folder)}*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            path.unlink()
    with contextlib.suppress(OSError):
        since_s = since_s or Path(folder, _STARTED).stat().st_mtime
        _remove_semaphores(memory, since_s, ended)
        starts = _server_starts(environments)
        for path in environments.glob("python_env_*"):
            with contextlib.suppress(OSError):  # gone meanwhile, or not empty
                found = path.lstat()
                is_recent = found.st_uid == os.getuid() and found.st_mtime >= since_s - _WITHIN_S
                if is_recent and all(start > found.st_mtime + _WITHIN_S for start in starts):
                    path.rmdir()


def _remove_semaphores(memory: Path, since_s: float, ended: Collection[int]) -> None:
    """Those that nsys has for each process it observes, of processes that have ended since.

    Who shares this memory may have processes that are not seen here, as a container has: what is not known to be of
    one of `ended` is left until such a process has opened it.
    """
    now_s, own = time.time(), {str(pid) for pid in ended}
    for path in memory.glob(f"{_NSYS_SEMAPHORE}*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            found = path.lstat()
            number = path.name.removeprefix(_NSYS_SEMAPHORE)
            is_ours = found.st_uid == os.getuid() and found.st_mtime >= since_s - _WITHIN_S
            is_opened = found.st_mtime < now_s - _OPENED_S or number in own
            if is_ours and is_opened and not Path("/proc", number).exists():
                path.unlink()


def _server_starts(environments: Path) -> list[float]:
    """When the servers that see that folder were started: Unix seconds."""
    here = environments.stat()
    found = []
    ticks = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", encoding="ascii") as file:
        boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
            there = os.stat(f"/proc/{entry}/root{environments}")
            if f"({_SERVER})" in stat and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                found.append(boot_s + int(stat.rpartition(")")[2].split()[19]) / ticks)
    return found


def main() -> int:
    """The process that its owner started only waits: who kills an owner may kill its children too, and what cleans up
    must outlive that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, through the pipe
    supervisor = os.fork()
    if supervisor:
        return os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    command = sys.argv[4:] or json.loads(os.environ.pop("SQUALL_COMMAND"))
    return _supervise(float(sys.argv[1]), sys.argv[2][:15], sys.argv[3], command)


def _supervise(stop_timeout_s: float, name: str, folder: str, command: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    since_s = time.time()
    if folder != "-":
        with contextlib.suppress(OSError):
            Path(folder, _STARTED).touch()
    command_process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=_set_up_child, start_new_session=True, close_fds=False
    )
    watch = os.pidfd_open(command_process.pid)
    ready, _, _ = select.select([0, watch], [], [])
    code = command_process.wait() if watch in ready else 0
    # a launcher (nsys) may end before what it launched
    own = {command_process.pid}
    while 0 not in ready and name in (living := descendants()).values():
        own |= living.keys()
        ready, _, _ = select.select([0], [], [], _POLL_S)
    # then nsys, if it recorded the server, writes its report
    deadline = time.monotonic() + _REPORT_S
    while 0 not in ready and "nsys" in descendants().values() and time.monotonic() < deadline:
        ready, _, _ = select.select([0], [], [], _POLL_S)
    own |= _clean_up(name, stop_timeout_s)
    if folder != "-":
        remove_leftovers(folder, since_s, ended=own)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
