"""perf_analyzer's flags of TLS, as `clients.tls` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from squall.cluster.commands.perf.flags import Typed
from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen

_GRPC = {
    "ssl-grpc-root-certifications-file": "ca",
    "ssl-grpc-certificate-chain-file": "certificate",
    "ssl-grpc-private-key-file": "key",
}
_HTTPS = {
    "ssl-https-ca-certificates-file": "ca",
    "ssl-https-client-certificate-file": "certificate",
    "ssl-https-private-key-file": "key",
}


class Tls(Frozen):
    """`files`: those of `clients.tls`, by its keys; `is_wanted`: whether a gRPC port is spoken to by TLS."""

    files: dict[str, str]
    is_wanted: bool = False
    verifies: bool = True

    @property
    def section(self) -> dict[str, Any]:
        """`clients.tls`."""
        return {**self.files, **({} if self.verifies else {"verify": False})}


def tls_of(typed: Typed, is_grpc: bool) -> Tls:
    """Of the flags for the protocol that is used; those for the other one say nothing, as in perf_analyzer. Raises
    ScenarioError for a file that is not there, and for what squall cannot do."""
    files = {
        key: _file(name, typed[name][-1])
        for name, key in (_GRPC if is_grpc else _HTTPS).items()
        if name in typed
    }
    if is_grpc:
        return Tls(files, "ssl-grpc-use-ssl" in typed)
    for name in ("ssl-https-client-certificate-type", "ssl-https-private-key-type"):
        if typed.get(name, ["PEM"])[-1] != "PEM":
            raise ScenarioError(f"--{name}: {typed[name][-1]!r}: squall reads PEM files")
    verifies = _number("ssl-https-verify-peer", typed, 1, (0, 1)) == 1
    if _number("ssl-https-verify-host", typed, 2, (0, 1, 2)) != 2 and verifies:
        raise ScenarioError(
            "--ssl-https-verify-host: squall verifies a certificate with its name, or with --ssl-https-verify-peer=0"
            " not at all"
        )
    return Tls(files, verifies=verifies)


def _number(name: str, typed: Typed, default: int, allowed: tuple[int, ...]) -> int:
    text = typed.get(name, [str(default)])[-1]
    if text not in map(str, allowed):
        raise ScenarioError(f"--{name}: {text!r} is none of {', '.join(map(str, allowed))}")
    return int(text)


def _file(name: str, text: str) -> str:
    if not Path(text).is_file():
        raise ScenarioError(f"--{name}: {text}: no such file")
    return str(Path(text).resolve())
