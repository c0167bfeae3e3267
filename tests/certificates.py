"""Certificates made for one test session with the command `openssl`: an authority, servers and a client of it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_TIMEOUT_S = 20.0
_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, PEM files."""

    certificate: str
    key: str


class Authority:
    """A certificate authority in a folder; skips the test where `openssl` is missing."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the command `openssl` is missing")
        self._folder = folder
        self._own = self._paths(name)
        constraints = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
        self._openssl(
            f"req -x509 {_NEW_KEY} -subj /CN={name} {constraints} -keyout {self._own.key} -out {self.ca}"
        )

    @property
    def ca(self) -> str:
        """PEM file of the authority's own certificate."""
        return self._own.certificate

    def issue(self, name: str, alternative_names: str) -> Identity:
        """A certificate for `alternative_names`, such as `DNS:localhost,IP:127.0.0.1`."""
        made = self._paths(name)
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative_names}\n")
        self._openssl(f"req -new {_NEW_KEY} -subj /CN={name} -keyout {made.key} -out {request}")
        self._openssl(
            f"x509 -req -in {request} -CA {self.ca} -CAkey {self._own.key} -CAcreateserial -days 2"
            f" -extfile {extensions} -out {made.certificate}"
        )
        return made

    def _paths(self, name: str) -> Identity:
        return Identity(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True, timeout=_TIMEOUT_S)
