"""The place of one run: folders, and as root a mount namespace with small disks of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from squall.cluster.node.triton_home import cache_dir

ROOT = Path(__file__).parents[2]
_SHM_BYTES = 400 * 2**20
_OUT_BYTES = 64 * 2**20
_SCRATCH_BYTES = 256 * 2**20
_ROOM_BYTES = 64 * 2**20
"""What a control group may take beyond what the run has when it is filled."""

_BEYOND_BYTES = 8 * 2**20
"""What is asked for beyond that, so that the kernel has to choose whom to kill."""


def in_own_mounts() -> bool:
    """Whether this process can mount without anybody else's seeing it: `enter_own_mounts` came before."""
    return os.environ.get("SQUALL_FAULT_MOUNTS") == str(os.getpid())


def enter_own_mounts(module: str, arguments: Sequence[str]) -> None:
    """Begins again in a mount namespace of its own, where the system lets it; does nothing where not."""
    command = ["unshare", "--mount", "--propagation", "private"]
    if in_own_mounts() or os.geteuid() != 0 or shutil.which("unshare") is None:
        return
    probe = "mount -t tmpfs -o size=1m tmpfs /mnt"
    if subprocess.run([*command, "sh", "-c", probe], capture_output=True, check=False).returncode:
        return
    os.environ["SQUALL_FAULT_MOUNTS"] = str(os.getpid())  # exec keeps the pid
    os.execvp("unshare", [*command, sys.executable, "-m", module, *arguments])


def _can_hide_tmp() -> bool:
    """Whether nothing that a run needs lies below /tmp."""
    needed = [ROOT, cache_dir(), *map(Path, (sys.prefix, sys.base_prefix, *sys.path))]
    return not any(path.resolve().is_relative_to("/tmp") for path in needed)


@dataclass
class Place:
    """`folder` takes all; what a run sees as `seen_root` is `root` here. Made by `make`, ended by `remove`.

    `tmp`: the run's TMPDIR, below `root` where the run has a /tmp of its own; else right below /tmp, since the paths of
    Ray's sockets, which lie in it, have 107 bytes at most.
    """

    folder: Path
    root: Path
    seen_root: Path
    tmp: Path
    has_mounts: bool
    mounted: list[Path] = field(default_factory=list)
    group: Path | None = None
    keeper: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, folder: Path, small: str) -> Place:
        """`small`: the subject whose disk is to be a small one of its own."""
        has_mounts = in_own_mounts()
        root = folder / "root"
        hides = has_mounts and _can_hide_tmp()
        root.mkdir(parents=True)
        tmp = root / "t" if hides else Path(tempfile.mkdtemp(prefix="sq", dir="/tmp"))
        place = cls(folder, root, Path("/tmp") if hides else root, tmp, has_mounts)
        for path in (place.tmp, place.out, place.shm):
            path.mkdir(exist_ok=True)
        root.chmod(0o1777)
        if has_mounts:
            place._mount(place.shm, _SHM_BYTES)
            if small == "output disk":
                place._mount(place.out, _OUT_BYTES)
            if small == "scratch disk":
                place._mount(place.tmp, _SCRATCH_BYTES)
            if small == "control group's memory":
                place.group = _make_group(folder.parent.name)
            place._keep_mounts()
        return place

    @property
    def out(self) -> Path:
        """Takes the run directory."""
        return self.root / "out"

    @property
    def shm(self) -> Path:
        """The run's /dev/shm, where it has its own."""
        return self.folder / "shm"

    def seen(self, path: Path) -> Path:
        """What the run calls it."""
        return self.seen_root / path.relative_to(self.root) if path.is_relative_to(self.root) else path

    def command(self, words: Sequence[str]) -> list[str]:
        """`words` run in this place, all in one mount namespace, with the folder `ROOT` as theirs."""
        if self.keeper is None:
            return list(words)
        steps = [f"cd {shlex.quote(str(ROOT))}"]
        if self.group is not None:
            steps.append(f"echo $$ > {self.group}/cgroup.procs")
        script = " && ".join([*steps, 'exec "$0" "$@"'])
        return ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "sh", "-c", script, *words]

    def _keep_mounts(self) -> None:
        """Makes the namespace, which a process that sleeps keeps."""
        steps = [f"mount --bind {shlex.quote(str(self.shm))} /dev/shm"]
        if self.seen_root != self.root:
            steps.append(f"mount --rbind {shlex.quote(str(self.root))} /tmp")
        script = " && ".join([*steps, "echo ready", "exec sleep infinity"])
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.keeper.stdout is not None
        if self.keeper.stdout.readline() != b"ready\n":
            raise OSError("the mounts of a run could not be made")

    def _mount(self, folder: Path, n_bytes: int) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={n_bytes},mode=1777", "tmpfs", str(folder)], check=True
        )
        self.mounted.append(folder)

    def remove(self) -> None:
        """Unmounts and removes all."""
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.communicate()
        for folder in self.mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.rmdir()
        for folder in (self.tmp, self.folder):
            shutil.rmtree(folder, ignore_errors=True)


def fill(folder: Path) -> Path:
    """Takes all the space that is left in the file system of `folder`, a small one; returns what takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


def _make_group(name: str) -> Path | None:
    """A control group below this process's, with the memory controller; None where that cannot be had."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        lines = [line.strip().split(":", 2) for line in file]
    own = {kinds: path for _, kinds, path in lines}
    base = Path("/sys/fs/cgroup")
    above = (
        base / "memory" / own["memory"].lstrip("/") if "memory" in own else base / own.get("", "").lstrip("/")
    )
    group = above / f"squall-faults-{os.getpid()}-{name}"
    try:
        group.mkdir()
    except OSError:
        return None
    if _limit_file(group) is None:
        group.rmdir()
        return None
    return group


def _limit_file(group: Path) -> Path | None:
    found = (group / name for name in ("memory.max", "memory.limit_in_bytes"))
    return next((path for path in found if path.exists()), None)


_HOG = """
import sys
open("/proc/self/oom_score_adj", "w").write("-1000")
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
held = bytearray(int(sys.argv[2]))
held[::4096] = b"x" * len(held[::4096])
sys.stdin.read()
"""


def fill_group(group: Path) -> subprocess.Popen[bytes]:
    """Limits the group to what it has and a little, and takes that with a process that the kernel does not choose."""
    limit = _limit_file(group)
    assert limit is not None
    usage = group / ("memory.current" if limit.name == "memory.max" else "memory.usage_in_bytes")
    limit.write_text(str(int(usage.read_text()) + _ROOM_BYTES))
    return subprocess.Popen(
        [sys.executable, "-c", _HOG, str(group), str(_ROOM_BYTES + _BEYOND_BYTES)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
