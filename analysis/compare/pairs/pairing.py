"""Which runs of two sides make pairs: those of one schedule and one seed, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.compare.pairs.differing import LOAD_KEYS, differing
from squall.analysis.compare.pairs.side_run import SideRun
from squall.scenarios.errors import ScenarioError

LEAST_PAIRS = 2
_LEAST_OTHER_RATIO = 1.2
"""Bytes of a request's row, one side over the other, from which on it carries other tensors: heads differ by less."""
_HEAD_BYTES = 64.0


@dataclass(frozen=True)
class Pair:
    """Two runs of one schedule."""

    a: SideRun
    b: SideRun

    @property
    def seed(self) -> int | None:
        """Of both."""
        return self.a.seed

    @property
    def is_whole(self) -> bool:
        """Whether both count."""
        return self.a.is_valid and self.b.is_valid


@dataclass(frozen=True)
class Paired:
    """`unpaired`: runs that no run of the other side has the schedule and seed of. `replaced`: INVALID ones that
    another of the same side, schedule and seed follows."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[SideRun, ...]
    replaced: tuple[SideRun, ...]

    @property
    def whole(self) -> list[Pair]:
        """The pairs that count."""
        return [pair for pair in self.pairs if pair.is_whole]


def pair_runs(a: Sequence[SideRun], b: Sequence[SideRun]) -> Paired:
    """The k-th run of A with the k-th of B, of each schedule and seed."""
    kept_a, replaced_a = _kept(a)
    kept_b, replaced_b = _kept(b)
    pairs, unpaired = list[Pair](), list[SideRun]()
    for key in dict.fromkeys([*kept_a, *kept_b]):
        own_a, own_b = kept_a.get(key, []), kept_b.get(key, [])
        n = min(len(own_a), len(own_b))
        pairs += [Pair(one, other) for one, other in zip(own_a, own_b, strict=False)]
        unpaired += [*own_a[n:], *own_b[n:]]
    pairs.sort(key=lambda pair: (min(pair.a.started_ns, pair.b.started_ns), pair.a.name))
    return Paired(tuple(pairs), tuple(unpaired), (*replaced_a, *replaced_b))


def _kept(
    runs: Sequence[SideRun],
) -> tuple[dict[tuple[str, int | None], list[SideRun]], list[SideRun]]:
    """By schedule and seed, in order of time, and what was run again. Of a key without a VALID run the last stays."""
    by_key = dict[tuple[str, int | None], list[SideRun]]()
    for run in sorted(runs, key=lambda one: (one.started_ns, one.name)):
        by_key.setdefault((run.schedule, run.seed), []).append(run)
    kept, replaced = dict[tuple[str, int | None], list[SideRun]](), list[SideRun]()
    for key, own in by_key.items():
        valid = [run for run in own if run.is_valid] or own[-1:]
        kept[key] = valid
        replaced += [run for run in own if run not in valid]
    return kept, replaced


def refuse_incomparable(paired: Paired, a: Sequence[SideRun], b: Sequence[SideRun]) -> None:
    """Raises ScenarioError where the sides cannot be compared at all: no pairs, one pair, one side under nsys, other
    tensors."""
    if not paired.pairs:
        raise ScenarioError(f"compare: no run of A has the schedule and seed of one of B: {_why_none(a, b)}")
    if len(paired.pairs) < LEAST_PAIRS:
        raise ScenarioError(
            "compare: one pair of runs tells nothing of how much two runs of one configuration differ: name folders"
            " with runs of several seeds, or scenario files"
        )
    whole = paired.whole
    for pair in whole:
        if ("nsys" in pair.a.collectors_on) != ("nsys" in pair.b.collectors_on):
            profiled = pair.a if "nsys" in pair.a.collectors_on else pair.b
            raise ScenarioError(
                f"compare: {profiled.name} was profiled by nsys and its partner was not: what that costs would be in"
                " the difference"
            )
        if have_other_tensors(pair):
            raise ScenarioError(
                f"compare: requests of {pair.a.name} carry {pair.a.request_bytes_per_row:.0f} bytes a row, those of"
                f" {pair.b.name} {pair.b.request_bytes_per_row:.0f}: their inputs have different shapes"
            )


def have_other_tensors(pair: Pair) -> bool:
    """Whether rows of the two runs differ by more bytes than a head does, sent by one protocol and way."""
    ways = [
        [clients.get("protocol"), clients.get("shared_memory"), clients.get("headers")]
        for clients in (dict(run.scenario.get("clients") or {}) for run in (pair.a, pair.b))
    ]
    one, other = pair.a.request_bytes_per_row, pair.b.request_bytes_per_row
    if one is None or other is None or ways[0] != ways[1]:
        return False
    low, high = sorted((one, other))
    return high > _LEAST_OTHER_RATIO * low and high - low > _HEAD_BYTES


def _why_none(a: Sequence[SideRun], b: Sequence[SideRun]) -> str:
    if not a or not b:
        return f"{'A' if not a else 'B'} has no run"
    unread = next((one for one in (*a, *b) if one.problem), None)
    if unread is not None:
        return f"{unread.name} {unread.problem}"
    if a[0].is_open != b[0].is_open:
        return "one side is a closed loop and the other is not"
    seeds_a, seeds_b = ({run.seed for run in side} for side in (a, b))
    if not seeds_a & seeds_b:
        return f"seeds {_listed(seeds_a)} against {_listed(seeds_b)}"
    keys = [one.key for one in differing(a[0].scenario, b[0].scenario) if one.key.startswith(LOAD_KEYS)]
    return f"they differ in {', '.join(keys[:3])}" if keys else "the same seeds gave other plans"


def _listed(seeds: set[int | None]) -> str:
    named = sorted(str(seed) for seed in seeds)
    return ", ".join(named[:4]) + (" …" if len(named) > 4 else "")
