"""How long a wait may take: as long as it was given, but little more once the user wants to go."""

from __future__ import annotations

import time

IN_A_HURRY_S = 2.0
"""What a wait is given after a signal, or after its own beginning where that was later."""
LOOK_EVERY_S = 0.1


class Patience:
    """One for the process, as signals are. `hurry` is safe within a signal's handler."""

    def __init__(self) -> None:
        self._hurried_at: float | None = None

    def hurry(self) -> None:
        """From now on waits are short."""
        if self._hurried_at is None:
            self._hurried_at = time.monotonic()

    def restore(self) -> None:
        """Waits are as long as they say again: the next command."""
        self._hurried_at = None

    @property
    def is_short(self) -> bool:
        """Whether somebody wants to go."""
        return self._hurried_at is not None

    def deadline(self, begun: float, timeout_s: float) -> float:
        """Of a wait that began at `begun`; on time.monotonic. It may come nearer while one waits."""
        latest = begun + timeout_s
        if self._hurried_at is None:
            return latest
        return min(latest, max(begun, self._hurried_at) + IN_A_HURRY_S)


PATIENCE = Patience()
