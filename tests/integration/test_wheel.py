"""The wheel: what is in it, and that a user who has nothing else can use it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_CODE = {".j2", ".yaml", ".so", ".pyi", ".typed", ".sh", ""}


@pytest.mark.beside
@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "any-name"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(tree)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("squall-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [Path(name) for name in file.namelist()]
    own = [name for name in names if name.parts[0] == "squall"]
    assert {name.parts[0] for name in names if "dist-info" not in name.parts[0]} == {"squall"}
    assert {name for name in own if len(name.parts) == 2 and name.suffix == ".py"} == {
        Path("squall/__init__.py")
    }
    assert Path("squall/py.typed") in own
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.split()
    shipped = ("scenarios", "models", "actors", "cluster", "analysis")
    modules = {
        Path("squall") / name for name in tracked if name.endswith(".py") and name.split("/")[0] in shipped
    }
    assert {name for name in own if name.suffix == ".py"} == modules | {Path("squall/__init__.py")}
    assert {name.suffix for name in own} - {".py"} <= NO_CODE
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)],
        check=True,
        timeout=120,
    )
    code = "import sys; sys.path.insert(0, sys.argv[1]); import squall, squall.cluster.cli; print(squall.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "site")], cwd=tmp_path, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "site")
