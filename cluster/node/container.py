"""A server in a container: the command by which docker or podman starts one, with libraries of ours in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from squall.actors.inject.library import (
    CUPTI_VARIABLE,
    FOLDER_VARIABLE,
    INJECTION_VARIABLE,
    KERNEL_FOLDER_VARIABLE,
    PRELOAD_VARIABLE,
)
from squall.scenarios.errors import TargetError

_RUNTIMES = ("docker", "podman")
_INSIDE = PurePosixPath("/squall")
"""Where our files are in a container: a path of its own shadows nothing that the image has, such as its own CUPTI."""
_FILES = (PRELOAD_VARIABLE, INJECTION_VARIABLE, CUPTI_VARIABLE)
_FOLDERS = (FOLDER_VARIABLE, KERNEL_FOLDER_VARIABLE)
_INSPECT_TIMEOUT_S = 30
_REFUSAL = re.compile(
    r"version [`'][^']+' not found \(required by [^)]+\)|error while loading shared libraries: .+"
    r"|symbol lookup error: .+"
)


def find_runtime(wanted: str | None) -> str:
    """`wanted`, or the first that is on the PATH. Raises TargetError where it is not, or neither is."""
    runtime = wanted or next((name for name in _RUNTIMES if shutil.which(name)), None)
    if runtime is None or shutil.which(runtime) is None:
        raise TargetError(f"server.image: {runtime or 'neither docker nor podman'} is not on the PATH")
    return runtime


def container_command(
    runtime: str,
    image: str,
    volumes: Sequence[str],
    injected: Mapping[str, str],
    has_gpu: bool,
    options: Sequence[str],
) -> list[str]:
    """Starts tritonserver with `options` in a container that has the host's network and shared memory, `volumes` (as
    --volume takes them) and what `injected` needs: variables, the files that they name, folders of rings.

    The variables are the container's alone: neither docker nor podman nor what they run to make a container is given
    them. Its processes keep a pid namespace of their own: who is in it sees and signals no process of the host, and
    where users are mapped a runtime refuses that of the host (docker with userns-remap). Readers of rings know
    processes by what these have mapped (`squall.actors.process.namespaces`).
    """
    return [
        runtime, "run", "--rm", "--network=host", "--ipc=host",
        *(["--gpus=all"] if has_gpu and runtime == "docker" else []),
        *(f"--volume={volume}" for volume in volumes), *_carried(injected, runtime, image),
        image, "tritonserver", *options,
    ]  # fmt: skip


def _carried(injected: Mapping[str, str], runtime: str, image: str) -> list[str]:
    files = {injected[name]: str(_INSIDE / Path(injected[name]).name) for name in _FILES if name in injected}
    volumes = [f"--volume={path}:{inside}:ro" for path, inside in files.items()]
    volumes += [f"--volume={injected[name]}:{injected[name]}" for name in _FOLDERS if name in injected]
    variables = {name: files.get(value, value) for name, value in injected.items()}
    if PRELOAD_VARIABLE in variables:
        preloaded = [variables[PRELOAD_VARIABLE], _preloaded_by(runtime, image)]
        variables[PRELOAD_VARIABLE] = ":".join(filter(None, preloaded))
    return volumes + [f"--env={name}={value}" for name, value in variables.items()]


def _preloaded_by(runtime: str, image: str) -> str:
    """What the image itself preloads, which ours is not to displace; empty where it is not on this node yet."""
    command = [runtime, "image", "inspect", "--format", "{{json .Config.Env}}", image]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSPECT_TIMEOUT_S, check=True
        ).stdout
        variables = dict(str(one).split("=", 1) for one in json.loads(told) or () if "=" in str(one))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return ""
    return variables.get(PRELOAD_VARIABLE, "")


def loader_refusal(log: str) -> str | None:
    """Why the loader in a container ended everything that was to be started there; None: nothing in its log says so.

    A library that is preloaded and cannot be opened is passed over; one that needs a newer glibc than the container
    has ends each program at its start (ld.so checks versions when all is loaded, and takes no excuse then).
    """
    found = _REFUSAL.search(log)
    return found and found[0].strip()
