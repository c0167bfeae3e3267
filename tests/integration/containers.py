"""Containers for tests, of an image that is a folder: what this machine has, with Triton as `tritonserver`, without the
test's own files and the built libraries, which a container has only where they are mounted.

A `podman` of a test's own, to be put first on the PATH: the real one, told to take that folder, or a stand-in of Linux
namespaces that gives a container exactly what it was asked for.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import squall.actors
from squall.cluster.node.server_environment import model_folders
from squall.cluster.node.triton_home import cache_dir, find_triton

Kind = Literal["podman", "namespaces"]
IMAGE = "the-image"
REAL = "SQUALL_TEST_PODMAN"
"""Names a podman that is not on the PATH."""
_HIDDEN = "/tmp"
"""Where tests have their files."""
_TRITON = """#!/bin/sh
exec {binary} {options} "$@"
"""
# A mount namespace of its own: nothing of it is seen outside, or stays. What a container writes into the image is in
# memory. crun takes one kind of cgroups, and none is asked for.
_ROOT = """#!/bin/sh
# {name}
case "$*" in "image inspect"*) printf '%s\\n' {environment}; exit;; esac
exec unshare --mount --propagation private {python} {script} "$@"
"""
_MOUNTS = """
import os, subprocess, sys
from pathlib import Path

folder, image = Path({folder!r}), Path({folder!r}, "image")


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


mount("-t", "tmpfs", "tmpfs", folder)
for name in ("upper", "work", "image"):
    (folder / name).mkdir()
mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={{folder}}/upper,workdir={{folder}}/work", image)
mount("-t", "tmpfs", "tmpfs", f"{{image}}{hidden}")
for needed in {needed!r}:  # a checkout below the hidden folder, or on a file system of its own
    place = Path(f"{{image}}{{needed}}")
    if not place.exists():
        place.mkdir(parents=True)
        mount("--bind", needed, place)
mount("-t", "tmpfs", "tmpfs", f"{{image}}{built}")
program = image / "usr/local/bin/tritonserver"
program.write_text({triton!r})
program.chmod(0o755)
words = sys.argv[2:]
assert sys.argv[1] == "run"
at = next(i for i, word in enumerate(words) if not word.startswith("-"))
assert words[at] == {image!r}, words
asked, command = words[:at], words[at + 1 :]
"""
_PODMAN = """
subprocess.run(["umount", "-l", "/sys/fs/cgroup"], check=True)
mount("-t", "cgroup2", "none", "/sys/fs/cgroup")
own = [f"--env={{one}}" for one in {environment!r}]
settings = ["--cgroups=disabled", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined",
            "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]  # no more than this host may allow
podman = [{podman!r}, "--cgroup-manager=cgroupfs", "run"]
process = subprocess.Popen([*podman, *own, *settings, *asked, "--rootfs", image, *command])
"""
_NAMESPACES = """
variables = dict(one.split("=", 1) for one in {environment!r})
for word in asked:
    name, _, value = word.partition("=")
    if name == "--volume":
        source, target, *mode = value.split(":")
        place = Path(f"{{image}}{{target}}")
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        mount("--bind", source, place)
        if mode == ["ro"]:
            mount("-o", "remount,bind,ro", place)
    elif name == "--env":
        variables.update([value.split("=", 1)])
    else:
        assert word in ("--rm", "--network=host", "--ipc=host"), word
for place in (image / "squall").glob("_batches*") if {instead!r} else ():
    mount("--bind", {instead!r}, place)
mount("--rbind", "/dev", image / "dev")
if "--ipc=host" not in asked:
    mount("-t", "tmpfs", "tmpfs", image / "dev/shm")
(image / "sys").mkdir(exist_ok=True)
mount("--bind", "/sys", image / "sys")
own = [f"{{name}}={{value}}" for name, value in variables.items()]
apart = ["unshare", "--pid", "--fork", "--kill-child", f"--root={{image}}", "--wd=/", "--mount-proc"]
process = subprocess.Popen([*apart, "/usr/bin/env", "-i", *own, *command])
"""
_WAIT = """
import signal


def hand_on(number, _):
    children = Path(f"/proc/{{process.pid}}/task/{{process.pid}}/children").read_text().split()
    for child in children if {hands_on} else ():
        os.kill(int(child), number)


signal.signal(signal.SIGTERM, hand_on)
Path("/proc/self/comm").write_text("podman")
sys.exit(process.wait())
"""


def podman(folder: Path, kind: Kind, instead: Path | None = None, **environment: str) -> Path:
    """A folder for the PATH; `environment`: what the image sets beside what Triton needs. Skips where none can be.

    Containers are of IMAGE. `instead`: what those of namespaces have in the place of the batch library.
    """
    real = os.environ.get(REAL) or shutil.which("podman") if kind == "podman" else None
    if kind == "podman" and real is None:
        pytest.skip(f"no podman is on the PATH, and {REAL} names none")
    _skip_without_namespaces(folder)
    home = find_triton()
    options = ["--backend-directory", str(home.backends)] if home.backends else []
    triton = _TRITON.format(binary=shlex.quote(str(home.binary)), options=shlex.join(options))
    own = {
        # by which the Python that Triton embeds finds its packages
        "PATH": f"/usr/local/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(map(str, home.library_dirs)),
        "PYTHONPATH": os.pathsep.join(model_folders()),
        **environment,
    }
    variables = [f"{name}={value}" for name, value in own.items()]
    (folder / "bin").mkdir(parents=True)
    (folder / "root").mkdir()
    built = str(Path(squall.actors.__file__).parent)
    folders = [built, sys.prefix, sys.base_prefix, cache_dir(), home.binary.parent, *home.library_dirs]
    needed = sorted(
        str(path) for path in {*map(Path, map(str, [*folders, *model_folders()]))} if path.is_dir()
    )
    parts = {
        "folder": str(folder / "root"), "hidden": _HIDDEN, "built": built, "needed": needed, "triton": triton,
        "image": IMAGE, "podman": real,
        "environment": variables, "hands_on": kind == "namespaces", "instead": str(instead) if instead else None,
    }  # fmt: skip
    script = folder / "start.py"
    body = _PODMAN if kind == "podman" else _NAMESPACES
    script.write_text("".join(part.format(**parts) for part in (_MOUNTS, body, _WAIT)))
    program = folder / "bin" / "podman"
    program.write_text(
        _ROOT.format(
            name=kind,
            environment=shlex.quote(json.dumps(variables)),
            python=shlex.quote(sys.executable),
            script=shlex.quote(str(script)),
        )
    )
    program.chmod(0o755)
    if kind == "podman":
        _skip_without_containers(program)
    return program.parent


def _skip_without_containers(program: Path) -> None:
    tried = [str(program), "run", "--rm", "--network=host", IMAGE, "true"]
    done = subprocess.run(tried, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"podman starts no container here: {done.stderr.strip()[-200:]}")


def _skip_without_namespaces(folder: Path) -> None:
    tried = folder / "tried"
    tried.mkdir(parents=True)
    mounts = (
        f"mount -t tmpfs tmpfs {tried} && cd {tried} && mkdir upper work image && "
        "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work image"
    )
    command = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", mounts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no namespaces with a file system of their own here: {done.stderr.strip()}")
