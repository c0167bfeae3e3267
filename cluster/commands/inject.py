"""`squall inject`: what a server that somebody else starts needs, so that its batches and kernels are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, assert_never

import typer

from squall.actors.inject.library import (
    CUPTI_VARIABLE,
    FOLDER_VARIABLE,
    INJECTION_VARIABLE,
    PRELOAD_VARIABLE,
    batch_environment,
    built_library,
)
from squall.scenarios.errors import TargetError

_MEMORY = Path("/dev/shm")
_PREFIX = "squall-batches-"


class Form(StrEnum):
    """For whom it is printed."""

    ENV = "env"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"
    PYTHON = "python"


def inject(
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where the server records; none: a new folder in /dev/shm."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="For whom it is printed; python: a file to be put beside model.py as squall_batches.py.",
        ),
    ] = Form.ENV,
) -> None:
    """Prints the environment that makes a server record batches and kernels: env $(squall inject) tritonserver …"""
    import os

    rings = _made(folder)
    if form is Form.PYTHON:  # without the libraries, which need not have been built
        typer.echo(snippet(form, {FOLDER_VARIABLE: str(rings)}), nl=False)
        return
    try:
        environment = batch_environment(rings, os.environ if form is Form.ENV else {})
    except ValueError as error:
        raise TargetError(str(error)) from error
    typer.echo(snippet(form, environment | _of_kernels(rings)))


def _of_kernels(rings: Path) -> dict[str, str]:
    """Without a process that uses CUDA they do nothing; empty where the kernel library was not built.

    Their rings are in a folder within the other one: each has one reader.
    """
    from squall.actors.inject.kernel_library import find_cupti, kernel_environment

    library = built_library("kernels")
    if library is None:
        return {}
    folder = rings / "kernels"
    folder.mkdir(mode=0o700, exist_ok=True)
    return kernel_environment(library, folder, cupti=find_cupti())


def _made(folder: Path | None) -> Path:
    """The folder, made for this user alone where it is not there. Raises TargetError."""
    import tempfile

    try:
        if folder is None:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY if _MEMORY.is_dir() else None))
        found = folder.absolute()
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"--folder: {error.strerror}: {error.filename}") from error
    if any(mark.isspace() or mark in "\"':" for mark in str(found)):
        raise TargetError(f"--folder: {found}: use a path without blanks, quotes and colons")
    return found


def snippet(form: Form, environment: Mapping[str, str]) -> str:
    """The variables as `form` takes them, with what a container must see of this host."""
    from squall.models.repository import hook_source

    folder = Path(environment[FOLDER_VARIABLE])
    match form:
        case Form.PYTHON:
            return hook_source(folder)
        case Form.ENV:
            return "\n".join(f"{name}={value}" for name, value in environment.items())
        case Form.DOCKER:
            mounts = [f"--volume {path}:{path}:ro" for path in _libraries(environment).values()]
            variables = [f"--env {name}={value}" for name, value in environment.items()]
            return " \\\n".join(["--network host", *mounts, f"--volume {folder}:{folder}", *variables])
        case Form.KUBERNETES:
            return _kubernetes(folder, environment)
        case Form.SYSTEMD:
            return "\n".join(
                ["[Service]", *(f"Environment={name}={value}" for name, value in environment.items())]
            )
        case _:
            assert_never(form)


def _libraries(environment: Mapping[str, str]) -> dict[str, Path]:
    """Files that the variables name, by what a volume of each is called."""
    named = {
        "squall-library": environment[PRELOAD_VARIABLE].partition(":")[0],
        "squall-kernel-library": environment.get(INJECTION_VARIABLE),
        "squall-cupti": environment.get(CUPTI_VARIABLE),
    }
    return {name: Path(path) for name, path in named.items() if path}


def _kubernetes(folder: Path, environment: Mapping[str, str]) -> str:
    """The parts of a pod's spec: the server's container, and the volumes beside the containers."""
    variables = [
        line for name, value in environment.items() for line in (f"- name: {name}", f"  value: {value}")
    ]
    libraries = _libraries(environment).items()
    return "\n".join(
        [
            "hostNetwork: true",
            "containers:",
            "- name: triton",
            "  env:",
            *(f"  {line}" for line in variables),
            "  volumeMounts:",
            *(f"  - {{name: {name}, mountPath: {path}, readOnly: true}}" for name, path in libraries),
            f"  - {{name: squall-batches, mountPath: {folder}}}",
            "volumes:",
            *(f"- {{name: {name}, hostPath: {{path: {path}, type: File}}}}" for name, path in libraries),
            f"- {{name: squall-batches, hostPath: {{path: {folder}, type: Directory}}}}",
        ]
    )
