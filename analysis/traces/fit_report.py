"""Fits every process to a trace, draws from each, and ranks them by what the draws have in common with the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.traces.candidates import fit_all
from squall.analysis.traces.criteria import JUDGED, Figure, Kind, figures_of, target_figures
from squall.analysis.traces.fitted import MOST_FITTED, Fitted
from squall.analysis.traces.snippet import snippet_text
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen
from squall.scenarios.series.logging_tick import find_grid, spread_in_ticks
from squall.scenarios.units import NS_PER_S

LEAST_ARRIVALS = 500
"""Below it no two processes can be told apart: the index of dispersion at one second is off by a tenth."""
SURE_ARRIVALS = 5_000
"""Of draws of a Poisson process 25, 20, 12 and 3 % are more than 1.3 times off their median p99 wait at 80 % load, with
600, 2,000, 5,000 and 10,000 arrivals (60 draws each).
"""
N_SEEDS = 9
N_FINAL_SEEDS = 81
N_FINALISTS = 6
MOST_MISSED = 0.2
MOST_DRAWN = 20_000_000
"""Arrivals drawn for a stage of the ranking; of a long trace only the best processes have nine draws."""
SCORE_TOLERANCE = 0.005
SHORT_TOLERANCE = 0.05
LEAST_SCORE = 0.04
"""What a process scores on its own draws: nine seeds do not bring it nearer to 0 (see `Ranked`)."""


class Ranked(Frozen, eq=False):
    """A fit, the medians of its draws' figures, and how far they are from the trace's.

    `score` is the mean over all figures of |ln(median/trace)|: 0.05 is five per cent off on average. `misses` names
    the judged figures outside their bands (`criteria.JUDGED`), as in `rank`; without one the process `fits`.
    `miss_ratio` is the largest share of nines in which a judged figure lay outside.
    """

    fitted: Fitted
    medians: Mapping[str, float]
    n_seeds: int
    score: float
    errors: Mapping[Kind, float]
    misses: tuple[str, ...]
    miss_ratio: float

    @property
    def fits(self) -> bool:
        """Whether it was fitted and every judged figure lies in its band, as medians of nine seeds: see `rank`."""
        return not self.fitted.failure and not self.misses and self.n_seeds >= N_SEEDS

    def to_mapping(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        ranking = asdict(self)
        return {
            **ranking.pop("fitted"),
            **ranking,
            "fits": self.fits,
            "failure": self.fitted.failure or None,
            "aic_per_arrival": self.fitted.aic_per_arrival,
            "bic_per_arrival": self.fitted.bic_per_arrival,
        }


class FitReport(Frozen, eq=False):
    """All fits of one trace, best first.

    `spread_tick_ns`: arrivals were spread inside ticks of that length before the fit, None if not.
    """

    n: int
    end_ns: int
    spread_tick_ns: float | None
    target: tuple[Figure, ...]
    ranked: tuple[Ranked, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> Ranked:
        """The first of the ranking; it `fits` or nothing does."""
        return self.ranked[0]

    @property
    def rate_hz(self) -> float:
        """Arrivals over the span."""
        return self.n / self.end_ns * NS_PER_S

    def verdict(self) -> str:
        """One sentence: which process fits, or that none does and what the nearest misses."""
        best = self.best
        if best.fits:
            if self.n < SURE_ARRIVALS:
                return f"{best.fitted.name} fits: every judged figure in its band or near the draws'"
            return f"{best.fitted.name} fits: every judged figure lies in the trace's band"
        if best.fitted.failure:
            return f"every fit failed: of {best.fitted.name}, {best.fitted.failure}"
        return f"none fits: the nearest, {best.fitted.name}, misses {', '.join(best.misses) or 'a full set of draws'}"

    def snippet(self) -> str:
        """`arrivals:` of a phase, YAML, of the best fit."""
        return snippet_text(self.best.fitted.scenario, self.verdict())

    def to_mapping(self) -> dict[str, Any]:
        """Everything, JSON-able."""
        return {
            "n": self.n,
            "span_ns": self.end_ns,
            "rate_hz": self.rate_hz,
            "spread_tick_ns": self.spread_tick_ns,
            "verdict": self.verdict(),
            "fits": self.best.fits,
            "figures": [asdict(figure) for figure in self.target],
            "processes": [one.to_mapping() for one in self.ranked],
            "notes": list(self.notes),
        }


def fit_trace(
    stamp_ns: NDArray[np.int64],
    end_ns: int | None = None,
    *,
    seed: int = 1,
    n_seeds: int = N_SEEDS,
    spread: bool = True,
) -> FitReport:
    """Fits and ranks for sorted instants.

    With `end_ns` the instants lie in [0, end_ns); without, the span goes from the first to a mean gap after the last.
    `spread`: stamps on a coarse logging grid are first spread inside its ticks (seed 1), as `logging_tick` finds it.
    Raises AnalysisError below 500 arrivals or where all are at once.
    """
    times_ns, end_ns, tick_ns = _series(stamp_ns, end_ns, spread)
    target = target_figures(times_ns, end_ns)
    fits = list(fit_all(times_ns, end_ns, seed))
    ranked = _draw_and_rank(fits, target, end_ns, seed, n_seeds, times_ns.size)
    notes = _notes(times_ns.size, tick_ns, target, ranked)
    return FitReport(times_ns.size, end_ns, tick_ns, target, ranked, notes)


def fits_of(stamp_ns: NDArray[np.int64], *, seed: int = 1) -> tuple[Iterator[Fitted], int]:
    """The fits that `fit_trace` ranks, each made when it is asked for, simple ones first; the span, ns."""
    times_ns, end_ns, _ = _series(stamp_ns, None, True)
    return fit_all(times_ns, end_ns, seed), end_ns


def rank(
    fitted: Fitted, target: Sequence[Figure], end_ns: int, seed: int, n_seeds: int, is_short: bool = False
) -> Ranked:
    """Draws `n_seeds` series of the trace's span and compares their medians.

    A judged figure must lie in its band as the median of nine draws, and of more draws in four of five such nines: 81
    draws are nine tests, of which one may fail. Of a short trace the figure itself is as uncertain as its band: there
    it also suffices that it lies within two standard deviations of the draws.
    """
    arrivals = fitted.arrivals
    streams = np.random.default_rng(seed).spawn(n_seeds)
    drawn = [figures_of(arrivals.draw(rng, end_ns), end_ns) for rng in streams]
    groups = [drawn[first : first + N_SEEDS] for first in range(0, n_seeds - N_SEEDS + 1, N_SEEDS)] or [drawn]
    ratios = {
        figure.name: float(np.mean([figure.holds(_median(group, figure.name)) is False for group in groups]))
        for figure in target
        if figure.name in JUDGED and not (is_short and _is_among(figure, _values(drawn, figure.name)))
    }
    medians = {figure.name: _median(drawn, figure.name) for figure in target}
    off: dict[Kind, list[float]] = {}
    for figure in target:
        off.setdefault(figure.kind, []).append(abs(figure.log_ratio(medians[figure.name])))
    return Ranked(
        fitted,
        medians,
        n_seeds,
        float(np.mean([one for of_kind in off.values() for one in of_kind])),
        {kind: float(np.mean(of_kind)) for kind, of_kind in off.items()},
        tuple(name for name, ratio in ratios.items() if ratio > MOST_MISSED),
        max(ratios.values(), default=0.0),
    )


def _is_among(figure: Figure, values: Sequence[float]) -> bool:
    return bool(values) and abs(figure.value - float(np.mean(values))) <= 2 * float(np.std(values))


def _values(drawn: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Of the draws that carry the figure."""
    return [figures[name] for figures in drawn if name in figures]


def _median(drawn: Sequence[Mapping[str, float]], name: str) -> float:
    """Over the draws that carry the figure; 0 if none does."""
    return float(np.median(_values(drawn, name) or [0.0]))


def ordered(ranked: Iterable[Ranked], is_short: bool = False) -> tuple[Ranked, ...]:
    """Best first: those that fit before the others, those whose fit failed last, and by score.

    Of those that fit and missed in none of their nines the one of fewest parameters comes first whose score is within
    0.005 (of a short trace 0.05) of the best one's or below 0.04: what nine seeds of the trace's own process score.
    (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3, choose the smallest tree within one
    standard error.)
    """
    by_score = sorted(ranked, key=lambda one: (bool(one.fitted.failure), one.score))
    fitting = [one for one in by_score if one.fits]
    if fitting:
        tolerance = SHORT_TOLERANCE if is_short else SCORE_TOLERANCE
        limit = max(fitting[0].score + tolerance, LEAST_SCORE)
        near = [one for one in fitting if one.score <= limit and not one.miss_ratio] or fitting[:1]
        simplest = min(near, key=lambda one: (one.fitted.n_parameters, one.score))
        fitting.remove(simplest)
        fitting.insert(0, simplest)
    return (*fitting, *(one for one in by_score if not one.fits))


def _draw_and_rank(
    fits: list[Fitted], target: Sequence[Figure], end_ns: int, seed: int, n_seeds: int, n: int
) -> tuple[Ranked, ...]:
    """Ranks by nine draws, or of a long trace the best after one draw; the first of the order then has more draws.

    Nine draws of a process with long memory may lie near a trace by luck. Whichever comes first is drawn again, 81
    times or as often as the budget allows, until the first one is one that has been.
    """
    is_short, all_at_once = n < SURE_ARRIVALS, len(fits) * n_seeds * n <= MOST_DRAWN
    ranked = [rank(one, target, end_ns, seed, n_seeds if all_at_once else 1, is_short) for one in fits]
    if not all_at_once:
        ranked.sort(key=lambda one: one.score)
        ranked[:N_FINALISTS] = [
            rank(one.fitted, target, end_ns, seed, n_seeds) for one in ranked[:N_FINALISTS]
        ]
    n_final = max(n_seeds, min(N_FINAL_SEEDS, MOST_DRAWN // (N_FINALISTS * n)))
    for _ in fits:
        best = ordered(ranked, is_short)[0]
        if best.n_seeds >= n_final:
            break
        ranked[ranked.index(best)] = rank(best.fitted, target, end_ns, seed + 1, n_final, is_short)
    return ordered(ranked, is_short)


def _series(
    stamp_ns: NDArray[np.int64], end_ns: int | None, spread: bool
) -> tuple[NDArray[np.int64], int, float | None]:
    """The instants from 0 on, the end of their span, and the tick in which they were spread, if they were."""
    if stamp_ns.size < LEAST_ARRIVALS:
        raise AnalysisError(
            f"{stamp_ns.size} arrivals are too few to fit a process: {LEAST_ARRIVALS} are needed"
        )
    if stamp_ns[-1] == stamp_ns[0]:
        raise AnalysisError("all arrivals are at one instant: no process can be fitted")
    times_ns = stamp_ns
    if end_ns is None:
        times_ns = stamp_ns - stamp_ns[0]
        end_ns = int(times_ns[-1]) + max(1, int(times_ns[-1]) // (times_ns.size - 1))
    tick_ns = find_grid(times_ns).tick_ns if spread else None
    if tick_ns is not None:
        times_ns = spread_in_ticks(times_ns, tick_ns)
        end_ns = max(end_ns, int(times_ns[-1]) + 1)
    return times_ns, end_ns, tick_ns


def _notes(
    n: int, tick_ns: float | None, target: Sequence[Figure], ranked: Sequence[Ranked]
) -> tuple[str, ...]:
    carried = {figure.name for figure in target if figure.low is not None}
    left_out = [name for name in JUDGED if name not in carried]
    n_short = sum(one.n_seeds < N_SEEDS for one in ranked)
    failed = [one.fitted for one in ranked if one.fitted.failure]
    notes = {
        f"the trace is too short, or too sparse, to judge {', '.join(left_out)}": left_out,
        f"the stamps lie on a grid of {(tick_ns or 0) / NS_PER_S:g} s; arrivals were spread inside it before the fit":
            tick_ns is not None,
        f"of fewer than {SURE_ARRIVALS:,} arrivals it suffices that a figure is within 2 s.d. of a process's draws":
            n < SURE_ARRIVALS,
        f"likelihoods are over 8 excerpts of about {MOST_FITTED:,} arrivals in all": n > MOST_FITTED,
        **{f"the fit of {one.name} failed: {one.failure}; its row is no estimate": True for one in failed},
        f"{n_short} processes have fewer than {N_SEEDS} draws, and cannot count as fitting": n_short,
    }  # fmt: skip
    return tuple(note for note, is_so in notes.items() if is_so)
