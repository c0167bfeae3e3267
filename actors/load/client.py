"""What the engine needs of a client, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from squall.actors.net.spread import Spread
from squall.scenarios.units import format_size


class Exchange(Protocol):
    """A request on the wire and its reply; instants in ns of the node's clock, -1 where not reached.

    Valid during the callback only: the client uses it again.
    """

    token: int
    sent_ns: int
    first_ns: int
    done_ns: int
    body: bytes


OnFailure = Callable[[int, int, int, str], None]
"""Called with token, sent_ns, first_ns (-1 if not reached) and why, when the transport failed the request."""


LARGEST_HEAD_BYTES = 65_536
"""A head over HTTP that is longer is no reply of an inference server's: it is told, and its connection cut. So is what
is no body behind it: trailers, extensions of chunks."""
TOO_LARGE = "the reply is larger than"


def too_large(largest_bytes: int) -> str:
    """Why a request fails whose reply is longer than that."""
    return f"{TOO_LARGE} {format_size(largest_bytes)}: clients.largest_reply allows more"


OnResponse = Callable[[int, int, bytes], bool]
"""Called with token, t_ns and the bytes of each response to a request that is answered response by response; whether
the client is to hang up: then its call of a reply follows."""


class Client(Protocol):
    """Each token given to `send` ends in one call back, of a reply or of a failure, unless `abandon` or `close`
    came before."""

    n_write_pauses: int
    """Sends that found the socket full."""
    n_socket_errors: int
    """Connections that failed or broke."""

    @property
    def n_connections(self) -> int:
        """Connections open now."""

    @property
    def spread(self) -> Spread:
        """Which addresses they go to."""

    def open(self, n_connections: int, until_ns: int) -> None:
        """Opens `n_connections` at once. Raises OSError where the server does not take them by `until_ns`."""

    def begin(self) -> None:
        """The run begins: connections that are open may be given to the lane, if there is one."""

    def send(self, token: int, head: bytes, tail: bytes, key: int | None = None) -> None:
        """Writes the request, now or at the next `flush`, or as soon as a connection can take it.

        Requests of one `key`, of which one at a time is sent, have one connection until `unpin`, or until it is gone.
        """

    def unpin(self, key: int) -> None:
        """No more requests of that key follow."""

    def flush(self) -> None:
        """Writes what `send` has put together."""

    def abandon(self, token: int) -> tuple[int, int]:
        """Gives the request up. Returns its sent_ns and first_ns, -1 where not reached."""

    def close(self) -> None:
        """Cuts every connection. What is in flight ends without a call."""
