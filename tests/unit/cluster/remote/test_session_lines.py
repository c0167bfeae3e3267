"""What Ray's library writes past Python while it starts is not on the screen; what squall says is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from squall.cluster.remote.session import without_rays_lines


def own_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's stderr is descriptor 2, as without pytest."""
    monkeypatch.setattr(sys, "stderr", os.fdopen(2, "w", buffering=1, closefd=False))


def test_only_what_goes_past_python_is_left_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_stderr(monkeypatch)
    with without_rays_lines():
        os.write(2, b"[2026-11-22 12:00:00,000 E 1 2] rpc_client.h:153: Failed to connect\n")
        sys.stderr.write("squall: while\n")
    os.write(2, b"after\n")
    sys.stderr.write("squall: then\n")
    assert capfd.readouterr().err == "squall: while\nafter\nsquall: then\n"


def test_the_screen_is_as_it_was_after_an_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_stderr(monkeypatch)
    with pytest.raises(RuntimeError), without_rays_lines():
        raise RuntimeError
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


def test_no_descriptor_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    own_stderr(monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    with without_rays_lines():
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_stderr_that_is_not_the_second_descriptor_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "lines").open("w") as own:
        monkeypatch.setattr(sys, "stderr", own)
        with without_rays_lines():
            assert sys.stderr is own
