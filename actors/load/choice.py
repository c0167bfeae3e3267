"""Which server a request goes to where the worker chooses it, at the instant of the send.

`actors/native/choice.c` does the same for the lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from squall.actors.messages.packed_templates import PackedTemplates
from squall.actors.messages.template import Template, TemplateKey
from squall.scenarios.exact.hashing import mix64

Choice = Literal["planned", "least-in-flight", "two-choices"]
"""As the plan says; the server with the fewest requests of this worker in flight; of two that a hash of the request's
id names, the one with fewer (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 2001)."""
RULES: tuple[Choice, ...] = ("planned", "least-in-flight", "two-choices")
"""By their number in the lane."""
_SALT = 3  # other than those by which arrivals are dealt to workers


class Chooser:
    """Chooses by what it was told of requests in flight."""

    def __init__(
        self, rule: Choice, n_targets: int, templates: Mapping[TemplateKey, Template] | PackedTemplates
    ) -> None:
        """`templates` has each request for each of the targets."""
        self.n_in_flight = [0] * n_targets
        self._rule = rule
        self._last = n_targets - 1
        self._turns = [[(last + i) % n_targets for i in range(1, n_targets + 1)] for last in range(n_targets)]
        if isinstance(templates, PackedTemplates):
            self._for_target = templates.for_target
            return
        alike = {
            id(template): [templates[target, *key[1:]] for target in range(n_targets)]
            for key, template in templates.items()
        }
        self._for_target = lambda template, target: alike[id(template)][target]

    def sent(self, token: int, template: Template, target: int | None = None) -> Template:
        """The same request for the server that is chosen, or is `target`, which has one more in flight."""
        target = self.target_of(token) if target is None else target
        self.took(target)
        return self._for_target(template, target)

    def took(self, target: int) -> None:
        """A request was sent to that server."""
        self._last = target
        self.n_in_flight[target] += 1

    def ended(self, target: int) -> None:
        """A request of that server has ended."""
        self.n_in_flight[target] -= 1

    def target_of(self, token: int) -> int:
        """The server to which a request would go that was sent now."""
        counts, n = self.n_in_flight, len(self.n_in_flight)
        if self._rule == "least-in-flight" or n == 1:  # of equals the next in turn after the last
            return min(self._turns[self._last], key=counts.__getitem__)
        mixed = int(mix64(np.array([token], np.int64), _SALT)[0])
        first, second = (mixed & 0xFFFFFFFF) % n, (mixed >> 32) % (n - 1)
        second += second >= first
        return first if counts[first] <= counts[second] else second
