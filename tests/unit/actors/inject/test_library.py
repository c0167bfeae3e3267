"""Where the libraries are, and the environment that preloads that of batches."""

from __future__ import annotations

from pathlib import Path

import pytest

import squall.actors.inject.library
from squall.actors.inject.library import batch_environment, built_library


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library was built; it was not."""
    folder = tmp_path / "actors"
    folder.mkdir()
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", folder)
    return folder


@pytest.mark.usefixtures("built")
def test_the_library_is_none_where_it_was_not_built() -> None:
    assert built_library("batches") is None
    with pytest.raises(ValueError, match=r"^the batch library was not built: .*C compiler$"):
        batch_environment(Path("/rings"), {})


def test_each_is_found_where_it_was_built_and_never_taken_for_the_other(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = built / "_kernels.abi3.so"
    kernels.touch()
    assert (built_library("batches"), built_library("kernels")) == (None, kernels)
    batches = built / "_batches.abi3.so"
    batches.touch()
    assert (built_library("batches"), built_library("kernels")) == (batches, kernels)
    monkeypatch.chdir(built.parent)
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", Path(built.name))
    assert built_library("kernels") == kernels, "absolute: a server may start in another folder"


def test_what_is_preloaded_already_stays_behind_it(built: Path) -> None:
    library = built / "_batches.abi3.so"
    library.touch()
    alone = {"LD_PRELOAD": str(library), "SQUALL_BATCHES": "/my rings"}
    assert batch_environment(Path("/my rings"), {"PATH": "/bin", "LD_PRELOAD": ""}) == alone
    beside = batch_environment(Path("/my rings"), {"LD_PRELOAD": "/lib/jemalloc.so"})
    assert beside["LD_PRELOAD"] == f"{library}:/lib/jemalloc.so"


@pytest.mark.parametrize("name", ["of mine", "a:b"])
def test_a_library_that_cannot_be_named_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The loader takes spaces and colons for the end of a path."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "_batches.abi3.so").touch()
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", folder)
    with pytest.raises(ValueError, match=r"^LD_PRELOAD takes no path with a space or a colon: .*_batches"):
        batch_environment(Path("/rings"), {})
