"""Which replies are compared in their values, and with what: configuration."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from squall.scenarios.config.fields import Number, Section, Text

SMALLEST_SHARE = 1e-9  # less is a mistyped number: no run has a billion requests


class ValueCheckConfig(Section):
    """Comparison of the values of some replies with those that the head's weights give, or a file of the user's.

    A value is right where |value - expected| <= atol + rtol * |expected|.
    """

    share: Annotated[Number, Field(ge=SMALLEST_SHARE, le=1)] = 0.01  # at least this share of the requests
    rtol: Annotated[Number, Field(ge=0)] = 1e-3
    atol: Annotated[Number, Field(ge=0)] = 1e-5
    reference: Text | None = None  # .npz on the driver's node, for a model that is no head of the zoo

    def every(self, n_parties: int) -> int:
        """Requests whose id is a multiple of it are checked, by every one of `n_parties` in its turn.

        Parties (workers times servers; users of a closed loop) take ids in turn, so the two must have no common factor:
        the largest such number that still gives `share`.
        """
        every = max(1, int(1 / self.share + 1e-9))
        while math.gcd(every, n_parties) != 1:
            every -= 1
        return every
