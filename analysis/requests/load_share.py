"""What a part of the requests got of the load: a server's of several, or a model's."""

from __future__ import annotations

from collections.abc import Mapping

from squall.analysis.requests.requests import Requests
from squall.scenarios.records import Frozen


class LoadShare(Frozen):
    """A part of the requests of some phases. `n`: how many; ratios are shares of all of them, None of nothing.
    `asked_ratio`: the share that the scenario asks, None where it says none."""

    n: int
    planned_ratio: float | None
    n_sent: int
    sent_ratio: float | None
    n_failed: int
    counts: Mapping[str, int]
    asked_ratio: float | None


def load_share(own: Requests, whole: Requests, asked: float | None) -> LoadShare:
    """The share of `own` among the requests of the `whole`."""
    n_sent, n_sent_whole = int(own.is_sent.sum()), int(whole.is_sent.sum())
    return LoadShare(
        n=len(own),
        planned_ratio=len(own) / len(whole) if len(whole) else None,
        n_sent=n_sent,
        sent_ratio=n_sent / n_sent_whole if n_sent_whole else None,
        n_failed=int((~own.is_ok).sum()),
        counts=dict(sorted(own.outcome.counts().items(), key=lambda item: -item[1])),
        asked_ratio=asked,
    )
