"""Which of several servers gets an arrival: configuration. `squall.scenarios.plan.route` has the rules."""

from __future__ import annotations

from typing import Final, Literal

from squall.scenarios.fields import Section, Text

RoutingKind = Literal[
    "round-robin", "random", "weighted", "sticky", "trace", "least-in-flight", "two-choices", "mirror"
]
CHOSEN_AT_SEND: Final = ("least-in-flight", "two-choices")
WEIGHED = ("weighted", "sticky")
NO_MIRROR = "a user of a closed loop waits for one server's reply, so mirror has no meaning; use another kind"


class RoutingConfig(Section):
    """Which server gets an arrival, where there are several."""

    kind: RoutingKind = "round-robin"
    column: Text | None = None  # of the trace, by whose values kind `trace` routes

    @property
    def is_planned(self) -> bool:
        """True if the plan says which server gets an arrival; else its worker chooses at the instant of the send."""
        return self.kind not in CHOSEN_AT_SEND

    @property
    def is_weighed(self) -> bool:
        """True if the servers' weights count."""
        return self.kind in WEIGHED
