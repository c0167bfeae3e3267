"""`squall.actors.load.sequence_turns.Turns` where the C lane keeps the turns, for it sends most requests itself.

The lane holds back what waits, and gives Python only what has its turn or is never sent; Python tells it how the
requests ended that it sent or took back, since only Python sees one fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from squall.actors.load.sequence_turns import FAILED, One, Passed, Turn
from squall.scenarios.sequences import IN_TURN

if TYPE_CHECKING:
    from squall.actors._lane import Lane as Core


class LaneTurns(Generic[One]):
    """Of one worker whose sequences keep no connections."""

    def __init__(self, core: Core, read: Callable[[tuple[int, ...]], One]) -> None:
        """`read` makes a request of what the core gives."""
        self._core = core
        self._read = read

    @property
    def n_waiting(self) -> int:
        """Requests that are held back."""
        return int(self._core.n_waiting)

    def comes(self, request_id: int, one: One) -> tuple[Turn, str]:
        """The lane gave Python a request: it is sent now, with the detail that says why it is late, or never, and
        why."""
        del one
        is_cut, is_held = self._core.turn_of(request_id)
        if is_cut:
            return "never", FAILED
        return "now", IN_TURN if is_held else ""

    def ended(self, request_id: int, is_ok: bool) -> Passed[One]:
        """A request that Python sent or took back has ended. What is next goes through the lane."""
        never = tuple(map(self._read, self._core.passed(request_id, is_ok)))
        return Passed(None, never, FAILED if never else "", False)

    def key_of(self, request_id: int) -> int | None:
        """No sequence keeps a connection."""
        del request_id
        return None

    def rest(self) -> list[One]:
        """All that is held back; nothing is afterwards."""
        return [self._read(values) for values in self._core.held_back()]
