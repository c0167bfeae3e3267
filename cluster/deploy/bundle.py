"""All that a node without a package index needs, and what installs it there."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib import resources
from pathlib import Path

from squall.cluster.deploy.needed import pins
from squall.cluster.deploy.own_wheel import write_wheel
from squall.cluster.node.triton_home import cached_home
from squall.scenarios.errors import ClusterError

_FETCH_TIMEOUT_S = 1_800
_OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OLDEST_MINOR = 11
_PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{n}" for n in range(5, 37)))
"""Names of what pip takes for another Python than its own; its own knows this host's C library."""


def write_bundle(out: Path, python: str) -> None:
    """Makes `out`, a folder, or a file that ends in .tar, for a Python such as "3.12". Raises ClusterError."""
    if out.exists():
        raise ClusterError(f"{out} is there already: name a new one")
    if not (re.fullmatch(r"3\.\d+", python) and int(python[2:]) >= _OLDEST_MINOR):
        raise ClusterError(f"--for-python {python}: name one from 3.{_OLDEST_MINOR} on")
    try:
        with tempfile.TemporaryDirectory(prefix=".squall-bundle-", dir=out.absolute().parent) as work:
            made = Path(work) / "squall-bundle"
            fill(made, python)
            if out.suffix == ".tar":
                _tar(made, Path(work) / "whole.tar", made.name)
                os.rename(Path(work) / "whole.tar", out)
            else:
                os.rename(made, out)
    except OSError as error:
        raise ClusterError(f"cannot write {out}: {error.strerror or error}") from error


def fill(folder: Path, python: str) -> None:
    """Makes `folder` and all that is in it. Raises ClusterError and OSError."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    _fetch([f"{name}=={version}" for name, version in pins(python).items()], wheels, python)
    write_wheel(wheels)
    lines = []
    for wheel in sorted(wheels.iterdir()):
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{_digest(wheel)}\n")
    (folder / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "python-version").write_text(f"{python}\n", encoding="utf-8")
    script = resources.files("squall.cluster.deploy").joinpath("install.sh").read_bytes()
    (folder / "install.sh").write_bytes(script)
    home = cached_home()
    if home is not None:
        _tar(home, folder / "triton.tar", home.name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def _fetch(requirements: list[str], folder: Path, python: str) -> None:
    """Their wheels, by pip, from wherever it takes packages here. Raises ClusterError."""
    options = ["wheel", "--wheel-dir", str(folder)]
    if python != _OWN_PYTHON:
        machine = os.uname().machine
        platforms = [f"--platform={name}_{machine}" for name in _PLATFORMS]
        options = [
            "download",
            "--only-binary=:all:",
            f"--python-version={python}",
            *platforms,
            "--dest",
            str(folder),
        ]
    command = [
        sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *options, "--no-deps", *requirements,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"fetching the packages took more than {_FETCH_TIMEOUT_S} s") from error
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (words or [done.stderr.strip()])[-1]
        raise ClusterError(f"{why}; squall bundle needs a package index here, so that the node needs none")


def _tar(source: Path, file: Path, name: str) -> None:
    """`source` as `name`: in one order, of no user and no time, so that the same files give the same bytes."""

    def plain(facts: tarfile.TarInfo) -> tarfile.TarInfo:
        facts.uid = facts.gid = facts.mtime = 0
        facts.uname = facts.gname = ""
        facts.mode = 0o755 if facts.isdir() or facts.mode & 0o100 else 0o644
        return facts

    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in (source, *sorted(source.rglob("*"))):
            archive.add(
                path, f"{name}/{path.relative_to(source)}" if path != source else name, False, filter=plain
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
