"""Which runs of two sides make pairs: those of one schedule and one seed, in the order in which they ran.

The digest of a plan holds which of several servers each arrival is for. Of runs that differ in that, such as one server
against two, those make pairs that have the same load by scenario, seed and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.analysis.compare.differing import LOAD_KEYS, differing, is_of_profilers
from squall.analysis.compare.run_row import RunRow
from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen

LEAST_PAIRS = 2
_LEAST_OTHER_RATIO = 1.2
"""Bytes of a request's row, one side over the other, from which on it carries other tensors: heads differ by less."""
_HEAD_BYTES = 64.0


class Pair(Frozen):
    """Two runs of one schedule."""

    a: RunRow
    b: RunRow

    @property
    def seed(self) -> int | None:
        """Of both."""
        return self.a.seed

    @property
    def is_whole(self) -> bool:
        """Whether both count."""
        return self.a.is_valid and self.b.is_valid


def sides(pairs: Sequence[Pair]) -> tuple[list[RunRow], list[RunRow]]:
    """The runs of A, and those of B."""
    return [pair.a for pair in pairs], [pair.b for pair in pairs]


class Paired(Frozen):
    """`unpaired`: runs that did not run to their end, and those whose schedule and seed no run of the other side has.
    `replaced`: INVALID ones, and those that ended early, that another of the same side, schedule and seed follows."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[RunRow, ...]
    replaced: tuple[RunRow, ...]

    @property
    def whole(self) -> list[Pair]:
        """The pairs that count."""
        return [pair for pair in self.pairs if pair.is_whole]


def pair_runs(a: Sequence[RunRow], b: Sequence[RunRow]) -> Paired:
    """The k-th run of A with the k-th of B, of each schedule and seed; then of the others by load and seed."""
    cut_short = [run for run in (*a, *b) if not run.has_verdict]
    kept_a, replaced_a = _kept([run for run in a if run.has_verdict])
    kept_b, replaced_b = _kept([run for run in b if run.has_verdict])
    pairs = list[Pair]()
    for key_of in (_by_schedule, _by_load):
        own_a, own_b = _grouped(kept_a, key_of), _grouped(kept_b, key_of)
        found = [
            Pair(*both) for key in own_a if key in own_b for both in zip(own_a[key], own_b[key], strict=False)
        ]
        pairs += found
        kept_a = [run for run in kept_a if all(run is not pair.a for pair in found)]
        kept_b = [run for run in kept_b if all(run is not pair.b for pair in found)]
    pairs.sort(key=lambda pair: (min(pair.a.started_ns, pair.b.started_ns), pair.a.name))
    return Paired(tuple(pairs), (*kept_a, *kept_b, *cut_short), (*replaced_a, *replaced_b))


_Key = tuple[str, int | None]


def _by_schedule(run: RunRow) -> _Key:
    return run.schedule, run.seed


def _by_load(run: RunRow) -> _Key:
    return run.load, run.seed


def _grouped(runs: Sequence[RunRow], key_of: Callable[[RunRow], _Key]) -> dict[_Key, list[RunRow]]:
    """By key, in order of time; a run of an old manifest may have none."""
    found = dict[_Key, list[RunRow]]()
    for run in sorted(runs, key=lambda one: (one.started_ns, one.name)):
        if key_of(run)[0]:
            found.setdefault(key_of(run), []).append(run)
    return found


def _kept(runs: Sequence[RunRow]) -> tuple[list[RunRow], list[RunRow]]:
    """What counts, and what was run again. Of a schedule and seed without a run that counts the last stays."""
    kept, replaced = [run for run in runs if not run.schedule], list[RunRow]()
    for own in _grouped(runs, _by_schedule).values():
        counted = [run for run in own if run.is_valid] or own[-1:]
        kept += counted
        replaced += [run for run in own if all(run is not one for one in counted)]
    return kept, replaced


def refuse_incomparable(paired: Paired, a: Sequence[RunRow], b: Sequence[RunRow]) -> None:
    """Raises ScenarioError where the sides cannot be compared at all: no pairs, one pair, other tensors, one side under
    nsys where profiling is not all that differs."""
    if not paired.pairs:
        raise ScenarioError(f"compare: no run of A has the schedule and seed of one of B: {_why_none(a, b)}")
    if len(paired.pairs) < LEAST_PAIRS:
        raise ScenarioError(
            "compare: one pair of runs tells nothing of how much two runs of one configuration differ: name folders"
            " with runs of several seeds, or scenario files"
        )
    whole = paired.whole
    is_of_profiling = all(is_of_profilers(differing(pair.a.scenario, pair.b.scenario)) for pair in whole)
    for pair in whole:
        if not is_of_profiling and ("nsys" in pair.a.collectors_on) != ("nsys" in pair.b.collectors_on):
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


def _why_none(a: Sequence[RunRow], b: Sequence[RunRow]) -> str:
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
