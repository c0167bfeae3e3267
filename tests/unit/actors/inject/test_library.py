"""The environment that preloads the batch library."""

from __future__ import annotations

from pathlib import Path

import pytest

import squall.actors.inject.library
from squall.actors.inject.library import batch_environment, batch_library


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library was built; it was not."""
    folder = tmp_path / "actors"
    folder.mkdir()
    monkeypatch.setattr(squall.actors.inject.library, "_BUILT", folder)
    return folder


@pytest.mark.usefixtures("built")
def test_the_library_is_none_where_it_was_not_built() -> None:
    assert batch_library() is None
    with pytest.raises(ValueError, match=r"^the batch library was not built: .*C compiler$"):
        batch_environment(Path("/rings"), {})


def test_what_is_preloaded_already_stays_behind_it(built: Path) -> None:
    library = built / "_batches.abi3.so"
    library.touch()
    assert batch_library() == library
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
