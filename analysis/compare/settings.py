"""What two sides were run with: what differs by intent, and what speaks against the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from squall.analysis.compare.differing import Differing, differing
from squall.analysis.compare.pairing import Pair, sides
from squall.analysis.statistics.student import mean_of
from squall.analysis.wording import duration_text, names_text

_WATCHED = ("kernels", "triton_trace", "batches", "nvml", "gpm")
_STATES = {
    "sm_clock_hz": ("the SM clock", 0.01, 0.0),
    "temperature_c": ("the temperature of the GPU", 0.05, 0.0),
    "throttled_ratio": ("the share of samples with clocks held down", 0.0, 0.05),
    "others_ratio": ("the share of the CPU that others had", 0.0, 0.05),
    "uptime_ns": ("the time for which the server had run", 0.5, 60e9),
}
"""By figure of `states`: what it is, and from which difference on it is told: as a share of the mean, and itself. A
server's p99 may double within an hour of load (vLLM issue 42484), and its start takes seconds more or less."""
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
    if not pairs:
        return []
    return [
        *_settings(pairs),
        *_models(pairs),
        *_collectors(pairs),
        *_one_configuration(pairs),
        *_gpus(pairs),
        *_order(pairs),
        *_states(pairs),
        *_levels(pairs),
    ]


def _settings(pairs: Sequence[Pair]) -> list[str]:
    first = pairs[0]
    keys = dict.fromkeys([*first.a.setting, *first.b.setting])
    other = [
        f"{key}: {first.a.setting.get(key, '-')} → {first.b.setting.get(key, '-')}"
        for key in keys
        if first.a.setting.get(key) != first.b.setting.get(key)
    ]
    return [f"the sides stood on different ground: {names_text(other)}"] if other else []


def _models(pairs: Sequence[Pair]) -> list[str]:
    """That figures are of several models together."""
    scenarios = [run.scenario for pair in pairs for run in (pair.a, pair.b)]
    names = dict.fromkeys(
        str(one.get("name")) for scenario in scenarios for one in scenario.get("models") or ()
    )
    if len(names) < 2:
        return []
    return [
        f"requests ask several models, {names_text(list(names))}: the figures are of all of them together, what changed"
        " for one alone is not assessed; scenarios with one of them tell that"
    ]


def _collectors(pairs: Sequence[Pair]) -> list[str]:
    """Collectors that were on in one side alone: what they cost is in the difference."""
    found = dict[str, None]()
    for pair in pairs:
        for name in sorted(set(pair.a.collectors_on) ^ set(pair.b.collectors_on)):
            if name in _WATCHED:
                side = "A" if name in pair.a.collectors_on else "B"
                found[f"collector {name} was on in {side} alone: what it costs is in the difference"] = None
    return list(found)


def _one_configuration(pairs: Sequence[Pair]) -> Iterator[str]:
    for side, runs in zip("AB", sides(pairs), strict=True):
        found = [one.key for run in runs[1:] for one in differing(runs[0].scenario, run.scenario)]
        keys = [key for key in dict.fromkeys(found) if not key.endswith("gpus")]
        if keys:
            yield f"the runs of {side} are not of one configuration: they differ in {names_text(keys)}"


def _gpus(pairs: Sequence[Pair]) -> list[str]:
    a, b = ({gpu for run in side for gpu in run.gpus} for side in sides(pairs))
    if not a or not b or gpus_are_swapped(pairs) or a == b:
        return []
    return [
        f"A ran on GPU {names_text(sorted(a))}, B on {names_text(sorted(b))}: what the GPUs themselves"
        " differ in is in the difference; --swap-gpus changes them over half-way"
    ]


def _order(pairs: Sequence[Pair]) -> list[str]:
    """That one side ran first throughout: a drift of machine or server is in the difference then."""
    a, b = ([run.started_ns for run in side] for side in sides(pairs))
    if 0 in (*a, *b) or len(pairs) < 2:
        return []
    for first, last, begun, after in (("A", "B", a, b), ("B", "A", b, a)):
        if max(begun) < min(after):
            apart_ns = abs(math.fsum(after) - math.fsum(begun)) / len(pairs)
            minutes = f"{apart_ns / _NS_PER_MINUTE:,.0f} min"
            text = duration_text(apart_ns) if apart_ns < _NS_PER_MINUTE else minutes
            return [
                f"all runs of {first} came before all of {last}, {text} apart on average: any drift of machine or"
                " server is in the difference; squall compare of scenario files runs them in blocks of random order"
            ]
        if all(one < other for one, other in zip(begun, after, strict=True)):
            return [
                f"{first} ran first in every pair: what the first of two runs differs in is in the difference"
            ]
    return []


def _states(pairs: Sequence[Pair]) -> list[str]:
    """States of GPUs, CPU and servers in which the sides differ by more than chance, and by more than is nothing."""
    found = []
    for name, (label, least_ratio, least) in _STATES.items():
        both = [
            (pair.a.states[name], pair.b.states[name])
            for pair in pairs
            if name in pair.a.states and name in pair.b.states
        ]
        if len(both) < 2:
            continue
        change, level = mean_of([b - a for a, b in both]), math.fsum(a for a, _ in both) / len(both)
        floor = max(least, least_ratio * abs(level))
        if abs(change.mean) > max(floor, change.half(0.05)):
            found.append(
                f"{label} differs: {_state_text(name, level)} → {_state_text(name, level + change.mean)};"
                " it may be cause or effect"
            )
    return found


def _state_text(name: str, value: float) -> str:
    if name == "sm_clock_hz":
        return f"{value / 1e6:,.0f} MHz"
    if name == "uptime_ns":
        return duration_text(value)
    return f"{value:.0f} °C" if name == "temperature_c" else f"{100 * value:.0f} %"


def _levels(pairs: Sequence[Pair]) -> list[str]:
    """That the parts of the two sides are known by different means: what is in one part here is in another there."""
    for pair in pairs:
        a, b = pair.a.account.levels, pair.b.account.levels
        if a and b and any(abs(a.get(one, 0.0) - b.get(one, 0.0)) > 0.1 for one in {*a, *b}):
            told = [", ".join(f"{one} {100 * share:.0f} %" for one, share in side.items()) for side in (a, b)]
            return [f"the parts of requests are known by different means, A: {told[0]}; B: {told[1]}"]
    return []
