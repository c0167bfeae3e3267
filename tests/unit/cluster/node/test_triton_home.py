from __future__ import annotations

from pathlib import Path

import pytest

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
