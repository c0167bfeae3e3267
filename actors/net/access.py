"""How a server is spoken to: apart from what speaks, since settings hold it where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    from squall.actors.net.stream import TlsSettings


class Access(Frozen):
    """How a server is spoken to: by `tls` where its URL is https (None: the system's authorities), with `headers` in
    every call. These may be secrets, so that no text of an access has them."""

    tls: TlsSettings | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


PLAIN = Access()
"""Without headers; https by the system's authorities."""
