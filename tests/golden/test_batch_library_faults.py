"""What stands in the way of the batch library never does of the server; and the library under sanitizers."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing, RecordedBatch, rings
from tests.integration.disks import fill, small_disk
from tests.reporting import LIBRARY_SOURCE, ReportingServer, Told, batches_of, compiled, reporting_server
from tests.sanitize import compiler

ONE = ("member", 0, 1, 10, 20, 30, 40, "a", "batch", 0, 1, 10, 20, 30, 40)
ALL_OF_ONE = Told(members=1, failed=0, batches=1, rows=1, errors=0, deleted=0)


def assert_off(server: ReportingServer, folder: Path, why: str) -> None:
    """The server went on without the library, which said so once and left nothing."""
    before = set(folder.iterdir()) if folder.is_dir() else set()
    told, words = server.run_and_hear(folder, *ONE, *ONE)
    assert (told.members, told.batches) == (2, 2)
    assert words == f"squall: batches are not recorded: {folder}: {why}\n"
    assert (set(folder.iterdir()) if folder.is_dir() else set()) == before


def test_a_full_disk_leaves_the_server_running(server: ReportingServer, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        fill(disk)
        assert_off(server, disk, "No space left on device")


def test_a_disk_that_fills_up_later_takes_nothing_from_the_ring(
    server: ReportingServer, tmp_path: Path
) -> None:
    """Its room is reserved at its start: a write into the mapping of a full disk would end the server."""
    with small_disk(tmp_path / "disk", "12m") as disk:
        with server.started(disk, *ONE, "say", "first", "wait", "load", 2, 20_000, 5) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"first\n"
            fill(disk)
            out, _ = process.communicate(b"\n", timeout=60)
        assert (process.returncode, out.split()[0]) == (0, b"told")
        with contextlib.closing(BatchRing(*rings(disk))) as ring:
            assert len(batches_of(ring.drain(), tmp_path)) + ring.lost() == 40_001


def test_a_limit_of_the_size_of_files_leaves_the_server_running(
    server: ReportingServer, tmp_path: Path
) -> None:
    """A file grown beyond it would end the server by a signal."""
    limit = 1 << 20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [server.program, *map(str, ONE)], env=server.environment(tmp_path), preexec_fn=limited,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "told 1 0 1 1 0 0\n")
    assert done.stderr == f"squall: batches are not recorded: {tmp_path}: File too large\n"
    assert not list(tmp_path.iterdir())


def test_a_limit_of_memory_leaves_the_server_running(server: ReportingServer, tmp_path: Path) -> None:
    environment = {"SQUALL_BATCHES_BYTES": str(1 << 28)}

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 27, 1 << 27))

    with small_disk(tmp_path / "disk", "300m") as disk:
        done = subprocess.run(
            [server.program, *map(str, ONE)], env=server.environment(disk, **environment),
            preexec_fn=limited, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "told 1 0 1 1 0 0\n")
        assert done.stderr == f"squall: batches are not recorded: {disk}: Cannot allocate memory\n"
        assert not list(disk.iterdir())


def test_a_folder_that_is_none_leaves_the_server_running(server: ReportingServer, tmp_path: Path) -> None:
    assert_off(server, tmp_path / "nowhere", "No such file or directory")
    (tmp_path / "file").touch()
    assert_off(server, tmp_path / "file", "Not a directory")


def test_a_folder_that_takes_no_file_leaves_the_server_running(
    server: ReportingServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "12m", "ro") as disk:
        assert_off(server, disk, "Read-only file system")


# The library, and the server that reports, built with a sanitizer: any fault it sees ends the server with a word.

SCRIPTS = {
    "threads": ("load", 8, 400, 20, "thread", *ONE[:8], "join", "late"),
    "full ring": ("load", 4, 4000, 3),
    "long ids": (*(("member", 0, 1, 1, 2, 3, 4, "x" * 65_536) * 1200)[: 8 * 12], "batch", 0, 12, 1, 2, 3, 4),
    "nothing said": ("member", 3, "0x", 1, 2, 3, 4, "", "batch", 4, 1, 1, 2, 3, 4),
    "fork": (*ONE, "forever", 3, 5, *(("fork", *ONE, "end") * 3), *ONE),
}


def runtime(name: str) -> str:
    """The path of a sanitizer's library; empty where the compiler has none."""
    found = subprocess.run(
        [compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=False
    )
    return str(Path(found.stdout.strip()).resolve()) if found.stdout.startswith("/") else ""


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReportingServer:
    """A server under sanitizers, whose own library must be there before anything that is preloaded."""
    if not compiler():
        pytest.skip("no C compiler is here (Debian: gcc)")
    name = {"thread": "libtsan.so"}.get(request.param, "libasan.so")
    library = runtime(name)
    if not library:
        pytest.skip(f"the compiler has no {name} (Debian: gcc)")
    folder = tmp_path_factory.mktemp("watched")
    flags = (
        "-O1",
        "-g",
        f"-fsanitize={request.param}",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    )
    server = replace(reporting_server(folder, *flags), preloaded_before=library)
    probe = subprocess.run([server.program], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"{name} does not run here: {probe.stderr.strip().splitlines()[0]}")
    return server


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_sanitizers_see_no_fault_in_the_library(
    watched: ReportingServer, tmp_path: Path, script: Sequence[object]
) -> None:
    of_children = "detect_leaks=0"  # threads of the parent, and all that they had, are not there to be ended
    environment = {"SQUALL_BATCHES_BYTES": "100000"} | (
        {"ASAN_OPTIONS": of_children} if "fork" in script else {}
    )
    told, words = watched.run_and_hear(tmp_path, *script, *ONE, **environment)
    assert words == ""
    assert told.batches > 0
    for batch in drained(tmp_path):
        assert batch.n_requests >= len(batch.request_ids)


def drained(folder: Path) -> Iterator[RecordedBatch]:
    """Of all rings in `folder`; there is one at least."""
    paths = rings(folder)
    assert paths
    for path in paths:
        with contextlib.closing(BatchRing(path)) as ring:
            batches = batches_of(ring.drain(), folder)
        for batch in batches:
            assert isinstance(batch, RecordedBatch)
            yield batch


def test_a_sanitizer_sees_a_fault_that_is_there(watched: ReportingServer, tmp_path: Path) -> None:
    """Else the tests above could not fail: a library that forgets its mutex, and one that reads behind an id."""
    source = LIBRARY_SOURCE.read_text()
    is_thread = "tsan" in watched.preloaded_before
    right, wrong = (
        ("pthread_mutex_lock(&ring.mutex);\n  if (make_ready()) {", "if (make_ready()) {") if is_thread
        else ("uint32_t n = (uint32_t)strnlen(text, NAME_BYTES);", "uint32_t n = NAME_BYTES;")
    )  # fmt: skip
    assert source.count(right) == 1
    (tmp_path / "batches.c").write_text(source.replace(right, wrong))
    flag = "-fsanitize=thread" if is_thread else "-fsanitize=address"
    library = compiled(
        [tmp_path / "batches.c"], tmp_path / "faulty.so", "-shared", "-fPIC", "-g", "-O1", flag,
        "-fvisibility=hidden", f"-I{LIBRARY_SOURCE.parent}",
    )  # fmt: skip
    faulty = replace(watched, library=library)
    with faulty.started(tmp_path, "load", 4, 500, 3) as process:
        _, words = process.communicate(timeout=120)
    assert process.returncode != 0
    assert b"WARNING: ThreadSanitizer" in words or b"ERROR: AddressSanitizer" in words
    assert os.path.basename(library).encode() in words or b"batches.c" in words
