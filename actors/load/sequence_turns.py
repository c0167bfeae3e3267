"""Whose turn it is in each sequence: what waits for the request before it, and what is not sent since one failed.

order: wait      a0 ──────┤ a1 ────┤          a1 was due here ▼, and is sent when a0 has ended
due              ▲   ▼        ▲
on_failure: stop a0 ──✗     a1, a2 … of that sequence are not sent
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from squall.scenarios.sequences import CUT, Place, SequenceRule, Sequences

One = TypeVar("One")
Turn = Literal["now", "later", "never"]
FAILED = f"{CUT}: an earlier request of it failed"


@dataclass
class _Sequence(Generic[One]):
    """One that has begun. `n_out`: of its requests in flight, `waiting`: those that are held back, in order."""

    n_out: int = 0
    waiting: deque[One] = field(default_factory=deque)
    cut: str = ""
    has_come_whole: bool = False
    target: int | None = None

    @property
    def is_over(self) -> bool:
        return self.has_come_whole and not self.n_out and not self.waiting


@dataclass(frozen=True)
class Passed(Generic[One]):
    """What the end of a request means for others of its sequence: what is sent `next`, what is `never` sent and `why`,
    and whether nothing of the sequence is left."""

    next: One | None
    never: tuple[One, ...]
    why: str
    is_over: bool


class Turns(Generic[One]):
    """Of one worker, which has all requests of its sequences; in the thread that sends. `One`: what is held back."""

    def __init__(self, sequences: Sequences, rule: SequenceRule) -> None:
        self.n_waiting = 0
        self.is_pinned = rule.is_pinned
        self._place = sequences.place
        self._rule = rule
        self._sequences: dict[int, _Sequence[One]] = {}

    def comes(self, request_id: int, one: One) -> tuple[Turn, str]:
        """A request is due: it is sent now, held back until `ended` says that it is next, or never sent, and why."""
        place = self._place(request_id)
        sequence = self._at(place)
        sequence.has_come_whole |= place.is_end
        if sequence.cut:
            self._forget(place, sequence)
            return "never", sequence.cut
        if self._rule.is_ordered and sequence.n_out:
            sequence.waiting.append(one)
            self.n_waiting += 1
            return "later", ""
        sequence.n_out += 1
        return "now", ""

    def ended(self, request_id: int, is_ok: bool) -> Passed[One]:
        """A request that was sent has ended."""
        place = self._place(request_id)
        sequence = self._at(place)
        sequence.n_out -= 1
        never: tuple[One, ...] = ()
        following: One | None = None
        if not is_ok and self._rule.is_cut_by_failure:
            sequence.cut = FAILED
            never = tuple(sequence.waiting)
            sequence.waiting.clear()
            self.n_waiting -= len(never)
        elif sequence.waiting:
            following = sequence.waiting.popleft()
            self.n_waiting -= 1
            sequence.n_out += 1
        is_over = sequence.is_over or bool(sequence.cut)
        self._forget(place, sequence)
        return Passed(following, never, sequence.cut, is_over)

    def key_of(self, request_id: int) -> int | None:
        """What names the connection of a request's sequence; None where it may take any."""
        return self._place(request_id).correlation_id if self.is_pinned else None

    def target_of(self, request_id: int) -> int | None:
        """The server that the sequence of a request in flight has; None: none yet."""
        return self._at(self._place(request_id)).target

    def takes(self, request_id: int, target: int) -> None:
        """The sequence of a request in flight has that server."""
        self._at(self._place(request_id)).target = target

    def rest(self) -> list[One]:
        """All that is held back; nothing is afterwards."""
        found = [one for sequence in self._sequences.values() for one in sequence.waiting]
        self._sequences.clear()
        self.n_waiting = 0
        return found

    def _at(self, place: Place) -> _Sequence[One]:
        sequence = self._sequences.get(place.correlation_id)
        if sequence is None:
            sequence = self._sequences[place.correlation_id] = _Sequence()
        return sequence

    def _forget(self, place: Place, sequence: _Sequence[One]) -> None:
        if sequence.is_over:
            self._sequences.pop(place.correlation_id, None)
