"""Exceptions of the libraries that Locust's users send with, as outcomes."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from squall.actors.locust.outcomes import outcome_of
from squall.analysis.storage.schema import OUTCOMES


class CatchResponseError(Exception):
    """As Locust names it."""


class BadStatusCode(Exception):
    """As geventhttpclient's: its `code` is the status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class RpcError(Exception):
    """As grpc's: `code()` names the status."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._name = name

    def code(self) -> Any:
        return SimpleNamespace(name=self._name)


def http_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("said", response=response)


@pytest.mark.parametrize(
    ("exception", "outcome"),
    [
        (None, "ok"),
        ("", "ok"),
        ("Got wrong response", "bad_reply"),
        (CatchResponseError("no"), "bad_reply"),
        (AssertionError(), "bad_reply"),
        (BadStatusCode(500), "server_error"),
        (BadStatusCode(404), "server_error"),
        (BadStatusCode(503), "rejected"),
        (http_error(429), "rejected"),
        (http_error(502), "server_error"),
        (requests.ConnectTimeout(), "timeout"),
        (requests.ReadTimeout(), "timeout"),
        (TimeoutError(), "timeout"),
        (requests.ConnectionError(), "transport_error"),
        (ConnectionRefusedError(), "transport_error"),
        (ssl.SSLError(), "transport_error"),
        (requests.exceptions.ChunkedEncodingError(), "transport_error"),
        (OSError(28, "full"), "transport_error"),
        (RpcError("DEADLINE_EXCEEDED"), "timeout"),
        (RpcError("UNAVAILABLE"), "transport_error"),
        (RpcError("CANCELLED"), "cancelled"),
        (RpcError("RESOURCE_EXHAUSTED"), "rejected"),
        (RpcError("INTERNAL"), "server_error"),
        (ValueError("of the user's"), "server_error"),
    ],
)
def test_an_exception_is_one_outcome(exception: object, outcome: str) -> None:
    assert outcome_of(exception) == outcome
    assert outcome in OUTCOMES
