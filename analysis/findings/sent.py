"""What became of the requests of a phase: how many were sent, ended ok, or were never served by any batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from squall.analysis.metrics.measures import ratio
from squall.analysis.metrics.requests import IS_ANSWERED, IS_UNSERVED

if TYPE_CHECKING:
    import duckdb

_COUNTS = f"""
SELECT phase, target, request_kind, count(*), count(sent_ns), count(*) FILTER (outcome = 'ok'),
    count(*) FILTER ({IS_UNSERVED}), count(batch_id), count(*) FILTER ({IS_UNSERVED} AND {IS_ANSWERED})
FROM joined WHERE phase <> '' GROUP BY ALL ORDER BY min(request_id)
"""


class Sent(NamedTuple):
    """Requests: planned, sent, ended ok, sent but never in a batch and not ok, known by their batch, and of
    those in none the ones that the server answered all the same, with an error or wrongly."""

    n: int = 0
    n_sent: int = 0
    n_ok: int = 0
    n_unserved: int = 0
    n_in_batches: int = 0
    n_refused: int = 0

    @property
    def n_failed(self) -> int:
        """Did not end ok, whatever the reason."""
        return self.n - self.n_ok


class SentRequests:
    """The counts of a run by phase, server and model of the request."""

    def __init__(self, counts: Mapping[tuple[str, str, str], Sent]) -> None:
        self._counts = dict(counts)

    @classmethod
    def read(cls, connection: duckdb.DuckDBPyConnection) -> SentRequests:
        """Those of view `joined`."""
        rows = connection.execute(_COUNTS).fetchall()
        return cls({(phase, server, model): Sent(*counts) for phase, server, model, *counts in rows})

    @property
    def servers(self) -> list[str]:
        """Servers that any request was for, in order of their first request."""
        return list(dict.fromkeys(server for _, server, _ in self._counts))

    def of(self, phase: str, server: str, model: str = "") -> Sent:
        """What was for a server in a phase; of `model` alone, where any request of the run names it."""
        own = [one for at, one in self._of_server(server, model) if at == phase]
        return Sent(*map(sum, zip(*own, strict=True)))

    def _of_server(self, server: str, model: str) -> list[tuple[str, Sent]]:
        """Phases and counts."""
        is_named = self.names(server, model)
        return [
            (phase, one)
            for (phase, own, kind), one in self._counts.items()
            if own == server and (not is_named or kind == model)
        ]

    def names(self, server: str, model: str) -> bool:
        """Whether any request of the run names this model of the server."""
        return any((own, kind) == (server, model) for _, own, kind in self._counts)

    def models(self, server: str) -> list[str]:
        """What requests for a server ask, in order of their first request, where those of the run ask several models;
        else one that has no name, for all."""
        if len({kind for *_, kind in self._counts if kind}) < 2:
            return [""]
        return list(dict.fromkeys(kind for _, own, kind in self._counts if own == server and kind))

    def knows_batches(self, server: str, model: str = "") -> bool:
        """Whether any request for the server is known by its batch, in any phase; of `model` alone as `of`."""
        return any(one.n_in_batches for _, one in self._of_server(server, model))

    def measures(self, phase: str, server: str, model: str) -> dict[str, float | None]:
        """`n_requests` that were sent, `unserved_ratio`, and its two parts: `refused_ratio`, which the server answered,
        and `unreplied_ratio`; of an instance's server and model.

        None where no request is known by its batch in any phase: then it is open which ones were served.
        """
        if not self.knows_batches(server, model):
            return {}
        return sent_measures(self.of(phase, server, model))


def sent_measures(own: Sent) -> dict[str, float | None]:
    """The measures of these counts."""
    return {
        "n_requests": float(own.n_sent),
        "unserved_ratio": ratio(own.n_unserved, own.n_sent),
        "refused_ratio": ratio(own.n_refused, own.n_sent),
        "unreplied_ratio": ratio(own.n_unserved - own.n_refused, own.n_sent),
    }
