"""What is observed beside the requests: what is on, what is missing, and how to get it."""

from __future__ import annotations

from typing import Literal

from cluster.progress import Screen
from scenarios.errors import ClusterError

BATCHES_MEND = "serve a head of `squall models list`"


class Collectors:
    """By name: status on, off or missing, with reason and mend; what is missing is said once on the screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._found: dict[str, dict[str, str]] = {}

    def to_mapping(self) -> dict[str, dict[str, str]]:
        """For the manifest."""
        return dict(self._found)

    def is_on(self, name: str) -> bool:
        """True if that collector runs."""
        return self._found.get(name, {}).get("status") == "on"

    def turn_on(self, name: str) -> None:
        """Notes that it runs."""
        self._set(name, "on")

    def lose(self, name: str, reason: str, mend: str) -> None:
        """Notes that it gives nothing, and says so."""
        self._set(name, "missing", reason, mend)

    def leave_out(self, name: str, reason: str) -> None:
        """Notes that it does not run and need not: nothing is said on the screen."""
        self._set(name, "off", reason)

    def choose(
        self, name: str, wanted: Literal["auto", "off", "required"], reason: str | None, mend: str
    ) -> None:
        """`reason`: why it cannot run, None if it can. Raises ClusterError where it is required and cannot."""
        if wanted == "off":
            self._set(name, "off", f"profile.{name} is off")
        elif reason is None:
            self._set(name, "on")
        elif wanted == "required":
            raise ClusterError(f"profile.{name} is required, but {reason}; {mend}")
        else:
            self.lose(name, reason, mend)

    def _set(self, name: str, status: str, reason: str = "", mend: str = "") -> None:
        self._found[name] = {"status": status, "reason": reason, "mend": mend}
        if status == "missing":
            self._screen.missing(name, reason, mend)
