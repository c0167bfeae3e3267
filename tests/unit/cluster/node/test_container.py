"""The command that starts a server in a container, with what libraries of ours need and the host's tools do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from squall.cluster.node.container import container_command, find_runtime, loader_refusal
from squall.scenarios.errors import TargetError

INJECTED = {
    "LD_PRELOAD": "/site/actors/_batches.so", "SQUALL_BATCHES": "/dev/shm/r",
    "CUDA_INJECTION64_PATH": "/site/actors/_kernels.so", "SQUALL_KERNELS": "/dev/shm/k",
    "SQUALL_KERNEL_KINDS": "kernels,copies", "SQUALL_CUPTI": "/cuda/lib64/libcupti.so.13",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH, empty; and an image that says nothing of itself."""
    monkeypatch.setenv("PATH", str(tmp_path))
    say(monkeypatch, None)
    return tmp_path


def say(monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    """What `image inspect` prints; None: there is no such image."""

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert words[1:] == ["image", "inspect", "--format", "{{json .Config.Env}}", "triton:25.01"]
        if told is None:
            raise subprocess.CalledProcessError(125, words)
        return subprocess.CompletedProcess(words, 0, told, "")

    monkeypatch.setattr(subprocess, "run", run)


def runtime(folder: Path, name: str) -> str:
    program = folder / name
    program.touch(0o755)
    return name


def command(name: str, injected: dict[str, str], has_gpu: bool = False) -> list[str]:
    return container_command(name, "triton:25.01", ["/m:/m:ro", "/b:/b"], injected, has_gpu, ["--x"])


def test_docker_goes_before_podman_unless_one_is_named(path: Path) -> None:
    with pytest.raises(TargetError, match="neither docker nor podman is not on the PATH"):
        find_runtime(None)
    runtime(path, "podman")
    assert find_runtime(None) == "podman"
    runtime(path, "docker")
    assert find_runtime(None) == "docker"
    assert find_runtime("podman") == "podman"
    (path / "podman").unlink()
    with pytest.raises(TargetError, match="podman is not on the PATH"):
        find_runtime("podman")


def test_without_libraries_a_container_has_its_volumes_and_options_alone(path: Path) -> None:
    assert command(runtime(path, "podman"), {}, has_gpu=True) == [
        "podman", "run", "--rm", "--network=host", "--ipc=host", "--volume=/m:/m:ro", "--volume=/b:/b",
        "triton:25.01", "tritonserver", "--x",
    ]  # fmt: skip
    assert "--gpus=all" in command(runtime(path, "docker"), {}, has_gpu=True)
    assert "--gpus=all" not in command("docker", {})


def test_a_container_has_the_variables_what_they_name_and_no_pids_of_the_host(path: Path) -> None:
    words = command(runtime(path, "docker"), INJECTED)
    at = words.index("triton:25.01")
    assert [word for word in words[:at] if word.startswith("--volume")][2:] == [
        "--volume=/site/actors/_batches.so:/squall/_batches.so:ro",
        "--volume=/site/actors/_kernels.so:/squall/_kernels.so:ro",
        "--volume=/cuda/lib64/libcupti.so.13:/squall/libcupti.so.13:ro",
        "--volume=/dev/shm/r:/dev/shm/r",
        "--volume=/dev/shm/k:/dev/shm/k",
    ]
    assert {word for word in words[:at] if word.startswith("--env")} == {
        "--env=LD_PRELOAD=/squall/_batches.so", "--env=SQUALL_BATCHES=/dev/shm/r",
        "--env=CUDA_INJECTION64_PATH=/squall/_kernels.so", "--env=SQUALL_KERNELS=/dev/shm/k",
        "--env=SQUALL_KERNEL_KINDS=kernels,copies", "--env=SQUALL_CUPTI=/squall/libcupti.so.13",
    }  # fmt: skip
    assert not [word for word in words if word.startswith("--pid")]
    assert words[at + 1 :] == ["tritonserver", "--x"]


@pytest.mark.parametrize(
    ("told", "preloaded"),
    [
        ('["PATH=/bin","LD_PRELOAD=/lib/tcmalloc.so"]', "/squall/_batches.so:/lib/tcmalloc.so"),
        ('["PATH=/bin", "ODD", 7]', "/squall/_batches.so"),
        ("null", "/squall/_batches.so"),
        ("7", "/squall/_batches.so"),
        ("no json", "/squall/_batches.so"),
        (None, "/squall/_batches.so"),
    ],
)
def test_what_the_image_preloads_itself_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, preloaded: str
) -> None:
    say(monkeypatch, told)
    words = command(runtime(path, "podman"), INJECTED)
    assert f"--env=LD_PRELOAD={preloaded}" in words


REFUSED = """
tritonserver: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /squall/_batches.so)
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (REFUSED, "version `GLIBC_2.34' not found (required by /squall/_batches.so)"),
        (
            "x: error while loading shared libraries: libdl.so.2: cannot open\n",
            "error while loading shared libraries: libdl.so.2: cannot open",
        ),
        ("ERROR: ld.so: object '/squall/x' from LD_PRELOAD cannot be preloaded (y): ignored.\n", None),
        ("E1123 model plain failed to load\n", None),
        ("", None),
    ],
)
def test_a_loader_that_ended_the_programs_is_told_from_one_that_went_on(log: str, told: str | None) -> None:
    assert loader_refusal(log) == told
