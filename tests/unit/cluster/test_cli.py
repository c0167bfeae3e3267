"""The command's own options, without any of its work."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from squall.cluster.cli import app


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_package(option: str) -> None:
    done = CliRunner().invoke(app, [option])
    assert (done.exit_code, done.output) == (0, f"squall {version('squall')}\n")
