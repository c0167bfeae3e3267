"""What a batch does on the GPU, A against B at equal batch size: its parts, and its kernels by name.

Of batches whose operations were recorded. For each pair and each size that both sides have, a figure of a batch is
weighted by n_A n_B / (n_A + n_B) batches; kernels that only one side has count as none in the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from squall.analysis.compare.intervals import MeanChange, mean_change
from squall.analysis.compare.pairing import Pair
from squall.analysis.compare.run_account import BATCH_PARTS, RecordedSums
from squall.analysis.compare.why import EqualSizes, Sized, equal_sizes
from squall.scenarios.records import Frozen

ADDED, GONE, BOTH = "added", "gone", "in both"
_Key = tuple[str, int]


class KernelChange(Frozen):
    """A kernel by name, normalised: calls and time of it in a batch, ns, and the time of one call, None where there was
    none. `state`: added (in B alone), gone (in A alone), in both."""

    name: str
    state: str
    calls: MeanChange
    time_ns: MeanChange
    call_a_ns: float | None
    call_b_ns: float | None


class GpuChange(Frozen):
    """Recorded batches at equal size. `length` is the sum of the `parts`; `kernels`: the largest change of time first.
    `kernel_time`: all kernels of a batch together, B over A; None of one pair. `sizes`: rows that both sides have."""

    n_pairs: int
    n_batches_a: int
    n_batches_b: int
    sizes: tuple[int, ...]
    length: MeanChange
    parts: tuple[MeanChange, ...]
    kernels: tuple[KernelChange, ...]
    kernel_time: EqualSizes | None


_Side = Mapping[_Key, RecordedSums]
_Total = Callable[[RecordedSums], float]


class _Weighed(NamedTuple):
    """The recorded batches of a pair, and the weight of each size that both have; they add up to 1."""

    a: _Side
    b: _Side
    weights: Mapping[_Key, float]


def gpu_change(pairs: Sequence[Pair], margin: float, level: float) -> GpuChange | None:
    """Of the pairs whose runs recorded batches of one size; None where there is none, as on a CPU."""
    both = [(_by_key(pair.a.account.recorded), _by_key(pair.b.account.recorded)) for pair in pairs]
    own = [_Weighed(a, b, _weights(a, b)) for a, b in both if set(a) & set(b)]
    if not own:
        return None
    parts = [_change(part, own, _part(part), level) for part in BATCH_PARTS]
    return GpuChange(
        len(own),
        sum(sums.n_batches for one in own for sums in one.a.values()),
        sum(sums.n_batches for one in own for sums in one.b.values()),
        tuple(sorted({size for one in own for _, size in one.weights})),
        _change("length", own, lambda sums: math.fsum(sums.ns.values()), level),
        tuple(sorted((one for one in parts if one.a or one.b), key=lambda one: -abs(one.change))),
        _kernels(own, level),
        _kernel_time(own, margin, level),
    )


def _by_key(recorded: Sequence[RecordedSums]) -> dict[_Key, RecordedSums]:
    return {(one.model, one.rows): one for one in recorded}


def _weights(a: _Side, b: _Side) -> dict[_Key, float]:
    raw = {
        key: a[key].n_batches * b[key].n_batches / (a[key].n_batches + b[key].n_batches)
        for key in a
        if key in b
    }
    total = math.fsum(raw.values())
    return {key: value / total for key, value in raw.items()}


def _part(part: str) -> _Total:
    return lambda sums: sums.ns[part]


def _kernel(name: str, place: int) -> _Total:
    """Of a kernel: 0 its calls, 1 their time."""
    return lambda sums: sums.kernels.get(name, (0, 0.0))[place]


def _change(what: str, own: Sequence[_Weighed], total: _Total, level: float) -> MeanChange:
    """Of what a batch has of `total`, at equal size."""

    a, b = (
        [
            math.fsum(
                weight * total(sides[place][key]) / sides[place][key].n_batches
                for key, weight in weights.items()
            )
            for *sides, weights in own
        ]
        for place in (0, 1)
    )
    return mean_change(what, a, b, level)


def _kernels(own: Sequence[_Weighed], level: float) -> tuple[KernelChange, ...]:
    names = dict.fromkeys(
        name for one in own for key in one.weights for name in (*one.a[key].kernels, *one.b[key].kernels)
    )
    found = []
    for name in names:
        calls = _change("calls", own, _kernel(name, 0), level)
        time = _change("time", own, _kernel(name, 1), level)
        state = BOTH if calls.a and calls.b else ADDED if calls.b else GONE
        call_a_ns = time.a / calls.a if calls.a else None
        call_b_ns = time.b / calls.b if calls.b else None
        found.append(KernelChange(name, state, calls, time, call_a_ns, call_b_ns))
    return tuple(sorted(found, key=lambda one: -abs(one.time_ns.change)))


def _kernel_time(own: Sequence[_Weighed], margin: float, level: float) -> EqualSizes | None:
    """Time of all kernels of a batch: the sum of their durations."""

    def sized(side: _Side) -> Sized:
        return {
            key: (one.n_batches, math.fsum(ns for _, ns in one.kernels.values())) for key, one in side.items()
        }

    return equal_sizes("kernels", [(sized(one.a), sized(one.b)) for one in own], margin, level)
