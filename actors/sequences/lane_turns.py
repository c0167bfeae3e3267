"""`squall.actors.sequences.turns.Turns` where the C lane keeps the turns, for it sends most requests itself.

The lane holds back what waits, and gives Python only what has its turn or is never sent; Python tells it how the
requests ended that it sent or took back, since only Python sees one fail.
"""

from __future__ import annotations

from squall.actors.load.lane import Lane
from squall.actors.load.pacing import Due
from squall.actors.sequences.turns import FAILED, LOST, Passed, Turn
from squall.scenarios.sequences import IN_TURN

_CUTS = ("", FAILED, LOST)
"""As `actors/native/sequences.c` numbers them."""


class LaneTurns:
    """Of one worker whose sequences keep no connections."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._core = lane.core

    @property
    def n_waiting(self) -> int:
        """Requests that are held back."""
        return int(self._core.n_waiting)

    def comes(self, request_id: int, one: Due) -> tuple[Turn, str]:
        """The lane gave Python a request: it is sent now, with the detail that says why it is late, or never, and
        why."""
        cut, is_held = self._core.turn_of(request_id)
        if cut:
            self._core.landed(one.template.target)  # it was counted as in flight
            return "never", _CUTS[cut]
        return "now", IN_TURN if is_held else ""

    def ended(self, request_id: int, is_ok: bool) -> Passed[Due]:
        """A request that Python sent or took back has ended. What is next goes through the lane."""
        never = tuple(map(self._lane.due_of_arrival, self._core.passed(request_id, is_ok)))
        return Passed(None, never, FAILED if never else "", False)

    def key_of(self, request_id: int) -> int | None:
        """No sequence keeps a connection."""
        del request_id
        return None

    def rest(self) -> list[Due]:
        """All that is held back; nothing is afterwards."""
        return [self._lane.due_of_arrival(values) for values in self._core.held_back()]
