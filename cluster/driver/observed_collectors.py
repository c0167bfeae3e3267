"""What is observed beside the requests: what is on, what is missing, and how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from squall.analysis.storage.collected import CollectorState
from squall.cluster.progress import Screen
from squall.scenarios.errors import ClusterError

CollectorName = Literal["triton", "host", "batches", "kernels", "nvml", "nsys", "triton trace"]
ELSEWHERE = "the server is on none of the nodes"
KERNELS_MEND = "docs/kernels.md tells what a server needs, and squall inject prints it"
BATCHES_MEND = "squall inject prints what a server needs (docs/batches.md)"


class Collectors:
    """By name: status on, off or missing, with reason and mend; what is missing is said once on the screen.

    `server`: whose they are, where a run has several; reasons begin with it.
    """

    def __init__(self, screen: Screen, server: str = "") -> None:
        self._screen = screen
        self._server = server
        self._found: dict[CollectorName, CollectorState] = {}

    def states(self) -> dict[str, CollectorState]:
        """For the manifest."""
        return {str(name): found for name, found in self._found.items()}

    def is_on(self, name: CollectorName) -> bool:
        """True if that collector runs."""
        return name in self._found and self._found[name].status == "on"

    def turn_on(self, name: CollectorName, how: str = "") -> None:
        """Notes that it runs, and how where there are several ways."""
        self._set(name, "on", how=how)

    def lose(self, name: CollectorName, reason: str, mend: str) -> None:
        """Notes that it gives nothing, and says so."""
        self._set(name, "missing", reason, mend)

    def leave_out(self, name: CollectorName, reason: str) -> None:
        """Notes that it does not run and need not: nothing is said on the screen."""
        self._set(name, "off", reason)

    def choose(
        self,
        name: Literal["nvml", "nsys", "batches", "kernels", "triton trace"],
        wanted: Literal["auto", "off", "required"],
        reason: str | None,
        mend: str,
        how: str = "",
        is_quiet: bool = False,
    ) -> None:
        """`reason`: why it cannot run, None if it can, and `how` as in `turn_on`; `is_quiet`: it is no lack, unless it
        is required. Raises ClusterError where it is required and cannot.
        """
        key = f"profile.{name.replace(' ', '_')}"
        if wanted == "off":
            self._set(name, "off", f"{key} is off")
        elif reason is None:
            self._set(name, "on", how=how)
        elif wanted == "required":
            raise ClusterError(f"{key} is required, but {reason}; {mend}")
        elif is_quiet:
            self.leave_out(name, reason)
        else:
            self.lose(name, reason, mend)

    def _set(self, name: CollectorName, status: str, reason: str = "", mend: str = "", how: str = "") -> None:
        if reason and self._server:
            reason = f"{self._server}: {reason}"
        self._found[name] = CollectorState(status=status, reason=reason, mend=mend, how=how)
        if status == "missing":
            self._screen.missing(name, reason, mend)


def together(found: Sequence[Collectors]) -> dict[str, CollectorState]:
    """For the manifest, of all servers of a run: missing where it is so of one, else on where it is so of one."""
    by_name: dict[str, list[CollectorState]] = {}
    for one in found:
        for name, state in one.states().items():
            by_name.setdefault(name, []).append(state)
    return {name: _worst(states) for name, states in by_name.items()}


def _worst(states: Sequence[CollectorState]) -> CollectorState:
    """Those of the status that counts, with all of their reasons."""
    status = next(one for one in ("missing", "on", "off") if any(state.status == one for state in states))
    alike = [state for state in states if state.status == status]
    told = {name: dict.fromkeys(getattr(one, name) for one in alike) for name in ("reason", "mend", "how")}
    return CollectorState(
        status=status, **{name: "; ".join(filter(None, texts)) for name, texts in told.items()}
    )
