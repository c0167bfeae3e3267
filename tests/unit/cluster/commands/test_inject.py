"""What `squall inject` prints for a server that somebody else starts."""

from __future__ import annotations

import shlex
import stat
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

import squall.actors.inject.library
from squall.cluster.cli import app
from squall.cluster.commands.inject import Form, snippet
from squall.models.repository import hook_source
from squall.scenarios.errors import TargetError

ENVIRONMENT = {"LD_PRELOAD": "/lib/batches.so:/lib/malloc.so", "SQUALL_BATCHES": "/dev/shm/b"}


def inject(*words: object) -> Result:
    return CliRunner().invoke(app, ["inject", *map(str, words)])


def printed(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    return dict(line.split("=", 1) for line in result.output.splitlines())


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "_batches.so"
    path.touch()
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", tmp_path)
    for name in ("LD_PRELOAD", "SQUALL_CUPTI"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def kernel_library(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Beside the other one; there is a CUPTI that the environment names."""
    path = library.with_name("_kernels.so")
    path.touch()
    monkeypatch.setenv("SQUALL_CUPTI", "/cuda/libcupti.so.13")
    return path


def test_two_variables_and_a_folder_for_this_user_alone(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    assert printed(inject("--folder", folder)) == {"LD_PRELOAD": str(library), "SQUALL_BATCHES": str(folder)}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert printed(inject("--folder", folder))["SQUALL_BATCHES"] == str(folder), "it may be there"


def test_kernels_have_variables_of_their_own_and_a_folder_within(
    kernel_library: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "rings"
    found = printed(inject("--folder", folder))
    assert {name: found[name] for name in sorted(found) if name not in ("LD_PRELOAD", "SQUALL_BATCHES")} == {
        "CUDA_INJECTION64_PATH": str(kernel_library),
        "SQUALL_CUPTI": "/cuda/libcupti.so.13",
        "SQUALL_KERNELS": str(folder / "kernels"),
        "SQUALL_KERNEL_KINDS": "kernels,copies",
    }
    assert stat.S_IMODE((folder / "kernels").stat().st_mode) == 0o700
    assert printed(inject("--folder", folder)) == found, "it may be there"


def test_a_container_sees_every_file_that_a_variable_names(kernel_library: Path, tmp_path: Path) -> None:
    words = shlex.split(inject("--folder", tmp_path / "rings", "--as", "docker").output.replace("\\\n", " "))
    mounts = [after for word, after in pairwise(words) if word == "--volume"]
    rings = tmp_path / "rings"
    libraries = kernel_library.with_name("_batches.so"), kernel_library, "/cuda/libcupti.so.13"
    assert mounts == [*(f"{path}:{path}:ro" for path in libraries), f"{rings}:{rings}"]
    pod = yaml.safe_load(inject("--folder", rings, "--as", "kubernetes").output)
    (container,) = pod["containers"]
    names = {one["name"]: one["value"] for one in container["env"]}
    at = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert at == {one["name"]: one["hostPath"]["path"] for one in pod["volumes"]}
    assert set(at.values()) == {
        names[name] for name in ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "SQUALL_CUPTI", "SQUALL_BATCHES")
    }


def test_without_a_folder_each_call_makes_a_new_one(library: Path) -> None:
    folders = [Path(printed(inject())["SQUALL_BATCHES"]) for _ in range(2)]
    try:
        assert folders[0] != folders[1]
        assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in folders)
        assert library.exists()
    finally:
        for folder in folders:
            folder.rmdir()


def test_what_is_preloaded_in_this_shell_stays(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/malloc.so")
    assert printed(inject("--folder", tmp_path))["LD_PRELOAD"] == f"{library}:/lib/malloc.so"
    assert "malloc" not in inject("--folder", tmp_path, "--as", "docker").output, "nor is it in a container"


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a:b"])
@pytest.mark.usefixtures("library")
def test_a_folder_that_a_shell_would_split_is_refused(tmp_path: Path, name: str) -> None:
    result = inject("--folder", tmp_path / name)
    assert isinstance(result.exception, TargetError)
    assert "use a path without blanks" in str(result.exception)


@pytest.mark.usefixtures("library")
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(inject("--folder", tmp_path / "file").exception, TargetError)


def test_without_the_library_there_is_nothing_to_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", tmp_path)
    result = inject("--folder", tmp_path)
    assert isinstance(result.exception, TargetError)
    assert "was not built" in str(result.exception)


def test_docker_sees_library_and_folder_under_their_own_names() -> None:
    words = shlex.split(snippet(Form.DOCKER, ENVIRONMENT).replace("\\\n", " "))
    assert words == [
        "--network", "host", "--volume", "/lib/batches.so:/lib/batches.so:ro", "--volume", "/dev/shm/b:/dev/shm/b",
        "--env", "LD_PRELOAD=/lib/batches.so:/lib/malloc.so", "--env", "SQUALL_BATCHES=/dev/shm/b",
    ]  # fmt: skip


def test_a_pod_has_the_variables_and_mounts_what_they_name() -> None:
    pod = yaml.safe_load(snippet(Form.KUBERNETES, ENVIRONMENT))
    (container,) = pod["containers"]
    assert {one["name"]: one["value"] for one in container["env"]} == ENVIRONMENT
    at = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert at == {one["name"]: one["hostPath"]["path"] for one in pod["volumes"]}
    assert set(at.values()) == {"/lib/batches.so", "/dev/shm/b"}


def test_a_unit_has_a_line_for_each_variable() -> None:
    assert snippet(Form.SYSTEMD, ENVIRONMENT).splitlines() == [
        "[Service]",
        "Environment=LD_PRELOAD=/lib/batches.so:/lib/malloc.so",
        "Environment=SQUALL_BATCHES=/dev/shm/b",
    ]


def test_a_python_model_gets_a_file_with_the_folder_in_it_also_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", tmp_path)
    result = inject("--folder", tmp_path / "rings", "--as", "python")
    assert result.exit_code == 0, result.output
    assert result.output == hook_source(tmp_path / "rings")
    names: dict[str, object] = {"__name__": "squall_batches"}
    exec(result.output, names)
    assert names["FOLDER"] == str(tmp_path / "rings")
    assert stat.S_IMODE((tmp_path / "rings").stat().st_mode) == 0o700
