"""The hook for Python models in a process that calls a model as Triton does, against the reader of its ring."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import resource
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from squall.actors.inject.batch_ring import BatchRing, RecordedBatch, rings
from squall.cluster.node.injected.batch_rings import BatchRings, taken_files
from squall.cluster.node.injected.effect import held_rings, injected
from squall.cluster.node.injected.ring_folder import hold_all
from squall.models.repository import HOOK_FILE, hook_source
from tests.reporting import ReportingServer, batches_of, recorded, reporting_server

ID_BYTES = 128
"""Of a request id that the ring holds."""
SOURCE = Path(__file__).parents[2] / "models" / "backend" / HOOK_FILE
ARGS = {
    "model_config": json.dumps({"max_batch_size": 8}), "model_instance_kind": "GPU", "model_instance_device_id": "1",
    "model_instance_name": "echo_0_1", "model_name": "echo", "model_version": "3",
}  # fmt: skip


@dataclass
class Tensor:
    dims: Sequence[int]

    def shape(self) -> list[int]:
        return list(self.dims)

    def as_numpy(self) -> Any:
        raise AssertionError("a tensor was copied")


@dataclass
class Request:
    """As Triton's, as far as the hook may look."""

    name: Any = ""
    dims: Sequence[int] = (1, 4)
    others: Sequence[Tensor] = ()

    def request_id(self) -> Any:
        if isinstance(self.name, Exception):
            raise self.name
        return self.name

    def inputs(self) -> list[Tensor]:
        return [Tensor(self.dims), *self.others] if self.dims else []


@dataclass
class Model:
    does: Callable[[list[Request]], Any] = lambda requests: [f"answer {one.name}" for one in requests]
    seen: list[list[Request]] = field(default_factory=list)

    def execute(self, requests: list[Request]) -> Any:
        self.seen.append(requests)
        return self.does(requests)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As a model that stands beside the file imports it; its environment names no folder."""
    monkeypatch.delenv("SQUALL_BATCHES", raising=False)
    spec = importlib.util.spec_from_file_location("squall_batches", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: ModuleType) -> Path:
    """Of the rings, as the environment names it."""
    del hook
    (tmp_path / "rings").mkdir()
    monkeypatch.setenv("SQUALL_BATCHES", str(tmp_path / "rings"))
    return tmp_path / "rings"


def recording(hook: ModuleType, model: Model | None = None, **args: str) -> Model:
    """The model after its initialize."""
    model = model or Model()
    hook.record(model, ARGS | args)
    return model


def test_every_field_of_a_batch_is_recorded_but_for_the_instants_that_nobody_tells(
    hook: ModuleType, folder: Path
) -> None:
    model = recording(hook)
    before_ns = time.monotonic_ns()
    requests = [Request("a", (3, 4), [Tensor((9, 9))]), Request("", (2, 4)), Request("c" * 36)]
    assert model.execute(requests) == ["answer a", "answer ", f"answer {'c' * 36}"]
    after_ns = time.monotonic_ns()
    (found,) = recorded(folder)
    assert before_ns <= found.compute_start_ns <= found.compute_end_ns <= after_ns
    assert found == RecordedBatch(
        pid=os.getpid(), thread=threading.get_native_id(), model="echo", version=3, instance="echo_0_1", device=1,
        start_ns=0, compute_start_ns=found.compute_start_ns, compute_end_ns=found.compute_end_ns, end_ns=0, rows=6,
        n_requests=3, n_failed=0, request_ids=(b"a", b"", b"c" * 36), writer="hook",
    )  # fmt: skip


def test_a_ring_is_there_from_initialize_on_for_this_user_alone(hook: ModuleType, folder: Path) -> None:
    old = os.umask(0)
    try:
        recording(hook)
    finally:
        os.umask(old)
    (path,) = rings(folder)
    assert path.name.startswith(f"batches-{os.getpid()}-")
    assert len(path.stem.split("-")[2]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [path]
    with closing(BatchRing(path)) as ring:
        assert (ring.pid, ring.writer, ring.lost(), ring.drain()) == (os.getpid(), "hook", 0, b"")
    assert path in held_rings([os.getpid()])
    found = injected([os.getpid()])
    assert folder in found.folders, "and those of the tests before"
    assert found.writer == "hook"


@pytest.mark.parametrize(
    ("config", "dims", "rows"),
    [
        ({"max_batch_size": 8}, (5, 2), 5),
        ({"max_batch_size": 8}, (), 1),
        ({"max_batch_size": 0}, (5, 2), 1),
        ({}, (5,), 1),
    ],
)
def test_rows_are_the_first_dimension_of_the_first_input_of_a_model_that_batches(
    hook: ModuleType, folder: Path, config: dict[str, int], dims: Sequence[int], rows: int
) -> None:
    model = recording(hook, model_config=json.dumps(config), model_instance_kind="CPU")
    model.execute([Request("a", dims)])
    (found,) = recorded(folder)
    assert (found.rows, found.device) == (rows, -1)


HOSTILE: list[tuple[Any, bytes]] = [
    ("x" * (64 << 10), b"x" * ID_BYTES),
    ("é" * 100, ("é" * 64).encode()),
    ("a" + "é" * 100, ("a" + "é" * 64).encode()[:ID_BYTES]),
    ("a\0b\n", b"a\0b\n"),
    ("\ud800", b"?"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no start"), b""),
    (None, b""),
]


def test_ids_of_every_kind_are_cut_and_none_is_an_error(hook: ModuleType, folder: Path) -> None:
    model = recording(hook)
    model.execute([Request(name) for name, _ in HOSTILE])
    (found,) = recorded(folder)
    assert found.request_ids == tuple(cut for _, cut in HOSTILE)


def test_ids_that_find_no_room_in_a_record_are_counted(hook: ModuleType, folder: Path) -> None:
    model = recording(hook, model_name="m" * 300)
    model.execute([Request("x" * ID_BYTES)] * 5000)
    (found,) = recorded(folder)
    assert (found.n_requests, found.rows, found.model) == (5000, 5000, "m" * 256)
    assert 900 < len(found.request_ids) < 1010


def test_what_raises_is_a_batch_of_failures_and_is_the_models_own(hook: ModuleType, folder: Path) -> None:
    error = KeyError("theirs")

    def fail(requests: list[Request]) -> None:
        requests.clear()
        raise error

    model = recording(hook, Model(fail))
    with pytest.raises(KeyError) as told:
        model.execute([Request("a"), Request("b")])
    assert told.value is error
    (found,) = recorded(folder)
    assert (found.n_requests, found.n_failed, found.request_ids) == (2, 2, (b"a", b"b"))


def test_an_execute_that_is_awaited_is_recorded_until_it_has_answered(hook: ModuleType, folder: Path) -> None:
    async def answer(requests: list[Request]) -> list[str]:
        await asyncio.sleep(0.02)
        if requests[0].name == "bad":
            raise ValueError("theirs")
        return ["done"]

    model = recording(hook, Model(answer))

    async def both() -> list[Any]:
        calls = [model.execute([Request("good")]), model.execute([Request("bad")])]
        assert all(map(asyncio.iscoroutine, calls)), "as Triton asks"
        return await asyncio.gather(*calls, return_exceptions=True)

    good, bad = asyncio.run(both())
    assert good == ["done"]
    assert isinstance(bad, ValueError)
    found = recorded(folder)
    assert {(one.request_ids, one.n_failed) for one in found} == {((b"good",), 0), ((b"bad",), 1)}
    assert all(one.compute_end_ns - one.compute_start_ns > 15_000_000 for one in found)


def test_a_ring_that_nobody_empties_counts_what_it_cannot_take_and_goes_on_when_it_is_emptied(
    hook: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_BATCHES_BYTES", "1")
    model = recording(hook)
    n_all = 1000
    for i in range(n_all):
        model.execute([Request(f"{i:08d}")])
    (path,) = rings(folder)
    assert path.stat().st_size == 4096 + 65_536, "the least that there is"
    with closing(BatchRing(path)) as ring:
        first = [one for one in batches_of(ring.drain(), folder.parent) if isinstance(one, RecordedBatch)]
        assert [one.request_ids[0] for one in first] == [b"%08d" % i for i in range(len(first))]
        assert ring.lost() == n_all - len(first) > 0
        taken: list[Any] = []
        for i in range(5 * len(first)):
            model.execute([Request(f"{i:08d}")])
            if i % 50 == 0:
                taken += batches_of(ring.drain(), folder.parent)
        taken += batches_of(ring.drain(), folder.parent)
        assert [one.request_ids[0] for one in taken] == [b"%08d" % i for i in range(5 * len(first))]
        assert ring.lost() == n_all - len(first)


@pytest.mark.parametrize("position", [2**63, 5])
def test_a_reader_that_writes_nonsense_costs_records_alone(
    hook: ModuleType, folder: Path, position: int
) -> None:
    model = recording(hook)
    (path,) = rings(folder)
    with path.open("r+b") as file:
        file.seek(128)
        file.write(struct.pack("<Q", position))
    assert model.execute([Request("a")]) == ["answer a"]
    (lost,) = struct.unpack("<Q", path.read_bytes()[72:80])
    assert lost == 1


def test_threads_of_a_process_write_whole_records(hook: ModuleType, folder: Path) -> None:
    model = recording(hook)
    threads = [
        threading.Thread(target=lambda k=k: [model.execute([Request(f"{k}:{i}")]) for i in range(300)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [one.request_ids[0] for one in recorded(folder)]
    assert sorted(names) == sorted(b"%d:%d" % (k, i) for k in range(4) for i in range(300))


def test_a_fork_records_into_a_ring_of_its_own(hook: ModuleType, folder: Path) -> None:
    model = recording(hook)
    model.execute([Request("parent")])
    pid = os.fork()
    if not pid:
        model.execute([Request("child")])
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    model.execute([Request("parent")])
    found: dict[int, list[Any]] = {}
    for path in rings(folder):
        with closing(BatchRing(path)) as ring:
            found[ring.pid] = batches_of(ring.drain(), folder.parent)
    assert {one: [batch.request_ids for batch in batches] for one, batches in found.items()} == {
        os.getpid(): [(b"parent",)] * 2,
        pid: [(b"child",)],
    }
    assert {batch.pid for batch in found[pid]} == {pid}


def test_a_process_that_is_killed_leaves_whole_records(folder: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(SOURCE.parent)!r})
from squall_batches import record
class Tensor:
    def shape(self): return [1]
class Request:
    def request_id(self): return "r"
    def inputs(self): return [Tensor()]
class Model:
    def execute(self, requests): return requests
model = Model()
record(model, {ARGS!r})
for turn in range(10**9):
    model.execute([Request()] * 3)
    if turn == 9:
        print("begun", flush=True)
"""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02)
            process.kill()
        (path,) = rings(folder)
        found = recorded(folder)
        assert found
        assert {one.request_ids for one in found} == {(b"r",) * 3}
        path.unlink()


def test_without_a_folder_the_model_is_left_as_it_is(
    hook: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    model = recording(hook)
    assert "execute" not in vars(model)
    assert capfd.readouterr().err == ""


@pytest.fixture
def short_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("short_files")
def test_a_file_that_may_not_grow_so_large_is_one_line(
    hook: ModuleType, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert recording(hook).execute([Request("a")]) == ["answer a"]
    assert capfd.readouterr().err == f"squall: batches are not recorded: {folder}: File too large\n"
    assert list(folder.iterdir()) == []


def test_what_cannot_be_recorded_is_one_line_and_the_model_serves_on(
    hook: ModuleType, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Model()
    hook.record(odd, {})
    assert "execute" not in vars(odd)
    hook.record(object(), ARGS)
    assert len(capfd.readouterr().err.splitlines()) == 2
    broken = recording(hook)
    monkeypatch.setattr(Request, "inputs", lambda _: 1 / 0)
    for _ in range(3):
        assert broken.execute([Request("a")]) == ["answer a"]
    assert capfd.readouterr().err == "squall: batches are not recorded: division by zero\n"
    monkeypatch.setenv("SQUALL_BATCHES", str(folder / "gone"))
    recording(hook)
    told = f"squall: batches are not recorded: {folder / 'gone'}: No such file or directory\n"
    assert capfd.readouterr().err == told


def test_a_second_record_of_a_model_is_none(hook: ModuleType, folder: Path) -> None:
    model = recording(hook)
    recording(hook, model)
    model.execute([Request("a")])
    assert len(recorded(folder)) == 1


def test_the_printed_file_has_its_folder_in_it_which_a_variable_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: ModuleType
) -> None:
    del hook  # for its environment
    odd = tmp_path / "with 'quotes'"
    odd.mkdir()
    names: dict[str, Any] = {}
    exec(compile(hook_source(odd), HOOK_FILE, "exec"), names)
    names["record"](Model(), ARGS)
    assert len(rings(odd)) == 1
    monkeypatch.setenv("SQUALL_BATCHES", str(tmp_path))
    names["record"](Model(), ARGS)
    assert (len(rings(odd)), len(rings(tmp_path))) == (1, 1)


def test_the_file_is_python_of_3_8_and_imports_the_standard_library_alone() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ReportingServer:
    return reporting_server(tmp_path_factory.mktemp("server"))


LIBRARYS = ["member", 0, 1, 10, 20, 30, 40, "000000000001", "batch", 0, 1, 10, 20, 30, 40]


def test_where_the_library_records_too_the_hook_is_left_unread_and_that_is_noted(
    hook: ModuleType, folder: Path, server: ReportingServer, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    for _ in range(2):
        recording(hook).execute([Request("000000000001")])
    server.run(folder, *LIBRARYS)
    taking = BatchRings(hold_all([folder], "batches"), tmp_path / "server")
    assert taking.writer == "library"
    assert taking.stop() == []
    assert taking.notes == ["batches: the hook in 2 processes is left unread: the batch library has them too"]
    (only,) = taken_files(tmp_path / "server")
    assert {
        one.writer for one in batches_of(only.read_bytes(), tmp_path) if isinstance(one, RecordedBatch)
    } == {"library"}


def test_rings_that_are_another_servers_are_not_taken(hook: ModuleType, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    recording(hook).execute([Request("000000000001")])
    (ours,) = rings(folder)
    recording(hook).execute([Request("000000000002")])
    taking = BatchRings(hold_all([folder], "batches"), tmp_path / "server", is_ours=lambda ring: ring == ours)
    assert (taking.writer, taking.stop(), taking.notes) == ("hook", [], [])
    (only,) = taken_files(tmp_path / "server")
    assert [
        one.request_ids for one in batches_of(only.read_bytes(), tmp_path) if isinstance(one, RecordedBatch)
    ] == [(b"000000000001",)]
