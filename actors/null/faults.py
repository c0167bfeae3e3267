"""Faults of the null server: a stated share of the inference requests ends in an error, a wrong answer, or no answer.

    503:0.73    that share is answered with the HTTP status, over gRPC with its counterpart
    wrong:1     answered with another request's id
    close:0.5   not answered: the connection is closed
    hang:0.06   never answered: the connection stays

The shares hold from the first request on: of any n requests in a row, n times the share fail, rounded down or up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from squall.actors.null.grpc import INVALID_ARGUMENT, UNAVAILABLE, UNIMPLEMENTED
from squall.actors.null.model import Peer, Tally

WORDS = {
    400: "inference input data is missing",
    429: "too many requests",
    500: "internal error",
    501: "this endpoint does not infer",
    503: "the server is overloaded",
}
"""Statuses that a request can be refused with, and what the server says then."""
_INTERNAL, _RESOURCE_EXHAUSTED = 13, 8
GRPC_STATUS = {
    400: INVALID_ARGUMENT,
    429: _RESOURCE_EXHAUSTED,
    500: _INTERNAL,
    501: UNIMPLEMENTED,
    503: UNAVAILABLE,
}
_OTHERS = ("wrong", "close", "hang")


@dataclass
class Fault:
    """`kind`: a status of `WORDS` as text, wrong, close or hang; `share`: of the requests, above 0, at most 1."""

    kind: str
    share: float
    n_asked: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `503:0.73`, `wrong:1` or `close:0.5`. Raises ValueError that says what to write."""
        kind, colon, share = text.partition(":")
        kinds = [*map(str, WORDS), *_OTHERS]
        if kind not in kinds or not colon:
            raise ValueError(f"{text!r} is no fault, write KIND:SHARE with one of {', '.join(kinds)}")
        if not 0.0 < float(share) <= 1.0:
            raise ValueError(f"a share lies above 0 and is at most 1, not {share}")
        return cls(kind, float(share))

    def takes_next(self) -> bool:
        """Whether the next request is one that fails."""
        before, self.n_asked = int(self.n_asked * self.share), self.n_asked + 1
        return int(self.n_asked * self.share) > before

    def answer(self, peer: Peer, stream: int, tally: Tally, wire_id: bytes) -> None:
        """Does to the request what the kind says."""
        if self.kind == "close":
            peer.is_over = True
        elif self.kind == "wrong":
            peer.reply(stream, tally, b"9" * len(wire_id))
        elif self.kind != "hang":
            peer.refuse(stream, int(self.kind), WORDS[int(self.kind)])
