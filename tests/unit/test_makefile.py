"""`make demo` where Python is too old, or where an install fails: one clear line, and no half-made environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "make", "rm", "touch", "mkdir", "chmod", "cat")
PYTHON = """#!/bin/sh
case "$1" in
  -c) exit {is_old} ;;
  --version) echo 'Python {version}' ;;
  -m) [ "$2" = venv ] || exit {install}
      mkdir -p "$3/bin"; cat "$0" > "$3/bin/python"; chmod +x "$3/bin/python"
      printf '#!/bin/sh\\necho ran > ran\\n' > "$3/bin/squall"; chmod +x "$3/bin/squall" ;;
esac
"""

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "PYTHONPATH")}
"""`make PYTHON=… test` gives its word on."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile and what it looks at; `bin` is all of the PATH."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py", "requirements.txt"):
        (tmp_path / name).touch()
    return tmp_path


def add_python(folder: Path, name: str, version: str, install: int = 0) -> None:
    """A `python` that says its version, and makes environments whose installs end with that exit code."""
    is_old = int(tuple(map(int, version.split(".")))[:2] < (3, 11))
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON.format(is_old=is_old, version=version, install=install))
    path.chmod(0o755)


def make_demo(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "demo", *arguments], cwd=clone, env={**ENVIRONMENT, "PATH": str(clone / "bin"), "MAKEFLAGS": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_python_that_is_too_old_is_one_clear_line_and_leaves_nothing(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.10.12")
    done = make_demo(clone)
    assert done.returncode != 0
    assert (
        "make: squall needs Python 3.11 or later, and python3 is Python 3.10.12; install one" in done.stderr
    )
    assert "make PYTHON=python3.12" in done.stderr
    assert not (clone / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_taken(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.10.12")
    add_python(clone, "bin/python3.11", "3.11.9")
    add_python(clone, "bin/python3.12", "3.12.3")
    assert make_demo(clone).returncode == 0
    assert "Python 3.12.3" in (clone / ".venv/bin/python").read_text()
    assert (clone / "ran").exists()


def test_the_python_that_is_named_is_taken_or_refused(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.12.3")
    add_python(clone, "bin/python3.10", "3.10.12")
    done = make_demo(clone, "PYTHON=python3.10")
    assert "python3.10 is Python 3.10.12" in done.stderr
    assert not (clone / ".venv").exists()


def test_an_environment_of_an_old_python_is_made_anew(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.12.3")
    add_python(clone, ".venv/bin/python", "3.10.12")
    done = make_demo(clone)
    assert done.returncode == 0, done.stderr
    assert ".venv is of a Python below 3.11, it is made anew" in done.stderr
    assert "Python 3.12.3" in (clone / ".venv/bin/python").read_text()


def test_an_install_that_fails_leaves_no_half_made_environment(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.12.3", install=1)
    assert make_demo(clone).returncode != 0
    assert not (clone / ".venv").exists()
    add_python(clone, "bin/python3", "3.12.3")
    assert make_demo(clone).returncode == 0


def test_all_is_installed_by_hashes_and_squall_itself_asks_no_index(clone: Path) -> None:
    add_python(clone, "bin/python3", "3.12.3")
    python = clone / "bin/python3"
    python.write_text(python.read_text().replace("#!/bin/sh\n", '#!/bin/sh\necho "$@" >>asked\n'))
    assert make_demo(clone).returncode == 0
    assert [one for one in (clone / "asked").read_text().splitlines() if " install " in one] == [
        "-m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.txt",
        "-m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .",
    ]


def test_each_package_that_squall_asks_for_has_hashes_of_the_version_that_was_tested() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    entries = (ROOT / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    hashed = [one.split() for one in entries if "==" in one]
    assert [one[0] for one in hashed] == pins
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", own) for one in hashed for own in one[1:])
    assert min(len(one) for one in hashed) > 1
    names = {canonicalize_name(one.partition("==")[0]) for one in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["dev"]
    asked += project["build-system"]["requires"]
    assert {canonicalize_name(Requirement(one).name) for one in asked} <= names


def test_an_environment_that_was_there_survives_a_failed_install(clone: Path) -> None:
    add_python(clone, ".venv/bin/python", "3.12.3", install=1)
    add_python(clone, "bin/python3", "3.12.3")
    assert make_demo(clone).returncode != 0
    assert (clone / ".venv/bin/python").exists()
