"""How a request of Locust's ended, from the exception that its event carries.

Judged by the names of its classes, so that clients of any library are: `requests`, geventhttpclient, grpc, sockets.
"""

from __future__ import annotations

from typing import Any

_LATEST_OK = 399
_REFUSALS = (429, 503)
"""Statuses by which a server turns a request away: Too Many Requests (RFC 6585, 4), Service Unavailable (RFC 9110)."""
_BROKEN = (
    "OSError", "ConnectionError", "HTTPConnectionClosed", "HTTPParseError", "HTTPException", "SSLError",
    "ChunkedEncodingError", "InvalidURL",
)  # fmt: skip
_GRPC = {
    "DEADLINE_EXCEEDED": "timeout", "UNAVAILABLE": "transport_error", "CANCELLED": "cancelled",
    "RESOURCE_EXHAUSTED": "rejected",
}  # fmt: skip
"""Status codes of gRPC that are no error of the server's (grpc/doc/statuscodes.md)."""


def outcome_of(exception: Any) -> str:
    """One of `OUTCOMES`: ok of None. What user code itself found wrong is a bad reply, what is not known a server's
    error."""
    if not exception:
        return "ok"
    if isinstance(exception, str):
        return "bad_reply"
    names = [one.__name__ for one in type(exception).__mro__]
    if "CatchResponseError" in names or "ResponseError" in names or "AssertionError" in names:
        return "bad_reply"
    status = _status_of(exception)
    if status is not None:
        return "rejected" if status in _REFUSALS else "server_error"
    if any("Timeout" in name for name in names):
        return "timeout"
    if "RpcError" in names:
        return _GRPC.get(_grpc_code(exception), "server_error")
    return "transport_error" if any(name in _BROKEN for name in names) else "server_error"


def _status_of(exception: Any) -> int | None:
    """The HTTP status that it is about."""
    response = getattr(exception, "response", None)
    for found in (getattr(exception, "code", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and found > _LATEST_OK:
            return found
    return None


def _grpc_code(exception: Any) -> str:
    code = getattr(exception, "code", None)
    found = code() if callable(code) else code
    return str(getattr(found, "name", ""))
