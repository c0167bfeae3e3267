"""Mutated manifests and object keys, given to the commands that read runs, while the kernel watches what lies around.

    python -m tests.hostile_fuzz NUMBER [SEED]

Everything happens in a mount namespace of its own: only one file system, made for it, can be written there.

    runs/RUN     the run directory, mutated: the only place that may be read and written
    runs/…       other runs, and all else in this picture: decoys, watched by inotify
    outside/     what hostile names lead to: files of a user
    tmp/         TMPDIR, with the scratch folder of another run
    home/        HOME

Printed is one JSON object: how many were refused and went on, and what was seen: events at decoys, and errors that are
none of ours.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

MARK = "SQUALL_FUZZ_ROOT"
_MASKS = {
    "read": 0x1, "changed": 0x2, "attributes": 0x4, "opened": 0x20, "moved": 0xC0, "made": 0x100, "removed": 0x600,
}  # fmt: skip
_WRITES = 0x2 | 0x4 | 0xC0 | 0x100 | 0x600
_NONBLOCK = os.O_NONBLOCK | os.O_CLOEXEC
_ISDIR = 0x4000_0000
_EVENT = struct.Struct("iIII")
_SLOW_EVERY = 40
"""Of mutations, one goes through whole commands."""


class Watch:
    """What happens to folders, files in them, and theirs below, by inotify."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_NONBLOCK)
        self._paths: dict[int, Path] = {}

    def add(self, folder: Path, mask: int) -> None:
        for path in [folder, *(one for one in folder.rglob("*") if one.is_dir())]:
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
            if number < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            self._paths[number] = path

    def add_one(self, folder: Path, mask: int) -> None:
        """Of the folder alone."""
        self._paths[self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)] = folder

    def events(self) -> list[str]:
        """Since the last call, a line each."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, 1 << 16):
                at = 0
                while at < len(data):
                    number, mask, _, length = _EVENT.unpack_from(data, at)
                    name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
                    at += _EVENT.size + length
                    what = "+".join(word for word, bit in _MASKS.items() if mask & bit)
                    found.append(f"{what} {self._paths.get(number, '?')}/{name}")
        return found


def sample_of(rng: Random, root: Path) -> Any:
    """A value that leads away, or is of no kind that is expected."""
    names = [
        str(root / "outside"), str(root / "outside" / "keys" / "authorized_keys"),
        str(root / "tmp" / "squall-tmp-other"), str(root / "home"), str(root / "runs"), str(root / "runs" / "other"),
        "..", ".", "/", "", "../other", "../../outside", "../../outside/keys/authorized_keys", "../" * 9 + "etc/passwd",
        "tables/../../other/manifest.json", "tables/requests/../../../../outside/keys/authorized_keys",
        "summary.json", "manifest.json", "tables/requests", "a\x00b", "a\nb", "a\\b", "x" * 5_000, "*", "[a-z]*",
        "\x1b]0;x\x07", "s3://bucket/prefix", "s3:/bucket", "file:///etc/passwd", "\ud800", "node-0/../..",
        "~/x", "-rf",
    ]  # fmt: skip
    others: list[Any] = [
        None,
        True,
        -1,
        0,
        2**63,
        10**30,
        1e308,
        0.5,
        [],
        {},
        ["../x"],
        {"../x": "../y"},
        [[[]]],
    ]
    return rng.choice(names) if rng.random() < 0.75 else copy.deepcopy(rng.choice(others))


def places_of(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values of a document, those in it among them."""
    if path:
        yield path
    pairs = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in pairs:
        yield from places_of(value, (*path, key))


def mutated(document: dict[str, Any], rng: Random, root: Path) -> tuple[dict[str, Any], str]:
    """With one to three places of another value or name, half of them where names of files and folders stand; and what
    that was."""
    result, told = copy.deepcopy(document), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(places_of(result))
        chance = rng.random()
        if chance < 0.2:
            places = [one for one in places if _ELSEWHERE & {*map(str, one)}] or places
        elif chance < 0.6:
            places = [one for one in places if _NAMING & {*map(str, one)}] or places
        *way, last = rng.choice(places)
        inside: Any = result
        for key in way:
            inside = inside[key]
        value = sample_of(rng, root)
        if isinstance(inside, dict) and rng.random() < 0.4:  # another name for what stands there
            inside[value if isinstance(value, str) else str(value)] = inside.pop(last)
        else:
            inside[last] = value
        told.append(f"{'.'.join(map(str, (*way, last)))[:200]} → {str(value)[:200]!r}")
    return result, "; ".join(told)


_NAMING = {
    "run", "unfinished", "folders", "folder", "copied_to", "tables", "files", "path", "node", "nodes", "servers",
    "fetched", "run_dir", "phases", "name", "workers", "data",
}  # fmt: skip


_ELSEWHERE = {"unfinished", "copied_to", "folder"}


def bases(root: Path) -> list[Path]:
    """Runs whose manifests are mutated: sealed, unfinished, of a bucket, open."""
    from squall.analysis.storage.store import RunStore
    from squall.cluster.node.scratch import claim, this_place
    from tests.plain_runs import START_NS, plain_run

    second = 10**9
    rows = [
        {"request_id": i, "outcome": "ok", "phase": "m", "scheduled_ns": START_NS + i, "sent_ns": START_NS + i,
         "first_byte_ns": START_NS + i + 1, "done_ns": START_NS + i + 2, "rows": 1}
        for i in range(4)
    ]  # fmt: skip
    data = {"path": "x", "format": "json", "sha256": "0", "n_entries": 1}
    facts = {
        "start_ns": START_NS, "started_ns": START_NS, "node_starts_ns": {"node-0": 0}, "seed": 1,
        "phases": [{"name": "m", "kind": "measure", "start_ns": START_NS, "end_ns": START_NS + second}],
        "nodes": {"node-0": {"hostname": "h", "folder": str(root / "tmp" / "squall-tmp-own")}},
        "servers": {"server-0": {"node": "node-0", "model": "m", "version": "1"}},
        "workers": [{"worker": 0, "node": "node-0"}], "fetched": {"node-0": {}},
        "plan": {"load": "locust", "n_arrivals": 4}, "scenario": {"model": {"name": "m"}},
        "data": data, "data_by_model": {"m": data},
    }  # fmt: skip
    made = root / "made"
    sealed = plain_run(made / "sealed", {"requests": rows, "windows": [{}]}, **facts)
    scratch = root / "tmp" / "squall-tmp-own"
    scratch.mkdir(mode=0o700)
    (scratch / "spill").mkdir()
    claim(scratch, sealed.run, "node-0", str(root / "runs" / "run"), this_place())
    document = json.loads((sealed.run_dir / "manifest.json").read_text())
    (root / "made" / "unfinished").mkdir()
    unfinished = made / "unfinished" / "run"
    shutil.copytree(sealed.run_dir, unfinished)
    folders = {"node-0": str(scratch), "node-1": str(root / "tmp" / "squall-tmp-gone")}
    (unfinished / "manifest.json").write_text(
        json.dumps({**document, "unfinished": {"folders": folders, "why": dict.fromkeys(folders, "x")}})
    )
    bucket = made / "bucket"
    shutil.copytree(sealed.run_dir, bucket)
    (bucket / "manifest.json").write_text(json.dumps({**document, "copied_to": "s3://bucket/prefix/run"}))
    opened = made / "open"
    shutil.copytree(sealed.run_dir, opened)
    left_out = ("tables", "verdict")
    bare = {key: value for key, value in document.items() if key not in left_out} | {"state": "open"}
    (opened / "manifest.json").write_text(json.dumps(bare))
    assert RunStore.open(opened).manifest.state == "open"
    return [sealed.run_dir, unfinished, bucket, opened]


_DECOYS = (
    "outside/x", "outside/keys/authorized_keys", "home/.bashrc", "runs/other/manifest.json", "runs/other/log",
    "runs/other/tables/requests/part-00000.parquet", "outside/squall-tmp-x/spill/requests-0.arrows",
    "tmp/squall-tmp-other/spill/requests-0.arrows",
)  # fmt: skip


def decoys(root: Path) -> None:
    """Files of a user, another run, and what looks as squall's own folders do but is another run's."""
    from squall.cluster.node.scratch import claim, this_place

    for name in _DECOYS:
        (root / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / name).write_text("of a user")
    (root / "tmp" / "squall-tmp-other").chmod(0o700)
    claim(root / "tmp" / "squall-tmp-other", "other", "node-0", str(root / "runs" / "other"), this_place())


def looks(where: str) -> None:
    """What every command does first, and what may be written of a run without its rows being read."""
    from squall.analysis.storage.intact import require_intact
    from squall.analysis.storage.schema import TABLES
    from squall.analysis.storage.store import RunStore

    store = RunStore.open(where)
    for table in TABLES:
        store.parts(table)
        if store.has(table):
            store.read(table)
    store.folder("nsys")
    store.has_file("summary.json")
    require_intact(store, derived_too=True)
    if store.is_sealed:
        store.verify()
        store.replace_derived("windows", TABLES["windows"].arrow().empty_table())
        store.write_text("report.html", "x")


def gathers(where: str) -> None:
    """`squall resume` until its rows are read."""
    from squall.analysis.storage.home import bring_home, home_of, send_away
    from squall.analysis.storage.store import RunStore
    from squall.cluster.driver.resume import _Resuming
    from squall.cluster.progress import Screen

    here = home_of(where).resolve()
    bring_home(where, here)
    store = RunStore.open(here)
    if not store.is_sealed or store.manifest.unfinished is not None:
        _Resuming(store, Screen()).look()
    send_away(store, "")


@cache
def _command_line() -> Any:
    """Made once: it is of all commands, and each file that is tried is given to one."""
    from typer.main import get_command

    from squall.cluster.cli import app

    return get_command(app)


def command(*words: str) -> Callable[[str], None]:
    """A whole command, as it is typed."""

    def call(where: str) -> None:
        from click.exceptions import Exit

        with contextlib.suppress(Exit, SystemExit):
            _command_line().main([*words, where], standalone_mode=False)

    return call


COMMANDS = [command(one) for one in ("analyze", "report", "resume")]


class Bucket(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Objects under `bucket/run`, whatever their keys are."""

    objects: dict[str, bytes]

    def get_type_name(self) -> str:
        return "bucket"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info_selector(self, _selector: Any) -> list[pafs.FileInfo]:
        kind = pafs.FileType.File
        return [pafs.FileInfo(f"bucket/run/{key}", kind, size=len(of)) for key, of in self.objects.items()]

    def open_input_file(self, path: str) -> pa.PythonFile:
        try:
            return pa.PythonFile(pa.BufferReader(self.objects[path.removeprefix("bucket/run/")]), mode="r")
        except KeyError:
            raise FileNotFoundError(path) from None

    def open_output_stream(self, _path: str, _metadata: Any) -> pa.PythonFile:
        return pa.PythonFile(pa.BufferOutputStream(), mode="w")


for _name in pafs.FileSystemHandler.__abstractmethods__ - {*vars(Bucket)}:
    setattr(Bucket, _name, None)
Bucket.__abstractmethods__ = frozenset()


class Fuzz:
    """One after the other, each against a run that is whole again."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = Random(seed)
        self.run_dir = root / "runs" / "run"
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.watch = Watch()

    def watch_decoys(self) -> None:
        self.watch.add(self.root / "outside", sum(_MASKS.values()))
        self.watch.add(self.root / "home", sum(_MASKS.values()))
        self.watch.add(self.root / "runs" / "other", sum(_MASKS.values()))
        self.watch.add(
            self.root / "tmp" / "squall-tmp-other", _WRITES
        )  # who looks for folders reads whose it is
        self.watch.add_one(self.root, _WRITES)

    def put(self, base: Path, content: bytes) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)
        shutil.copytree(base, self.run_dir)
        (self.run_dir / "manifest.json").write_bytes(content)

    def call(self, action: Callable[[str], None], where: str, told: object) -> None:
        from squall.scenarios.errors import SquallError

        try:
            action(where)
            self.seen["went on"] += 1
        except SquallError as error:
            self.seen["refused"] += 1
            if len(str(error).splitlines()) != 1:
                self.faults.append(f"{told}: more than a line: {error!r}")
        except BaseException:  # a fault of ours, whatever it is
            self.faults.append(f"{told}: {traceback.format_exc(limit=-4)}")
        if events := self.watch.events():
            self.faults.append(f"{told}: {events[:6]}")

    def manifests(self, n: int) -> None:
        all_bases = bases(self.root)
        documents = [json.loads((base / "manifest.json").read_text()) for base in all_bases]
        decoys(self.root)
        self.watch_decoys()
        for i in range(n):
            number = self.rng.randrange(len(all_bases))
            document, told = mutated(documents[number], self.rng, self.root)
            actions: list[Callable[[str], None]] = [looks, gathers]
            if i % _SLOW_EVERY == 0:
                actions = [self.rng.choice(COMMANDS)]
            for action in actions:
                self.put(all_bases[number], json.dumps(document).encode())
                self.call(action, str(self.run_dir), f"{all_bases[number].name}: {told}")

    def keys(self, n: int) -> None:
        from squall.analysis.storage import object_folder

        bucket = Bucket()
        object_folder._file_system = lambda: pafs.PyFileSystem(bucket)  # type: ignore[assignment]  # once a process
        base = next((self.root / "made" / "sealed").iterdir())
        whole = {
            path.relative_to(base).as_posix(): path.read_bytes() for path in base.rglob("*") if path.is_file()
        }
        document = json.loads(whole["manifest.json"])
        for _ in range(n):
            objects = dict(whole)
            for _ in range(self.rng.choice((1, 1, 2))):
                key = self.rng.choice(list(objects))
                value = sample_of(self.rng, self.root)
                objects[value if isinstance(value, str) else f"nsys/{value}/../../x"] = objects.pop(key)
            if self.rng.random() < 0.5:
                objects["manifest.json"] = json.dumps(mutated(document, self.rng, self.root)[0]).encode()
            bucket.objects = {key.encode("utf-8", "replace").decode(): of for key, of in objects.items()}
            for action in (looks, gathers):
                self.call(action, "s3://bucket/run", list(bucket.objects)[-3:])
                brought = list((self.root / "work" / "runs").iterdir())
                if strange := [path.name for path in brought if not path.is_dir()]:
                    self.faults.append(f"{list(bucket.objects)[-3:]}: brought {strange}")
                for path in brought:
                    subprocess.run(["rm", "-rf", str(path)], check=True)

    def is_untouched(self) -> None:
        """Beside the events: decoys are what they were, and nothing is there that was not."""
        for name in _DECOYS:
            if not (self.root / name).is_file() or (self.root / name).read_text() != "of a user":
                self.faults.append(f"{name} has changed")
        around = {path.name for path in self.root.iterdir()} | {
            path.name for path in (self.root / "runs").iterdir()
        }
        if extra := around - {"outside", "home", "runs", "tmp", "made", "work", "other", "run"}:
            self.faults.append(f"made: {sorted(extra)}")


def main() -> None:
    """In the namespace: all is read only but the file system at `MARK`."""
    n, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    if MARK not in os.environ:
        sys.exit(_in_namespace())
    root = Path(os.environ[MARK])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", "/"], check=True)
    for name in ("runs", "tmp", "work/runs"):
        (root / name).mkdir(parents=True)
    os.environ.update(HOME=str(root / "home"), TMPDIR=str(root / "tmp"))
    tempfile.tempdir = None
    os.chdir(root / "work")
    fuzz = Fuzz(root, seed)
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stderr(nothing),
        contextlib.redirect_stdout(nothing),
    ):
        fuzz.manifests(n)
        fuzz.keys(n)
    fuzz.is_untouched()
    print(json.dumps({"n": 2 * n, **fuzz.seen, "n_faults": len(fuzz.faults), "faults": fuzz.faults[:10]}))


def _in_namespace() -> int:
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    with tempfile.TemporaryDirectory(prefix="squall-fuzz-") as root:
        inside = [sys.executable, "-m", "tests.hostile_fuzz", *sys.argv[1:]]
        words = ["unshare", *own, "--mount", "--propagation", "private", *inside]
        environment = {**os.environ, MARK: root, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
