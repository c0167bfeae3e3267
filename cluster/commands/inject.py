"""`squall inject`: what a server that somebody else starts needs, so that its batches are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, assert_never

import typer

from squall.actors.inject.library import FOLDER_VARIABLE, batch_environment
from squall.scenarios.errors import TargetError

_MEMORY = Path("/dev/shm")
_PREFIX = "squall-batches-"


class Form(StrEnum):
    """For whom it is printed."""

    ENV = "env"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"


def inject(
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where the server records; none: a new folder in /dev/shm."),
    ] = None,
    form: Annotated[Form, typer.Option("--as", help="For whom it is printed.")] = Form.ENV,
) -> None:
    """Prints the environment that makes a server record its batches: env $(squall inject) tritonserver …"""
    import os

    try:
        environment = batch_environment(_made(folder), os.environ if form is Form.ENV else {})
    except ValueError as error:
        raise TargetError(str(error)) from error
    typer.echo(snippet(form, environment))


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
    """The two variables as `form` takes them, with what a container must see of this host."""
    library, folder = Path(environment["LD_PRELOAD"].partition(":")[0]), Path(environment[FOLDER_VARIABLE])
    match form:
        case Form.ENV:
            return "\n".join(f"{name}={value}" for name, value in environment.items())
        case Form.DOCKER:
            mounts = [f"--volume {library}:{library}:ro", f"--volume {folder}:{folder}"]
            variables = [f"--env {name}={value}" for name, value in environment.items()]
            return " \\\n".join(["--network host", *mounts, *variables])
        case Form.KUBERNETES:
            return _kubernetes(library, folder, environment)
        case Form.SYSTEMD:
            return "\n".join(
                ["[Service]", *(f"Environment={name}={value}" for name, value in environment.items())]
            )
        case _:
            assert_never(form)


def _kubernetes(library: Path, folder: Path, environment: Mapping[str, str]) -> str:
    """The parts of a pod's spec: the server's container, and the volumes beside the containers."""
    variables = [
        line for name, value in environment.items() for line in (f"- name: {name}", f"  value: {value}")
    ]
    return "\n".join(
        [
            "hostNetwork: true",
            "containers:",
            "- name: triton",
            "  env:",
            *(f"  {line}" for line in variables),
            "  volumeMounts:",
            f"  - {{name: squall-library, mountPath: {library}, readOnly: true}}",
            f"  - {{name: squall-batches, mountPath: {folder}}}",
            "volumes:",
            f"- {{name: squall-library, hostPath: {{path: {library}, type: File}}}}",
            f"- {{name: squall-batches, hostPath: {{path: {folder}, type: Directory}}}}",
        ]
    )
