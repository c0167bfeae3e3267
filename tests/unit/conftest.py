"""Unit tests use no network, no Ray and no real waiting: whatever tries fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

import pytest
import typer.main
import typer.testing


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a unit test opened a socket or slept")


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """Typer makes its hundreds of options anew each time that a command line is tried."""
    made = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", made)
        patch.setattr(typer.testing, "_get_command", made)
        yield


@pytest.fixture(autouse=True)
def _no_network_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _refuse)
    monkeypatch.setattr(socket.socket, "bind", _refuse)
    monkeypatch.setattr(time, "sleep", _refuse)
