"""One run of squall that meets one fault, and what was seen of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import yaml

from squall.actors.spill import read_spill
from squall.analysis.storage.store import RunStore
from squall.cluster.remote.session import LOCAL
from squall.scenarios.errors import SquallError
from tests.bench.fault_cells import DIES_OF, STOP_S, Cell
from tests.bench.fault_checks import Seen, Server
from tests.bench.fault_place import ROOT, Place, fill, fill_group
from tests.bench.fault_tree import Process, Tree, command_of, mount_space, process_of

_WARMUP_S, _LOAD_S, _DRAIN_S = 1.5, 6.0, 0.5
_INTO_S = {"warmup": 0.6, "load": 2.0}
"""How far into its phase the fault comes."""
_LINES = {
    "Ray starts": "starting Ray", "set-up": "starting Triton", "collecting": "collecting",
    "joining": "joining and judging",
}  # fmt: skip
_LIMIT_S = 60.0
"""What a run may take beyond its plan, from the fault to its end."""
_KILL_AFTER_S = 180.0
_REACH_S = 120.0
_GONE_S = 20.0
_SPARE_BYTES = 16 * 2**20
"""Of address space, where that is limited."""
_POLL_S = 0.05
_ASK_S = 0.5
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_HEAD = {
    "name": "linear_head",
    "max_batch_size": 16,
    "queue_delay": "1ms",
    "settings": {"width": 64, "layers": 2},
}


def scenario(load_s: float, warmup_s: float) -> dict[str, Any]:
    """Two workers against the embedded Triton; without nsys and NVML."""
    phases = [
        {"name": "warmup", "kind": "warmup", "duration": f"{warmup_s}s",
         "arrivals": {"kind": "poisson", "rate": "150/s"}},
        {"name": "load", "kind": "measure", "duration": f"{load_s}s",
         "arrivals": {"kind": "gamma", "rate": "300/s", "cv": 2}},
        {"name": "drain", "kind": "drain", "duration": f"{_DRAIN_S}s"},
    ]  # fmt: skip
    clients = {
        "workers_per_node": 2,
        "timeout": "2s",
        "try_first": False,
    }  # the server answers those of the load alone
    return {
        "name": "faults", "seed": 11, "model": _HEAD, "clients": clients, "phases": phases,
        "profile": {"nsys": "off", "nvml": "off"},
    }  # fmt: skip


@dataclass
class Command:
    """A squall that runs in a place: its lines on stderr as they come, and its processes."""

    place: Place
    process: subprocess.Popen[str]
    stdout: Path
    tree: Tree
    lines: list[str] = field(default_factory=list)
    news: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def start(cls, place: Place, *words: str) -> Command:
        """`squall WORDS` in a session of its own, as under a terminal."""
        program = [sys.executable, "-m", "squall.cluster.entry"]
        imports = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        stdout = place.folder / f"stdout-{time.monotonic_ns()}"
        hidden = {name for name in os.environ if name.startswith(("RAY_", "SQUALL_FAULT"))}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        with stdout.open("w") as file:
            process = subprocess.Popen(
                place.command([*program, *words]), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT, start_new_session=True,
                env={**environment, "TMPDIR": str(place.seen(place.tmp)), "PYTHONPATH": os.pathsep.join(imports)},
            )  # fmt: skip
        tree = Tree(process_of(process.pid), temporary="" if place.has_mounts else str(place.tmp))
        if place.keeper is not None:
            tree.space, tree.keeper = mount_space(place.keeper.pid), place.keeper.pid
        found = cls(place, process, stdout, tree)
        threading.Thread(target=found._read, daemon=True).start()
        return found

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                self.news.set()

    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self.process.poll() is not None

    def look(self) -> None:
        """Takes note of new processes."""
        self.tree.refresh()

    def has_said(self, text: str) -> bool:
        """Whether a line of progress holds `text`; the error at the end is none."""
        return any(text in line for line in list(self.lines) if not line.startswith("squall: "))


class Watch:
    """What only lives while the run does: spill and batch files, held open; the server's statistics."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._files: dict[tuple[int, int], tuple[Path, int]] = {}
        self._asked_s = 0.0
        self.n_succeeded: int | None = None

    def look(self, tree: Tree) -> None:
        """Once in a while."""
        for path in (path for root in {self._place.root, self._place.tmp} for path in _kept_open(root)):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if (stat.st_dev, stat.st_ino) not in self._files:
                    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    self._files[stat.st_dev, stat.st_ino] = (path, number)
        if time.monotonic() - self._asked_s > _ASK_S:
            self._asked_s = time.monotonic()
            self._ask(tree)

    def _ask(self, tree: Tree) -> None:
        for one in tree.having("tritonserver"):
            port = re.search(r"--http-port=(\d+)", command_of(one.pid))
            url = f"http://127.0.0.1:{port[1]}/v2/models/{_HEAD['name']}/stats" if port else ""
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                with _DIRECT.open(url, timeout=0.5) as reply:
                    stats = json.load(reply)["model_stats"][0]["inference_stats"]
                self.n_succeeded = int(stats["success"]["count"])

    def received(self) -> dict[int, str]:
        """Outcome by request id in the spill files, as far as they reach."""
        found: dict[int, str] = {}
        for data in self._contents(".arrows"):
            for table in read_spill(pa.BufferReader(data)):
                outcomes = table.column("outcome").cast(pa.string()).to_pylist()
                found.update(zip(table.column("request_id").to_pylist(), outcomes, strict=True))
        return found

    def server(self) -> Server:
        """Of all its lives."""
        executed: set[int] = set()
        n_lost = 0
        for data in self._contents(".jsonl"):
            for line in data.split(b"\n"):
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    executed.update(_ids(record.get("i", [])))
                    n_lost = max(n_lost, record.get("lost", 0))
        return Server(frozenset(executed), self.n_succeeded, n_lost == 0)

    def _contents(self, suffix: str) -> list[bytes]:
        found = []
        for path, number in self._files.values():
            if path.suffix == suffix:
                with os.fdopen(os.dup(number), "rb") as file:
                    file.seek(0)
                    found.append(file.read())
        return found

    def close(self) -> None:
        """Lets the files go."""
        for _, number in self._files.values():
            os.close(number)
        self._files.clear()


def _kept_open(root: Path) -> list[Path]:
    """Spill files of requests and batch records below `root`; folders come and go meanwhile."""
    found = []
    for folder, _, names in os.walk(root):
        is_batches = folder.endswith("/batches")
        found += [
            Path(folder, name)
            for name in names
            if (is_batches and name.endswith(".jsonl"))
            or (name.startswith("requests-") and name.endswith(".arrows"))
        ]
    return found


def _ids(texts: list[Any]) -> list[int]:
    """Those that are a plan's: a load worker sends its arrivals' numbers."""
    return [int(one) for one in texts if str(one).isdigit()]


@dataclass(frozen=True)
class Result:
    """`seen` is None where the fault could not be made: `why_not` says so, `is_our_fault` if it should have been."""

    cell: str
    seen: Seen | None
    why_not: str = ""
    is_our_fault: bool = False


def run_cell(cell: Cell, folder: Path, slack: float, with_next: bool) -> Result:
    """Makes the run, the fault, `squall resume` where it is called for, and a clean run after it, if asked."""
    if cell.needs_mounts:
        from tests.bench.fault_place import in_own_mounts

        if not in_own_mounts():
            return Result(cell.name, None, "needs root, to mount")
    place = Place.make(folder, cell.subject)
    try:
        if cell.subject == "control group's memory" and place.group is None:
            return Result(cell.name, None, "no control group with memory can be made here")
        return _Trial(cell, place, slack).go(with_next)
    finally:
        place.remove()


class _Trial:
    def __init__(self, cell: Cell, place: Place, slack: float) -> None:
        self._cell = cell
        self._place = place
        self._slack = slack
        self._watch = Watch(place)
        self._undo: list[Callable[[], object]] = []

    def go(self, with_next: bool) -> Result:
        cell, place = self._cell, self._place
        path = place.root / "s.yaml"
        path.write_text(yaml.safe_dump(scenario(_LOAD_S, _WARMUP_S)))
        ray = ["--ray", LOCAL] if cell.is_of_ray else []
        command = Command.start(
            place, "run", str(place.seen(path)), "--out", str(place.seen(place.out)), *ray
        )
        try:
            why_not = self._reach(command)
            if why_not:
                is_ours = not command.is_over() or "not there" not in why_not
                return Result(cell.name, None, why_not, is_ours)
            struck_s = time.monotonic()
            code = self._end(command, struck_s)
            seconds = time.monotonic() - struck_s
            running = self._left(command)
            command.tree.kill()
            for undo in self._undo:
                undo()
            return Result(cell.name, self._judge(command, code, seconds, running, with_next))
        finally:
            command.tree.kill()
            self._watch.close()

    def _reach(self, command: Command) -> str:
        """Waits for the stage and does it; why that could not be done, "" if it was."""
        deadline = time.monotonic() + _REACH_S * self._slack
        begun_s = float("inf")  # mounts are made first
        while time.monotonic() < deadline:
            command.look()
            if "cluster." in command_of(command.process.pid):
                begun_s = min(begun_s, time.monotonic())
            if self._is_at_stage(command, time.monotonic() - begun_s) and self._strike(command):
                return ""
            if command.is_over():
                return f"{self._cell.subject} was not there at this stage"
            self._watch.look(command.tree)
            command.news.wait(_POLL_S if self._cell.stage[-1] != "s" else 0.005)
            command.news.clear()
        return "the stage was not reached"

    def _is_at_stage(self, command: Command, age_s: float) -> bool:
        stage = self._cell.stage
        if stage.endswith(" s"):
            return age_s >= float(stage[:-2])
        if stage == "exit":
            return command.stdout.stat().st_size > 0
        if stage in _LINES:
            return command.has_said(_LINES[stage])
        start_ns = next(
            (one["start_ns"] for one in self._manifest().get("phases", []) if one["name"] == stage), None
        )
        return start_ns is not None and time.time_ns() > start_ns + _INTO_S[stage] * 1e9

    def _manifest(self) -> dict[str, Any]:
        for path in self._place.out.glob("*/manifest.json"):
            with contextlib.suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(path.read_text())
                return found
        return {}

    def _strike(self, command: Command) -> bool:
        """False where what is to be struck is not there (yet)."""
        cell, place = self._cell, self._place
        if cell.how == "SIGINT":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.process.pid, signal.SIGINT)
            return True
        if cell.how == "happens":
            return True
        if cell.how == "delete":
            for path in place.tmp.iterdir():
                shutil.rmtree(path, ignore_errors=True)
            return True
        if cell.how == "fill":
            self._fill()
            return True
        found = command.tree.having(cell.subject.removeprefix("memory of "))
        if not found:
            return False
        victim = found[-1] if cell.subject == "stub" else found[0]
        try:
            self._strike_at(victim)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False
        return True

    def _strike_at(self, victim: Process) -> None:
        if self._cell.how == "limit":
            process = psutil.Process(victim.pid)
            n_bytes = process.memory_info().vms + _SPARE_BYTES
            process.rlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
            return
        os.kill(victim.pid, signal.SIGKILL if self._cell.how == "kill" else signal.SIGSTOP)
        if self._cell.how == "stop":
            timer = threading.Timer(STOP_S, _go_on, [victim])
            timer.daemon = True
            timer.start()

    def _fill(self) -> None:
        place, subject = self._place, self._cell.subject
        if subject == "control group's memory":
            assert place.group is not None
            hog = fill_group(place.group)
            self._undo += [hog.kill, hog.wait]
            return
        filler = fill({"output disk": place.out, "scratch disk": place.tmp, "/dev/shm": place.shm}[subject])
        self._undo.append(lambda: filler.unlink(missing_ok=True))

    def _end(self, command: Command, struck_s: float) -> int | None:
        """The exit code; None where it had to be killed."""
        while time.monotonic() < struck_s + _KILL_AFTER_S * self._slack:
            code = command.process.poll()
            if code is not None:
                return code
            command.look()
            self._watch.look(command.tree)
            time.sleep(_POLL_S)
        return None

    def _left(self, command: Command) -> tuple[str, ...]:
        """What still runs a while after its end."""
        deadline = time.monotonic() + _GONE_S * self._slack
        while True:
            command.look()
            self._watch.look(command.tree)
            left = command.tree.alive()
            if not left or time.monotonic() > deadline:
                return tuple(command.tree.describe(one) for one in left)
            time.sleep(_POLL_S)

    def _judge(
        self, command: Command, code: int | None, seconds: float, running: tuple[str, ...], with_next: bool
    ) -> Seen:
        cell, place = self._cell, self._place
        said = [*command.lines]
        # by the kernel or in a library, for want of memory
        is_killed = cell.is_driver_killed or code == -signal.SIGKILL or code in DIES_OF & cell.codes
        folders = [path for path in place.out.iterdir() if path.is_dir()]
        manifest = self._manifest()
        is_whole = manifest.get("state") == "sealed" and not manifest.get("unfinished")
        if folders and not (is_whole and all("squall resume" not in line for line in said)):
            self._finish("resume", folders[0], said)
        elif folders and is_killed and not (folders[0] / "summary.json").exists():
            self._finish("analyze", folders[0], said)
        lying = () if is_killed else self._lying(said)
        received, server = self._watch.received(), self._watch.server()  # it will see the next run's too
        if cell.subject == "scratch disk":
            server = replace(server, has_all_records=False)  # where they lie: nor is there room to say so
        next_run = self._next_run(said, {path.name for path in folders}) if with_next else ""
        if is_killed and with_next:
            lying = self._lying(said)
        manifest = self._run_manifest(folders)
        return Seen(
            code=code, codes=cell.codes, stderr=tuple(said), stdout=command.stdout.read_text(), seconds=seconds,
            limit_s=(_WARMUP_S + _LOAD_S + _DRAIN_S + _LIMIT_S) * self._slack,
            n_planned=int(manifest.get("plan", {}).get("n_arrivals", 0)), has_begun="start_ns" in manifest,
            state=str(manifest.get("state", "")), status=str(manifest.get("verdict", {}).get("status", "")),
            rows=_rows(folders), received=received, server=server, running=running,
            lying=lying, next_run=next_run, is_driver_killed=is_killed,
            tracebacks="\n".join(path.read_text() for path in place.tmp.glob("squall-error-*.txt")),
        )  # fmt: skip

    def _run_manifest(self, folders: list[Path]) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found: dict[str, Any] = json.loads((folders[0] / "manifest.json").read_text())
            return found
        return {}

    def _finish(self, word: str, run_dir: Path, said: list[str]) -> None:
        """`squall resume` or `analyze`; what it says counts as said by the run, but for errors."""
        command = Command.start(self._place, word, str(self._place.seen(run_dir)))
        try:
            self._end(command, time.monotonic())
            self._left(command)
        finally:
            command.tree.kill()
        if command.process.returncode != 2:
            said += [line for line in command.lines if not line.startswith("squall: ")]

    def _next_run(self, said: list[str], known: set[str]) -> str:
        """Why a clean run in the same place did not work."""
        place = self._place
        path = place.root / "next.yaml"
        path.write_text(yaml.safe_dump(scenario(1.0, 0.5)))
        command = Command.start(place, "run", str(place.seen(path)), "--out", str(place.seen(place.out)))
        try:
            code = self._end(command, time.monotonic())
            left = self._left(command)
        finally:
            command.tree.kill()
        new = [folder for folder in place.out.iterdir() if folder.is_dir() and folder.name not in known]
        rows = _rows(new) or ()
        n_ok = sum(outcome == "ok" for _, outcome in rows)
        if code not in (0, 3) or not n_ok or n_ok < len(rows):
            return f"exit {code}, {n_ok} of {len(rows)} ok: {(command.lines or [''])[-1][:120]}"
        found = self._lying(said)
        return (
            f"left {', '.join((*left, *found))}"
            if left or (found and not self._cell.is_driver_killed)
            else ""
        )

    def _lying(self, said: list[str]) -> tuple[str, ...]:
        """What lies where it should not, and no message names."""
        place = self._place
        left = [
            *place.tmp.iterdir(),
            *(path for path in place.root.iterdir() if path not in (place.tmp, place.out)),
        ]
        for pattern in (".scratch-*", ".spill-*", ".new-*", ".old-*", ".reserve", "tables/*/*.open"):
            left += place.out.glob(f"*/{pattern}")
        named = "\n".join(said)
        found = [str(place.seen(path)) for path in left if path.suffix != ".yaml"]
        found = [path for path in found if path not in named]
        if place.has_mounts:
            found += [f"/dev/shm/{path.name}" for path in place.shm.iterdir()]
        return tuple(found)


def _rows(folders: list[Path]) -> tuple[tuple[int, str], ...] | None:
    """Request id and outcome of each row of the first of `folders`; None without that table."""
    try:
        table = RunStore.open(folders[0]).read("requests", ["request_id", "outcome"])
    except (SquallError, IndexError):
        return None
    outcomes = table.column("outcome").cast(pa.string()).to_pylist()
    return tuple(zip(table.column("request_id").to_pylist(), outcomes, strict=True))


def _go_on(process: Process) -> None:
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
