"""What two sides were run with: what differs by intent, and what speaks against the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from squall.analysis.compare.differing import Differing, differing
from squall.analysis.compare.pairing import Pair, sides
from squall.analysis.statistics.student import mean_of
from squall.analysis.wording import duration_text, names_text

_WATCHED = ("kernels", "triton_trace", "batches", "nvml", "gpm")
_STATES: dict[str, tuple[str, float, float, Callable[[float], str]]] = {
    "sm_clock_hz": ("the SM clock", 0.01, 0.0, lambda hz: f"{hz / 1e6:,.0f} MHz"),
    "temperature_c": ("the temperature of the GPU", 0.05, 0.0, "{:.0f} °C".format),
    "throttled_ratio": (
        "the share of samples with clocks held down",
        0.0,
        0.05,
        lambda share: f"{100 * share:.0f} %",
    ),
    "others_ratio": ("the share of the CPU that others had", 0.0, 0.05, lambda share: f"{100 * share:.0f} %"),
    "uptime_ns": ("the time for which the server had run", 0.5, 60e9, duration_text),
}
"""By figure of `states`: what it is, from which difference on it is told, as a share of the mean and itself, and how it
is written. A server's p99 may double within an hour of load (vLLM issue 42484), and its start takes seconds more or
less."""
_NS_PER_MINUTE = 60 * 10**9


def what_differs(pairs: Sequence[Pair]) -> tuple[Differing, ...]:
    """In the first pair; of GPUs that change sides nothing is said."""
    if not pairs:
        return ()
    first = pairs[0]
    is_swapped = gpus_are_swapped(pairs)
    found = differing(first.a.scenario, first.b.scenario)
    return tuple(one for one in found if not (is_swapped and one.key.endswith("gpus")))


def gpus_are_swapped(pairs: Sequence[Pair]) -> bool:
    """Whether both sides ran on several GPUs in turn, and each on each about as often."""
    seen = [[run.gpus for run in side] for side in sides(pairs)]
    if len(set(seen[0])) < 2 or set(seen[0]) != set(seen[1]):
        return False
    return all(abs(seen[0].count(one) - seen[1].count(one)) <= 1 for one in set(seen[0]))


def marks(pairs: Sequence[Pair]) -> list[str]:
    """What a reader must know before believing a difference between the sides."""
    return [*_of_settings(pairs), *_order(pairs), *_states(pairs), *_levels(pairs)] if pairs else []


def _of_settings(pairs: Sequence[Pair]) -> Iterator[str]:
    """Where the sides stood, and what was on."""
    first, both = pairs[0], sides(pairs)
    keys = dict.fromkeys([*first.a.setting, *first.b.setting])
    at = {key: (first.a.setting.get(key, "-"), first.b.setting.get(key, "-")) for key in keys}
    if other := [f"{key}: {a} → {b}" for key, (a, b) in at.items() if a != b]:
        yield f"the sides stood on different ground: {names_text(other)}"
    scenarios = [run.scenario for side in both for run in side]
    names = dict.fromkeys(
        str(one.get("name")) for scenario in scenarios for one in scenario.get("models") or ()
    )
    if len(names) > 1:
        yield (
            f"requests ask several models, {names_text(list(names))}: the figures are of all of them together, what"
            " changed for one alone is not assessed; scenarios with one of them tell that"
        )
    alone = [(name, set(pair.a.collectors_on), pair.b.collectors_on) for pair in pairs for name in _WATCHED]
    for name, side in dict.fromkeys(
        (name, "A" if name in a else "B") for name, a, b in alone if (name in a) != (name in b)
    ):
        yield f"collector {name} was on in {side} alone: what it costs is in the difference"
    for side, runs in zip("AB", both, strict=True):
        found = [one.key for run in runs[1:] for one in differing(runs[0].scenario, run.scenario)]
        if keys_in := [key for key in dict.fromkeys(found) if not key.endswith("gpus")]:
            yield f"the runs of {side} are not of one configuration: they differ in {names_text(keys_in)}"
    a, b = ({gpu for run in side for gpu in run.gpus} for side in both)
    if a and b and a != b and not gpus_are_swapped(pairs):
        yield (
            f"A ran on GPU {names_text(sorted(a))}, B on {names_text(sorted(b))}: what the GPUs themselves"
            " differ in is in the difference; --swap-gpus changes them over half-way"
        )


def _order(pairs: Sequence[Pair]) -> Iterator[str]:
    """That one side ran first throughout: a drift of machine or server is in the difference then."""
    a, b = ([run.started_ns for run in side] for side in sides(pairs))
    if 0 in (*a, *b) or len(pairs) < 2:
        return
    for first, last, begun, after in (("A", "B", a, b), ("B", "A", b, a)):
        if max(begun) < min(after):
            apart_ns = abs(math.fsum(after) - math.fsum(begun)) / len(pairs)
            minutes = f"{apart_ns / _NS_PER_MINUTE:,.0f} min"
            text = duration_text(apart_ns) if apart_ns < _NS_PER_MINUTE else minutes
            yield (
                f"all runs of {first} came before all of {last}, {text} apart on average: any drift of machine or"
                " server is in the difference; squall compare of scenario files runs them in blocks of random order"
            )
        elif all(one < other for one, other in zip(begun, after, strict=True)):
            yield f"{first} ran first in every pair: what the first of two runs differs in is in the difference"


def _states(pairs: Sequence[Pair]) -> Iterator[str]:
    """States of GPUs, CPU and servers in which the sides differ by more than chance, and by more than is nothing."""
    for name, (label, least_ratio, least, text) in _STATES.items():
        both = [(pair.a.states.get(name), pair.b.states.get(name)) for pair in pairs]
        known = [(a, b) for a, b in both if a is not None and b is not None]
        if len(known) < 2:
            continue
        change, level = mean_of([b - a for a, b in known]), math.fsum(a for a, _ in known) / len(known)
        if abs(change.mean) > max(least, least_ratio * abs(level), change.half(0.05)):
            yield f"{label} differs: {text(level)} → {text(level + change.mean)}; it may be cause or effect"


def _levels(pairs: Sequence[Pair]) -> list[str]:
    """That the parts of the two sides are known by different means: what is in one part here is in another there."""
    for pair in pairs:
        a, b = pair.a.account.levels, pair.b.account.levels
        if a and b and any(abs(a.get(one, 0.0) - b.get(one, 0.0)) > 0.1 for one in {*a, *b}):
            told = [", ".join(f"{one} {100 * share:.0f} %" for one, share in side.items()) for side in (a, b)]
            return [f"the parts of requests are known by different means, A: {told[0]}; B: {told[1]}"]
    return []
