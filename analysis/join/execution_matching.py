"""Which batch of its instance each execution on a lane is, where intervals of batches overlap (TensorRT).

    batches            [── 7 ──────────)
                             [── 8 ──────────)
                                   [── 9 ──────────)
    lane, by events      x x x | x x x | x x x |        an execution: what lies between two events that end one
    held by                7,8     8,9     9

What holds: the work of an instance is first in, first out on its stream; executions are issued in the order of the
batches' starts, one a batch; each records as many events on the stream as the next, its *period*; what it does lies in
the interval of its batch. Nothing else is taken for granted: not how many events a period has, not which of them ends
an execution (its *phase*), not which batch a window begins with.

An execution that one batch alone can be is *pinned*. Executions in order and batches in order differ by a number, the
*shift*, which pinned ones tell. Those between two pinned ones of equal shift have it too; where the shift changes, a
batch or an execution is missing, and some on both sides of the change are left out. A shift that only few pinned ones
have is none.

All periods that agree with the number of batches, and all phases, are tried. Those that are wrong put operations of two
executions together, and soon no batch holds what they put together. An execution is told where all that are left say
the same of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.join.holders import LEAST_HELD, Stretches, stand_apart

NEVER, ALWAYS = np.iinfo(np.int64).max, np.iinfo(np.int64).min
"""Begin and end of a segment without operations."""
NOWHERE: Final = -1

LARGEST_PERIOD: Final = 64
"""Events of an execution on one stream; TensorRT's backend records two on that of its kernels."""
MOST_ASTRAY: Final = 3
"""Batches of a window by which their number may differ from that of executions: those at its edges, whose interval
begins in it and whose events do not lie in it, or the other way round."""
MOST_ASTRAY_SHARE: Final = 0.02
"""And of all of them, for batches without an execution, such as failed ones."""
FEWEST_PINNED: Final = 6
"""Pinned executions in a row with one shift; the batch of one that is missing may hold as many as an instance has
begun at once, and so make a shift of its own."""
LEFT_OUT: Final = 3
"""Pinned executions on either side of a change of shift."""
FEWEST_APART: Final = 5
"""Executions that a wrong period or phase must miss, beyond three times as many as the best does."""
TORN: Final = -2
_FAR: Final = 2**40


class Stretch(NamedTuple):
    """A lane in one span of recording: what lies between the events that were recorded on it.

    stream        k k k e c e k k k e c e k k k e c e        k: kernel, c: copy, e: an event is recorded
    segment       0 0 0   1   2 2 2   3   4 4 4   5          in the order of calls, by correlation id
    """

    events: Int64s
    """(n,): which CUDA event each record is of, in the order of calls."""
    start_ns: Int64s
    end_ns: Int64s
    """(n + 1,): of the operations before the first record, between one and the next, and after the last; `NEVER` and
    `ALWAYS` where there is none."""
    n_batches: int
    """Batches of the lane's instance that begin in the span."""


def matched_rows(stretches: Sequence[Stretch], batches: Stretches) -> Int64s:
    """The number of the batch of each segment, of all stretches of a lane one after another; NOWHERE: not told."""
    rows = [np.full(len(stretch.start_ns), NOWHERE) for stretch in stretches]
    for number, (stretch, possible) in enumerate(zip(stretches, _possible(stretches, batches), strict=True)):
        told = np.array([_matched(stretch, batches, *one)[0] for one in possible])
        if len(told):
            rows[number] = np.where((told == told[0]).all(axis=0), told[0], NOWHERE)
    return np.concatenate(rows)


def _periods(stretches: Sequence[Stretch]) -> list[int]:
    """Events of an execution with which, in nearly all windows, there are as many executions as batches."""
    n_events, n_batches = (
        np.array([len(s.events) for s in stretches]),
        np.array([s.n_batches for s in stretches]),
    )
    counted = n_batches >= FEWEST_PINNED
    if not counted.any():
        return []
    most = MOST_ASTRAY + MOST_ASTRAY_SHARE * n_batches[counted]
    return [
        period
        for period in range(1, LARGEST_PERIOD + 1)
        if np.mean(np.abs(n_events[counted] / period - n_batches[counted]) <= most) >= 0.9
    ]


def _possible(stretches: Sequence[Stretch], batches: Stretches) -> Iterator[list[tuple[int, int]]]:
    """Of each window period and phase of all that can be true in it, by how many executions they miss in all; none
    where none can."""
    turns = {period: _turns(stretches, period) for period in _periods(stretches)}
    missed = {
        period: np.array(
            [
                _FAR if turn == TORN else _matched(one, batches, period, phase)[1]
                for one, turn in zip(stretches, of_period, strict=True)
                for phase in range(period)
            ]
        ).reshape(-1, period)
        for period, of_period in turns.items()
    }
    n_events = np.array([len(one.events) for one in stretches])
    every = np.concatenate([n_events[:, None], *missed.values()], axis=1)
    least = every.min(axis=1)
    fits = least <= (1 - LEAST_HELD) * (n_events // np.repeat([1, *turns], [1, *turns])[every.argmin(axis=1)])
    for number in range(len(stretches)):
        possible = []
        for period, turned in turns.items():
            alike = fits & (turned >= 0) if turned[number] >= 0 else np.arange(len(turned)) == number
            for phase in range(period):
                phases = (phase + turned[alike] - turned[number]) % period
                n_missed = int(missed[period][alike, phases].sum())
                if not stand_apart(n_missed, int(least[alike].sum()), FEWEST_APART):
                    possible.append((period, phase))
        yield possible if fits[number] else []


def _turns(stretches: Sequence[Stretch], period: int) -> Int64s:
    """By how many places the records of each window are turned against those of the first, by the events that they are
    of; NOWHERE where that cannot be told. (n,)

    A backend that records the same events again and again has each at one place of the period. TORN: one of the window
    is at two, since a record is missing between, or since the period is another.
    """
    place: dict[int, int] = {}
    found = np.full(len(stretches), NOWHERE, np.int64)
    for number, one in enumerate(stretches):
        pairs = np.unique(np.stack([one.events, np.arange(len(one.events)) % period]), axis=1)
        own = dict(pairs.T.tolist())
        known = {(at - place[event]) % period for event, at in own.items() if event in place}
        if len(own) < pairs.shape[1]:
            found[number] = TORN
        if len(own) < pairs.shape[1] or len(known) > 1 or (place and not known):
            continue
        found[number] = known.pop() if known else 0
        place.update({event: (at - int(found[number])) % period for event, at in own.items()})
    return found


def _matched(stretch: Stretch, batches: Stretches, period: int, phase: int) -> tuple[Int64s, int]:
    """The number of each segment's batch, or NOWHERE; and how many executions no batch can be, by what the others are.

    Executions begin and end in the window; the first is what of one lies in it. What follows the last end is cut by the
    window's end, and is none.
    """
    rows = np.full(len(stretch.start_ns), NOWHERE)
    edges = np.append(0, np.arange(phase, len(stretch.events), period) + 1)
    if len(edges) < 2:
        return rows, 0
    start = np.minimum.reduceat(stretch.start_ns[: edges[-1]], edges[:-1])
    end = np.maximum.reduceat(stretch.end_ns[: edges[-1]], edges[:-1])
    first, last = batches.bounds(start, end)
    is_empty = (start == NEVER) & (end == ALWAYS)
    number = np.arange(len(start))
    least, most = np.where(is_empty, -_FAR, first - number), np.where(is_empty, _FAR, last - number)
    shift, is_missed = _shifts(least, most)
    told = np.where(is_missed | (shift == _FAR), NOWHERE, number + shift)
    is_held = is_empty | (told == NOWHERE) | batches.hold(told, start, end)
    rows[: edges[-1]] = np.repeat(np.where(is_held & ~is_empty, told, NOWHERE), np.diff(edges))
    return rows, int((is_missed | ~is_held).sum())


def _shifts(least: Int64s, most: Int64s) -> tuple[Int64s, Bools]:
    """Of executions whose shift lies in [least, most] the shift, _FAR where it is not told, and which are missed."""
    shift = np.full(len(least), _FAR, np.int64)
    is_missed = least > most
    pinned = np.flatnonzero(least == most)
    runs = np.split(pinned, np.flatnonzero(np.diff(least[pinned])) + 1)
    long = [run for run in runs if len(run) >= FEWEST_PINNED]
    kept = np.concatenate([np.zeros(0, np.int64), *long])
    for run in runs:
        # Once: near a window's end a batch without an execution leaves one such run.
        if 0 < len(run) < FEWEST_PINNED:
            is_missed[run[0]] = True
    runs = np.split(kept, np.flatnonzero(np.diff(least[kept])) + 1)
    for number, run in enumerate(runs):
        own = run[LEFT_OUT if number else 0 : len(run) - (LEFT_OUT if number < len(runs) - 1 else 0)]
        if not len(own):
            continue
        within = np.arange(own[0], own[-1] + 1)
        told = least[own[0]]
        fits = (least[within] <= told) & (told <= most[within])
        shift[within[fits]] = told
        is_missed[within[~fits]] = True
    return shift, is_missed
