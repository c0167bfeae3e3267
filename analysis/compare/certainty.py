"""When the outcome of a promise is certain although requests are still to come: the plan says how many there will be.

Of the n requests of a promise n_late are known to be late and n_in_time to be in time; the rest is not known yet.

    broken    n_late > n_allowed(n)               whatever the rest does
    kept      n - n_in_time <= n_allowed(n)       were all of the rest late

No estimate: the outcome is that of the whole run, for every end that it could have had.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.compare.figures import BROKEN, KEPT
from squall.scenarios.promises import Promise
from squall.scenarios.records import Frozen


class Count(Frozen):
    """Requests of a promise: those of the plan, and those known to be late and to be in time."""

    n: int
    n_late: int
    n_in_time: int


class Outcome(Frozen):
    """Why the load may end: `promise` is broken, or all are kept and `promise` is the one that was certain last."""

    verdict: str
    promise: Promise
    count: Count


def certain_verdict(promise: Promise, count: Count) -> str | None:
    """Kept or broken, whatever comes; None: not certain. Nothing is kept before a request was in time."""
    if count.n < 1:
        return None
    n_allowed = promise.n_allowed(count.n)
    if count.n_late > n_allowed:
        return BROKEN
    return KEPT if count.n_in_time and count.n - count.n_in_time <= n_allowed else None


def outcome(
    promises: Sequence[Promise],
    counts: Sequence[Count | None],
    may_abort: Sequence[bool],
    ends_when_kept: bool,
) -> Outcome | None:
    """Whether the load may end. `counts`: None of a promise of which nothing is known before the end.

    `may_abort`: whether the load ends where that one is broken; `ends_when_kept`: whether where all are kept.
    """
    verdicts = [
        None if count is None else certain_verdict(one, count)
        for one, count in zip(promises, counts, strict=True)
    ]
    for one, count, verdict, aborts in zip(promises, counts, verdicts, may_abort, strict=True):
        if verdict == BROKEN and aborts and count is not None:
            return Outcome(BROKEN, one, count)
    if not ends_when_kept or not all(verdict == KEPT for verdict in verdicts):
        return None
    known = [(one, count) for one, count in zip(promises, counts, strict=True) if count is not None]
    tightest = min(known, key=lambda pair: pair[0].n_allowed(pair[1].n) - (pair[1].n - pair[1].n_in_time))
    return Outcome(KEPT, *tightest)
