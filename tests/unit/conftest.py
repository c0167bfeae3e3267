"""Unit tests use no network, no Ray and no real waiting: whatever tries fails."""

from __future__ import annotations

import socket
import time
from typing import Any, NoReturn

import pytest


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a unit test opened a socket or slept")


@pytest.fixture(autouse=True)
def _no_network_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _refuse)
    monkeypatch.setattr(socket.socket, "bind", _refuse)
    monkeypatch.setattr(time, "sleep", _refuse)
