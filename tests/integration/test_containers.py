"""A server that squall starts in a container has both libraries: batches and kernels are those of its processes, known
by their numbers outside. Where its loader cannot take them it serves all the same, and that is said."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.batch_ring import BatchRing, rings
from squall.actors.inject.library import built_library
from squall.actors.process.namespaces import mapper_of
from squall.cluster.node.injected.effect import why_silent
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.loader import scenario_from_mapping
from tests.integration.containers import IMAGE, Kind, podman
from tests.integration.cuda_models import N_KERNELS, write_cuda_model
from tests.integration.foreign_models import write_model
from tests.integration.live_runs import Bench
from tests.integration.test_foreign_batches import assert_all_joined, finish, rows_of, scenario
from tests.integration.test_python_hook import hook_into
from tests.kernel_hosts import built
from tests.reporting import SHARED, compiled

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(
        built_library("batches") is None or built_library("kernels") is None,
        reason="a library was not built: no C compiler",
    ),
]


def in_container(mapping: dict[str, Any]) -> dict[str, Any]:
    return mapping | {"server": {"image": IMAGE, "runtime": "podman"}}


def path_with(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("namespaces", marks=pytest.mark.long), "podman"])
def test_batches_of_a_server_in_a_container_are_recorded_as_of_any_other(
    alone: Bench, tmp_path: Path, kind: Kind
) -> None:
    environment = path_with(podman(tmp_path / "podman", kind))
    models = tmp_path / "models"
    write_model(models, "plain", n_instances=2, sleep_s=0.01)
    mapping = in_container(scenario(models, "plain", batches="required"))
    store, _, _ = finish(alone, mapping, env=environment)
    assert_all_joined(store, "plain")
    assert store.manifest.servers["server-0"].source == "container"
    assert store.manifest.collectors["batches"].how == "by the batch library in the server"
    names = {one.name for one in store.manifest.servers["server-0"].scheduling.processes}
    assert names == {"tritonserver", "triton_python_b"}, "known by their numbers outside"
    assert not [note for note in store.manifest.losses if note.startswith("batches")]
    alone.wait_until_gone()


@pytest.mark.slow
def test_kernels_of_a_server_in_a_container_are_recorded_and_its_processes_known(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as told:  # the container has the host's
        write_cuda_model(models, "cuda", Path(told) / "told", n_instances=2)
        environment = path_with(podman(tmp_path / "podman", "namespaces"))
        environment["SQUALL_CUPTI"] = str(built(tmp_path / "built").fake)
        profile = {"batches": "required", "kernels": "required", "duty": "whole"}
        mapping = in_container(scenario(models, "cuda", rate_hz=80, **profile))
        store, _, _ = finish(alone, mapping, env=environment)
        inside = {int(path.name) for path in (Path(told) / "told").iterdir()}
    facts = store.manifest.kernels
    assert facts is not None
    known = {one.process for one in facts.processes if "kernels recording (" in one.status}
    assert len(inside) == 2 <= len(known), "Triton itself may use CUDA too"
    assert not known & inside, "a container numbers from 1"
    assert {f"process {one.process}" for one in facts.processes} == {
        one.status.partition(":")[0] for one in facts.processes
    }
    assert not [loss for loss in facts.losses if "gone" in loss or "answer" in loss]
    n_ok = sum(row["outcome"] == "ok" for row in rows_of(store, "requests"))
    kernels = rows_of(store, "kernels")
    models_own = {row["process"] for row in kernels}
    assert len(models_own) == 2
    assert models_own <= known
    assert sum(row["batch_id"] is not None for row in kernels) > 0.8 * N_KERNELS * n_ok


@contextlib.contextmanager
def started(
    folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TritonServer, Path]]:
    """A server in a container that is to preload `library`, when it is ready; and the folder of its rings."""
    monkeypatch.setenv("PATH", path_with(podman(folder / "podman", "namespaces"))["PATH"])
    if not (folder / "models").exists():
        write_model(folder / "models", "plain")
    found = scenario_from_mapping(in_container(scenario(folder / "models", "plain")), "test")
    (folder / "server").mkdir()
    (folder / "rings").mkdir()
    injected = {"LD_PRELOAD": str(library), "SQUALL_BATCHES": str(folder / "rings")}
    server = TritonServer(
        [found.models[0].model], found.server, folder / "server", None, has_gpu=False, injected=injected
    )
    try:
        server.start()
        yield server, folder / "rings"
    finally:
        server.stop()


def test_a_ring_of_a_container_is_its_process_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = built_library("batches")
    assert library is not None
    with started(tmp_path, library, monkeypatch) as (server, folder):
        assert (server.refusal, why_silent(folder, "")) == (None, None)
        (path,) = rings(folder)
        with contextlib.closing(BatchRing(path)) as ring:
            pid = mapper_of(path, ring.pid)
        assert pid in server.pids()
        assert pid != ring.pid
        assert Path(f"/proc/{pid}/comm").read_text() == "tritonserver\n"


def test_a_library_that_cannot_be_opened_leaves_the_server_as_it_is_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "_batches.so"
    library.write_text("no library")
    with started(tmp_path, library, monkeypatch) as (server, folder):
        assert server.refusal is None
        assert why_silent(folder, server.log_text()) == (
            "object '/squall/_batches.so' from LD_PRELOAD cannot be preloaded (file too short): ignored."
        )


def test_a_library_that_needs_a_newer_glibc_ends_every_program_so_the_server_is_started_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "models", "plain")
    hook_into(tmp_path / "models", "plain", tmp_path / "nowhere")
    with started(tmp_path, of_the_future(tmp_path / "built"), monkeypatch) as (server, folder):
        assert server.refusal is not None
        assert "version `GLIBC_2.99' not found (required by /squall/_batches.so)" in server.refusal
        assert server.is_running
        (path,) = rings(folder)
        with contextlib.closing(BatchRing(path)) as ring:
            assert ring.writer == "hook", "a model that has one still knows where to record"
            pid = mapper_of(path, ring.pid)
        assert pid in server.pids()
        assert Path(f"/proc/{pid}/comm").read_text() == "triton_python_b\n"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [pytest.param("auto", marks=pytest.mark.long), "required"])
def test_a_run_whose_container_refuses_the_library_says_so_or_ends_before_its_load(
    alone: Bench, tmp_path: Path, wanted: str
) -> None:
    library = of_the_future(tmp_path / "built")
    environment = path_with(podman(tmp_path / "podman", "namespaces", library))
    models = tmp_path / "models"
    write_model(models, "plain", sleep_s=0.005)
    live = alone.start_run(in_container(scenario(models, "plain", batches=wanted)), env=environment)
    reason = "version `GLIBC_2.99' not found (required by /squall/_batches.abi3.so)"
    if wanted == "required":
        assert live.end() == 1
        assert f"profile.batches is required, but {reason}" in live.error_line()
        alone.aborted()
    else:
        assert live.end() in (0, 3), live.lines
        store = alone.store()
        state = store.manifest.collectors["batches"]
        assert (state.status, state.reason) == ("missing", reason)
        assert not [loss for loss in store.manifest.losses if loss.startswith("batches")]
        assert {row["outcome"] for row in rows_of(store, "requests")} == {"ok"}
    alone.wait_until_gone()


def of_the_future(folder: Path) -> Path:
    """A library that needs a glibc that nobody has."""
    folder.mkdir()
    (folder / "libc.c").write_text("int squall_future(void) { return 0; }\n")
    (folder / "libc.map").write_text("GLIBC_2.99 { global: squall_future; };\n")
    (folder / "needs.c").write_text("int squall_future(void);\nint needs(void) { return squall_future(); }\n")
    versions = f"-Wl,--version-script={folder / 'libc.map'}"
    libc = compiled(
        [folder / "libc.c"], folder / "libc.so", *SHARED, "-nostdlib", "-Wl,-soname,libc.so.6", versions
    )
    return compiled(
        [folder / "needs.c", libc], folder / "_batches.so", *SHARED, "-nostdlib", "-Wl,--no-as-needed"
    )
