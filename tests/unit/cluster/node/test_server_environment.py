"""What a server inherits: nothing but the named variables, and the folders its models import from."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import squall.cluster.node.server_environment
from squall.cluster.node.server_environment import model_folders, server_environment
from squall.cluster.node.triton_home import TritonHome

PURELIB = sysconfig.get_path("purelib")


def package(folder: Path, name: str, is_namespace: bool = False) -> str:
    """A package that fails when it is imported."""
    (folder / name).mkdir(parents=True)
    if not is_namespace:
        (folder / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    return str(folder)


def test_a_package_that_lies_elsewhere_adds_its_folder_and_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        squall.cluster.node.server_environment, "_MODEL_PACKAGES", ("tensors_of_a_test", "not_installed")
    )
    without = model_folders()
    assert PURELIB in without
    folder = package(tmp_path / "own", "tensors_of_a_test")
    for path in ([folder, *sys.path], [*sys.path, folder]):
        monkeypatch.setattr(sys, "path", path)
        found = model_folders()
        assert sorted(found) == sorted([*without, folder])
        assert found == sorted(found, key=path.index)


def test_a_namespace_package_adds_every_folder_that_has_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.cluster.node.server_environment, "_MODEL_PACKAGES", ("tensors_of_a_test",))
    one, other = (
        package(tmp_path / name, "tensors_of_a_test", is_namespace=True) for name in ("one", "other")
    )
    monkeypatch.setattr(sys, "path", [one, *sys.path, other])
    folders = model_folders()
    assert folders[0] == one
    assert other in folders


def test_no_variable_but_the_named_ones_reaches_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_TEST_SECRET", "hidden")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "x")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    monkeypatch.setenv("PATH", "/usr/bin")
    home = TritonHome(Path("/t"), None, (Path("/a"), Path("/b")), "wheel", None, Path("/p"))
    env = server_environment(tmp_path, home, first=[Path("/numpy")])
    assert "hidden" not in env.values()
    assert "PYTORCH_CUDA_ALLOC_CONF" not in env
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["LD_LIBRARY_PATH"] == "/a:/b:/opt/driver"
    assert env["TMPDIR"] == str(tmp_path)
    assert env["PATH"] == "/p:/usr/bin"
    first, *others = env["PYTHONPATH"].split(":")
    assert (first, PURELIB in others) == ("/numpy", True)
