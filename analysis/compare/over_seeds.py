"""Whether a promise is kept, of several runs of one scenario with different seeds.

The unit is the run: requests of one run follow one another, runs of different seeds are independent. With s_i the share
of late requests of run i and a the share that the promise allows, over K runs with mean M and standard deviation S,

    kept        a > M and   a - M > t(1 - 5 %, K - 1) S sqrt(a / M) / sqrt(K)
    broken      a < M and   M - a > t(1 - 5 % / m, K - 1) S sqrt(a / M) / sqrt(K)      m promises are judged together
    undecided   else

The factor sqrt(a / M) is what makes it a score bound, as Wilson's is for a proportion: late requests come in
clusters, the busy periods of a queue; with a Poisson number of clusters the variance of a run's share is proportional
to its mean, so that S² a / M is the variance that these runs would have were a the true share. Shares are skewed: their
sample mean and deviation fall together, and Student's interval with S itself calls a server at its very limit kept too
often (docs/promises.md has how often this one does). The bounds of the mean that are told solve the two lines above for
a.

And besides, the number of late requests of all runs must be as unlikely as that by chance alone, were they independent:
runs that happen to agree, or none of whose few requests was late, prove nothing. All promises are kept only if each is,
which needs no correction; one of m is broken by chance m times as often, so each has an m-th of 5 % (Bonferroni).

What each run must keep (the longest time, a count, each burst, each window, a share of none) is broken by one run that
broke it, and kept where no run did. A share below 1 (`failures: rate<1`) is broken where all requests of all runs were
late, and kept where one was in time: no bound is needed. One run alone is judged as it is: k6's meaning, of this one
drawing of the arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures
from squall.analysis.statistics.order_statistics import binomial_quantile
from squall.analysis.statistics.student import mean_of
from squall.analysis.wording import macros
from squall.scenarios.records import Frozen

LEVEL = 0.05
"""How often a promise at its very limit is called kept; of all promises at theirs together, how often one is called
broken."""


class SeedPromise(Frozen):
    """A promise in the run of one seed."""

    seed: int
    run: str
    figures: PromiseFigures


class PromiseDecision(Frozen):
    """A promise over seeds. `late_ratio`: mean share of late requests over the `n_seeds` runs, one-sided bounds at 95 %
    (the lower one at what `LEVEL` leaves each promise) where there are two and the promise is of a share. `n_kept` runs
    kept it by themselves; another one does with a chance of at least `kept_least_ratio`, at 95 %."""

    promise: str
    verdict: str
    reason: str
    is_of_each_run: bool
    n_seeds: int
    n_kept: int
    kept_least_ratio: float
    late_ratio: float | None
    late_low_ratio: float | None
    late_high_ratio: float | None
    allowed_ratio: float | None
    runs: tuple[SeedPromise, ...]


def decide(runs: Sequence[SeedPromise], n_promises: int = 1) -> PromiseDecision:
    """The verdict on one promise over at least one run; `n_promises` are judged together."""
    figures = [one.figures for one in runs]
    n_kept = sum(one.verdict == KEPT for one in figures)
    verdict, reason = _verdict(figures, n_promises)
    if verdict in (BROKEN, UNDECIDED):
        reason = "; ".join(filter(None, [cold_text(runs), reason]))
    first = figures[0]
    shares = [one.late_ratio for one in figures if one.late_ratio is not None]
    is_of_shares = not first.is_of_each_run and len(shares) == len(figures)
    low, high = _bounds(shares, n_promises) if is_of_shares and len(shares) > 1 else (None, None)
    return PromiseDecision(
        promise=first.promise,
        verdict=verdict,
        reason=reason,
        is_of_each_run=first.is_of_each_run,
        n_seeds=len(figures),
        n_kept=n_kept,
        kept_least_ratio=least_share(n_kept, len(figures)),
        late_ratio=math.fsum(shares) / len(shares) if is_of_shares else None,
        late_low_ratio=low,
        late_high_ratio=high,
        allowed_ratio=None if first.is_of_each_run else first.allowed_ratio,
        runs=tuple(runs),
    )


def cold_text(runs: Sequence[SeedPromise]) -> str:
    """Of which seeds much of the late lies in a cold stretch: `seed 3 was cold (98 % of its late), the others not`."""
    cold = [one for one in runs if one.figures.cold is not None]
    if not cold:
        return ""
    first = max(cold, key=lambda one: one.figures.n_late)
    return macros(__package__, "words.j2").cold(cold, len(runs), first)  # type: ignore[no-any-return]


def least_share(n_kept: int, n: int) -> float:
    """The exact lower bound, at 95 %, of the chance of what came `n_kept` times of `n` (Clopper and Pearson, 1934): the
    largest p at which as many or more come in 5 % of trials."""
    from scipy import special

    return float(special.betaincinv(n_kept, n - n_kept + 1, LEVEL)) if n_kept else 0.0


def _verdict(figures: Sequence[PromiseFigures], n_promises: int) -> tuple[str, str]:
    """With the reason of what is neither kept nor broken."""
    for outranks in (INVALID, UNDECIDED):
        reason = next((one.reason for one in figures if one.verdict == outranks), None)
        if reason is not None and not (outranks == UNDECIDED and _is_broken_by_one(figures)):
            return outranks, reason
    if len(figures) == 1 or figures[0].is_of_each_run:
        return (BROKEN, "") if any(one.verdict == BROKEN for one in figures) else (KEPT, "")
    allowed = figures[0].allowed_ratio
    assert allowed is not None
    n, n_late = sum(one.n for one in figures), sum(one.n_late for one in figures)
    if allowed >= 1.0:
        return BROKEN if n_late == n else KEPT, ""
    low, high = _bounds([one.late_ratio or 0.0 for one in figures], n_promises)
    if high < allowed and n_late < binomial_quantile(LEVEL, n, allowed):
        return KEPT, ""
    if low > allowed and n_late > binomial_quantile(1.0 - LEVEL / n_promises, n, allowed):
        return BROKEN, ""
    if high < allowed:
        return UNDECIDED, f"{n} requests are too few"
    return UNDECIDED, f"{len(figures)} seeds leave it open: more seeds, or longer runs"


def _is_broken_by_one(figures: Sequence[PromiseFigures]) -> bool:
    return figures[0].is_of_each_run and any(one.verdict == BROKEN for one in figures)


def _bounds(shares: Sequence[float], n_promises: int) -> tuple[float, float]:
    """One-sided bounds of the mean share of two runs or more."""
    share = mean_of(shares)
    if share.mean == 0.0:
        return 0.0, 0.0
    low, high = (share.half(2.0 * level) / math.sqrt(share.mean) for level in (LEVEL / n_promises, LEVEL))
    return _root(share.mean, -low), _root(share.mean, high)


def _root(mean: float, scaled: float) -> float:
    """The share a with a - mean = scaled sqrt(a)."""
    return ((scaled + math.sqrt(scaled * scaled + 4.0 * mean)) / 2.0) ** 2
