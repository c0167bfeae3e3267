"""`make demo` where Python is too old, or where an install fails: one clear line, and no half-made environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
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


def test_an_environment_that_was_there_survives_a_failed_install(clone: Path) -> None:
    add_python(clone, ".venv/bin/python", "3.12.3", install=1)
    add_python(clone, "bin/python3", "3.12.3")
    assert make_demo(clone).returncode != 0
    assert (clone / ".venv/bin/python").exists()
