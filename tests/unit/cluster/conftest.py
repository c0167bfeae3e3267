"""The command line is made once for all tests that call it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import typer.main
import typer.testing


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """`CliRunner` makes it of all commands anew for each call, which takes longer than most of these tests else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield
