from __future__ import annotations

from pathlib import Path

import pytest

from squall.cluster.node import triton_home
from squall.cluster.node.triton_home import find_triton


def install(folder: Path, version: str | None) -> Path:
    """A server as NVIDIA's images have it; gives its folder for the PATH."""
    binary = folder / "tritonserver" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    if version is not None:
        (folder / "tritonserver" / "TRITON_VERSION").write_text(version)
    return binary.parent


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.57.0\n", "2.57.0"), (" 2.60.1dev ", "2.60.1dev"), (None, None), ("", None), ("25.04", None),
        ("a server\n2.57.0\n", None),
    ],
)  # fmt: skip
def test_the_version_of_an_installed_server_is_known_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, version: str | None
) -> None:
    monkeypatch.setenv("PATH", str(install(tmp_path, text)))
    home = find_triton()
    assert (home.source, home.version) == ("PATH", version)


def test_a_link_on_the_path_leads_to_the_version_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = install(tmp_path, "2.57.0") / "tritonserver"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").symlink_to(real)
    (tmp_path / "TRITON_VERSION").write_text("9.9.9")  # beside the link, of something else
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_triton().version == "2.57.0"


def test_a_virtual_environment_in_the_cache_whose_python_is_gone_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    home = tmp_path / f"triton-{triton_home.WHEEL.replace('==', '-')}"
    triton = home / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / triton_home._PYTHON / "triton_python_backend_stub"
    for file in (home / "complete", triton / "bin" / "tritonserver", stub):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(triton_home, "_make_backends", lambda *_: None)
    monkeypatch.setattr(triton_home, "_python_library_dirs", lambda _: ())
    python = home / f"environment-{triton_home._PYTHON}" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to(tmp_path / "python-before-the-upgrade")
    for _ in range(2):
        find_triton()
        assert python.exists()
    made = python.lstat().st_ino
    find_triton()
    assert python.lstat().st_ino == made  # a good one is taken as it is
